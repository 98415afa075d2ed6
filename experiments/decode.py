"""Hypotheses of trained runs on dev or test: one a line, in the order of the input, as words.

    python -m experiments.decode RUN                       # of the test set, to stdout; scores too
    python -m experiments.decode RUN --split dev --beam 8 --lenpen 0.6 > dev.hyp
    python -m experiments.decode RUN --nbest 4 > nbest.tsv  # sentence, rank, score, hypothesis
    python -m experiments.decode RUN_1 RUN_2               # an ensemble
    python -m experiments.average RUN --last 5             # mean of its last checkpoints, then:
    python -m experiments.decode RUN --checkpoint checkpoint_average.pt

RUN is a run's folder, work/runs/<pair>/<variant>/<seed>-<digest>. Beam and length penalty are the
first run's unless given. Nothing is written to results/.
"""

from __future__ import annotations

import re
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .command_line import catch, parser_of
from .commands import RunError, generate_argv, task_of
from .lines import to_lines, to_text
from .plan import Run, load
from .process import read_module, run_module
from .references import references, score_lines

HYPOTHESIS = re.compile(r"H-(\d+)\t([^\t]*)\t(.*)")


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis of a sentence.

    Attributes:
        score: base-2 log-probability over the length penalty, as the beam search ranks it.
        text: subword pieces or words, separated by spaces.
    """

    score: float
    text: str


def decode(
    run: Run, split: str, checkpoints: Sequence[Path], options: Mapping[str, Any], log: Path
) -> list[list[Hypothesis]]:
    """Translate one split with ``fairseq-generate``, and undo its subwords.

    Args:
        checkpoints: several make an ensemble.
        options: ``fairseq-generate``'s; ``nbest`` hypotheses of each sentence are returned, best
            first.

    Raises:
        RunError: if a sentence has no hypothesis.
    """
    data, threads = run.data["data"], run.cfg["runtime"]["threads"]
    paths = ":".join(str(path) for path in checkpoints)
    with tempfile.TemporaryDirectory(dir=log.parent) as folder:
        task = task_of(run.options)
        argv = generate_argv(options, data, paths, split, run.langs, folder, task, run.cpu)
        run_module("fairseq_cli.generate", argv, log, threads, run.cores.numbers, stop=run.stop)
        (output,) = Path(folder).glob("generate-*.txt")
        found = in_order(output.read_text(encoding="utf-8"), run.data["lines"][split])
    pieces = [hypothesis.text for beam in found for hypothesis in beam]
    words = iter(to_lines(read_module("data_prep", ["undo", data, "--own"], stdin=to_text(pieces))))
    return [[replace(hypothesis, text=next(words)) for hypothesis in beam] for beam in found]


def in_order(output: str, lines: int) -> list[list[Hypothesis]]:
    """Hypotheses in the order of the input, from what ``fairseq-generate`` wrote.

    Raises:
        RunError: naming the sentences that have none.
    """
    found: dict[int, list[Hypothesis]] = {}
    for line in output.split("\n"):
        match = HYPOTHESIS.fullmatch(line)
        if match:
            found.setdefault(int(match[1]), []).append(Hypothesis(float(match[2]), match[3]))
    missing = sorted(set(range(lines)) - set(found))
    if missing or len(found) != lines:
        raise RunError(f"no hypothesis for sentences {missing[:5]} of {lines}")
    return [found[i] for i in range(lines)]


def best_of(beams: Sequence[Sequence[Hypothesis]]) -> list[str]:
    return [beam[0].text for beam in beams]


def n_best(beams: Sequence[Sequence[Hypothesis]]) -> Iterator[str]:
    """Lines: sentence and rank, from 1, score, hypothesis."""
    for sentence, beam in enumerate(beams, 1):
        for rank, hypothesis in enumerate(beam, 1):
            yield f"{sentence}\t{rank}\t{hypothesis.score:.4f}\t{hypothesis.text}"


def search_options(run: Run, args: Namespace) -> dict[str, Any]:
    """The run's own decoding with what was given on the command line."""
    given = {name: getattr(args, name) for name in ("beam", "lenpen", "nbest")}
    options = {**run.cfg["decode"], **{name: v for name, v in given.items() if v is not None}}
    if options["beam"] < 1:
        raise RunError(f"--beam {options['beam']} is not allowed: legal is at least 1")
    if not 1 <= options.get("nbest", 1) <= options["beam"]:
        raise RunError(f"--nbest {options['nbest']} is not allowed: legal is 1 to the beam")
    return options


def ensemble(folders: Sequence[Path], checkpoint: str) -> tuple[Run, list[Path]]:
    """The first of several runs, and the checkpoints of all.

    Raises:
        RunError: if one is not trained, or they are not of the same prepared data.
    """
    runs = [load(folder) for folder in folders]
    for run in runs[1:]:
        if run.data["digest"] != runs[0].data["digest"]:
            raise RunError(
                f"{run.folder} was trained on other data than {runs[0].folder}: an ensemble needs "
                "one vocabulary"
            )
        if task_of(run.options) != task_of(runs[0].options):
            raise RunError(f"{run.folder} has another task, and beam search, than the first run")
    paths = [run.folder / "checkpoints" / checkpoint for run in runs]
    for path in paths:
        if not path.exists():
            raise RunError(f"{path}: no such file")
    return runs[0], paths


def add_model(parser: ArgumentParser) -> None:
    """Which model, and how it searches."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a trained run's folder")
    parser.add_argument(
        "--checkpoint", default="checkpoint_best.pt", help="file in its checkpoints/ (%(default)s)"
    )
    parser.add_argument("--beam", type=int, help="beam size (as the run itself was decoded)")
    parser.add_argument("--lenpen", type=float, help="length penalty (likewise)")
    parser.add_argument("--nbest", type=int, help="write the best so many, with scores, as TSV")


@catch
def main(argv: list[str] | None = None) -> int:
    parser = parser_of("decode", __doc__)
    add_model(parser)
    parser.add_argument("--split", choices=("dev", "test"), default="test", help="(%(default)s)")
    args = parser.parse_args(argv)
    run, checkpoints = ensemble(args.runs, args.checkpoint)
    options = search_options(run, args)
    beams = decode(run, args.split, checkpoints, options, run.folder / "decode.log")
    sys.stdout.write(to_text(best_of(beams) if args.nbest is None else n_best(beams)))
    reference = references(Path(run.data["data"]), args.split, run.langs[1])
    scored = score_lines(best_of(beams), reference, run.langs[1])
    for name, score in scored["scores"].items():
        print(f"{name} {score['score']:.2f}  {score['signature']}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
