"""g while it is learned: logged at every update, and a warning where it leaves its usual range."""

from __future__ import annotations

import logging
import math

import torch
from fairseq.logging import metrics
from torch import nn

from .qk_norm import QKNorm

# A key whose cosine is 0.1 under the best one's then weighs exp(-10) of it: nearly a maximum.
G_HIGH = 100.0

logger = logging.getLogger(__name__)


def log_g(model: nn.Module, warned: set[str]) -> None:
    """Log the least, mean and largest g to fairseq's metrics, and so to its TensorBoard.

    Args:
        model: whatever holds :class:`QKNorm` modules; without a learned g nothing is logged.
        warned: what has been warned of; what is new is added.
    """
    gs = {n: m.g for n, m in model.named_modules() if isinstance(m, QKNorm) and m.g is not None}
    if not gs:
        return
    values = torch.cat([g.detach().float() for g in gs.values()])
    for name, value in zip(("g_min", "g_mean", "g_max"), extremes(values), strict=True):
        metrics.log_scalar(name, value, weight=0, priority=900, round=3)  # the latest, no average
    for name, g in gs.items():
        for value in g.tolist():
            text = remark(value)
            if text and f"{name} {text}" not in warned:
                warned.add(f"{name} {text}")
                logger.warning(f"g of {name.removesuffix('.qk_norm')} is {value:.4g}: {text}")


def extremes(values: torch.Tensor) -> list[float]:
    return torch.stack([values.min(), values.mean(), values.max()]).tolist()


def remark(g: float) -> str | None:
    """What an unusual g does to attention; None for a usual one."""
    if not math.isfinite(g):
        return "the training has diverged"
    if g < 0:
        return "the keys least like the query now get the most attention"
    if g > G_HIGH:
        return "attention takes little but the key most like the query, and its gradient vanishes"
    return None
