"""The toy pair: reproducible, and hard where it says it is."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from sacrebleu.metrics import BLEU

from data_prep.toy import SIZES, generate


@pytest.fixture(scope="module")
def bitext() -> dict[str, list[tuple[str, str]]]:
    return generate(1)


def test_same_seed_same_text(bitext: dict) -> None:
    assert generate(1) == bitext
    assert generate(2)["dev"] != bitext["dev"]


def test_sizes_and_disjoint_splits(bitext: dict) -> None:
    assert {split: len(pairs) for split, pairs in bitext.items()} == SIZES
    sources = [source for pairs in bitext.values() for source, _ in pairs]
    assert len(set(sources)) == len(sources)


def test_frequencies_are_zipfian_with_a_rare_tail(bitext: dict) -> None:
    words = Counter(word for _, target in bitext["train"] for word in target.split())
    ranked = [count for _, count in words.most_common()]
    assert ranked[0] > 50 * ranked[len(ranked) // 2]
    assert sum(count <= 5 for count in ranked) > len(ranked) / 4
    unseen = [w for _, target in bitext["test"] for w in target.split() if w not in words]
    assert unseen


def test_the_right_words_in_no_order_score_little(bitext: dict) -> None:
    rng = random.Random(0)
    reference = [target for _, target in bitext["test"]]
    shuffled = []
    for line in reference:
        words = line.split()
        rng.shuffle(words)
        shuffled.append(" ".join(words))
    score = BLEU(tokenize="none", force=True).corpus_score(shuffled, [reference]).score
    assert score < 20
