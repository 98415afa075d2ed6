"""Words by training frequency and words to be copied: counted by hand, and resampled in a loop."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from experiments import buckets
from experiments.claims import words

COUNTS = {
    "once": 1,
    "twice": 2,
    "thrice": 3,
    "four": 4,
    "five": 5,
    "nine": 9,
    "ten": 10,
    "ninety-nine": 99,
    "hundred": 100,
    "big": 999,
    "the": 1000,
}
BY_HAND = (  # reference, hypothesis; zyx, qua and wug are not in training
    ("the zyx once", "the zyx once"),
    ("the the nine", "the five"),
    ("the five ten", "the the the ten nine"),
    ("qua twice", "twice twice"),
    ("thrice four", "four qua"),
    ("once once once", "once once once once"),
    ("ninety-nine hundred", "hundred"),
    ("big the", "the big big"),
    ("zyx", "wug"),
    ("nine", "nine four"),
)
FOUND = (  # in the references, in the hypotheses, matched, F1
    ("0", 3, 3, 1, 33.333),
    ("1", 4, 5, 4, 88.889),
    ("2", 1, 2, 1, 66.667),
    ("3", 1, 0, 0, 0.0),
    ("4", 1, 2, 1, 66.667),
    ("5-9", 3, 3, 1, 33.333),
    ("10-99", 2, 1, 1, 66.667),
    ("100-999", 2, 3, 2, 80.0),
    ("1000+", 5, 6, 4, 72.727),
)
REFERENCES = [reference for reference, _ in BY_HAND]
HYPOTHESES = [hypothesis for _, hypothesis in BY_HAND]
SIDES = ("baseline", "system", "difference")


def texts(sentences: int, seed: int, errors: tuple[float, ...]) -> tuple[list[str], ...]:
    """References of 4 to 12 words, and for each share of errors hypotheses, later ones the worse:
    all have the errors of the ones before."""
    rng = random.Random(seed)
    kinds = [*COUNTS, "zyx", "qua", "wug"]
    result: tuple[list[str], ...] = tuple([] for _ in range(len(errors) + 1))
    for _ in range(sentences):
        drawn = [(rng.choice(kinds), rng.choice(kinds), rng.random()) for _ in range(12)]
        drawn = drawn[: rng.randint(4, 12)]
        result[0].append(" ".join(word for word, _, _ in drawn))
        for side, share in zip(result[1:], errors, strict=True):
            side.append(" ".join(wrong if luck < share else word for word, wrong, luck in drawn))
    return result


def naive_bootstrap(score: Callable[[list[int]], tuple[float, float]]) -> list[np.ndarray]:
    """95% intervals of baseline, system and difference; ``score`` is of the chosen lines."""
    rng = random.Random(5)
    drawn = np.array([score([rng.randrange(40) for _ in range(40)]) for _ in range(1000)])
    both = np.column_stack([drawn, drawn[:, 1] - drawn[:, 0]])
    return [np.quantile(column, [0.025, 0.975]) for column in both.T]


def assert_close(found: dict[str, Any], intervals: list[np.ndarray]) -> None:
    """To a sixth of the interval's width; it cannot be closer with 1000 resamples."""
    for side, interval in zip(SIDES, intervals, strict=True):
        ours = (found[side]["low"], found[side]["high"])
        assert interval[1] > interval[0]
        np.testing.assert_allclose(ours, interval, atol=(interval[1] - interval[0]) / 6)


def test_words_by_frequency_are_those_counted_by_hand() -> None:
    table = words.word_table(HYPOTHESES, REFERENCES, COUNTS)
    assert table.shape == (10, 9, 3)
    assert table.sum(axis=0).tolist() == [list(row[1:4]) for row in FOUND]
    assert table[2, 8].tolist() == [1, 3, 1]  # `the` in the third line
    compared = words.compare_words([HYPOTHESES], [REFERENCES], REFERENCES, COUNTS, 50)
    for found, (name, reference, _, _, f1) in zip(compared, FOUND, strict=True):
        assert (found["bucket"], found["reference"]) == (name, reference)
        assert found["baseline"]["f1"] == f1
        assert found["system"] == {"f1": 100, "low": 100, "high": 100}
        assert found["difference"]["f1"] == pytest.approx(100 - f1, abs=2e-3)


