"""What makes attention loud: closed forms, and other implementations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from qknorm_mt.loudness import (
    FACTORS,
    Loudness,
    Means,
    masses,
    rank_correlation,
    shapley,
    uniform_masses,
)
from qknorm_mt.observe import Seen, attention_weights, observed, places, tokens_of

from .conftest import build_qknorm
from .test_probes import hand_made, observe, sample_of


def loudness(seen: Seen) -> dict[str, float | None]:
    """The figures of one head of one sentence without padding."""
    means = Means()
    means.add(seen)
    found = Loudness(means.result())
    found.add(seen, *(torch.ones(1, x.size(2), dtype=torch.bool) for x in (seen.q, seen.k)))
    return {name: values[0] for name, values in found.result().items()}


def vectors(lengths: list[float], angles: list[float]) -> Tensor:
    """Plane vectors: ``(1, 1, n, 2)``."""
    r, a = torch.tensor(lengths), torch.tensor(angles)
    return torch.stack([r * a.cos(), r * a.sin()], dim=-1)[None, None]


def asked(q: Tensor, k: Tensor, scale: float = 1.0) -> Seen:
    visible = torch.ones(1, 1, q.size(2), k.size(2), dtype=torch.bool)
    return Seen(q, k, q, k, torch.tensor([scale]), visible)


CROSSED = [(r, a) for r in (1.0, 2.0, 4.0) for a in (0.2, 1.0, 1.4)]


def test_a_logit_of_independent_length_and_cosine() -> None:
    """One query; every length of a key with every angle. Then Var(XY) and what is lost with one of
    the two at its mean are known, and so are the Shapley values of two factors."""
    found = loudness(asked(vectors([3.0], [0.0]), vectors(*map(list, zip(*CROSSED, strict=True)))))
    x, y = np.array([1.0, 2.0, 4.0]), np.cos([0.2, 1.0, 1.4])
    whole = (x**2).mean() * (y**2).mean() - x.mean() ** 2 * y.mean() ** 2
    by_k = 1 - (x**2).mean() * y.var() / whole
    by_cos = 1 - (y**2).mean() * x.var() / whole
    assert found["logit_by_k"] == pytest.approx((by_k + 1 - by_cos) / 2, abs=1e-6)
    assert found["logit_by_cos"] == pytest.approx((by_cos + 1 - by_k) / 2, abs=1e-6)
    assert found["logit_by_q"] == pytest.approx(0, abs=1e-6)


def test_mass_against_weights_made_by_hand() -> None:
    lengths, angles = map(list, zip(*CROSSED, strict=True))
    found = loudness(asked(vectors([3.0], [0.0]), vectors(lengths, angles)))
    r, c = np.array(lengths), np.cos(angles)

    def explained(logits: np.ndarray) -> float:
        mass, other = (np.exp(x) / np.exp(x).sum() for x in (3 * r * c, logits))
        return 1 - ((mass - other) ** 2).sum() / ((mass - 1 / 9) ** 2).sum()

    by_k, by_cos = explained(3 * r * c.mean()), explained(3 * r.mean() * c)
    assert found["mass_by_k"] == pytest.approx((by_k + 1 - by_cos) / 2, abs=1e-5)
    assert found["mass_by_cos"] == pytest.approx((by_cos + 1 - by_k) / 2, abs=1e-5)


@pytest.mark.parametrize("factor", FACTORS)
def test_one_factor_alone(factor: str) -> None:
    """Where only one of the three differs, it explains all."""
    n = 12
    lengths, angles = [1.0 + i for i in range(n)], [0.1 * i for i in range(n)]
    q = vectors(lengths if factor == "q" else [2.0] * n, [0.5] * n)
    k = vectors(lengths if factor == "k" else [2.0] * n, angles if factor == "cos" else [0.0] * n)
    found = loudness(asked(q, k, 0.1))
    for name in FACTORS:
        assert found[f"logit_by_{name}"] == pytest.approx(float(name == factor), abs=1e-5)
    if factor == "q":  # of every query all keys get the same: nothing to explain
        assert found["mass_by_cos"] is None
    else:
        assert found[f"mass_by_{factor}"] == pytest.approx(1, abs=1e-5)


def test_shares_sum_to_the_whole() -> None:
    value = {frozenset("qk"): 0.3}
    shares = shapley(lambda free: len(free) ** 2 / 9 + value.get(free, 0.0))
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["q"] == pytest.approx(shares["k"])


@pytest.mark.parametrize("weight", [0.29, 0.31])
def test_a_sink(weight: float) -> None:
    """Of 16 keys the first gets ``weight`` of every query, the others the rest in equal parts."""
    logit = math.log(weight * 15 / (1 - weight))
    found = loudness(hand_made([[logit, *[0.0] * 15]] * 4))
    assert found["sink"] == found["sink_first"] == float(weight > 0.3)
    assert found["sink_last"] == 0


def test_uniform_attention_has_no_sink_and_nothing_to_explain() -> None:
    found = loudness(asked(vectors([1.0] * 16, [0.3] * 16), vectors([2.0] * 16, [0.3] * 16)))
    assert (found["sink"], found["sink_length"], found["rank_k"]) == (0, None, None)
    assert found["mass_by_cos"] is None
    few = loudness(hand_made([[5.0, 0.0, 0.0]]))  # too few keys: no sentence to tell from
    assert few["sink"] is None


def test_a_causal_sink_counts_all_queries() -> None:
    """Even causal attention: the first key gets (1 + 1/2 + ... + 1/16) / 16; of the last, which one
    query sees, nothing is told."""
    seen = hand_made([[0.0] * 16] * 16, causal=True)
    real = torch.ones(1, 16, dtype=torch.bool)
    mass = masses(attention_weights(seen.logits, seen.visible), real)
    harmonic = sum(1 / n for n in range(1, 17)) / 16
    assert mass[0, 0, 0].item() == pytest.approx(harmonic)
    torch.testing.assert_close(mass, uniform_masses(seen.visible, real))
    assert (loudness(seen)["sink"], loudness(seen)["sink_last"]) == (0, None)


@pytest.mark.parametrize("length", [0.5, 2.0])
def test_sinks_that_are_short_or_long(length: float) -> None:
    """A sink whose key is short, led by its cosine; and one that is long."""
    n = 16
    k = vectors([length, *[1.0] * (n - 1)], [0.0, *[1.5] * (n - 1)])
    found = loudness(asked(vectors([8.0] * 3, [0.0] * 3), k))
    assert (found["sink"], found["sink_shorter"]) == (1, float(length < 1))
    assert found["sink_length"] == pytest.approx(length / ((length + n - 1) / n), rel=1e-5)
    assert found["sink_cos"] == pytest.approx(1) and found["other_cos"] == pytest.approx(
        math.cos(1.5), abs=1e-6
    )


def test_rank_correlation_is_scipys() -> None:
    x, y = torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(0))
    expected = [scipy.stats.spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)]
    assert rank_correlation(x, y).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["none", "l2", "qwen3"])
def test_a_padded_batch_is_its_sentences_alone(
    name: str, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qknorm_mt.loudness.SINK_KEYS", 4)
    model, sample = build_qknorm(task, name).eval(), sample_of(True)
    means = {place.name: Means() for place in places(model)}
    seen, tokens = observe(model, sample)
    for place in places(model):
        means[place.name].add(seen[place.name])
    together = {n: Loudness(m.result()) for n, m in means.items()}
    alone = {n: Loudness(m.result()) for n, m in means.items()}
    single = {place.name: Means() for place in places(model)}
    for place in places(model):
        real = tokens.queries(place.kind)[1], tokens.keys(place.kind)[1]
        together[place.name].add(seen[place.name], *real)
    batch = sample["net_input"]
    for i in range(3):
        s, t = int(tokens.source_real[i].sum()), int(tokens.target_real[i].sum())
        one = {
            "src_tokens": batch["src_tokens"][i : i + 1, -s:],
            "src_lengths": torch.tensor([s]),
            "prev_output_tokens": batch["prev_output_tokens"][i : i + 1, :t],
        }
        own = tokens_of({"net_input": one}, model)

        def each(place: Any, x: Seen, own: Any = own) -> None:
            single[place.name].add(x)
            alone[place.name].add(x, own.queries(place.kind)[1], own.keys(place.kind)[1])

        with torch.no_grad(), observed(model, own, each):
            model(**one)
    for module, figures in together.items():
        for factor, mean in means[module].result().items():
            torch.testing.assert_close(single[module].result()[factor], mean)
        for figure, values in figures.result().items():
            expected = alone[module].result()[figure]
            assert (values[0] is None) == (expected[0] is None)
            if values[0] is not None:
                assert values == pytest.approx(expected, abs=1e-4), (module, figure)
        if name == "l2":
            assert figures.result()["logit_by_cos"] == pytest.approx([1.0] * 4, abs=1e-4)
