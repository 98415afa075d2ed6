"""Translate text with a trained run, its own preprocessing applied and undone.

    echo "Hoxe falamos do mar." | python -m experiments.translate RUN
    python -m experiments.translate RUN -i source.txt -o translation.txt
    python -m experiments.translate RUN                       # in a terminal: line by line
    python -m experiments.translate RUN --nbest 4             # sentence, rank, score, translation
    python -m experiments.translate RUN_1 RUN_2               # an ensemble
    echo "Hoxe falamos do mar." | python -m experiments.translate RUN --attention attention.html

RUN is a run's folder, work/runs/<pair>/<variant>/<seed>-<digest>. One line in, one line out, in
order: empty lines too, and lines longer than any that the model was trained on.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from . import heatmap
from .command_line import catch, parser_of
from .commands import RunError, environment, interactive_argv
from .decode import HYPOTHESIS, add_model, ensemble, search_options
from .plan import Run
from .process import read_module, write_atomically

TOGETHER = 1000  # lines put into batches together, where nobody waits for the first of them


class Translation(NamedTuple):
    """One translation of a sentence.

    Attributes:
        sentence, rank: from 1.
        score: base-2 log-probability over the length penalty.
        source, pieces: subword pieces of the source as the model sees them, and of the hypothesis.
        text: what a person reads.
    """

    sentence: int
    rank: int
    score: float
    source: str
    pieces: str
    text: str


class Translator:
    """Three filters, each a process: encode, ``fairseq-interactive``, restore.

    Args:
        run: whose preprocessing and beam search it is.
        checkpoints: several make an ensemble.
        options: of the beam search.
        tokenised: text is words separated by spaces, in and out.
        together: lines that are translated together.
    """

    def __init__(
        self,
        run: Run,
        checkpoints: list[Path],
        options: dict[str, Any],
        tokenised: bool,
        together: int,
    ):
        data, words = run.data["data"], ["--tokenised"] if tokenised else []
        argv = interactive_argv(options, run.options, data, checkpoints, run.langs, together)
        self.failure: RunError | None = None
        self.closing = contextlib.ExitStack()
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.closing.callback(self.log.close)
        env = environment(run.cfg["runtime"]["threads"])
        # fairseq reads and prints as the locale says, and keeps what it prints.
        env |= {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
        self.encode = self.start("data_prep", ["encode", data, *words], env)
        self.model = self.start("fairseq_cli.interactive", argv, env, self.encode.stdout, self.log)
        assert self.encode.stdout is not None
        self.encode.stdout.close()  # the model's alone: should it end, encode must notice
        self.restore = self.start("data_prep", ["restore", data, *words], env)

    def start(
        self,
        module: str,
        argv: list[str],
        env: dict[str, str],
        stdin: int | IO[str] | None = subprocess.PIPE,
        stderr: IO[str] | None = None,
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *argv],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
            encoding="utf-8",
        )
        self.closing.callback(process.wait)
        self.closing.callback(process.terminate)
        return process

    def __enter__(self) -> Translator:
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.close()

    def feed(self, lines: Iterable[str]) -> None:
        """Lines without their ends, as they come; a thread of its own, since pipes fill up."""
        assert self.encode.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.encode.stdin as sink:
            try:
                for line in lines:
                    sink.write(line + "\n")
                    sink.flush()
            except RunError as error:
                self.failure = error

    def translate(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Translations in the order of the lines, best first.

        Raises:
            RunError: if a filter fails, or the lines cannot be read.
        """
        threading.Thread(target=self.feed, args=(lines,), daemon=True).start()
        assert self.model.stdout is not None
        source, sentence, rank = "", 0, 0
        for line in self.model.stdout:
            line = line.removesuffix("\n")
            if line.startswith("S-"):
                source, rank, sentence = line.partition("\t")[2], 0, sentence + 1
            elif match := HYPOTHESIS.fullmatch(line):
                rank += 1
                text = self.restored(match[3]) if source else ""  # of nothing, nothing
                yield Translation(sentence, rank, float(match[2]), source, match[3], text)
        if self.failure:
            raise self.failure
        for process, what in ((self.model, "the model"), (self.encode, "data_prep encode")):
            if process.wait():
                self.log.seek(0)
                said = [part for part in self.log.read().split("\n") if part.strip()]
                raise RunError(f"{what} failed: {said[-1].strip() if said else 'see above'}")

    def restored(self, pieces: str) -> str:
        assert self.restore.stdin is not None and self.restore.stdout is not None
        self.restore.stdin.write(pieces + "\n")
        self.restore.stdin.flush()
        return self.restore.stdout.readline().removesuffix("\n")


def lines_of(file: IO[bytes], name: str) -> Iterator[str]:
    """Lines as they come, which end at a plain newline only.

    Raises:
        RunError: naming the line that is not UTF-8.
    """
    for number, data in enumerate(file, 1):
        try:
            yield data.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise RunError(f"{name}, line {number}: not UTF-8") from None


def draw(run: Run, checkpoint: Path, translation: Translation, path: Path) -> None:
    """The attention of every layer and head, as a page."""
    sentence = {"source": translation.source, "target": translation.pieces}
    argv = [run.data["data"], "--path", str(checkpoint)]
    weights = read_module("qknorm_mt.weights", argv, stdin=json.dumps(sentence))
    write_atomically(path, heatmap.page(json.loads(weights), f"{run.name}: attention"))
    print(f"attention of sentence {translation.sentence}: {path}", file=sys.stderr)


@catch
def main(argv: list[str] | None = None) -> int:
    parser = parser_of("translate", __doc__)
    add_model(parser)
    parser.add_argument("-i", "--input", type=Path, help="file to read (standard input)")
    parser.add_argument("-o", "--output", type=Path, help="file to write (standard output)")
    parser.add_argument(
        "--tokenised", action="store_true", help="words separated by spaces, in and out"
    )
    parser.add_argument(
        "--together",
        type=int,
        help=f"lines translated at a time (1 in a terminal, else {TOGETHER})",
    )
    parser.add_argument(
        "--attention", type=Path, metavar="HTML", help="draw the attention of the first sentence"
    )
    args = parser.parse_args(argv)
    run, checkpoints = ensemble(args.runs, args.checkpoint)
    if args.attention and len(checkpoints) > 1:
        raise RunError("--attention is of one model: give one RUN")
    if args.together is not None and args.together < 1:
        raise RunError(f"--together {args.together} is not allowed: legal is at least 1")
    drawn = False
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(args.input.open("rb")) if args.input else sys.stdin.buffer
        together = args.together or (1 if source.isatty() else TOGETHER)
        translator = stack.enter_context(
            Translator(run, checkpoints, search_options(run, args), args.tokenised, together)
        )
        output: list[str] = []
        for found in translator.translate(lines_of(source, str(args.input or "standard input"))):
            line = found.text
            if args.nbest is not None:
                line = f"{found.sentence}\t{found.rank}\t{found.score:.4f}\t{found.text}"
            if args.output:
                output.append(line + "\n")
            else:
                print(line, flush=True)
            if args.attention and found.source and not drawn:
                draw(run, checkpoints[0], found, args.attention)
                drawn = True
    if args.output:
        write_atomically(args.output, "".join(output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
