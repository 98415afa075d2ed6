"""Every score of the ledger again, from the stored hypotheses and the references that you have.

    python -m experiments.rescore                    # compare; exit code 1 if anything differs
    python -m experiments.rescore --work work --results results
    python -m experiments.rescore --write            # put the new scores into the ledger

References are those of prepared sets under work/data/, found by their checksum, so that a row is
never scored against another text than it was. Rows without any are named.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .collect import put_row, read_rows, stats_path, stats_table
from .command_line import catch, parser_of
from .commands import RunError
from .lines import read_lines
from .process import write_atomically
from .references import SPLITS, find_prepared, references, score_lines, target_lang

SAME, RENEWED = "as it was", "renewed"


def rescored(
    results: Path, work: Path, row: dict[str, Any]
) -> tuple[dict[str, Any], str, list[str]] | None:
    """The row with its scores computed anew, the sentence statistics of test as their file has
    them, and what is not as it was, in words; None without its references.

    Raises:
        RunError: naming the hypotheses that are missing or cannot be scored.
    """
    lang, new, table = target_lang(row), {**row, "scores": {}}, ""
    found: list[str] = []
    for split in SPLITS:
        data = find_prepared(work, row, split)
        if data is None:
            return None
        path = results / row["hypotheses"][split]
        hypotheses, sides = read_lines(path), references(data, split, lang)
        try:
            new["scores"][split] = score_lines(hypotheses, sides, lang)["scores"]
        except RunError as error:
            raise RunError(f"{path}: {error}") from None
        found += differences(split, row["scores"][split], new["scores"][split])
        if split == "test":
            kept, table = stats_path(path), stats_table(hypotheses, sides[0])
            if not holds(kept, table):
                found.append(f"{kept}: not there, or other sentence statistics")
    return new, table, found


def holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def differences(split: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield f"{split} {name}: {shown(old.get(name))}, now {shown(new.get(name))}"


def shown(score: dict[str, Any] | None) -> str:
    return f"{score['score']:.2f} ({score['signature']})" if score else "not there"


def check(args: Namespace, row: dict[str, Any]) -> tuple[str, list[str]]:
    """What became of a row, and what there is to say of it."""
    try:
        outcome = rescored(args.results, args.work, row)
    except RunError as error:
        return "cannot be scored", [str(error)]
    if outcome is None:
        return "without references", [f"no prepared set under {args.work} has them"]
    new, table, found = outcome
    if found and args.write:
        write_atomically(stats_path(args.results / row["hypotheses"]["test"]), table)
        put_row(args.results, new)
    return (RENEWED if args.write else "differs") if found else SAME, found


@catch
def main(argv: list[str] | None = None) -> int:
    parser = parser_of("rescore", __doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="(%(default)s)")
    parser.add_argument(
        "--work", type=Path, default=Path("work"), help="where prepared sets are (%(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="put new scores into the ledger")
    args = parser.parse_args(argv)
    rows = read_rows(args.results)
    if not rows:
        raise RunError(f"no runs in {args.results}: nothing to score")
    outcomes: Counter[str] = Counter()
    for row in tqdm(rows, desc="rescore", unit="run", disable=None):
        outcome, said = check(args, row)
        outcomes[outcome] += 1
        tqdm.write("\n  ".join([f"{row['run']}: {outcome}", *said]))
    print(f"{len(rows)} rows: {', '.join(f'{n} {what}' for what, n in outcomes.items())}")
    return int(any(outcome not in (SAME, RENEWED) for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
