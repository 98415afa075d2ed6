"""Are rare words translated better? By training frequency, and for words copied from the source.

Two arms, as QK normalisation on and off, have each been trained with several seeds. What is said
of an arm is the mean over its seeds. Intervals are of the test set: sentences are drawn with
replacement, the same ones for both arms and all seeds, and the seeds stay as they are
(:mod:`experiments.stats` on what that leaves out). Words are those of :func:`buckets.words`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from ..buckets import FREQUENCIES, bucket_names, bucket_of, words
from ..stats import RESAMPLES, SEED, percentiles

CHUNK = 500  # resamples at a time, which bounds the memory
DECIMALS = 3

Arm = Sequence[Sequence[str]]
Score = Callable[[np.ndarray], np.ndarray]


def word_table(
    hypotheses: Sequence[str],
    references: Sequence[str],
    counts: Mapping[str, int],
    starts: Sequence[int] = FREQUENCIES,
) -> np.ndarray:
    """The counts of :func:`buckets.word_accuracy`, sentence by sentence.

    Args:
        hypotheses, references: tokenised sentences, as many.
        counts: of each word in the training text; a word that is not in it counts as 0.
        starts: where buckets of frequencies begin, but the first.

    Returns:
        ``(sentences, buckets, 3)``: words in the reference, in the hypothesis and in both.

    Raises:
        ValueError: if the numbers of sentences differ.
    """
    table = np.zeros((len(references), len(starts) + 1, 3), dtype=int)
    for row, hypothesis, reference in zip(table, hypotheses, references, strict=True):
        theirs, ours = Counter(words(reference)), Counter(words(hypothesis))
        for column, side in enumerate((theirs, ours, theirs & ours)):
            for word, times in side.items():
                row[bucket_of(counts.get(word, 0), starts), column] += times
    return table


def copy_table(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    known: Container[str],
) -> np.ndarray:
    """Words to be copied: not in training, in the source, and verbatim in the reference.

    Args:
        sources, hypotheses, references: tokenised sentences, as many.
        known: the words of the training text of the source language.

    Returns:
        ``(sentences, 2)``: how many there are (a word as often as both source and reference have
        it), and how many of them the hypothesis has too.

    Raises:
        ValueError: if the numbers of sentences differ.
    """
    table = np.zeros((len(references), 2), dtype=int)
    lines = zip(table, sources, hypotheses, references, strict=True)
    for row, source, hypothesis, reference in lines:
        shared = Counter(words(source)) & Counter(words(reference))
        due = Counter({word: times for word, times in shared.items() if word not in known})
        row[:] = due.total(), (due & Counter(words(hypothesis))).total()
    return table


def compare_words(
    baseline: Arm,
    system: Arm,
    references: Sequence[str],
    counts: Mapping[str, int],
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> list[dict[str, Any]]:
    """F1 of the words of each bucket of training frequency.

    Args:
        baseline, system: the hypotheses of each training seed, all of the same sentences; the arms
            need not have equally many seeds.
        references: tokenised, as the hypotheses.
        counts: of each word in the training text of the target language.
        resamples: of the test set, for the intervals.
        seed: of the resamples.

    Returns:
        Of each bucket, the rarest words first: ``bucket``, ``reference`` (how many such words the
        references have), and ``baseline``, ``system`` and ``difference`` (system minus baseline),
        each with ``f1`` and its 95% interval, ``low`` and ``high``, in percent. None where a seed
        has such words neither in its hypotheses nor in the references; such resamples are left out.

    Raises:
        ValueError: naming the arm, if one is empty or its lines are not as many as the references.
    """
    check(baseline, system, references)
    arms = [[word_table(lines, references, counts) for lines in arm] for arm in (baseline, system)]
    found, drawn = bootstrap(arms, f1, resamples, seed)
    total = arms[0][0].sum(axis=0)
    return [
        {
            "bucket": name,
            "reference": int(total[i, 0]),
            **described("f1", found[:, i], drawn[:, :, i]),
        }
        for i, name in enumerate(bucket_names(FREQUENCIES))
    ]


def compare_copies(
    baseline: Arm,
    system: Arm,
    sources: Sequence[str],
    references: Sequence[str],
    known: Container[str],
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, Any]:
    """How many of the words to be copied (:func:`copy_table`) are copied.

    Args: as of :func:`compare_words`, and ``sources`` and ``known`` as of :func:`copy_table`.

    Returns:
        ``words`` (how many there are to copy), and ``baseline``, ``system`` and ``difference``, as
        of :func:`compare_words` but with ``rate`` for ``f1``. None where there are none.

    Raises:
        ValueError: as :func:`compare_words`, and if there are not as many sources as references.
    """
    check(baseline, system, references)
    if len(sources) != len(references):
        raise ValueError(f"sources: {len(sources)} lines, but {len(references)} references")
    arms = [
        [copy_table(sources, lines, references, known) for lines in arm]
        for arm in (baseline, system)
    ]
    found, drawn = bootstrap(arms, rate, resamples, seed)
    return {"words": int(arms[0][0][:, 0].sum()), **described("rate", found, drawn)}


def check(baseline: Arm, system: Arm, references: Sequence[str]) -> None:
    """Raises ValueError, naming which, if there is nothing to compare or lines do not match."""
    if not references:
        raise ValueError("references: no lines")
    for name, arm in (("baseline", baseline), ("system", system)):
        if not arm:
            raise ValueError(f"{name}: no hypotheses")
        for place, lines in enumerate(arm, 1):
            if len(lines) != len(references):
                raise ValueError(
                    f"{name}, hypotheses {place}: {len(lines)} lines, "
                    f"but {len(references)} references"
                )


def f1(sums: np.ndarray) -> np.ndarray:
    """In percent, from ``(..., 3)`` as of :func:`word_table`; NaN without such words."""
    return share(2 * sums[..., 2], sums[..., 0] + sums[..., 1])


def rate(sums: np.ndarray) -> np.ndarray:
    """In percent, from ``(..., 2)`` as of :func:`copy_table`; NaN without such words."""
    return share(sums[..., 1], sums[..., 0])


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    nothing = np.full(whole.shape, np.nan)
    return np.divide(100.0 * part, whole, out=nothing, where=whole > 0)


def bootstrap(
    arms: Sequence[Sequence[np.ndarray]], score: Score, resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Score both arms on the test set and on resamples of its sentences, the same for all seeds.

    Args:
        arms: baseline and system, of each training seed a table ``(sentences, ..., columns)``.
        score: from sums over sentences, ``(..., columns)``, to figures, ``(...)``.

    Returns:
        Baseline, system and system minus baseline, each the mean over seeds: on the test set,
        ``(3, ...)``, and on the resamples, ``(3, resamples, ...)``.
    """
    # As floats, whose products are much faster, and exact for any number of words.
    stacked = [np.stack(tables, axis=1).astype(float) for tables in arms]

    def scored(weights: np.ndarray) -> np.ndarray:
        first, second = (score(np.tensordot(weights, arm, 1)).mean(axis=1) for arm in stacked)
        return np.stack([first, second, second - first])

    rng, size = np.random.default_rng(seed), len(stacked[0])
    chunks = [min(CHUNK, resamples - start) for start in range(0, resamples, CHUNK)]
    evenly = np.full(size, 1 / size)
    drawn = [scored(rng.multinomial(size, evenly, number).astype(float)) for number in chunks]
    return scored(np.ones((1, size)))[:, 0], np.concatenate(drawn, axis=1)


def described(figure: str, found: np.ndarray, drawn: np.ndarray) -> dict[str, Any]:
    """Both arms and their difference, as :func:`compare_words` returns them.

    Args:
        figure: what to call it.
        found: ``(3,)``, of the test set.
        drawn: ``(3, resamples)``.
    """
    result = {}
    for name, value, values in zip(("baseline", "system", "difference"), found, drawn, strict=True):
        defined = values[~np.isnan(values)]
        low, high = percentiles(defined) if len(defined) else (np.nan, np.nan)
        shown = zip((figure, "low", "high"), map(rounded, (value, low, high)), strict=True)
        result[name] = dict(shown)
    return result


def rounded(value: float) -> float | None:
    """None of NaN. Adding 0 makes 0 of -0, which a tiny negative difference is rounded to."""
    return None if np.isnan(value) else round(float(value), DECIMALS) + 0.0
