"""Statistics against other tools: compare-mt's figures, scipy's tests, worked examples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from sacrebleu.significance import PairedTest

from experiments import stats
from experiments.commands import RunError
from experiments.lines import read_lines
from experiments.score import make_metric, sentence_stats

# compare-mt 0.2.10, eval_with_paired_bootstrap(num_samples=20000, sample_ratio=1, numpy seed 1):
# how often the second system did not win, and each one's 95% interval of BLEU. Its BLEU is 0.01
# lower than multi-bleu.perl's.
GOLDEN = json.loads(
    (Path(__file__).parent / "golden" / "significance.json").read_text(encoding="utf-8")
)
SYSTEMS = {
    "en_vi": ("iwslt15_en_vi/tst2013.vi", "published_outputs_en_vi", ("baseline.vi", "qknorm.vi")),
    "sk_en": ("ted_sk_en/test.en", "ted_sk_en", ("system1.en", "system2.en")),
}

Sides = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def published(data_dir: Path) -> Callable[[str], Sides]:
    def load(name: str) -> Sides:
        reference, folder, files = SYSTEMS[name]
        lines = read_lines(data_dir / reference)
        first, second = (
            np.array(sentence_stats(read_lines(data_dir / folder / file), lines)) for file in files
        )
        return first, second

    return load


def bleu(sums: np.ndarray) -> float:
    """From sums over sentences, by the formula (Papineni et al. 2002), not by sacreBLEU."""
    hypothesis, reference = sums[:2]
    penalty = min(0.0, 1 - reference / hypothesis)
    return 100 * float(np.exp(penalty + np.mean(np.log(sums[2:6] / sums[6:]))))


@pytest.mark.parametrize("name", SYSTEMS)
def test_published_systems_as_other_tools_have_them(
    name: str, published: Callable[[str], Sides], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "RESAMPLES", 4000)
    baseline, system = published(name)
    found = stats.on_test_set([baseline], [system])
    assert found.difference == pytest.approx(bleu(system.sum(0)) - bleu(baseline.sum(0)))
    for ours, theirs in zip(found.intervals, GOLDEN[name]["intervals"], strict=True):
        assert ours == pytest.approx(theirs, abs=0.06)
    # Two-sided, where compare-mt counts the losses alone.
    assert found.p_bootstrap < 0.002
    assert GOLDEN[name]["lost_or_tied"] < 0.002
    assert found.interval[0] > 0
    # scipy's permutation test, of the same statistic, with its own draws.
    both = np.stack([baseline, system])

    def difference(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
        sides = [
            np.moveaxis(side, axis, -1).reshape(-1, side.shape[axis]) for side in (first, second)
        ]
        rows = both.reshape(-1, stats.NUMBERS)
        values = [bleu(rows[s].sum(0)) - bleu(rows[f].sum(0)) for f, s in zip(*sides, strict=True)]
        return np.array(values).reshape(np.delete(first.shape, axis))

    size = len(baseline)
    theirs = scipy.stats.permutation_test(
        (np.arange(size), np.arange(size, 2 * size)),
        difference,
        permutation_type="samples",
        vectorized=True,
        n_resamples=4999,
        rng=np.random.default_rng(7),
    )
    assert found.p_randomisation == pytest.approx(theirs.pvalue, abs=0.0015)


def test_randomisation_where_it_is_not_clear(
    published: Callable[[str], Sides],
) -> None:
    """Eighty sentences: a p in the middle, where an error would show."""
    baseline, system = (side[:80] for side in published("en_vi"))
    found = stats.on_test_set([baseline], [system])
    rows = np.concatenate([baseline, system])
    rng = np.random.default_rng(3)
    observed = abs(bleu(system.sum(0)) - bleu(baseline.sum(0)))
    passed = 0
    for _ in range(4000):
        swap = rng.integers(2, size=80).astype(bool)
        first = np.where(swap[:, None], rows[80:], rows[:80]).sum(0)
        second = np.where(swap[:, None], rows[:80], rows[80:]).sum(0)
        passed += abs(bleu(second) - bleu(first)) >= observed - 1e-9
    expected = (passed + 1) / 4001
    assert 0.02 < expected < 0.98
    assert found.p_randomisation == pytest.approx(expected, abs=4 * (0.25 / 4000) ** 0.5)
    assert found.interval[0] < 0 < found.interval[1]


def test_stored_statistics_are_tested_as_the_text_is(data_dir: Path) -> None:
    reference, folder, files = SYSTEMS["en_vi"]
    lines = read_lines(data_dir / reference)[:200]
    texts = [read_lines(data_dir / folder / file)[:200] for file in files]
    sides = [np.array(sentence_stats(text, lines)) for text in texts]
    for kind, samples in (("bs", 0), ("ar", stats.RESAMPLES)):
        test = PairedTest(
            list(zip("ab", texts, strict=True)),
            {"BLEU": make_metric("bleu_tok")},
            [lines],
            kind,
            samples,
        )
        assert stats.p_value(sides, kind) == test()[1]["BLEU"][1].p_value


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for made-up systems."""
    monkeypatch.setattr(stats, "RESAMPLES", 1000)


