"""Two systems side by side: what each is better at, not only by how much.

    python -m experiments.compare 74aefb9d59bb 0c1b1bb45f10                # two runs of the ledger
    python -m experiments.compare 74aefb9d59bb 0c1b1bb45f10 --html compare.html
    python -m experiments.compare a.en b.en --reference test.en --train train.en
    python -m experiments.compare gl-en/cpu-none/seed1-74aefb9d59bb b.en   # a run and a file

A and B are each a file of tokenised translations, or a run of results/runs.jsonl by its name or any
part of it that no other run's name has. The difference is B minus A. A run's reference and training
text are those of its prepared set under work/data/. Without a training text there is no table by
word frequency.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from . import buckets
from .collect import LEDGER, ledger_name, read_rows
from .command_line import catch, parser_of
from .commands import RunError
from .lines import read_lines
from .process import write_atomically
from .references import clean_folder, find_prepared, target_lang
from .score import check_text, make_metric, sentence_stats, signature, text_digest
from .sections import Chart, Example, Figure, Section, page, text
from .stats import RESAMPLES, OnTestSet, on_test_set

Row = Mapping[str, Any]


@dataclass(frozen=True)
class System:
    """One side of the comparison; ``row`` is the ledger's, None of a file."""

    name: str
    hypotheses: list[str]
    row: Row | None = None


@dataclass(frozen=True)
class Texts:
    """What systems are compared by.

    Attributes:
        reference: tokenised, one sentence a line.
        training: words of the target language and their counts; None without a training text.
        note: where the counts are from, or why there are none.
    """

    reference: list[str]
    training: Mapping[str, int] | None
    note: str


def find_row(name: str, results: Path) -> Row:
    """The row of the ledger that is called so, or whose name alone has this part.

    Raises:
        RunError: with the candidates, if there is none or more than one.
    """
    rows = read_rows(results)
    found = [row for row in rows if row["run"] == name] or [
        row for row in rows if name in ledger_name(row)
    ]
    if len(found) == 1:
        return found[0]
    candidates = ", ".join(ledger_name(row) for row in (found or rows)) or "no run at all"
    if found:
        raise RunError(f"{name!r} is part of the names of {len(found)} runs: {candidates}")
    raise RunError(f"{name!r} is neither a file nor a run of {results / LEDGER}: {candidates}")


def find_system(name: str, results: Path) -> System:
    """A file if there is one, else a run.

    Raises:
        RunError: if there is neither, or the hypotheses cannot be read.
    """
    if Path(name).is_file():
        return System(name, read_lines(Path(name)))
    if not name:
        raise RunError("an empty name is neither a file nor a run")
    row = find_row(name, results)
    return System(ledger_name(row), read_lines(results / row["hypotheses"]["test"]), row)


def check_rows(systems: Sequence[System]) -> None:
    """Runs can be compared only on one and the same test set.

    Raises:
        RunError: with what differs.
    """
    runs = [(system.name, system.row) for system in systems if system.row is not None]
    for (name, row), (other_name, other) in pairwise(runs):
        if row["pair"] != other["pair"]:
            raise RunError(
                f"{name} and {other_name} are of different pairs: {row['pair']} and {other['pair']}"
            )
        digests = [side["references"]["test"] for side in (row, other)]
        if digests[0] != digests[1]:
            raise RunError(
                f"{name} and {other_name} were scored against different test sets: reference "
                f"sha256 {digests[0][:12]} and {digests[1][:12]}"
            )


def find_texts(systems: Sequence[System], args: Namespace) -> Texts:
    """Reference and training text, given by options or found by a run.

    Raises:
        RunError: if there is no reference, or it is not the one that a run was scored against.
    """
    rows = [system.row for system in systems if system.row is not None]
    prepared = find_prepared(args.work, rows[0]) if rows else None
    if args.reference:
        reference = read_lines(args.reference)
        if rows and text_digest(reference) != rows[0]["references"]["test"]:
            raise RunError(
                f"{args.reference} is not the reference that {rows[0]['run']} was scored against"
            )
    elif prepared:
        reference = read_lines(prepared / f"reference.test.{target_lang(rows[0])}")
    elif rows:
        raise RunError(
            f"no prepared set under {args.work} has the reference of {rows[0]['run']}: give "
            "--work or --reference"
        )
    else:
        raise RunError("two files need the reference that they are translations of: --reference")
    training, note = find_training(rows, args)
    return Texts(reference, training, note)


