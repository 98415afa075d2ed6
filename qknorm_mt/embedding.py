"""What goes into encoder and decoder, and the projection out of the decoder.

FixNorm, positions, language embedding, word dropout, output bias (Nguyen & Salazar 2019; the
released code of Henry et al. 2020).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .qk_norm import l2_normalize

POSITIONS = ("fairseq", "sinusoidal", "sin_sin", "none")


class FixNormEmbedding(nn.Embedding):
    """Word vectors of length 1 (FixNorm): each is divided by its L2 norm when it is looked up.

    Padding's vector starts like any other, not at zero, where a normalised vector's gradient is
    without bound.
    """

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return l2_normalize(super().forward(tokens))


class OutputProjection(nn.Module):
    """Logits ``(..., types)`` of features ``(..., dim)``.

    Args:
        weight: ``(types, dim)``, usually the word embedding's own.
        fix_norm: divide each row by its L2 norm first.
        bias: add a learned bias, which starts at 0.
    """

    def __init__(self, weight: nn.Parameter, fix_norm: bool, bias: bool):
        super().__init__()
        self.weight = weight
        self.fix_norm = fix_norm
        self.bias = nn.Parameter(torch.zeros(weight.size(0))) if bias else None

    def forward(self, features: Tensor) -> Tensor:
        weight = l2_normalize(self.weight) if self.fix_norm else self.weight
        return F.linear(features, weight, self.bias)


def position_table(kind: str, length: int, dim: int) -> Tensor:
    """Sinusoids ``(length, dim)`` from position 0: dimensions 2i and 2i + 1 share a frequency.

    ``sinusoidal`` has the sine at even and the cosine at odd dimensions (Vaswani et al. 2017,
    section 3.5); ``sin_sin`` the sine at both, as the released code of both papers had it.
    """
    frequency = 10000.0 ** (-(torch.arange(dim) // 2) * 2.0 / dim)
    angle = torch.arange(length)[:, None] * frequency  # (length, dim)
    table = angle.sin()
    if kind == "sinusoidal":
        table[:, 1::2] = angle[:, 1::2].cos()
    return table


class InputOffset(nn.Module):
    """What is added to the scaled word vectors: the position's vector and the language's.

    fairseq's encoder and decoder call it where they would call their positional embedding. A
    token's position is the number of real tokens before it, on whichever side the padding is.

    Args:
        kind: one of :data:`POSITIONS` but ``fairseq``; ``none`` with a language only.
        max_positions: longest sequence.
        dim: width.
        padding_idx: id of padding.
        language: add a learned vector, the same at every position.
    """

    table: Tensor | None

    def __init__(self, kind: str, max_positions: int, dim: int, padding_idx: int, language: bool):
        super().__init__()
        self.max_positions = max_positions
        self.padding_idx = padding_idx
        table = None if kind == "none" else position_table(kind, max_positions, dim)
        self.register_buffer("table", table, persistent=False)
        self.language = nn.Parameter(torch.randn(dim) * dim**-0.5) if language else None

    def forward(self, tokens: Tensor, incremental_state: Any = None) -> Tensor:
        """``(batch, time, dim)`` for tokens ``(batch, time)``, all of them in every step."""
        offset = torch.zeros((), device=tokens.device)
        if self.table is not None:
            position = tokens.ne(self.padding_idx).cumsum(dim=1) - 1
            offset = self.table[position.clamp(min=0)]
        if self.language is not None:
            offset = self.language + offset
        return offset.expand(*tokens.shape, -1)


def drop_words(tokens: Tensor, probability: float, padding_idx: int, unk_idx: int) -> Tensor:
    """Word dropout: each token but padding becomes UNK with ``probability``."""
    if probability == 0:
        return tokens
    dropped = torch.rand(tokens.shape, device=tokens.device) < probability
    return tokens.masked_fill(dropped & tokens.ne(padding_idx), unk_idx)
