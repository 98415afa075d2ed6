"""Where two systems differ: by word frequency, by length, by n-gram, by sentence.

The definitions are those of compare-mt (Neubig et al. 2019): what aggregate BLEU hides is found by
putting words or sentences into buckets and scoring each bucket alone. Everything here is of
tokenised text, whose words are separated by ASCII white space, as for multi-bleu.perl.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from sacrebleu.metrics import BLEU

from .score import NOT_ASCII, ScriptBLEU

# Where buckets begin, after the first, which begins at 0; the last one is open.
FREQUENCIES = (1, 2, 3, 4, 5, 10, 100, 1000)
LENGTHS = (10, 20, 30, 40, 50, 60)
LONGEST = 4  # n-grams, as in BLEU

WORD = re.compile(r"[^ \t\r\n\f\v]+")

Gram = tuple[str, ...]


@dataclass(frozen=True)
class WordAccuracy:
    """How well the words of one bucket are translated.

    Attributes:
        bucket: as ``5-9``.
        reference, hypothesis: how many there are in the references and in the hypotheses.
        matched: how many are in both, counted sentence by sentence.
    """

    bucket: str
    reference: int
    hypothesis: int
    matched: int

    @property
    def precision(self) -> float | None:
        """From 0 to 1; None without such words in the hypotheses."""
        return self.matched / self.hypothesis if self.hypothesis else None

    @property
    def recall(self) -> float | None:
        """From 0 to 1; None without such words in the references."""
        return self.matched / self.reference if self.reference else None

    @property
    def f1(self) -> float | None:
        """Harmonic mean of the two; None without such words on either side."""
        both = self.hypothesis + self.reference
        return 2 * self.matched / both if both else None


@dataclass(frozen=True)
class LengthBLEU:
    """BLEU of the sentences whose references are about equally long; None without any."""

    bucket: str
    sentences: int
    bleu: float | None


@dataclass(frozen=True)
class NGramDifference:
    """An n-gram that one system gets right more often than the other.

    Attributes:
        ngram: its words, separated by spaces.
        more, less: how often the better and the worse system get it right.
    """

    ngram: str
    more: int
    less: int

    @property
    def ratio(self) -> float:
        """The better one's share of the matches, smoothed by one for each: over 1/2, under 1."""
        return (self.more + 1) / (self.more + self.less + 2)


@dataclass(frozen=True)
class SentenceChange:
    """Sentence ``line``, from 1, and its BLEU by both systems (0 to 100)."""

    line: int
    first: float
    second: float

    @property
    def change(self) -> float:
        return self.second - self.first


def words(line: str) -> list[str]:
    """At ASCII white space only: a no-break space, say, is a letter."""
    return WORD.findall(line)


