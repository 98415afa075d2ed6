"""Probes of runs as curves over their updates, and what the runs have in common."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .. import provenance
from ..commands import PROBES, RunError
from ..plan import Run

# Of all modules and heads together.
TOGETHER: dict[str, Callable[[Sequence[float]], float]] = {
    "logit_max": max,
    "entropy_share": statistics.fmean,
    "saturated": statistics.fmean,
    "q_grad": statistics.fmean,
    "k_raw_norm": statistics.fmean,
    "q_spectral": max,
}
WHOLE = ("loss", "grad_norm", "update_ratio", "weight_norm", "embedding_norm")


def probes_of(run: Run) -> list[dict[str, Any]]:
    """The probes of a run, in order.

    Raises:
        RunError: if it was trained without, saying how to get them.
    """
    path = run.folder / PROBES
    if not path.exists():
        raise RunError(
            f"{run.folder} has no {PROBES}: it was trained without probes. Remove the folder and "
            "train it again with probe.every=100"
        )
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    try:
        found = [json.loads(line) for line in lines[1:]]
    except ValueError as error:
        raise RunError(f"{path}: a line is not JSON ({error})") from None
    records = [*{record["updates"]: record for record in found}.values()]  # the later of two
    if not records or records[0]["updates"] != 0:
        raise RunError(
            f"{path}: no probe before the first update, so it was not probed from the start. "
            "Remove the run's folder and train it again with probe.every=100"
        )
    return records


def curve_of(probes: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Figures of all heads together, and of the whole model, at each probe's ``updates``."""
    curve: dict[str, list[float | None]] = {"updates": [p["updates"] for p in probes]}
    for name, together in TOGETHER.items():
        curve[name] = [short(together([*heads(probe, name)])) for probe in probes]
    for name in WHOLE:
        curve[name] = [short(probe["model"].get(name)) for probe in probes]
    return curve


def heads(probe: Mapping[str, Any], name: str) -> Iterator[float]:
    """A figure of every head of every module; of a module, where heads have it together."""
    for figures in probe["modules"].values():
        value = figures[name]
        yield from value if isinstance(value, list) else [value]


def short(value: float | None) -> float | None:
    """Four digits: enough to draw, and small in the repository; None for what is no number."""
    if value is None or value != value or abs(value) == float("inf"):
        return None
    return float(f"{value:.4g}")


def shared_options(runs: Sequence[Run], varied: Sequence[str]) -> dict[str, Any]:
    """Options of ``fairseq-train`` that the runs have in common, but for attention's.

    Raises:
        RunError: naming two runs and the option, if they differ in any other, or in their data.
    """
    if not runs:
        raise RunError("no run is given")
    sides = [own_options(run, varied) for run in runs]
    for run, side in zip(runs[1:], sides[1:], strict=True):
        for name in sorted({*side, *sides[0]}):
            if side.get(name) != sides[0].get(name):
                raise RunError(
                    f"{run.name} and {runs[0].name} are not of one sweep: {name} is "
                    f"{side.get(name)} and {sides[0].get(name)}"
                )
    return {name: value for name, value in sides[0].items() if value is not None}


def own_options(run: Run, varied: Sequence[str]) -> dict[str, Any]:
    attention = {*run.cfg["attn"]["options"], *varied}
    options = {n: v for n, v in run.options.items() if n not in attention}
    return {**options, "data": run.data["digest"]}


def provenance_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Where the figures are from: commits of the trainings and of what measured them, hardware,
    versions, minutes, data."""
    commits, hardware, seconds = set(), set(), 0.0
    versions: dict[str, str] = {}
    for run in {run.folder: run for run in runs}.values():  # a run may stand there twice
        segments = json.loads((run.folder / "segments.json").read_text(encoding="utf-8"))
        commits |= {commit_of(segment) for segment in segments}
        trained = run.folder / "trained.json"
        if trained.exists():
            found = json.loads(trained.read_text(encoding="utf-8"))
            hardware.add(found["hardware"])
            versions |= found["versions"]
            seconds += found["train_seconds"]
    return {
        "data": runs[0].data["digest"],
        "commits": sorted(commits),
        "measured": commit_of(provenance.code()),
        "hardware": sorted(hardware),
        "versions": versions,
        "train_minutes": round(seconds / 60, 1),
    }


def commit_of(code: Mapping[str, Any]) -> str:
    return f"{code['commit']}{' (changed)' if code['dirty'] else ''}"
