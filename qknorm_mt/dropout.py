"""Dropout whose masks cost little on a CPU.

torch draws a CPU's dropout mask value by value, which takes up a fifth of the training of a small
model. ``bytes`` takes one random byte for each value instead: the probability is rounded to a
multiple of 1/256 (0.1 to 26/256), what is kept is scaled by the rounded one, and the bytes come
from torch's generator, so seeds, resuming and activation checkpointing work as ever.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

CPU_DROPOUTS = ("torch", "bytes")


class Dropout(FairseqDropout):
    """fairseq's dropout module with a choice of :data:`CPU_DROPOUTS`; a GPU always uses torch's."""

    def __init__(self, p: float, module_name: str, cpu_dropout: str = "torch"):
        super().__init__(p, module_name)
        self.bytes = cpu_dropout == "bytes"

    @property
    def active(self) -> bool:
        """In training, and where fairseq's --retain-dropout keeps it on while decoding."""
        return self.p > 0 and (self.training or self.apply_during_inference)

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        if not self.active:
            return x
        if self.bytes and x.device.type == "cpu" and not torch.compiler.is_compiling():
            return x * byte_mask(x, self.p)
        return F.dropout(x, self.p, training=True, inplace=inplace)


def byte_mask(x: Tensor, p: float) -> Tensor:
    """A mask like ``x``: 0 with probability round(256 p) / 256, else what keeps the mean."""
    dropped = round(256 * p)
    count = x.numel()
    words = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None)
    # numpy compares and converts bytes many at a time; torch does not.
    kept = words.numpy().view(np.uint8)[:count] >= dropped
    mask = torch.from_numpy(kept.astype(np.float32)).view(x.shape)
    return mask.mul_(256 / (256 - dropped)).to(x.dtype)


def set_dropout(module: nn.Module, cpu_dropout: str) -> None:
    """Give ``module``, a fairseq layer or stack, our dropout in place of fairseq's.

    fairseq has no hook for it; neither has parameters, so no random draw is lost.
    """
    child: Any
    for name, child in list(module.named_children()):
        if type(child) is FairseqDropout:
            setattr(module, name, Dropout(child.p, child.module_name, cpu_dropout))
