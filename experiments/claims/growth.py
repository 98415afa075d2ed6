"""How long vectors grow over a training, by optimizer and weight decay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..commands import RunError
from ..plan import read
from .curves import curve_of, probes_of, provenance_of, shared_options

VARIED = ("optimizer", "weight_decay", "seed")
# fairseq's adam decouples its weight decay, as adam_fused does.
OPTIMIZERS = {"adam": "AdamW", "adam_fused": "AdamW", "adam_l2": "Adam"}


def measure(folders: Sequence[Path]) -> dict[str, Any]:
    """Curves of runs that differ in attention, optimizer, weight decay and seed.

    Raises:
        RunError: if a run has no probes or has not ended, or they differ in anything else.
    """
    runs = [read(folder) for folder in folders]
    shared = shared_options(runs, VARIED)
    for run in runs:
        if not (run.folder / "trained.json").exists():
            raise RunError(f"{run.folder} is not trained to its end: give its command again")
        if run.options["optimizer"] not in OPTIMIZERS:
            raise RunError(
                f"{run.folder} was trained with optimizer={run.options['optimizer']}: legal is "
                f"{', '.join(OPTIMIZERS)}"
            )
    found = [
        {
            "attn": run.cfg["attn"]["name"],
            "optimizer": OPTIMIZERS[run.options["optimizer"]],
            "weight_decay": float(run.options["weight_decay"]),
            "seed": run.cfg["seed"],
            "curve": curve_of(probes_of(run)),
        }
        for run in runs
    ]
    return {
        "pair": runs[0].cfg["pair"]["name"],
        "recipe": runs[0].cfg["recipe"]["name"],
        "options": shared,
        **provenance_of(runs),
        "runs": sorted(found, key=lambda r: [r[k] for k in ("attn", *VARIED)]),
    }


def summary(found: dict[str, Any]) -> list[dict[str, Any]]:
    """How much longer each thing is at the last probe than at the first: ratios, by arm the mean
    over seeds, with the least and the largest."""
    arms: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in found["runs"]:
        arms.setdefault((run["attn"], run["optimizer"], run["weight_decay"]), []).append(run)
    lines = []
    for (attn, optimizer, decay), runs in arms.items():
        line = {"attn": attn, "optimizer": optimizer, "weight_decay": decay, "seeds": len(runs)}
        for name in ("k_raw_norm", "q_spectral", "embedding_norm", "weight_norm"):
            ratios = [run["curve"][name][-1] / run["curve"][name][0] for run in runs]
            line[name] = (sum(ratios) / len(ratios), min(ratios), max(ratios))
        lines.append(line)
    return lines
