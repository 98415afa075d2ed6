"""A run before anything is done: its settings, its data, its name and place."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import commands
from .changes import changed
from .commands import RunError
from .lines import read_lines
from .locks import Cores
from .process import check_libraries, read_module, write_atomically
from .score import check_reference

SETTINGS = "run.json"
FAILED = "failed.txt"  # why the last start of a run failed


@dataclass
class Run:
    """A run's settings and places.

    Attributes:
        cfg: the composed config, as plain containers.
        data: what ``data_prep`` reports of the prepared set.
        options: ``fairseq-train`` options.
        folder: the run's own folder.
        changed: settings that its recipe has otherwise (see :mod:`experiments.changes`).
        cores: CPU cores to pin the run's processes to, with the descriptors of their locks.
        stop: set it to end the run's processes; the run can be gone on with later.
    """

    cfg: dict[str, Any]
    data: dict[str, Any]
    options: dict[str, Any]
    folder: Path
    changed: dict[str, Any] = field(default_factory=dict)
    cores: Cores = field(default_factory=Cores)
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
    for split in ("dev", "test"):
        reference = Path(data["data"]) / f"reference.{split}.{cfg['pair']['target_lang']}"
        check_reference(read_lines(reference), str(reference))
    name = commands.run_name(cfg, options, data["digest"])
    folder = Path(cfg["paths"]["work"]) / "runs" / name
    return Run(cfg, data, options, folder, changed(cfg, options, data))


def save(run: Run) -> None:
    """Note in the run's folder what it is, for :func:`load`."""
    settings = {"cfg": run.cfg, "data": run.data, "options": run.options, "changed": run.changed}
    write_atomically(
        run.folder / SETTINGS, json.dumps(settings, indent=1, ensure_ascii=False) + "\n"
    )


def read(folder: Path) -> Run:
    """A run from its folder, ``work/runs/<pair>/<variant>/<seed>``, trained or not.

    Raises:
        RunError: if it is no run's folder.
    """
    folder = folder.resolve()
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        return Run(**settings, folder=folder)
    except (OSError, ValueError, TypeError, IndexError):
        raise RunError(
            f"{folder} is no run's folder, which holds {SETTINGS}: give one of "
            "work/runs/<pair>/<variant>/<seed>-<digest>; a run of an older version gets the file "
            "when its command is given again"
        ) from None


def load(folder: Path) -> Run:
    """A trained run from its folder; ``work`` may have been moved since.

    Raises:
        RunError: if it is no run's folder, or not trained, or its data is gone.
    """
    run = read(folder)
    folder, work = run.folder, run.folder.parents[3]
    data = work / "data" / run.cfg["pair"]["name"] / Path(run.data["data"]).name
    if not data.is_dir():
        raise RunError(f"{folder}: its prepared data {data} is gone: run the same command again")
    run.data["data"] = str(data)
    if not run.checkpoint.exists():
        raise RunError(f"{folder} has no {run.checkpoint.name} yet: train it first")
    return run
