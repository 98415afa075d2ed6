"""Which keys get attention, and why: length or direction.

A logit is scale * |q| * |k| * cos(q, k). Of each head, :class:`Loudness` tells how much of what
differs between logits, and between the attention masses of keys, goes back to each of the three;
where the sinks are, and whether their keys are long or well aimed.

Mass of a key: the mean over a sentence's queries of the weight it gets. Its *uniform* mass is what
it would get if every query spread its attention evenly over the keys it sees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .observe import Seen, attention_weights

FACTORS = ("q", "k", "cos")
SUBSETS = [
    frozenset(s) for n in range(len(FACTORS) + 1) for s in itertools.combinations(FACTORS, n)
]
SINK = 0.3  # Gu et al. 2025: a sink gets more than this of the mean attention
SINK_KEYS = 16  # of fewer keys, even attention comes near: a causal first key gets 0.29 of 10


def factors_of(seen: Seen) -> dict[str, Tensor]:
    """|q| ``(batch, heads, queries, 1)``, |k| ``(batch, heads, 1, keys)``, and their cosine."""
    q, k = (x.norm(dim=-1) for x in (seen.q, seen.k))
    q, k = q[..., None], k[..., None, :]
    dot = seen.q @ seen.k.transpose(-1, -2)
    return {"q": q, "k": k, "cos": dot / (q * k).clamp(min=1e-30)}


class Means:
    """Mean of each factor of a head's logits, over the pairs of a query and a key it may see."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.pairs = 0

    def add(self, seen: Seen) -> None:
        for name, values in factors_of(seen).items():
            there = values.double().mul(seen.visible).sum(dim=(0, 2, 3)).cpu()
            self.sums[name] = self.sums.get(name, 0) + there
        self.pairs += int(seen.visible.sum())

    def result(self) -> dict[str, Tensor]:
        return {name: total / self.pairs for name, total in self.sums.items()}


def held(factors: dict[str, Tensor], means: dict[str, Tensor], free: frozenset[str]) -> Tensor:
    """Logits, but for the scale, if the factors that are not free had their mean everywhere."""
    parts = (
        values if name in free else means[name].to(values)[:, None, None]
        for name, values in factors.items()
    )
    return math.prod(parts, start=torch.ones(()))


def shapley(value: Callable[[frozenset[str]], float]) -> dict[str, float]:
    """Each factor's share of ``value`` of all of them: what it adds, on average over the orders in
    which they may be let free (Shapley 1953). The shares sum to ``value(all) - value(none)``."""
    shares = dict.fromkeys(FACTORS, 0.0)
    orders = list(itertools.permutations(FACTORS))
    for order in orders:
        for i, name in enumerate(order):
            gain = value(frozenset(order[: i + 1])) - value(frozenset(order[:i]))
            shares[name] += gain / len(orders)
    return shares


class Loudness:
    """Of one attention module, over as many batches as are added.

    Args:
        means: of the module's factors over the same batches.

    ``result`` has, each a list with a number a head:

    ``logit_by_q``, ``logit_by_k``, ``logit_by_cos``
        how much of the variance of logits each factor explains: Shapley values of 1 - Var(logit -
        logit with the others at their mean) / Var(logit); they sum to 1;
    ``mass_by_q``, ``mass_by_k``, ``mass_by_cos``
        the same of the masses that keys get, beyond the uniform ones: of 1 - SS(mass - mass with
        the others' logits) / SS(mass - uniform mass);
    ``sink``, ``sink_first``, ``sink_last``
        share of sentences (of at least 16 keys) in which some key, the first, or the last one gets
        more than 0.3 of the mean attention: of the mean over all queries, where Gu et al. leave
        out those that a causal mask keeps from seeing the key; the last one is seen by one alone,
        and not told of there;
    ``sink_shorter``
        of these sinks, the share whose key is shorter than the sentence's mean key;
    ``sink_length``, ``sink_cos``, ``other_cos``
        geometric mean of the sink key's length over the mean key's; mean cosine of queries with
        the sink's key, and with the other keys;
    ``rank_k``, ``rank_cos``
        rank correlation, within a sentence, of the mass a key gets (over its uniform mass) with
        its length and with its mean cosine: mean over sentences.

    None where there is nothing to tell: no sink, or all lengths equal.
    """

    def __init__(self, means: dict[str, Tensor]):
        self.means = means
        heads = len(means["cos"])
        self.pairs = 0
        self.logits = torch.zeros(len(SUBSETS), 2, heads, dtype=torch.float64)  # Σ, Σ²
        self.masses = torch.zeros(len(SUBSETS), heads, dtype=torch.float64)
        self.sentences: list[Tensor] = []  # (heads, figures)

    def add(self, seen: Seen, asking: Tensor, asked: Tensor) -> Tensor:
        """Add a batch; return the masses ``(batch, heads, keys)``."""
        factors = factors_of(seen)
        scale = seen.scale[:, None, None]
        logits = scale * held(factors, self.means, frozenset(FACTORS))
        mass = masses(attention_weights(logits, seen.visible), asking)
        for i, free in enumerate(SUBSETS):
            others = (scale * held(factors, self.means, free)).expand_as(logits)
            rest = (logits - others).double().mul(seen.visible)
            self.logits[i] += torch.stack([rest.sum((0, 2, 3)), rest.square().sum((0, 2, 3))]).cpu()
            gap = mass - masses(attention_weights(others, seen.visible), asking)
            self.masses[i] += gap.double().mul(asked[:, None]).square().sum((0, 2)).cpu()
        self.pairs += int(seen.visible.sum())
        uniform = uniform_masses(seen.visible, asking)
        for i in range(len(asked)):
            if int(asked[i].sum()) >= SINK_KEYS:
                pairs = seen.visible[i, 0][asking[i]][:, asked[i]]
                cosines = factors["cos"][i][:, asking[i]][:, :, asked[i]]
                length = factors["k"][i, :, 0][:, asked[i]]
                own, even = mass[i][:, asked[i]], uniform[i, 0, asked[i]]
                self.sentences.append(sentence_figures(own, even, length, cosines, pairs).cpu())
        return mass

    def result(self) -> dict[str, list[float | None]]:
        heads = len(self.means["cos"])
        mean, square = self.logits[:, 0] / self.pairs, self.logits[:, 1] / self.pairs
        found: dict[str, list[float | None]] = {}
        for what, lost in (("logit", square - mean.square()), ("mass", self.masses)):
            shares = [explained(lost[:, head].tolist()) for head in range(heads)]
            for name in FACTORS:
                found[f"{what}_by_{name}"] = [s[name] if s else None for s in shares]
        if not self.sentences:
            return found | {name: [None] * heads for name in SENTENCE}
        table = torch.stack(self.sentences)  # (sentences, heads, figures)
        for i, name in enumerate(SENTENCE):
            found[name] = [mean_of(table[:, head, i]) for head in range(heads)]
        found["sink_length"] = [None if x is None else math.exp(x) for x in found["sink_length"]]
        return found