def word_counts(lines: Iterable[str]) -> Counter[str]:
    """How often each word occurs, as in the training text of the target language."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(words(line))
    return counts


def bucket_of(value: int, starts: Sequence[int]) -> int:
    """Number of the bucket, from 0, that holds ``value``."""
    return bisect_right(starts, value)


def bucket_names(starts: Sequence[int]) -> list[str]:
    """As ``<10, 10-19, 20+``; a bucket of one value is called by it."""
    first = "0" if starts[0] == 1 else f"<{starts[0]}"
    between = [
        str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(starts)
    ]
    return [first, *between, f"{starts[-1]}+"]


def word_accuracy(
    hypotheses: Sequence[str],
    references: Sequence[str],
    counts: Mapping[str, int],
    starts: Sequence[int] = FREQUENCIES,
) -> list[WordAccuracy]:
    """compare-mt's word accuracy analysis, ``bucket_type=freq``.

    Args:
        hypotheses, references: tokenised sentences, as many.
        counts: of each word in the training text; a word that is not in it counts as 0.
        starts: where buckets of frequencies begin, but the first.

    Returns:
        One figure a bucket, the rarest words first.
    """
    sums = np.zeros((len(starts) + 1, 3), dtype=int)
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        theirs, ours = Counter(words(reference)), Counter(words(hypothesis))
        for column, side in enumerate((theirs, ours, theirs & ours)):
            for word, times in side.items():
                sums[bucket_of(counts.get(word, 0), starts), column] += times
    return [
        WordAccuracy(name, *map(int, row))
        for name, row in zip(bucket_names(starts), sums, strict=True)
    ]


def bleu_by_length(
    stats: Sequence[Sequence[int]] | np.ndarray, starts: Sequence[int] = LENGTHS
) -> list[LengthBLEU]:
    """Tokenised BLEU of sentences whose references are of similar length.

    Args:
        stats: ``(sentences, 10)``, as :func:`score.sentence_stats`.
        starts: where buckets of reference lengths, in words, begin, but the first.

    Returns:
        One figure a bucket, the shortest first. A small bucket may well have 0: nothing is
        smoothed, as in the score of the whole.
    """
    table = np.asarray(stats)
    places = np.array([bucket_of(length, starts) for length in table[:, 1]])
    metric = ScriptBLEU("none")
    result = []
    for place, name in enumerate(bucket_names(starts)):
        chosen = table[places == place]
        sums = chosen.sum(axis=0).tolist()
        bleu = metric._compute_score_from_stats(sums).score if len(chosen) else None
        result.append(LengthBLEU(name, len(chosen), bleu))
    return result


def ngrams(line: str, longest: int = LONGEST) -> Counter[Gram]:
    """All n-grams of a sentence, of 1 to ``longest`` words."""
    found = words(line)
    return Counter(
        tuple(found[i : i + n]) for n in range(1, longest + 1) for i in range(len(found) - n + 1)
    )


def matched_ngrams(hypotheses: Sequence[str], references: Sequence[str]) -> Counter[Gram]:
    """How often each n-gram is right: clipped in each sentence by its reference, as in BLEU."""
    matched: Counter[Gram] = Counter()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        matched.update(ngrams(hypothesis) & ngrams(reference))
    return matched


def ngram_differences(
    first: Sequence[str], second: Sequence[str], references: Sequence[str], top: int
) -> tuple[list[NGramDifference], list[NGramDifference]]:
    """compare-mt's n-gram difference analysis, ``compare_type=match``.

    Args:
        first, second: two systems' hypotheses, tokenised.
        top: how many of each kind to return at most.

    Returns:
        What the first system gets right more often, and what the second does; by falling ratio,
        then by the number of matches, then in the order of the alphabet.
    """
    sides = [matched_ngrams(side, references) for side in (first, second)]
    result = []
    for more, less in (sides, sides[::-1]):
        found = [
            NGramDifference(" ".join(gram), times, less[gram])
            for gram, times in more.items()
            if times > less[gram]
        ]
        found.sort(key=lambda item: (-item.ratio, -item.more, item.ngram))
        result.append(found[:top])
    return result[0], result[1]


def sentence_bleus(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """BLEU of each sentence (0 to 100), exponentially smoothed and of the orders it has n-grams of:
    sacreBLEU's for sentences, on words as they are here."""
    metric = BLEU(tokenize="none", effective_order=True, smooth_method="exp", force=True)
    sides = ([line.translate(NOT_ASCII) for line in side] for side in (hypotheses, references))
    pairs = zip(*sides, strict=True)
    return [metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]


def sentence_changes(
    first: Sequence[float], second: Sequence[float], top: int
) -> tuple[list[SentenceChange], list[SentenceChange]]:
    """Sentences that changed most from the first system to the second.

    Args:
        first, second: BLEU of each sentence, by :func:`sentence_bleus`.
        top: how many of each kind to return at most.

    Returns:
        What gained, largest gain first, and what lost, largest loss first; equal ones by line.
    """
    changes = [
        SentenceChange(line, *both) for line, both in enumerate(zip(first, second, strict=True), 1)
    ]
    gained = sorted((c for c in changes if c.change > 0), key=lambda c: -c.change)
    lost = sorted((c for c in changes if c.change < 0), key=lambda c: c.change)
    return gained[:top], lost[:top]