def find_training(rows: Sequence[Row], args: Namespace) -> tuple[Mapping[str, int] | None, str]:
    """Word counts of --train, or of the training text of the first run that has one here; and a
    note that says so."""
    if args.train:
        return buckets.word_counts(read_lines(args.train)), f"counted in {args.train}"
    for row in rows:
        path = training_text(args.work, row)
        if path:
            note = f"counted in {path}, the training text of {row['run']}"
            if len({row["data"]["digest"] for row in rows}) > 1:
                note += " (the other run was trained on other data)"
            return buckets.word_counts(read_lines(path)), note
    missing = "no training text was found: give --work or --train" if rows else "--train not given"
    return None, f"no figures by word frequency: {missing}"


def training_text(work: Path, row: Row) -> Path | None:
    """The cleaned training text of the target language behind a run's prepared set."""
    folder = clean_folder(work / "data" / row["pair"], row["data"]["digest"])
    path = folder / f"train.{target_lang(row)}" if folder else None
    return path if path and path.is_file() else None


def sections(systems: tuple[System, System], texts: Texts, top: int) -> list[Section]:
    """The whole comparison, part by part.

    Raises:
        RunError: as :func:`score.check_text`, with the system's name.
    """
    for system in systems:
        try:
            check_text(system.hypotheses, texts.reference)
        except RunError as error:
            raise RunError(f"{system.name}: {error}") from None
    stats = [np.array(sentence_stats(s.hypotheses, texts.reference)) for s in systems]
    return [
        score_section(systems, stats, texts.reference),
        length_section(stats),
        frequency_section(systems, texts),
        *ngram_sections(systems, texts.reference, top),
        *change_sections(systems, texts.reference, top),
    ]


def score_section(
    systems: Sequence[System], stats: Sequence[np.ndarray], reference: list[str]
) -> Section:
    metric = make_metric("bleu_tok")
    scores = [metric.corpus_score(s.hypotheses, [reference]).score for s in systems]
    different = sum(
        first != second for first, second in zip(*(s.hypotheses for s in systems), strict=True)
    )
    notes = [f"BLEU of tokenised text: {signature(metric)}"]
    if not different:
        notes.append("A and B are the same hypotheses, line by line: nothing to test")
    else:
        notes.append(f"A and B differ in {different} of {len(reference)} sentences")
    intervals = ["", ""]
    if different:
        test = on_test_set([stats[0]], [stats[1]])
        notes += verdict(test)
        intervals = [interval(own) for own in test.intervals]
    rows = list(zip("AB", (f"{score:.2f}" for score in scores), intervals, strict=True))
    return Section("BLEU", notes, ("system", "BLEU", "95% interval"), rows)


def verdict(test: OnTestSet) -> list[str]:
    return [
        f"B - A: {test.difference:+.2f} BLEU, 95% interval {interval(test.interval, '+.2f')}",
        f"no difference: p = {test.p_randomisation:.4f} by approximate randomisation, "
        f"{test.p_bootstrap:.4f} by paired bootstrap",
        f"intervals: {RESAMPLES:,} resamples of the test set; they say nothing of other seeds",
    ]


def interval(bounds: tuple[float, float], form: str = ".2f") -> str:
    return f"{bounds[0]:{form}} to {bounds[1]:{form}}"


def length_section(stats: Sequence[np.ndarray]) -> Section:
    first, second = (buckets.bleu_by_length(side) for side in stats)
    both = list(zip(first, second, strict=True))
    rows = [
        (a.bucket, str(a.sentences), shown(a.bleu), shown(b.bleu), change(a.bleu, b.bleu))
        for a, b in both
    ]
    chart = Chart("BLEU", [(a.bucket, a.bleu, b.bleu) for a, b in both], 100)
    header = ("words in reference", "sentences", "A", "B", "B - A")
    return Section("BLEU by length of the reference", (), header, rows, chart)


