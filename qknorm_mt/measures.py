"""Figures of attention, one a head: how large logits are, how sharp weights, how long vectors.

:class:`HeadFigures` gathers a module's figures over batches. What is padding never counts, and
neither do rows with a single key, which have no choice to make.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .observe import Seen, attention_weights

SATURATED = 0.99  # a row whose largest weight passes this looks at one key alone
LOGIT_QUANTILE = 0.999
NORM_QUANTILE = 0.95
VECTORS = ("q", "k", "q_raw", "k_raw")


class HeadFigures:
    """Of one attention module, over as many batches as are added.

    Args:
        pairs: of a query and a key it may see, in all these batches.

    ``result`` has, each a list with a number a head:

    ``logit_max``, ``logit_p999``
        largest, and 99.9th percentile, of the logits of a real query and a key it may see;
    ``entropy``
        of attention rows, in nats, the mean over rows;
    ``entropy_share``
        the same, each row's as a share of the log of the number of keys it sees: 1 is uniform;
    ``saturated``
        share of rows whose largest weight passes 0.99;
    ``q_norm``, ``k_norm``, ``q_raw_norm``, ``k_raw_norm``
        length of queries and keys, normalised and as projected: mean, and 95th percentile as
        ``..._p95``.
    """

    def __init__(self, pairs: int) -> None:
        self.place = LOGIT_QUANTILE * (pairs - 1)
        self.keep = pairs - int(self.place)  # so many of the largest logits are all that is needed
        self.logits: Tensor | None = None  # (heads, keep)
        self.rows: list[Tensor] = []  # (heads, n, 3): entropy, its share, saturated or not
        self.norms: dict[str, list[Tensor]] = {name: [] for name in VECTORS}

    def add(self, seen: Seen, weights: Tensor, asking: Tensor, asked: Tensor) -> None:
        """Add a batch.

        Args:
            weights: ``(batch, heads, queries, keys)``, as :func:`attention_weights`.
            asking, asked: ``(batch, time)``, which queries and keys are real.
        """
        logits = chosen(seen.logits, seen.visible[:, 0]).cpu()
        logits = logits if self.logits is None else torch.cat([self.logits, logits], dim=1)
        self.logits = logits.topk(min(self.keep, logits.size(1)), dim=1).values
        keys = seen.visible.sum(dim=-1)  # (batch, 1, queries)
        entropy = torch.special.entr(weights).sum(dim=-1)
        share = entropy / keys.clamp(min=2).log()
        sharp = (weights.amax(dim=-1) > SATURATED).float()
        rows = torch.stack([entropy, share, sharp], dim=-1)
        self.rows.append(chosen(rows, keys[:, 0] > 1).cpu())
        for name in VECTORS:
            norm = getattr(seen, name).norm(dim=-1)
            self.norms[name].append(chosen(norm, asking if name[0] == "q" else asked).cpu())

    def result(self) -> dict[str, list[float]]:
        assert self.logits is not None, "no batch was added"
        rows = torch.cat(self.rows, dim=1)
        entropy, share, sharp = rows.mean(dim=1).unbind(dim=-1)
        figures = {
            "logit_max": self.logits[:, 0],
            "logit_p999": between(self.logits, self.place),
            "entropy": entropy,
            "entropy_share": share,
            "saturated": sharp,
        }
        for name, batches in self.norms.items():
            norms = torch.cat(batches, dim=1)
            figures[f"{name}_norm"] = norms.mean(dim=1)
            figures[f"{name}_norm_p95"] = quantile(norms, NORM_QUANTILE)
        return {name: values.tolist() for name, values in figures.items()}


def figures_of(seen: Seen, asking: Tensor, asked: Tensor) -> dict[str, list[float]]:
    """The figures of a single batch."""
    figures = HeadFigures(int(seen.visible.sum()))
    figures.add(seen, attention_weights(seen.logits, seen.visible), asking, asked)
    return figures.result()


def chosen(x: Tensor, mask: Tensor) -> Tensor:
    """What of ``(batch, heads, *places, ...)`` a mask ``(batch, *places)`` lets through, as
    ``(heads, n, ...)``."""
    return x.transpose(0, 1)[:, mask]


def quantile(x: Tensor, q: float) -> Tensor:
    """Of each row, between two neighbours in proportion; torch's own stops at 2^24 numbers."""
    place = q * (x.size(1) - 1)
    return between(x.topk(x.size(1) - int(place), dim=1).values, place)


def between(top: Tensor, place: float) -> Tensor:
    """The number at ``place``, counted from the smallest, of which ``top`` has all that are at
    least as large, the largest first, in each row."""
    return torch.lerp(top[:, -1], top[:, max(top.size(1) - 2, 0)], place - int(place))
