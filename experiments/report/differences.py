"""One arm of a group against another, with both kinds of uncertainty."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..collect import ledger_name
from ..stats import OnTestSet, OverSeeds, bleu_of, holm, on_test_set, over_seeds, p_by_seed
from .groups import Arm, Group, Row

ReadStats = Callable[[Row], np.ndarray]


def names_of(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(ledger_name(row) for row in rows)


@dataclass(frozen=True)
class Difference:
    """One arm against another, over the seeds that both have.

    Attributes:
        runs: those it comes from.
        test: the test set's uncertainty.
        seeds: of the differences, seed by seed.
        p_seeds: of the paired t-test.
    """

    runs: tuple[str, ...]
    test: OnTestSet
    seeds: OverSeeds
    p_seeds: float | None

    @property
    def mean(self) -> float:
        """In BLEU."""
        return self.seeds.mean


@functools.cache
def difference(baseline: Arm | None, system: Arm | None, read: ReadStats) -> Difference | None:
    if baseline is None or system is None:
        return None
    seeds = [seed for seed in baseline.rows if seed in system.rows]
    if not seeds:
        return None
    sides = [[arm.rows[seed] for seed in seeds] for arm in (baseline, system)]
    stats = [[read(row) for row in side] for side in sides]
    scores = [[bleu_of(one) for one in side] for side in stats]  # not rounded
    return Difference(
        names_of([*sides[0], *sides[1]]),
        on_test_set(*stats),
        over_seeds(np.subtract(scores[1], scores[0]).tolist()),
        p_by_seed(*scores),
    )


def adjusted(found: Sequence[Difference | None], groups: Sequence[Group]) -> list[tuple[Any, Any]]:
    """Holm's p-values, of the test set and of seeds, over the pairs of one recipe and condition."""
    result: list[tuple[Any, Any]] = [(None, None)] * len(found)
    families: dict[tuple[str, str, str], list[int]] = {}
    for i, group in enumerate(groups):
        families.setdefault(group.label[1:], []).append(i)
    for places in families.values():
        there = [i for i in places if found[i] is not None]
        test = dict(zip(there, holm([found[i].test.p_randomisation for i in there]), strict=True))  # type: ignore[union-attr]
        tried = [i for i in there if found[i].p_seeds is not None]  # type: ignore[union-attr]
        seeds = dict(zip(tried, holm([found[i].p_seeds for i in tried]), strict=True))  # type: ignore[union-attr, misc]
        for i in there:
            result[i] = test[i], seeds.get(i)
    return result
