"""Command line of data preparation: ``python -m data_prep {prepare,undo,detokenise}``."""

from __future__ import annotations

import argparse
import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path

from .clean import CleanConfig, detokenise
from .prepare import SPLITS, SUBWORD_MODEL, Bitext, prepare
from .subword import Subwords
from .text import PrepError
from .toy import SOURCE_LANG, TARGET_LANG

EXAMPLES = """\
examples:
  # Galician-English from files train.gl, train.en, dev.gl, ... that are tokenised already
  python -m data_prep prepare -s gl -t en --train DIR/train --dev DIR/dev --test DIR/test \\
      --root work/data/gl-en --vocab-size 3000

  # the artificial pair
  python -m data_prep prepare --toy-seed 1 --root work/data/toy --vocab-size 600

  # subword hypotheses back to words, then to plain text
  python -m data_prep undo work/data/toy/binarised-... < hypotheses.bpe > hypotheses.txt

  # tokenised English to plain text
  python -m data_prep detokenise en < hypotheses.txt
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m data_prep",
        allow_abbrev=False,
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)
    p = commands.add_parser(
        "prepare",
        allow_abbrev=False,
        help="bitext files to a binarised set; prints its folder, L and g_init as JSON",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("-s", "--source-lang", default=SOURCE_LANG, help="ending of source files")
    p.add_argument("-t", "--target-lang", default=TARGET_LANG, help="ending of target files")
    for split in SPLITS:
        p.add_argument(f"--{split}", type=Path, metavar="PREFIX", help=f"{split} files' prefix")
    p.add_argument("--toy-seed", type=int, help="generate the toy pair instead of reading files")
    p.add_argument("--root", type=Path, required=True, help="folder that the stages go into")
    p.add_argument("--vocab-size", type=int, required=True, help="joint subword types")
    p.add_argument("--raw", action="store_true", help="text is untokenised: apply Moses")
    p.add_argument(
        "--max-tokens",
        type=int,
        default=200,
        help="longest training side, in words (default: %(default)s)",
    )
    p.add_argument(
        "--max-ratio", type=float, default=2.0, help="largest ratio of lengths (%(default)s)"
    )
    p.add_argument(
        "--ratio-from", type=int, default=6, help="shortest longer side it applies to (%(default)s)"
    )
    p.add_argument("--keep-duplicates", action="store_true", help="keep equal training pairs")
    p = commands.add_parser("undo", help="subword lines on stdin to words on stdout")
    p.add_argument("data", type=Path, help="binarised set whose subwords these are")
    p = commands.add_parser("detokenise", help="Moses-tokenised lines on stdin to plain text")
    p.add_argument("lang", help="language code")
    return top


def run_prepare(args: argparse.Namespace) -> None:
    prefixes = {split: getattr(args, split) for split in SPLITS}
    missing = [f"--{split}" for split, prefix in prefixes.items() if prefix is None]
    if args.toy_seed is None and missing:
        raise PrepError(f"missing {', '.join(missing)} (or --toy-seed for the toy pair)")
    if args.toy_seed is not None and len(missing) < len(SPLITS):
        raise PrepError("--toy-seed generates the text: give no --train, --dev or --test with it")
    bitext = Bitext(args.source_lang, args.target_lang, prefixes, args.toy_seed)
    config = CleanConfig(
        args.raw, args.max_tokens, args.max_ratio, args.ratio_from, not args.keep_duplicates
    )
    stage = prepare(bitext, config, args.vocab_size, args.root)
    result = {"data": str(stage.path), "digest": stage.digest, **stage.manifest["report"]}
    print(json.dumps(result, ensure_ascii=False))


def run_undo(args: argparse.Namespace) -> None:
    model = args.data / SUBWORD_MODEL
    if not model.is_file():
        raise PrepError(f"{args.data} is no binarised set: it has no {SUBWORD_MODEL}")
    filter_stdin(Subwords(model).decode)


def run_detokenise(args: argparse.Namespace) -> None:
    filter_stdin(lambda lines: detokenise(lines, args.lang))


def filter_stdin(convert: Callable[[list[str]], list[str]]) -> None:
    """Lines of stdin, cut at newlines only, to lines of stdout."""
    text = sys.stdin.buffer.read().decode("utf-8")
    lines = convert(text.removesuffix("\n").split("\n")) if text else []
    sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode("utf-8"))


def explain(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space left on the disk: free some and run again; finished stages are kept"
    return f"{error.filename or 'a file'}: {error.strerror or error}"


COMMANDS = {"prepare": run_prepare, "undo": run_undo, "detokenise": run_detokenise}


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