def frequency_section(systems: Sequence[System], texts: Texts) -> Section:
    title = "Words by frequency in training"
    if texts.training is None:
        return Section(title, (texts.note,))
    counts = texts.training
    first, second = (buckets.word_accuracy(s.hypotheses, texts.reference, counts) for s in systems)
    both = list(zip(first, second, strict=True))
    rows = [
        (
            a.bucket,
            str(a.reference),
            *(shown(x, 3) for side in (a, b) for x in (side.precision, side.recall, side.f1)),
            change(a.f1, b.f1, 3),
        )
        for a, b in both
    ]
    chart = Chart("F1", [(a.bucket, a.f1, b.f1) for a, b in both], 1)
    of_each = (f"{side} {name}" for side in "AB" for name in ("prec.", "recall", "F1"))
    header = ("times in training", "in reference", *of_each, "B - A")
    return Section(title, (texts.note,), header, rows, chart)


def shown(value: Figure, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def change(first: Figure, second: Figure, digits: int = 2) -> str:
    return "-" if first is None or second is None else f"{second - first:+.{digits}f}"


def ngram_sections(systems: Sequence[System], reference: list[str], top: int) -> list[Section]:
    first, second = (system.hypotheses for system in systems)
    found = buckets.ngram_differences(first, second, reference, top)
    result = []
    for name, other, items in (("A", "B", found[0]), ("B", "A", found[1])):
        rows = [(i.ngram, str(i.more), str(i.less), f"{i.ratio:.3f}") for i in items]
        notes = [] if rows else ["none"]
        header = ("n-gram", f"right in {name}", f"in {other}", "share") if rows else ()
        result.append(Section(f"N-grams {name} gets right more often", notes, header, rows))
    return result


def change_sections(systems: Sequence[System], reference: list[str], top: int) -> list[Section]:
    bleus = [buckets.sentence_bleus(system.hypotheses, reference) for system in systems]
    result = []
    titles = ("Sentences that gained most from A to B", "Sentences that lost most from A to B")
    found = buckets.sentence_changes(bleus[0], bleus[1], top)
    for title, items in zip(titles, found, strict=True):
        examples = [
            Example(
                f"sentence {item.line}: BLEU {item.first:.1f} in A, {item.second:.1f} in B "
                f"({item.change:+.1f})",
                (
                    ("reference", reference[item.line - 1]),
                    ("A", systems[0].hypotheses[item.line - 1]),
                    ("B", systems[1].hypotheses[item.line - 1]),
                ),
            )
            for item in items
        ]
        result.append(Section(title, [] if items else ["none"], examples=examples))
    return result


@catch
def main(argv: list[str] | None = None) -> int:
    parser = parser_of("compare", __doc__)
    parser.add_argument("a", metavar="A", help="the baseline: a file of hypotheses, or a run")
    parser.add_argument("b", metavar="B", help="what is compared with it")
    parser.add_argument("--reference", type=Path, help="tokenised reference, for files")
    parser.add_argument("--train", type=Path, help="tokenised training text, to count words in")
    parser.add_argument("--results", type=Path, default=Path("results"), help="(%(default)s)")
    parser.add_argument(
        "--work", type=Path, default=Path("work"), help="where prepared sets are (%(default)s)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page as well")
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="n-grams and sentences (%(default)s)"
    )
    args = parser.parse_args(argv)
    if args.top < 1:
        raise RunError(f"--top {args.top}: at least 1")
    systems = (find_system(args.a, args.results), find_system(args.b, args.results))
    check_rows(systems)
    found = sections(systems, find_texts(systems, args), args.top)
    names = (systems[0].name, systems[1].name)
    print(text(names, found))
    if args.html:
        write_atomically(args.html, page(names, found))
        print(f"page: {args.html}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
