"""Command line of data preparation: ``python -m data_prep COMMAND``."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from . import restore, subword
from .bitext import SPLITS, Bitext
from .clean import CleanConfig, detokenise
from .download import fetch_source
from .parallel import cores
from .prepare import prepare
from .sources import MIRROR_VARIABLE, PUBLISHED, describe, find_source, load_sources, mirrors
from .stage import log
from .subword import METHODS, SubwordConfig
from .text import PrepError
from .toy import SOURCE_LANG, TARGET_LANG

EXAMPLES = f"""\
examples:
  # Galician-English as published, from the TED talks, downloaded if need be
  python -m data_prep prepare --source ted_talks -s gl -t en --root work/data/gl-en \\
      --subwords subword_nmt --subword-size 3000

  # the same from files of your own: DIR/train.gl, DIR/train.en, DIR/dev.gl, ...
  python -m data_prep prepare -s gl -t en --train DIR/train --dev DIR/dev --test DIR/test \\
      --root work/data/gl-en --subwords subword_nmt --subword-size 3000

  # untokenised text, cleaned by today's habits
  python -m data_prep prepare -s gl -t en --train DIR/train --dev DIR/dev --test DIR/test --raw \\
      --normalise --max-ratio 2 --min-script 0.5 --drop-duplicates \\
      --root work/data/gl-en --subwords sentencepiece_unigram --subword-size 3000

  # the artificial pair
  python -m data_prep prepare --toy-seed 1 --root work/data/toy \\
      --subwords sentencepiece_bpe --subword-size 600

  # what can be downloaded; download it without preparing anything
  python -m data_prep sources
  python -m data_prep download iwslt15.en-vi --downloads work/downloads --mirror DIR_OR_URL

  # subword hypotheses back to words, then to plain text
  python -m data_prep undo work/data/toy/binarised-... < hypotheses.bpe > hypotheses.txt
  python -m data_prep detokenise en < hypotheses.txt

  # plain sentences to pieces as a prepared set has them, and translations back, line by line
  python -m data_prep encode work/data/toy/binarised-... < source.txt > source.bpe
  python -m data_prep restore work/data/toy/binarised-... < hypotheses.bpe > translation.txt