SENTENCE = (
    *("sink", "sink_first", "sink_last", "sink_shorter", "sink_length", "sink_cos", "other_cos"),
    *("rank_k", "rank_cos"),
)


def explained(lost: Sequence[float]) -> dict[str, float] | None:
    """Shapley values of the share that is not lost with each subset of factors free."""
    loss = dict(zip(SUBSETS, lost, strict=True))
    whole = loss[frozenset()]
    if not whole > 1e-12:
        return None
    return shapley(lambda free: 1 - loss[free] / whole)


def masses(weights: Tensor, asking: Tensor) -> Tensor:
    """Mean weight that each key gets of a sentence's real queries: ``(batch, heads, keys)``."""
    return weights.sum(dim=2) / asking.sum(dim=1)[:, None, None]


def uniform_masses(visible: Tensor, asking: Tensor) -> Tensor:
    """What keys would get of even attention: ``(batch, 1, keys)``."""
    return masses(visible / visible.sum(dim=-1, keepdim=True).clamp(min=1), asking)


def sentence_figures(
    mass: Tensor, uniform: Tensor, length: Tensor, cosine: Tensor, visible: Tensor
) -> Tensor:
    """``(heads, figures)`` of one sentence, named by :data:`SENTENCE`; NaN for what is not there.

    Args:
        mass, length: ``(heads, keys)``.
        uniform: ``(keys,)``.
        cosine: ``(heads, queries, keys)``.
        visible: ``(queries, keys)``.
    """
    seen = visible.sum(dim=0).clamp(min=1)
    aim = (cosine * visible).sum(dim=1) / seen  # (heads, keys)
    top, place = mass.max(dim=-1, keepdim=True)
    sink = top[:, 0] > SINK
    nan = torch.full_like(top[:, 0], math.nan)

    def at_sink(x: Tensor) -> Tensor:
        return torch.where(sink, x.gather(1, place)[:, 0], nan)

    total = (cosine * visible).sum(dim=(1, 2)) - (aim * seen).gather(1, place)[:, 0]
    others = total / (visible.sum() - seen[place[:, 0]]).clamp(min=1)
    mean = length.mean(dim=-1)
    ratio = at_sink(length) / mean
    alike = length.std(dim=-1) < 1e-4 * mean  # all of one length, but for rounding
    known = torch.where(alike, nan, ratio)
    figures = [
        sink.to(mass),
        (mass[:, 0] > SINK).to(mass),
        (mass[:, -1] > SINK).to(mass) if seen[-1] == len(visible) else nan,
        torch.where(known.isnan(), nan, (known < 1).to(mass)),
        ratio.log(),
        at_sink(aim),
        torch.where(sink, others, nan),
        torch.where(alike, nan, rank_correlation(mass / uniform, length)),
        rank_correlation(mass / uniform, aim),
    ]
    return torch.stack(figures, dim=-1)


def rank_correlation(x: Tensor, y: Tensor) -> Tensor:
    """Spearman's, of each row; equal values are ranked as they come."""
    ranks = (v.argsort(dim=-1).argsort(dim=-1).double() for v in (x, y))
    a, b = (r - r.mean(dim=-1, keepdim=True) for r in ranks)
    return ((a * b).sum(dim=-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp(min=1e-30)).to(x)


def mean_of(values: Tensor) -> float | None:
    there = values[~values.isnan()]
    return float(there.mean()) if len(there) else None
