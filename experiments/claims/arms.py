"""The runs that a claim is tested on: at equal updates, and at equal loss on dev.

A model that has learned more differs in everything, so two kinds of attention are also compared
where they have learned as much: the one that is better on dev at an earlier checkpoint.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..commands import RunError
from ..plan import Run, load
from .curves import provenance_of, shared_options

EQUAL_UPDATES, EQUAL_LOSS = "equal updates", "equal dev loss"
CONDITIONS = (EQUAL_UPDATES, EQUAL_LOSS)
KEPT = re.compile(r"checkpoint(_\d+_)?\d+\.pt")  # of an update, or of an epoch
NEAR = 0.03  # nats a token that count as equal


@dataclass(frozen=True)
class Arm:
    """A run at one of its checkpoints; ``loss`` is dev's, in nats a token."""

    condition: str
    run: Run
    checkpoint: Path
    updates: int
    loss: float

    @property
    def attn(self) -> str:
        return str(self.run.cfg["attn"]["name"])

    @property
    def seed(self) -> int:
        return int(self.run.cfg["seed"])

    def facts(self) -> dict[str, Any]:
        return {
            "condition": self.condition,
            "attn": self.attn,
            "seed": self.seed,
            "run": self.run.name,
            "updates": self.updates,
            "loss": round(self.loss, 4),
        }


def facts_of(arms: Sequence[Arm]) -> dict[str, Any]:
    """What the arms have in common, and where they come from."""
    return {
        "pair": arms[0].run.cfg["pair"]["name"],
        "recipe": arms[0].run.cfg["recipe"]["name"],
        **provenance_of([arm.run for arm in arms]),
    }


def arms_of(folders: Sequence[Path]) -> list[Arm]:
    """Runs without normalisation and with one kind of it, at their best checkpoints, and each pair
    of one seed at equal dev loss.

    Raises:
        RunError: if the runs are not two kinds of attention of one recipe and data, or the better
            run of a pair has no checkpoint where the other one ended.
    """
    runs = [load(folder) for folder in folders]
    shared_options(runs, ("seed",))
    kinds = list(dict.fromkeys(run.cfg["attn"]["name"] for run in runs))
    if len(kinds) != 2 or "none" not in kinds:
        raise RunError(
            f"two kinds of attention are compared, attn=none and another one; given: "
            f"{', '.join(kinds)}"
        )
    by_seed: dict[int, dict[str, Arm]] = {}
    for run in runs:
        arm = arm_of(EQUAL_UPDATES, run, run.checkpoint)
        by_seed.setdefault(arm.seed, {})[arm.attn] = arm
    alone = [arm.run.name for pair in by_seed.values() if len(pair) < 2 for arm in pair.values()]
    if alone:
        raise RunError(f"each seed needs both kinds of attention: {', '.join(alone)} stands alone")
    pairs = [[*pair.values()] for pair in by_seed.values()]
    return [arm for pair in pairs for arm in (*pair, *at_equal_loss(pair))]


def at_equal_loss(pair: Sequence[Arm]) -> list[Arm]:
    """The two runs of a seed, the better one at the checkpoint whose loss is nearest the other's.

    Raises:
        RunError: if no such checkpoint was kept.
    """
    worse, better = sorted(pair, key=lambda arm: -arm.loss)
    paths = [better.checkpoint, *kept_checkpoints(better.run)]
    kept = [arm_of(EQUAL_LOSS, better.run, path) for path in paths]
    nearest = min(kept, key=lambda arm: abs(arm.loss - worse.loss))
    if abs(nearest.loss - worse.loss) > NEAR:
        there = ", ".join(f"{arm.loss:.3f}" for arm in kept)
        raise RunError(
            f"{better.run.name} is better on dev than {worse.run.name} (loss {better.loss:.3f}, "
            f"{worse.loss:.3f} nats a token) and has no checkpoint within {NEAR} of the latter's "
            f"loss (kept: {there}), so they cannot be compared at equal loss: remove its folder "
            "and train it again with runtime.keep_checkpoints=15"
        )
    return [Arm(EQUAL_LOSS, worse.run, worse.checkpoint, worse.updates, worse.loss), nearest]


def kept_checkpoints(run: Run) -> list[Path]:
    return sorted(p for p in run.checkpoint.parent.glob("checkpoint*.pt") if KEPT.fullmatch(p.name))


def arm_of(condition: str, run: Run, checkpoint: Path) -> Arm:
    """A run at a checkpoint, with dev's loss at the update that it was saved at."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    updates = int(state["optimizer_history"][-1]["num_updates"])
    return Arm(condition, run, checkpoint, updates, curve_on_dev(run)[updates])


def curve_on_dev(run: Run) -> Mapping[int, float]:
    """Loss on dev, nats a token, by updates."""
    path = run.folder / "trained.json"
    if not path.exists():
        raise RunError(f"{run.folder} is not trained to its end: give its command again")
    summary = json.loads(path.read_text(encoding="utf-8"))
    return {point["updates"]: math.log(point["ppl"]) for point in summary["dev"]}