@pytest.mark.parametrize("seed", range(5))
def test_sums_are_those_of_word_accuracy(seed: int) -> None:
    references, hypotheses = texts(30, seed, (0.5,))
    for starts in (buckets.FREQUENCIES, (4, 50)):
        sums = words.word_table(hypotheses, references, COUNTS, starts).sum(axis=0)
        theirs = buckets.word_accuracy(hypotheses, references, COUNTS, starts)
        assert sums.tolist() == [[b.reference, b.hypothesis, b.matched] for b in theirs]


def test_f1_of_an_arm_is_the_mean_over_its_seeds_however_many() -> None:
    references, *sides = texts(20, 1, (0.2, 0.4, 0.6))
    compared = words.compare_words(sides[:1], sides[1:], references, COUNTS, 20)
    each = [buckets.word_accuracy(side, references, COUNTS) for side in sides]
    for found, first, *others in zip(compared, *each, strict=True):
        baseline, system = first.f1, np.mean([other.f1 for other in others])
        assert found["baseline"]["f1"] == pytest.approx(100 * baseline, abs=1e-3)
        assert found["system"]["f1"] == pytest.approx(100 * system, abs=1e-3)
        assert found["difference"]["f1"] == pytest.approx(100 * (system - baseline), abs=1e-3)


def test_equal_arms_do_not_differ() -> None:
    """Also with the seeds in another order, or with one text three times."""
    references, good, bad = texts(30, 2, (0.2, 0.5))
    nothing = {"low": 0, "high": 0}
    for baseline, system in (([good, bad], [bad, good]), ([bad], [bad, bad, bad])):
        for found in words.compare_words(baseline, system, references, COUNTS, 200):
            assert found["difference"] == {"f1": 0, **nothing}
            assert str(found["difference"]["low"]) == "0.0"
            assert found["baseline"] == found["system"]
            assert found["baseline"]["low"] < found["baseline"]["high"]
        copies = words.compare_copies(baseline, system, references, references, COUNTS, 200)
        assert copies["difference"] == {"rate": 0, **nothing}
        assert copies["baseline"]["low"] < copies["baseline"]["high"]


def test_system_that_is_better_in_every_sentence_is_better_in_every_resample() -> None:
    """Sentences are of very unequal quality, so that only the same draw for both shows it."""
    references = ["zyx zyx zyx zyx"] * 10
    baseline = ["zyx qua qua qua"] * 5 + ["zyx zyx zyx qua"] * 5
    system = ["zyx zyx qua qua"] * 5 + references[5:]
    rare = words.compare_words([baseline], [system], references, {}, 500)[0]
    assert rare["baseline"]["high"] > rare["system"]["low"]
    assert rare["difference"] == {"f1": 25, "low": 25, "high": 25}
    copies = words.compare_copies([baseline], [system], references, references, {}, 500)
    assert copies["difference"] == {"rate": 25, "low": 25, "high": 25}


@pytest.mark.parametrize(("place", "kinds"), [(0, ("zyx", "qua", "wug")), (5, ("five", "nine"))])
def test_intervals_are_those_of_a_naive_loop(place: int, kinds: tuple[str, ...]) -> None:
    references, better, good, bad = texts(40, 3, (0.3, 0.35, 0.4))
    arms = [good, bad], [better]
    # `there`, by side and line, is how many words of `kinds` there are.
    split = [[line.split() for line in side] for side in (references, better, good, bad)]
    there = [[sum(line.count(w) for w in kinds) for line in side] for side in split]
    hits = [
        [
            sum(min(a.count(w), b.count(w)) for w in kinds)
            for a, b in zip(side, split[0], strict=True)
        ]
        for side in split
    ]

    def f1s(lines: list[int]) -> tuple[float, float]:
        total, *of = (sum(side[i] for i in lines) for side in there)
        right = [sum(side[i] for i in lines) for side in hits[1:]]
        best, first, second = (200 * r / (total + n) for r, n in zip(right, of, strict=True))
        return (first + second) / 2, best

    def rates(lines: list[int]) -> tuple[float, float]:
        total, best, first, second = (sum(side[i] for i in lines) for side in hits)
        return 50 * (first + second) / total, 100 * best / total

    compared = words.compare_words(*arms, references, COUNTS, 4000)
    assert_close(compared[place], naive_bootstrap(f1s))
    others = [word for word in COUNTS if word not in kinds] + ["zyx", "qua", "wug"] * (place > 0)
    assert_close(
        words.compare_copies(*arms, references, references, others, 4000), naive_bootstrap(rates)
    )


