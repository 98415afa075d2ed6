"""Two kinds of uncertainty, which are not each other's substitute.

*Of the test set*: another thousand sentences would have given another score. Paired bootstrap
(Koehn 2004) and approximate randomisation (Riezler & Maxwell 2005), both sacreBLEU's, on the
sentences' own BLEU statistics; with several seeds the score is the mean over seeds.

*Of training*: another seed would have given another model. Mean, standard deviation and Student's
t over seeds; two systems are compared seed by seed.

Neither says anything of the other. Over several language pairs p-values are adjusted by Holm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
from sacrebleu.metrics.base import Score
from sacrebleu.significance import PairedTest

from .commands import RunError
from .score import ScriptBLEU

SEED = 12345
RESAMPLES = 10_000
LEVEL = 0.95
NUMBERS = 10  # of a sentence's statistics: see score.sentence_stats

Interval = tuple[float, float]


class MeanBLEU(ScriptBLEU):
    """Tokenised BLEU from statistics that were taken before, averaged over a system's seeds.

    Where sacreBLEU's tests expect sentences it takes, for each, its :func:`score.sentence_stats`
    of all seeds one after the other, so that a sentence is drawn or swapped for all of them.
    """

    def __init__(self) -> None:
        super().__init__("none")
        self.num_refs = 1

    def _extract_corpus_statistics(self, hypotheses: Any, references: Any) -> Any:
        return hypotheses

    def _compute_score_from_stats(self, stats: Any) -> Any:
        seeds = np.asarray(stats).reshape(-1, NUMBERS)
        compute = super()._compute_score_from_stats
        return Score("BLEU", float(np.mean([compute(seed.tolist()).score for seed in seeds])))


@dataclass(frozen=True)
class OnTestSet:
    """Two systems on one test set.

    Attributes:
        difference: system minus baseline, in BLEU.
        interval: 95% percentile bootstrap interval of the difference.
        intervals: of each system's own score, baseline first.
        p_randomisation: two-sided, of no difference.
        p_bootstrap: likewise, as Moses' script has it: too small unless the difference is clear
            (docs/evaluation.md).
    """

    difference: float
    interval: Interval
    intervals: tuple[Interval, Interval]
    p_bootstrap: float
    p_randomisation: float


def on_test_set(baseline: Sequence[np.ndarray], system: Sequence[np.ndarray]) -> OnTestSet:
    """Compare two systems, each given by the sentence statistics of its seeds.

    Args:
        baseline, system: of each seed, ``(sentences, 10)``; the same seeds in the same order.

    Raises:
        RunError: if the numbers of sentences differ.
    """
    counts = {len(stats) for stats in (*baseline, *system)}
    if len(counts) != 1:
        raise RunError(f"systems of {sorted(counts)} sentences cannot be compared")
    joined = [np.concatenate([*side], axis=1) for side in (baseline, system)]
    drawn = resampled(joined)
    difference = drawn[1] - drawn[0]
    first, second = map(bleu_of, joined)
    bootstrap, randomisation = (p_value(joined, test) for test in ("bs", "ar"))
    return OnTestSet(
        difference=second - first,
        interval=percentiles(difference),
        intervals=(percentiles(drawn[0]), percentiles(drawn[1])),
        p_bootstrap=bootstrap,
        p_randomisation=randomisation,
    )


def p_value(joined: Sequence[np.ndarray], test_type: str) -> float:
    """sacreBLEU's p-value, by paired bootstrap (``bs``) or approximate randomisation (``ar``).

    sacreBLEU does not count a trial that equals what was observed, so that systems which hardly
    differ would pass for significantly different. Of ``k`` sentences that differ, two of ``2^k``
    ways to swap give the observed difference: p is at least that.
    """
    systems = [(str(i), side.tolist()) for i, side in enumerate(joined)]
    test = PairedTest(
        systems, {"BLEU": MeanBLEU()}, None, test_type, RESAMPLES if test_type == "ar" else 0
    )
    _, results = test()
    result: Any = results["BLEU"][1]
    differing = int((joined[0] != joined[1]).any(axis=1).sum())
    return max(float(result.p_value), min(1.0, 2.0 ** (1 - differing)))


def bleu_of(stats: np.ndarray) -> float:
    """Tokenised BLEU, not rounded, from a run's sentence statistics."""
    return float(MeanBLEU()._aggregate_and_compute(stats.tolist()).score)


def resampled(joined: Sequence[np.ndarray]) -> np.ndarray:
    """``(systems, RESAMPLES)``: scores on test sets drawn with replacement, the same for all."""
    rng = np.random.default_rng(SEED)
    metric, size = MeanBLEU(), len(joined[0])
    scores: list[list[float]] = [[] for _ in joined]
    for _ in range(RESAMPLES):
        times = np.bincount(rng.integers(size, size=size), minlength=size)
        for own, side in zip(scores, joined, strict=True):
            own.append(metric._compute_score_from_stats(times @ side).score)
    return np.array(scores)


def percentiles(values: np.ndarray) -> Interval:
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


@dataclass(frozen=True)
class OverSeeds:
    """A figure over several trainings.

    Attributes:
        values: one a seed.
        mean: their mean.
        deviation: sample standard deviation; None of one.
        interval: 95% t-interval of the mean; None of one.
    """

    values: tuple[float, ...]
    mean: float
    deviation: float | None
    interval: Interval | None


def over_seeds(values: Sequence[float]) -> OverSeeds:
    mean = float(np.mean(values))
    if len(values) < 2:
        return OverSeeds(tuple(values), mean, None, None)
    deviation = float(np.std(values, ddof=1))
    half = (
        float(scipy.stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * deviation / len(values) ** 0.5
    )
    return OverSeeds(tuple(values), mean, deviation, (mean - half, mean + half))


def p_by_seed(baseline: Sequence[float], system: Sequence[float]) -> float | None:
    """Two-sided p of Student's paired t-test, seed by seed; None of fewer than two, or if all
    differ by the same, which leaves no variance to judge by."""
    difference = np.subtract(system, baseline)
    if len(difference) < 2 or np.ptp(difference) < 1e-6:
        return None
    return float(scipy.stats.ttest_rel(system, baseline).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for several tests (Holm 1979), in the order given."""
    order = np.argsort(p_values, kind="stable")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
