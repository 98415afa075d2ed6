"""Query-key normalisers, the temperature, and the start of g.

A :class:`QKNorm` turns the query and key head vectors of one attention module into vectors whose
plain dot product is the attention logit: temperature and rotary positions are already inside. So
attention has one code path whatever the normaliser, and a key can be cached as soon as it is
normalised.

With unit(x) = x / |x| and rms(x) = x / sqrt(mean(x^2)), of length sqrt(head_dim):

========== ===================== ============ ============= =====================================
kind       normalised            learned      fixed         source
========== ===================== ============ ============= =====================================
none       q, k                  g/d q.k      q.k/sqrt(d)   Vaswani et al. 2017, equation 1
l2         unit(q), unit(k)      g cos(q, k)  (flat)        Henry et al. 2020, section 3
layernorm  rms(q - mean(q)), ..  g/d q.k      q.k/sqrt(d)   Dehghani et al. 2023 (ViT-22B)
rmsnorm    rms(q), rms(k)        g/d q.k      q.k/sqrt(d)   Yang et al. 2025 (Qwen3)
========== ===================== ============ ============= =====================================

g is counted in the same unit everywhere: vectors of the normalised length that point the same way
get a logit of g, and g = sqrt(d) is the fixed temperature.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .rope import RotaryEmbedding

QK_NORMS = ("none", "l2", "layernorm", "rmsnorm")
TEMPERATURES = ("auto", "learned", "fixed", "none")
# What each normaliser can learn on its own, for queries and for keys, per dimension of a head.
AFFINES = {
    "none": ("none",),
    "l2": ("none",),
    "layernorm": ("none", "gain", "gain_bias"),
    "rmsnorm": ("none", "gain"),
}
SQRT_HEAD_DIM = "sqrt_head_dim"

# The authors' released code divides by max(|x|, 1e-12). In fp16 the gradient of a zero vector,
# g / eps, must stay under 65,504, and a shorter vector has entries too small to have a direction.
L2_EPS = 1e-12
L2_EPS_FP16 = 2.0**-10
# Added to the mean square under the root, as in Qwen3 and in Flax's LayerNorm, which ViT-22B used.
RMS_EPS = 1e-6


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


def g_init_of(start: str | float, head_dim: int) -> float:
    """Start of g as a number or as ``sqrt_head_dim``.

    Raises:
        ValueError: for anything else, and for a number that is not finite and over 0.
    """
    if start == SQRT_HEAD_DIM:
        return head_dim**0.5
    try:
        g = float(start)
    except ValueError:
        g = math.nan
    if not 0 < g < math.inf:
        raise ValueError(f"expected a number over 0, or {SQRT_HEAD_DIM}, got {start!r}")
    return g


class RowScale(torch.autograd.Function):
    """Each vector over max(its length, eps), or over sqrt(mean(x^2) + eps), times a temperature.

    One function with a backward of its own, because autograd's goes over the vectors twice as
    often; half precision is computed in float32, where the squares of entries over 255 are finite.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, g: Tensor | None, factor: float, rms: bool, eps: float
    ) -> Tensor:
        wide = widen(x)
        if rms:
            length = (wide.square().mean(dim=-1, keepdim=True) + eps).sqrt()
        else:
            length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).clamp(min=eps)
        row = temperature(g, factor, wide) / length
        ctx.factor, ctx.rms, ctx.eps = factor, rms, eps
        ctx.save_for_backward(x, length, row, g)
        return (wide * row).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, length, row, g = ctx.saved_tensors
        wide, dy = widen(x), widen(gradient).contiguous()  # a transposed one comes from q @ k^T
        product = dy * wide
        dot = product.sum(dim=-1, keepdim=True)
        slope = dot * row / length.square()
        if ctx.rms:
            slope /= x.size(-1)
        elif ctx.eps > L2_EPS:  # a vector up to eps is divided by a constant; up to 1e-12, it is 0
            slope.masked_fill_(length <= ctx.eps, 0.0)
        # Fresh memory costs more than the arithmetic at these sizes: reuse the product's.
        dx = torch.mul(dy, row, out=product).addcmul_(wide, slope, value=-1).to(x.dtype)
        dg = None
        if g is not None:
            dg = (dot / length).sum_to_size(g.size(0), 1, 1).mul(ctx.factor).view(-1).to(g.dtype)
        return dx, dg, None, None, None


def temperature(g: Tensor | None, factor: float, like: Tensor) -> float | Tensor:
    """What vectors ``(batch, heads, time, head_dim)`` are multiplied by."""
    return factor if g is None else g.to(like.dtype).view(-1, 1, 1) * factor