def test_bucket_without_words_has_no_f1() -> None:
    nothing = {"f1": None, "low": None, "high": None}
    once = words.compare_words([["the"] * 3], [["once"] * 3], ["the"] * 3, COUNTS, 50)
    assert once[0] == {"bucket": "0", "reference": 0, **dict.fromkeys(SIDES, nothing)}
    assert once[1]["baseline"] == once[1]["difference"] == nothing
    assert once[1]["system"] == {"f1": 0, "low": 0, "high": 0}
    half = words.compare_words([["the"], ["once"]], [["the"]], ["the"], COUNTS, 50)
    assert half[1]["baseline"] == nothing


def test_resamples_without_words_are_left_out() -> None:
    """Of three lines one has the word: 8 of 27 resamples have none."""
    lines = ["zyx", "the", "the"]
    rare = words.compare_words([lines], [lines], lines, COUNTS, 200)[0]
    assert rare["baseline"] == {"f1": 100, "low": 100, "high": 100}
    copies = words.compare_copies([lines], [lines], lines, lines, COUNTS, 200)
    assert copies["system"] == {"rate": 100, "low": 100, "high": 100}


def test_copies_are_those_counted_by_hand() -> None:
    lines = (  # source, reference, hypothesis, words to copy, copied
        ("Oslo ist schön", "Oslo is nice", "Oslo is fine", 1, 1),
        ("Kim und Kim und Kim", "Kim and Kim", "Kim", 2, 1),  # clipped by the reference
        ("Kim da", "Kim Kim there", "Kim Kim Kim", 1, 1),  # and by the source
        ("Bonn", "Bonn", "Cologne", 1, 0),
        ("und so", "und so", "und", 0, 0),  # known
        ("Rom", "Rome", "Rom", 0, 0),  # not in the reference
        ("da", "Ulm", "Ulm", 0, 0),  # not in the source
    )
    sources, references, hypotheses = ([line[i] for line in lines] for i in range(3))
    known = {"ist", "und", "so", "da", "schön"}
    table = words.copy_table(sources, hypotheses, references, known)
    assert table.tolist() == [list(line[3:]) for line in lines]
    found = words.compare_copies(
        [hypotheses], [references, hypotheses], sources, references, known, 50
    )
    assert found["words"] == 5
    assert [found[side]["rate"] for side in SIDES] == [60, 80, 20]


def test_nothing_to_copy_has_no_rate() -> None:
    found = words.compare_copies([["a"]], [["b"]], ["a"], ["a"], {"a"}, 50)
    nothing = {"rate": None, "low": None, "high": None}
    assert found == {"words": 0, **dict.fromkeys(SIDES, nothing)}


def test_resamples_depend_on_their_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on numpy's global state nor on how many are drawn at a time."""

    def drawn(seed: int) -> np.ndarray:
        references, side = texts(10, 1, (0.5,))
        tables = [words.word_table(side, references, COUNTS)]
        return words.bootstrap([tables, tables], words.f1, 501, seed)[1]

    first = drawn(1)
    assert first.shape == (3, 501, 9)
    before = np.random.get_state()[1].copy()
    monkeypatch.setattr(words, "CHUNK", 7)
    np.testing.assert_array_equal(drawn(1), first)
    assert (np.random.get_state()[1] == before).all()
    assert not np.array_equal(drawn(2), first, equal_nan=True)


@pytest.mark.parametrize(
    ("baseline", "system", "sources", "references", "message"),
    [
        ([], [["a"]], ["a"], ["a"], "baseline: no hypotheses"),
        ([["a"]], [], ["a"], ["a"], "system: no hypotheses"),
        ([["a"]], [["a"], ["a", "b"]], ["a"], ["a"], "system, hypotheses 2: 2 lines, but 1 ref"),
        ([[]], [["a"]], ["a"], ["a"], "baseline, hypotheses 1: 0 lines, but 1 ref"),
        ([[]], [[]], [], [], "references: no lines"),
        ([["a"]], [["a"]], ["a", "b"], ["a"], "sources: 2 lines, but 1 ref"),
    ],
)
def test_what_does_not_match_is_refused(
    baseline: Any, system: Any, sources: list[str], references: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        words.compare_copies(baseline, system, sources, references, {})
    if not message.startswith("sources"):
        with pytest.raises(ValueError, match=message):
            words.compare_words(baseline, system, references, {})


def test_tables_of_unequal_texts_are_refused() -> None:
    with pytest.raises(ValueError):
        words.word_table(["a"], ["a", "b"], {})
    with pytest.raises(ValueError):
        words.copy_table(["a"], ["a", "b"], ["a", "b"], {})