def some(seed: int, quality: float, sentences: int = 150) -> np.ndarray:
    """Statistics of a made-up system."""
    rng = np.random.default_rng(seed)
    length = rng.integers(8, 30, size=sentences)
    totals = np.stack([length - n for n in range(4)], axis=1)
    matches = rng.binomial(totals, quality ** np.arange(1, 5))
    return np.column_stack([length, length, matches, totals])


@pytest.mark.usefixtures("quick")
def test_equal_systems_do_not_differ_and_the_order_is_a_sign() -> None:
    one, other = some(1, 0.6), some(2, 0.7)
    same = stats.on_test_set([one], [one])
    assert (same.difference, same.interval) == (0.0, (0.0, 0.0))
    assert (same.p_randomisation, same.p_bootstrap) == (1.0, 1.0)
    there, back = stats.on_test_set([one], [other]), stats.on_test_set([other], [one])
    assert there.difference == -back.difference > 0
    assert there.interval == pytest.approx([-end for end in reversed(back.interval)])


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("differing", "least"), [(1, 1.0), (2, 0.5), (5, 1 / 16)])
def test_a_few_sentences_are_no_evidence(differing: int, least: float) -> None:
    one, better = some(1, 0.6), some(1, 0.6)
    better[:differing, 2:6] = better[:differing, 6:]  # all of it right
    found = stats.on_test_set([one], [better])
    assert found.difference > 0
    assert found.p_randomisation == pytest.approx(least, abs=0.01)


@pytest.mark.usefixtures("quick")
def test_seeds_are_averaged_and_drawn_together() -> None:
    one, other = some(1, 0.6), some(2, 0.7)
    single, twice = stats.on_test_set([one], [other]), stats.on_test_set([one] * 2, [other] * 2)
    assert twice == single  # the same model twice is no more evidence
    mixed = stats.on_test_set([one, some(3, 0.6)], [other, some(4, 0.7)])
    scores = [bleu(side.sum(0)) for side in (one, some(3, 0.6), other, some(4, 0.7))]
    assert mixed.difference == pytest.approx(np.mean(scores[2:]) - np.mean(scores[:2]))
    with pytest.raises(RunError, match=r"systems of \[149, 150\] sentences"):
        stats.on_test_set([one], [other[1:]])


@pytest.mark.usefixtures("quick")
def test_results_do_not_hang_on_global_random_state() -> None:
    sides = [some(1, 0.6)], [some(2, 0.62)]
    np.random.seed(1)
    first = stats.on_test_set(*sides)
    np.random.seed(2)
    assert stats.on_test_set(*sides) == first


def test_over_seeds() -> None:
    found = stats.over_seeds([30.0, 31.0, 32.0])
    assert (found.mean, found.deviation) == (31.0, 1.0)
    expected = scipy.stats.t.interval(0.95, 2, loc=31, scale=1 / 3**0.5)
    assert found.interval == pytest.approx(expected)
    assert stats.over_seeds([30.0]) == stats.OverSeeds((30.0,), 30.0, None, None)


def test_seed_by_seed() -> None:
    # Student's sleep data, as R's t.test(paired = TRUE) has it: t = -4.0621, p = 0.002833.
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    assert stats.p_by_seed(first, second) == pytest.approx(0.002833, abs=5e-7)
    assert stats.p_by_seed([1.0], [2.0]) is None
    assert stats.p_by_seed([13.1, 13.4, 13.7], [13.2, 13.5, 13.8]) is None  # alike but for rounding


def test_holm() -> None:
    # R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.6, 0.7]) == [1.0, 1.0]
    assert stats.holm([]) == []
