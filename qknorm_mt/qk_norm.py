"""Query-key normalisers and the temperature they come with.

A normaliser turns the query and key head vectors of one attention module into vectors whose plain
dot product is the attention logit: the temperature is already inside the query. So attention has
one code path whatever the normaliser, and a key can be cached as soon as it is normalised.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

QK_NORMS = ("none", "l2")

# The authors' released code divides by max(norm, 1e-12).
L2_EPS = 1e-12


def g_init_from_length(length: float) -> float:
    """Start of g for training sequences of ``length`` subword tokens: log2(L^2 - L).

    Henry et al. 2020, section 3, where L is the 97.5th percentile of the lengths of the training
    sequences, source and target. L = 72, 75, 79 give 12.3197, 12.4383, 12.5892.

    Raises:
        ValueError: if ``length`` is under 2 (the logarithm's argument would be at most zero).
    """
    if not math.isfinite(length) or length < 2:
        raise ValueError(f"length must be a finite number of at least 2 tokens, got {length}")
    return math.log2(length * length - length)


class QKNorm(nn.Module):
    """What attention is handed: two maps of head vectors ``(..., head_dim)``."""

    def query(self, q: Tensor) -> Tensor:
        """Normalised query vectors with the temperature applied."""
        raise NotImplementedError

    def key(self, k: Tensor) -> Tensor:
        """Normalised key vectors."""
        raise NotImplementedError


class ScaledDotProduct(QKNorm):
    """No normalisation: logits are q.k / sqrt(head_dim) (Vaswani et al. 2017, equation 1)."""

    def __init__(self, head_dim: int):
        super().__init__()
        self.scale = head_dim**-0.5

    def query(self, q: Tensor) -> Tensor:
        return q * self.scale

    def key(self, k: Tensor) -> Tensor:
        return k


class L2QKNorm(QKNorm):
    """QKNorm: logits are g cos(q, k), with one learned scalar g (Henry et al. 2020, section 3)."""

    def __init__(self, g_init: float):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([g_init], dtype=torch.float32))

    def query(self, q: Tensor) -> Tensor:
        return l2_normalize(q) * self.g.type_as(q)

    def key(self, k: Tensor) -> Tensor:
        return l2_normalize(k)

    def extra_repr(self) -> str:
        return f"g={self.g.item():.4f}"


def l2_normalize(x: Tensor) -> Tensor:
    """Divide each vector along the last axis by max(its L2 norm, eps).

    eps is the published 1e-12, but in fp16, where a zero vector's gradient, 1/eps, must stay
    finite, it is the smallest normal number, 6.1e-5. Half precision is normalised in float32:
    in fp16 the squares of entries over 255 overflow.
    """
    eps = max(L2_EPS, torch.finfo(x.dtype).tiny)
    half = x.dtype in (torch.float16, torch.bfloat16)
    return F.normalize(x.float() if half else x, dim=-1, eps=eps).type_as(x)


def build_qk_norm(kind: str, head_dim: int, init_length: float | None) -> QKNorm:
    """The normaliser ``kind`` of :data:`QK_NORMS` for heads of size ``head_dim``.

    Raises:
        ValueError: for an unknown kind, or ``l2`` without the length that g starts from.
    """
    if kind == "none":
        return ScaledDotProduct(head_dim)
    if kind == "l2":
        if init_length is None:
            raise ValueError("l2 needs init_length, the length that g starts from")
        return L2QKNorm(g_init_from_length(init_length))
    raise ValueError(f"unknown normaliser {kind!r}, expected one of {', '.join(QK_NORMS)}")
