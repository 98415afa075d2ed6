"""A run before anything is done: its settings, its data, its name and place."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import commands
from .process import check_libraries, read_module


@dataclass
class Run:
    """A run's settings and places.

    Attributes:
        cfg: the composed config, as plain containers.
        data: what ``data_prep`` reports of the prepared set.
        options: ``fairseq-train`` options.
        folder: the run's own folder.
        stop: set it to end the run's processes; the run can be gone on with later.
    """

    cfg: dict[str, Any]
    data: dict[str, Any]
    options: dict[str, Any]
    folder: Path
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return "/".join(self.folder.parts[-3:])

    @property
    def langs(self) -> tuple[str, str]:
        return self.cfg["pair"]["source_lang"], self.cfg["pair"]["target_lang"]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoints" / "checkpoint_best.pt"

    @property
    def updates(self) -> int:
        """Updates to train for, at most."""
        limits = [self.options.get("max_update")]
        if self.options.get("max_epoch") and self.options.get("updates_per_epoch"):
            limits.append(self.options["max_epoch"] * self.options["updates_per_epoch"])
        return min(int(limit) for limit in limits if limit)

    @property
    def cpu(self) -> bool:
        return bool(self.options.get("cpu"))


def open_run(cfg: dict[str, Any]) -> Run:
    """Prepare the pair's data if needed, and name the run."""
    check_libraries()
    commands.check_settings(cfg)
    data = json.loads(read_module("data_prep", commands.prepare_argv(cfg)))
    options = commands.train_options(cfg, data)
    commands.check_lengths(options, data["longest"])
    name = commands.run_name(cfg, options, data["digest"])
    return Run(cfg, data, options, Path(cfg["paths"]["work"]) / "runs" / name)
