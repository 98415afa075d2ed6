"""Rotary positions (Su et al. 2021): queries and keys are turned by angles that grow with place.

Dimensions i and i + head_dim/2 are one plane, turned by place * base^(-2i/head_dim), as in GPT-NeoX
and Qwen3; the original pairs neighbours, which is the same model with the dimensions of a head in
another order. A token's place is the number of real tokens before it, on whichever side the
padding is. Logits depend on the distance of query and key alone, except where a normaliser that
treats dimensions unlike (a gain, LayerNorm) comes after the rotation.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROPES = ("off", "after_norm", "before_norm")


class RotaryEmbedding(nn.Module):
    """Rotation of head vectors by their places.

    Args:
        head_dim: size of a head, even.
        base: places after which the slowest plane has turned by about one radian.
        max_positions: longest sequence.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, base: float = 10000.0, max_positions: int = 1024):
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, got {head_dim}")
        frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angle = torch.arange(max_positions, dtype=torch.float64)[:, None] * frequency
        angle = torch.cat([angle, angle], dim=1)  # (max_positions, head_dim)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        # The first half of a turned vector has the minus: x1 cos - x2 sin, x2 cos + x1 sin.
        sign = torch.cat([-torch.ones(head_dim // 2), torch.ones(head_dim // 2)])
        self.register_buffer("sin", angle.sin().float() * sign, persistent=False)

    def forward(self, x: Tensor, offset: int = 0, padding: Tensor | None = None) -> Tensor:
        """Turned vectors.

        Args:
            x: ``(batch, heads, time, head_dim)``.
            offset: how many tokens, padding included, came in earlier steps.
            padding: ``(batch, offset + time)``, true where a token is padding; None for none.

        Raises:
            ValueError: for a place that the tables do not hold.
        """
        end = offset + x.size(-2)
        if end > self.cos.size(0):
            raise ValueError(
                f"a sequence of {end} tokens is longer than the {self.cos.size(0)} places of the "
                "rotary positions: raise max_source_positions or max_target_positions"
            )
        if padding is None:
            cos, sin = self.cos[offset:end], self.sin[offset:end]  # (time, head_dim)
        else:
            place = padding.logical_not().cumsum(dim=1)[:, None, offset:] - 1  # (batch, 1, time)
            cos, sin = (table[place.clamp(min=0)] for table in (self.cos, self.sin))
        cos, sin = cos.to(x), sin.to(x)
        return x * cos + x.roll(x.size(-1) // 2, dims=-1) * sin
