"""ScaleNorm beside LayerNorm (Nguyen & Salazar 2019, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NORMS = ("layer", "scale")

# The released code divides by max(norm, 1e-5); in fp16 the gradient of a zero vector, sqrt(dim) /
# eps, would then be over the largest number.
EPS = 1e-5
EPS_FP16 = 1e-3


class ScaleNorm(nn.Module):
    """Each vector along the last axis gets one learned length, which starts at sqrt(dim)."""

    def __init__(self, dim: int):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([dim**0.5]))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        eps = EPS_FP16 if x.dtype == torch.float16 else EPS
        norm = wide.norm(dim=-1, keepdim=True).clamp(min=eps)
        return (wide * (self.scale.type_as(wide) / norm)).type_as(x)


def set_norm(module: nn.Module, kind: str, dim: int) -> None:
    """Give ``module``, a fairseq layer or stack, norms of ``kind`` in place of its LayerNorms.

    fairseq has no hook for them; they start from constants, so no random draw is lost.
    """
    if kind == "scale":
        for name, child in list(module.named_children()):
            if name.endswith("layer_norm") and child is not None:
                setattr(module, name, ScaleNorm(dim))