Mirrors are looked at before the published addresses; ${MIRROR_VARIABLE} may hold some too,
separated by spaces.
"""


def parser() -> argparse.ArgumentParser:
    options: dict = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
    top = argparse.ArgumentParser(
        prog="python -m data_prep", description=__doc__, epilog=EXAMPLES, **options
    )
    commands = top.add_subparsers(dest="command", required=True)
    add_prepare(
        commands.add_parser(
            "prepare",
            help="text to a binarised set; prints its folder, L and g_init as JSON",
            epilog=EXAMPLES,
            **options,
        )
    )
    p = commands.add_parser("sources", help="what can be downloaded, with checksums and terms")
    p.add_argument("--sources", type=Path, default=PUBLISHED, help=argparse.SUPPRESS)
    p = commands.add_parser("download", help="download a published data set, or check it")
    p.add_argument("source", help="its name, as `sources` lists it")
    add_places(p)
    p = commands.add_parser("undo", help="subword lines on stdin to words on stdout")
    p.add_argument("data", type=Path, help="prepared set whose subwords these are")
    p.add_argument(
        "--own", action="store_true", help="they are, however odd: do not look whether they can be"
    )
    p = commands.add_parser("detokenise", help="Moses-tokenised lines on stdin to plain text")
    p.add_argument("lang", help="language code")
    for name, what in (
        ("encode", "source sentences on stdin to pieces on stdout, line by line"),
        ("restore", "target pieces on stdin to sentences on stdout, line by line"),
    ):
        p = commands.add_parser(name, help=what)
        p.add_argument("data", type=Path, help="prepared set")
        p.add_argument(
            "--tokenised", action="store_true", help="sentences are words separated by spaces"
        )
    return top


def add_places(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--downloads", type=Path, default=Path("work/downloads"), help="folder (%(default)s)"
    )
    p.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="DIR_OR_URL",
        help="folder or address to look at first; may be given several times",
    )
    p.add_argument(
        "--sources", type=Path, default=PUBLISHED, help="file of data sets (the published ones)"
    )


def add_prepare(p: argparse.ArgumentParser) -> None:
    p.add_argument("-s", "--source-lang", default=SOURCE_LANG, help="code of the source language")
    p.add_argument("-t", "--target-lang", default=TARGET_LANG, help="code of the target language")
    p.add_argument("--root", type=Path, required=True, help="folder that the stages go into")
    p.add_argument("--workers", type=int, default=cores(), help="processes (%(default)s)")
    p.add_argument("--published-length", type=float, help="L to show beside ours")
    text = p.add_argument_group("where the text is from: one of")
    text.add_argument("--source", help="a published data set (see `python -m data_prep sources`)")
    for split in SPLITS:
        text.add_argument(f"--{split}", type=Path, metavar="PREFIX", help=f"{split} files' prefix")
    text.add_argument("--toy-seed", type=int, help="generate the toy pair")
    add_places(p)
    rules = p.add_argument_group("cleaning (as published unless told otherwise)")
    rules.add_argument(
        "--raw",
        nargs="*",
        choices=SPLITS,
        help="splits that are untokenised, and get Moses tokenisation (no name: all)",
    )
    rules.add_argument(
        "--stray",
        choices=("refuse", "space"),
        default="refuse",
        help="line separators and control characters inside a line of your files (%(default)s)",
    )
    rules.add_argument(
        "--normalise", action="store_true", help="unescape entities, normalise characters"
    )
    rules.add_argument(
        "--max-tokens", type=int, default=200, help="longest training side, in words (%(default)s)"
    )
    rules.add_argument("--max-ratio", type=float, help="largest ratio of lengths of a pair")
    rules.add_argument(
        "--ratio-from", type=int, default=6, help="shortest longer side it applies to (%(default)s)"
    )
    rules.add_argument(
        "--min-script", type=float, help="smallest share of letters of the language's own script"
    )
    rules.add_argument(
        "--drop-overlap",
        action="store_true",
        help="drop training pairs that share a side with dev or test",
    )
    rules.add_argument("--drop-duplicates", action="store_true", help="keep one of equal pairs")
    pieces = p.add_argument_group("subwords, joint, learned on train")
    pieces.add_argument("--subwords", choices=METHODS, required=True, help="how")
    pieces.add_argument(
        "--subword-size", type=int, required=True, help="merges (subword_nmt), or types"
    )
    pieces.add_argument(
        "--vocabulary-threshold",
        type=int,
        default=1,
        help="subword_nmt: undo merges rarer than this in a language (%(default)s)",
    )


def run_prepare(args: argparse.Namespace) -> None:
    raw = SPLITS if args.raw == [] else tuple(s for s in SPLITS if s in (args.raw or ()))
    cleaning = CleanConfig(
        raw=raw,
        normalise=args.normalise,
        max_tokens=args.max_tokens,
        max_ratio=args.max_ratio,
        ratio_from=args.ratio_from,
        min_script=args.min_script,
        drop_overlap=args.drop_overlap,
        drop_duplicates=args.drop_duplicates,
    )
    subwords = SubwordConfig(args.subwords, args.subword_size, args.vocabulary_threshold)
    data, report = prepare(
        bitext_of(args), cleaning, subwords, args.root, args.workers, args.published_length
    )
    if report.made:
        log((report.path / "report.md").read_text(encoding="utf-8"))
    log(f"report (report.md, report.json, lengths.svg): {report.path}")
    places = {"data": str(data.path), "report": str(report.path)}
    summary = json.loads((report.path / "report.json").read_text(encoding="utf-8"))
    result = {**places, "digest": data.digest, **data.manifest["report"]}
    result["percentiles"] = summary["percentiles"]
    print(json.dumps(result, ensure_ascii=False))


def bitext_of(args: argparse.Namespace) -> Bitext:
    prefixes = {split: getattr(args, split) for split in SPLITS}
    given = [f"--{split}" for split, prefix in prefixes.items() if prefix is not None]
    kinds = [bool(given), args.source is not None, args.toy_seed is not None]
    if sum(kinds) != 1 or (given and len(given) < len(SPLITS)):
        raise PrepError(
            "say where the text is from by exactly one of --source, --toy-seed, and all of "
            f"{', '.join('--' + split for split in SPLITS)}"
        )
    return Bitext(
        args.source_lang,
        args.target_lang,
        source=find_source(args.source, args.sources) if args.source else None,
        downloads=args.downloads,
        mirrors=mirrors(args.mirror),
        prefixes=prefixes if given else {},
        replace_stray=args.stray == "space",
        toy_seed=args.toy_seed,
    )


def run_sources(args: argparse.Namespace) -> None:
    print("\n\n".join(describe(source) for source in load_sources(args.sources).values()))


def run_download(args: argparse.Namespace) -> None:
    source = find_source(args.source, args.sources)
    for path in fetch_source(source, args.downloads, mirrors(args.mirror)).values():
        print(path)


def run_undo(args: argparse.Namespace) -> None:
    filter_stdin(lambda lines: subword.undo(lines, args.data, args.own))


def run_detokenise(args: argparse.Namespace) -> None:
    filter_stdin(lambda lines: detokenise(lines, args.lang))


def run_encode(args: argparse.Namespace) -> None:
    stream_stdin(restore.encoder(args.data, args.tokenised))


def run_restore(args: argparse.Namespace) -> None:
    stream_stdin(restore.restorer(args.data, args.tokenised))


def stream_stdin(convert: Callable[[str], str]) -> None:
    """Each line of stdin to one on stdout as soon as it is there, while anyone reads them."""
    for data in sys.stdin.buffer:
        line = convert(data.decode("utf-8").removesuffix("\n"))
        try:
            sys.stdout.buffer.write(line.encode("utf-8") + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return


def filter_stdin(convert: Callable[[list[str]], list[str]]) -> None:
    """Lines of stdin, cut at newlines only, to lines of stdout."""
    text = sys.stdin.buffer.read().decode("utf-8")
    lines = convert(text.removesuffix("\n").split("\n")) if text else []
    sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode("utf-8"))


def explain(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space left on the disk: free some and run again; finished stages are kept"
    return f"{error.filename or 'a file'}: {error.strerror or error}"


COMMANDS = {
    "prepare": run_prepare,
    "sources": run_sources,
    "download": run_download,
    "undo": run_undo,
    "detokenise": run_detokenise,
    "encode": run_encode,
    "restore": run_restore,
}


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        COMMANDS[args.command](args)
    except PrepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except UnicodeDecodeError as error:
        print(f"error: standard input is not UTF-8: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on from there", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
