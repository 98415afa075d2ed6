"""Learning rates over decades: what each attention's training ends with, and which breaks first.

The summary is the LR sensitivity of Wortsman et al. 2023 (Small-scale proxies for large-scale
Transformer training instabilities, section 3.1): the mean over the rates of min(final loss, loss at
the start), minus the loss at the best rate. 0 would be a training that no rate hurts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..commands import RunError
from ..plan import FAILED, Run, read
from ..stats import over_seeds
from ..train import read_log
from ..training_log import is_finished, summarise
from .curves import curve_of, probes_of, provenance_of, shared_options

VARIED = ("lr", "warmup_updates", "clip_norm", "seed")
BROKEN = 0.5  # nats over the best rate's loss: what counts as broken
DIVERGED = "gradients are Nan/Inf"  # what fairseq says of gradients that are no numbers


def measure(folders: Sequence[Path]) -> dict[str, Any]:
    """Losses and curves of the runs of a sweep over learning rates.

    Raises:
        RunError: if a run has no probes, has not ended, or is not of the same sweep.
    """
    runs = [read(folder) for folder in folders]
    shared = shared_options(runs, VARIED)
    trained = [training(run) for run in runs]
    first = runs[0].cfg
    return {
        "pair": first["pair"]["name"],
        "options": shared,
        **provenance_of(runs),
        "runs": sorted(trained, key=lambda t: (t["recipe"], t["attn"], t["lr"], t["seed"])),
    }


def training(run: Run) -> dict[str, Any]:
    """What became of one run; ``final`` is null if it diverged into what is no number."""
    probes = probes_of(run)
    lines = read_log(run.folder / "train.log")
    final: float | None = None
    if is_finished(lines):
        perplexity = summarise(lines)["dev"][-1]["ppl"]
        final = math.log(perplexity) if math.isfinite(perplexity) else None
    elif not diverged(run.folder):
        raise RunError(f"{run.folder}: the training has not ended: give the run's command again")
    return {
        "recipe": run.cfg["recipe"]["name"],
        "attn": run.cfg["attn"]["name"],
        "lr": float(run.options["lr"]),
        "seed": run.cfg["seed"],
        "start": probes[0]["model"]["loss"],
        "final": None if final is None else round(final, 4),
        "curve": curve_of(probes),
    }


def diverged(folder: Path) -> bool:
    """Whether fairseq gave up on gradients that were no numbers."""
    failed = folder / FAILED
    return failed.exists() and DIVERGED in failed.read_text(encoding="utf-8")


def sensitivity(finals: Iterable[float | None], start: float) -> float:
    """LR sensitivity of one sweep, in nats.

    Args:
        finals: the loss that each rate ends with; None for one that diverged.
        start: the loss before training.
    """
    ends = [start if final is None else min(final, start) for final in finals]
    return sum(ends) / len(ends) - min(ends)


def summary(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each recipe and attention of what :func:`measure` found.

    Returns:
        ``recipe``, ``attn``, ``seeds``, ``sensitivity`` with its 95% t-interval over seeds,
        ``difference`` to no normalisation by seed with its interval, ``best_lr``, ``best`` (loss,
        mean over seeds), ``broken`` (the lowest rate over the best one whose mean loss is more
        than 0.5 nats over the best; None), ``diverged`` (how many runs ended above their start or
        in what is no number, and of how many).
    """
    arms: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for run in found["runs"]:
        arms[run["recipe"], run["attn"]].append(run)
    by_seed = {arm: sensitivities(runs) for arm, runs in arms.items()}
    lines = []
    for (recipe, attn), runs in arms.items():
        own, none = by_seed[recipe, attn], by_seed.get((recipe, "none"), {})
        paired = [own[seed] - none[seed] for seed in own if seed in none]
        means = mean_losses(runs)
        best = min(means, key=lambda lr: means[lr])
        over = [lr for lr in means if lr > best and means[lr] > means[best] + BROKEN]
        lost = [r for r in runs if r["final"] is None or r["final"] >= r["start"]]
        lines.append(
            {
                "recipe": recipe,
                "attn": attn,
                "seeds": len(own),
                "sensitivity": over_seeds(list(own.values())),
                "difference": over_seeds(paired) if paired and attn != "none" else None,
                "best_lr": best,
                "best": means[best],
                "broken": min(over, default=None),
                "diverged": (len(lost), len(runs)),
            }
        )
    return lines


def sensitivities(runs: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """LR sensitivity of each seed of one arm.

    Raises:
        RunError: if the seeds do not have the same rates.
    """
    seeds: dict[int, dict[float, Mapping[str, Any]]] = defaultdict(dict)
    for run in runs:
        seeds[run["seed"]][run["lr"]] = run
    rates = {seed: sorted(found) for seed, found in seeds.items()}
    if len({tuple(r) for r in rates.values()}) > 1:
        raise RunError(
            "each seed needs the same learning rates, but there are "
            + "; ".join(f"seed {s}: {', '.join(f'{r:g}' for r in rates[s])}" for s in sorted(rates))
        )
    return {
        seed: sensitivity(
            [run["final"] for run in found.values()],
            sum(run["start"] for run in found.values()) / len(found),
        )
        for seed, found in sorted(seeds.items())
    }


def mean_losses(runs: Iterable[Mapping[str, Any]]) -> dict[float, float]:
    """Mean over seeds of min(final loss, loss at the start), by rate."""
    ends: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        final = run["start"] if run["final"] is None else min(run["final"], run["start"])
        ends[run["lr"]].append(final)
    return {lr: sum(values) / len(values) for lr, values in sorted(ends.items())}
