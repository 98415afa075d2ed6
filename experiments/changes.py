"""What a run's settings have that its recipe has not, so that tables can say so."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from .commands import train_options

CONF = Path(__file__).resolve().parents[1] / "conf"
GROUPS = ("pair", "attn", "rope", "recipe")
# The device, what tables have columns for, and what follows from how dev is decoded.
NO_CHANGE = {"cpu", "fp16", "bf16", "seed", "beam_search", "eval_bleu_args"}


def changed(
    cfg: Mapping[str, Any], options: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, Any]:
    """Options of ``fairseq-train``, and of decoding as ``decode.<option>``, with other values than
    pair, attention and recipe give them; None for one that is not set."""
    own = as_composed(cfg)
    sides = [
        {**given, **{f"decode.{name}": value for name, value in side["decode"].items()}}
        for given, side in ((options, cfg), (train_options(own, data), own))
    ]
    ours, theirs = sides
    return {
        name: ours.get(name)
        for name in sorted({*ours, *theirs} - NO_CHANGE)
        if ours.get(name) != theirs.get(name)
    }


def as_composed(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they are without overrides."""
    choices = {group: cfg[group]["name"] for group in GROUPS}
    if HydraConfig.initialized():  # a file may be called otherwise than what it holds
        chosen = HydraConfig.get().runtime.choices
        choices = {group: chosen[group] for group in GROUPS}
    inside = GlobalHydra.instance().is_initialized()
    with nullcontext() if inside else initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("config", [f"{group}={name}" for group, name in choices.items()])
    container = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
