"""What the tables' figures are and are not, in words."""

from __future__ import annotations

from collections.abc import Sequence

from ..collect import LEDGER
from ..commands import RunError
from .groups import Row, condition_of
from .paper import Paper
from .tables import METRICS

CONDITIONS = {
    "full": "the published sizes and optimiser, on the published text",
    "cpu": "a small model trained on one CPU core: not comparable with published scores",
    "demo": "the generated toy pair, a few minutes of one CPU core",
    "changed": "settings of the recipe were overridden: those that stand behind its name",
    "stand-in": "text from local files, not the published data set by its checksum",
}
RECIPES = {
    "cpu_bytes": "faster dropout masks, which are other ones",
    "cpu_fast": "faster dropout masks and fuller batches, which are other ones",
}
PREPS = {
    "paper": "text prepared as the authors did",
    "modern": "text prepared by today's habits: entities unescaped, characters normalised, "
    "duplicates and unlikely pairs dropped from train",
}

Note = tuple[str, str, str]  # a term, text, something to be shown as code


def signatures(rows: Sequence[Row]) -> dict[str, str]:
    """Column to signature.

    Raises:
        RunError: if runs scored in different ways would share a column.
    """
    found = {}
    for column, metric in METRICS.items():
        used = {row["scores"][s][metric]["signature"] for row in rows for s in ("dev", "test")}
        if len(used) > 1:
            raise RunError(
                f"runs in {LEDGER} were scored in different ways: {sorted(used)}: "
                "`python -m experiments.rescore --write` scores them alike"
            )
        found[column] = used.pop()
    return found


def conditions(rows: Sequence[Row]) -> list[Note]:
    terms = dict.fromkeys(term for row in rows for term in condition_of(row).split(", "))
    found = [(term, CONDITIONS.get(term, "see its recipe"), "") for term in terms]
    found += [(r, RECIPES[r], "") for r in sorted({row["recipe"] for row in rows}) if r in RECIPES]
    preps = sorted({row["prep"]["name"] for row in rows})
    return found + [(p, PREPS.get(p, "see its file in conf/prep"), "") for p in preps]


def uncertainty() -> list[Note]:
    return [
        (
            "difference",
            "QKNorm minus baseline, over the seeds that both have, in BLEU of tokenised text on "
            "test. Two kinds of uncertainty, neither of which stands for the other",
            "",
        ),
        (
            "test set",
            "had it been other sentences: 95% interval of 10,000 bootstrap samples; p of "
            "sacreBLEU's approximate randomisation, 10,000 trials; a sentence is drawn or swapped "
            "for all seeds at once. * p < 0.05",
            "",
        ),
        (
            "seeds",
            "had it been other trainings: 95% t-interval of the differences seed by seed, and p of "
            "the paired t-test. † p < 0.05. With one seed nothing can be said",
            "",
        ),
        (
            "Holm",
            "p adjusted for the pairs that a recipe, condition and preparation has in the table",
            "",
        ),
        (
            "not verified",
            "the published figure could not be checked, so it is left out. Ours minus the paper's "
            "stands only where condition is full and prep is paper",
            "",
        ),
    ]


def scoring(rows: Sequence[Row]) -> list[Note]:
    return [
        *((column, "", signature) for column, signature in signatures(rows).items()),
        (
            "scores",
            "BLEU and detok BLEU are of tokenised text, as multi-bleu.perl and "
            "multi-bleu-detok.perl print it; sacreBLEU, chrF2 and TER of detokenised text. The "
            "checkpoint with the best dev loss, or with the best dev BLEU where training decodes "
            "dev (recipe paper), is scored, once",
            "",
        ),
    ]


def sources(paper: Paper) -> list[Note]:
    return [("published", title, url) for title, url in paper.sources]


def markdown(notes: Sequence[Note]) -> str:
    return "".join(
        f"- *{term}*: {words}{' ' if words and code else ''}{f'`{code}`' if code else ''}.\n"
        for term, words, code in notes
    )
