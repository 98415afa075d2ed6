"""What the claims' measurements found: read from results/claims/, told from where."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..commands import RunError
from . import claim_figures, claim_tables
from .notes import Note
from .tables import Table

FOLDER = "claims"
NOTES: dict[str, list[Note]] = {
    "claims_stability": [
        ("LR sensitivity", "mean over the rates of min(final loss, loss at the start), minus the "
         "loss at the best rate, in nats a token (Wortsman et al. 2023); mean of seeds, 95% "
         "t-interval", ""),
        ("minus baseline", "the same, seed by seed", ""),
        ("breaks at", "the lowest rate over the best whose loss is 0.5 nats over it", ""),
        ("diverged", "runs that ended above the loss they started with, or in no number", ""),
    ],
    "claims_growth": [
        ("how many times longer", "last probe over the first; mean of seeds, least, largest", ""),
    ],
    "claims_attention": [
        ("explained", "Shapley values: what a factor adds, on average over the orders in which "
         "the three are let free from their mean; docs/claims.md", ""),
        ("a number a seed", "–: no head has it (no sink, or all keys of one length)", ""),
    ],
    "claims_classes": [("a number a seed", "1: as much as even attention would give", "")],
    "claims_frequency": [
        ("intervals", "95%, as if types were independent draws; a number a seed", ""),
    ],
    "claims_words": [
        ("intervals", "95%, of 10,000 bootstrap samples of test sentences, the seeds as they "
         "are", ""),
    ],
    "claims_geometry": [("a number a seed", "", "")],
    "claims_overlap": [
        ("means", "over the pairs of runs, at equal updates; runs of one seed start from the same "
         "weights", ""),
    ],
}  # fmt: skip


def read_claims(results: Path) -> dict[str, list[dict[str, Any]]]:
    """What was found, by claim; of each the pairs in the order of the alphabet.

    Raises:
        RunError: naming a file that is no JSON.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((results / FOLDER).glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{path}: not JSON ({error}): measure it again") from None
        found.setdefault(path.name.partition("-")[0], []).append(content)
    return found


def tables(claims: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Table]:
    return [
        make(claims[claim])
        for claim, makers in claim_tables.TABLES.items()
        if claim in claims
        for make in makers
    ]


def figures(claims: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, str, str]]:
    return claim_figures.make(claims)


def details(
    claims: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Of each measurement its name and where it comes from."""
    for claim, several in claims.items():
        for found in several:
            runs = found.get("runs") or {arm["run"] for arm in found["arms"]}
            facts = [
                ("trainings", str(len(runs))),
                ("data digest", found["data"]),
                ("trained at commits", ", ".join(found["commits"])),
                ("measured at commit", found["measured"]),
                ("hardware", ", ".join(found["hardware"])),
                ("versions", ", ".join(f"{k} {v}" for k, v in found["versions"].items())),
                ("training", f"{found['train_minutes']} minutes, all together"),
            ]
            if "options" in found:
                options = ", ".join(f"{k}={v}" for k, v in found["options"].items())
                facts.append(("options", options))
            yield f"{claim}, {found['pair']}", facts
