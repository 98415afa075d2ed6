"""Loudness and sinks: which tokens get attention, and whether for their length or direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.stats

from ..commands import RunError
from ..survey import Survey, check_alike, survey_run
from .arms import Arm, facts_of
from .classes import CLASSES, classes_of

KINDS = ("encoder", "decoder", "cross")
DRAWN = ("logit_max", "entropy_share", "mass_by_k", "sink")  # head by head
FIGURES = (
    *("logit_max", "entropy_share", "saturated", "k_raw_norm"),
    *("logit_by_q", "logit_by_k", "logit_by_cos", "mass_by_q", "mass_by_k", "mass_by_cos"),
    *("sink", "sink_first", "sink_last", "sink_shorter", "sink_length", "sink_cos", "other_cos"),
    *("rank_k", "rank_cos"),
)


def measure(arms: Sequence[Arm]) -> dict[str, Any]:
    """Figures of every arm over the whole of dev."""
    surveys = [survey_run(arm.run, checkpoint=arm.checkpoint) for arm in arms]
    check_alike(surveys)
    return {
        **facts_of(arms),
        "sentences": surveys[0].heads["sentences"],
        "arms": [
            {
                **arm.facts(),
                "heads": heads_of(survey),
                "modules": {
                    name: {
                        "kind": module["kind"],
                        "layer": module["layer"],
                        **{figure: module[figure] for figure in DRAWN},
                    }
                    for name, module in survey.heads["modules"].items()
                },
                "classes": {kind: class_masses(survey, kind) for kind in KINDS},
                "frequency": frequency_ranks(survey),
            }
            for arm, survey in zip(arms, surveys, strict=True)
        ],
    }


def heads_of(survey: Survey) -> dict[str, dict[str, dict[str, float] | None]]:
    """By kind of attention, each figure's mean over the heads that have it, least and largest."""
    found: dict[str, dict[str, dict[str, float] | None]] = {}
    for kind in KINDS:
        modules = [m for m in survey.heads["modules"].values() if m["kind"] == kind]
        found[kind] = {}
        for name in FIGURES:
            values = [v for m in modules for v in m[name] if v is not None]
            found[kind][name] = (
                {
                    "mean": round(sum(values) / len(values), 4),
                    "low": round(min(values), 4),
                    "high": round(max(values), 4),
                }
                if values
                else None
            )
    return found


def side_of(kind: str) -> str:
    """Which side's tokens the keys are."""
    return "target" if kind == "decoder" else "source"


def modules_of(survey: Survey, kind: str) -> list[str]:
    return [name for name, m in survey.heads["modules"].items() if m["kind"] == kind]


def class_masses(survey: Survey, kind: str) -> dict[str, dict[str, float]]:
    """By class of token, its share (percent) of all attention, the share that even attention would
    give it, and their ratio; over all layers, a sentence counting as much as any other."""
    side = side_of(kind)
    classes = classes_of(list(survey.types[f"{side}/symbols"]), train_counts(survey, side))
    sums = {
        what: np.sum([survey.types[f"{m}/{what}"] for m in modules_of(survey, kind)], axis=0)
        for what in ("mass", "uniform")
    }
    found = {}
    for number, name in enumerate(CLASSES):
        mass, even = (float(np.sum(v[classes == number])) for v in sums.values())
        if even > 0:
            whole, flat = (float(np.sum(values)) for values in sums.values())
            found[name] = {
                "mass": round(100 * mass / whole, 2),
                "uniform": round(100 * even / flat, 2),
                "ratio": round(mass / whole / (even / flat), 3),
            }
    return found


def train_counts(survey: Survey, side: str) -> np.ndarray:
    if f"{side}/train" not in survey.types:
        raise RunError(f"the data of {survey.name} has no training set, whose words are counted")
    return survey.types[f"{side}/train"]


def frequency_ranks(survey: Survey) -> list[dict[str, Any]]:
    """Spearman's correlation of a type's frequency in train with the length of its embedding, of
    its keys and its queries (as projected), over the types that occur; of a kind of attention the
    mean over layers."""
    found = []
    for side in ("source", "target"):
        counts = train_counts(survey, side)
        lengths = np.linalg.norm(survey.types[f"{side}/embedding"], axis=1)
        found.append(rank(f"{side} embedding", [(counts, lengths)], counts > 0))
    for kind in KINDS:
        modules = modules_of(survey, kind)
        counts = train_counts(survey, side_of(kind))
        there = (survey.types[f"{modules[0]}/count"] > 0) & (counts > 0)
        keys = [(counts, survey.types[f"{m}/k_raw_norm"]) for m in modules]
        found.append(rank(f"{kind} keys", keys, there))
    return found


def rank(
    space: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]], there: np.ndarray
) -> dict[str, Any]:
    """Mean rank correlation, with a 95% interval as if the types were a sample of independent ones
    (Bonett & Wright 2000)."""
    values = [float(scipy.stats.spearmanr(a[there], b[there]).statistic) for a, b in pairs]
    rho, n = sum(values) / len(values), int(there.sum())
    half = 1.96 * math.sqrt((1 + rho * rho / 2) / (n - 3))
    middle = math.atanh(max(min(rho, 1 - 1e-9), 1e-9 - 1))
    low, high = math.tanh(middle - half), math.tanh(middle + half)
    figures = {"rank": rho, "low": low, "high": high}
    return {"space": space, "types": n, **{k: round(v, 3) for k, v in figures.items()}}
