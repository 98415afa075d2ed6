"""Tokenised BLEU as multi-bleu.perl computes it, in sums that add up over batches and machines."""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics import BLEU

NGRAMS = 4

# multi-bleu.perl splits words at ASCII white space only, sacreBLEU at any of Unicode's.
OTHER_SPACES = {
    ord(c): f"U+{ord(c):04X}"
    for c in map(chr, range(0x110000))
    if c.isspace() and c not in " \t\n\r\f\v"
}


def corpus_stats(hypotheses: Sequence[str], references: Sequence[str]) -> list[int]:
    """Matches of n-grams of 1 to 4 words, their totals, hypothesis and reference length."""
    texts = [[t.translate(OTHER_SPACES) for t in side] for side in (hypotheses, references)]
    score = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(
        texts[0], [texts[1]]
    )
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def bleu_of(stats: Sequence[float]) -> float:
    """BLEU as multi-bleu.perl prints it, with two decimals, of :func:`corpus_stats`' sums."""
    numbers = [int(n) for n in stats]
    matches, totals = numbers[:NGRAMS], numbers[NGRAMS:-2]
    if min(matches) == 0:
        return 0.0
    hypothesis, reference = numbers[-2:]
    score = BLEU.compute_bleu(matches, totals, hypothesis, reference, smooth_method="none")
    return round(score.score, 2)