def widen(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def l2_normalize(x: Tensor, g: Tensor | None = None, factor: float = 1.0) -> Tensor:
    """Divide each vector along the last axis by max(its L2 norm, eps), times g and ``factor``.

    eps is the published 1e-12; in fp16 it is 2^-10.
    """
    eps = L2_EPS_FP16 if x.dtype == torch.float16 else L2_EPS
    return RowScale.apply(x, g, factor, False, eps)


class HeadNorm(nn.Module):
    """What is done to every query, or every key: ``(..., head_dim)`` to the same shape."""

    def __init__(self, head_dim: int, affine: str = "none"):
        super().__init__()
        self.head_dim = head_dim
        gain, bias = affine != "none", affine == "gain_bias"
        self.weight = nn.Parameter(torch.ones(head_dim)) if gain else None
        self.bias = nn.Parameter(torch.zeros(head_dim)) if bias else None

    def forward(self, x: Tensor, g: Tensor | None, factor: float) -> Tensor:
        """Normalised vectors times ``factor`` and g, which is ``(1,)`` or ``(heads,)``."""
        raise NotImplementedError


class NoNorm(HeadNorm):
    def forward(self, x: Tensor, g: Tensor | None, factor: float) -> Tensor:
        return times(x, g, factor)


class L2Norm(HeadNorm):
    def forward(self, x: Tensor, g: Tensor | None, factor: float) -> Tensor:
        return l2_normalize(x, g, factor)


class RMSNorm(HeadNorm):
    def forward(self, x: Tensor, g: Tensor | None, factor: float) -> Tensor:
        y = RowScale.apply(x, g, factor, True, RMS_EPS)
        return y if self.weight is None else y * self.weight.type_as(y)


class LayerNorm(HeadNorm):
    def forward(self, x: Tensor, g: Tensor | None, factor: float) -> Tensor:
        wide = widen(x)
        weight, bias = (None if p is None else p.to(wide.dtype) for p in (self.weight, self.bias))
        y = F.layer_norm(wide, (self.head_dim,), weight, bias, RMS_EPS)
        return times(y, g, factor).to(x.dtype)


KINDS = {"none": NoNorm, "l2": L2Norm, "layernorm": LayerNorm, "rmsnorm": RMSNorm}


def times(x: Tensor, g: Tensor | None, factor: float) -> Tensor:
    return x if g is None and factor == 1.0 else x * temperature(g, factor, x)


class QKNorm(nn.Module):
    """What attention is handed: two maps of head vectors ``(batch, heads, time, head_dim)``.

    Args:
        kind: one of :data:`QK_NORMS`.
        head_dim: size of a head.
        affine: what queries and keys learn each on their own, one of ``AFFINES[kind]``.
        temperature: ``learned``; ``fixed``, 1/sqrt(head_dim); ``none``; or ``auto``: learned for
            ``l2``, else fixed.
        g_init: start of a learned temperature, in the unit above.
        heads: 0 for one g a module, as published; the number of heads for one a head.
        rope: rotary positions of queries and keys, if any.
        rotate_first: rotate, then normalise; else normalise, then rotate.

    Raises:
        ValueError: for an unknown kind or temperature, an affine that the kind has not, and a
            learned temperature without a start.
    """

    g: nn.Parameter | None

    def __init__(
        self,
        kind: str,
        head_dim: int,
        affine: str = "none",
        temperature: str = "auto",
        g_init: float | None = None,
        heads: int = 0,
        rope: RotaryEmbedding | None = None,
        rotate_first: bool = False,
    ):
        super().__init__()
        check_choice("normaliser", kind, QK_NORMS)
        check_choice(f"affine of {kind}", affine, AFFINES[kind])
        check_choice("temperature", temperature, TEMPERATURES)
        self.kind, self.head_dim = kind, head_dim
        self.q_norm, self.k_norm = (KINDS[kind](head_dim, affine) for _ in range(2))
        self.temperature = resolve_temperature(kind, temperature)
        if self.temperature == "learned":
            if g_init is None:
                raise ValueError("a learned temperature needs g_init, where g starts")
            self.g = nn.Parameter(torch.full((max(heads, 1),), float(g_init)))
            self.factor = 1.0 if kind == "l2" else 1.0 / head_dim
        else:
            self.register_parameter("g", None)
            self.factor = head_dim**-0.5 if self.temperature == "fixed" else 1.0
        self.rope, self.rotate_first = rope, rotate_first

    def query(self, q: Tensor, offset: int = 0, padding: Tensor | None = None) -> Tensor:
        """Normalised, rotated queries times the temperature; see :class:`RotaryEmbedding`."""
        return self._map(q, self.q_norm, self.g, self.factor, offset, padding)

    def unscaled_query(self, q: Tensor, offset: int = 0, padding: Tensor | None = None) -> Tensor:
        """What :meth:`query` gives, but not yet times the temperature, :meth:`scale`."""
        return self._map(q, self.q_norm, None, 1.0, offset, padding)

    def scale(self) -> Tensor:
        """The temperature: ``(heads,)`` where each head has its own g, else ``(1,)``."""
        return torch.tensor([self.factor]) if self.g is None else self.g * self.factor

    def key(self, k: Tensor, offset: int = 0, padding: Tensor | None = None) -> Tensor:
        """Normalised, rotated keys; see :class:`RotaryEmbedding`."""
        return self._map(k, self.k_norm, None, 1.0, offset, padding)

    def _map(
        self,
        x: Tensor,
        norm: nn.Module,
        g: Tensor | None,
        factor: float,
        offset: int,
        padding: Tensor | None,
    ) -> Tensor:
        if self.rope is None:
            return norm(x, g, factor)
        if self.rotate_first:
            return norm(self.rope(x, offset, padding), g, factor)
        return self.rope(norm(x, g, factor), offset, padding)

    def extra_repr(self) -> str:
        return f"{self.kind}, temperature={self.temperature}"


def resolve_temperature(kind: str, temperature: str) -> str:
    """``auto`` is what the normaliser was published with."""
    if temperature != "auto":
        return temperature
    return "learned" if kind == "l2" else "fixed"


def check_choice(what: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ValueError(f"unknown {what} {value!r}, expected one of {', '.join(legal)}")
