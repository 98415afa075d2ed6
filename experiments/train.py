"""Training a run: started, followed, resumed after whatever ended it early."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import commands, provenance
from .plan import Run
from .process import run_module, write_atomically
from .training_log import is_finished, parse_line, summarise

# Called with the updates done and the newest figures.
Progress = Callable[[int, Mapping[str, Any]], None]


def train(
    run: Run, lock: int, progress: Progress | None, say: Callable[..., None]
) -> dict[str, Any]:
    """Train to the end, from the last checkpoint if there is one; return the log's summary."""
    done = run.folder / "trained.json"
    argv, shown = (
        commands.train_argv(
            run.options,
            run.data["data"],
            checkpoints,
            run.langs,
            run.cfg["runtime"]["keep_checkpoints"],
            run.cfg["probe"],
        )
        # Pasted, the command must not train on in the run's own folder.
        for checkpoints in (str(run.folder / "checkpoints"), "checkpoints")
    )
    say(f"training command:\n\n  {commands.pasteable('fairseq-train', shown)}\n")
    if done.exists():
        if run.cfg["probe"]["every"] and not (run.folder / commands.PROBES).exists():
            raise commands.RunError(
                f"{run.folder} is trained already, without probes: remove the folder to train it "
                "again with them, or leave out probe.every"
            )
        say(f"trained already: {done}")
        return json.loads(done.read_text(encoding="utf-8"))
    log = run.folder / "train.log"
    segments = run.folder / "segments.json"
    # A runner may be killed and leave its training to end by itself.
    if not (log.exists() and is_finished(read_log(log))):
        repair_checkpoints(run.folder / "checkpoints")
        begin_segment(segments)
        run_module(
            "fairseq_cli.train",
            argv,
            log,
            run.cfg["runtime"]["threads"],
            run.cores.numbers,
            [lock, *run.cores.descriptors],
            on_line=Follower(progress),
            stop=run.stop,
        )
    summary = {
        "segments": json.loads(segments.read_text(encoding="utf-8")),
        **summarise(read_log(log)),
        "hardware": provenance.hardware(run.cpu, run.cfg["runtime"]["threads"]),
        "versions": provenance.versions(),
    }
    write_atomically(done, json.dumps(summary, indent=1) + "\n")
    return summary


def read_log(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").split("\n")


def begin_segment(path: Path) -> None:
    """Note code and time of a start: a resumed training may have seen several commits."""
    segments = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    now = datetime.now(UTC).isoformat("T", "seconds")
    segments.append({"started": now, **provenance.code()})
    write_atomically(path, json.dumps(segments) + "\n")


def repair_checkpoints(folder: Path) -> None:
    """Replace a last or best checkpoint that a kill cut short.

    fairseq writes a checkpoint whole under one name (its number, else best, else last), then
    copies it, not atomically, to the others: one that is no whole archive was being copied from
    the newest that is.
    """
    checkpoints = [*folder.glob("checkpoint*.pt")]
    whole = [path for path in checkpoints if zipfile.is_zipfile(path)]
    for path in set(checkpoints) - set(whole):
        if whole:
            newest = max(whole, key=lambda p: p.stat().st_mtime_ns)
            partial = path.with_suffix(".partial")
            shutil.copyfile(newest, partial)
            partial.replace(path)


class Follower:
    """Tells ``progress`` of the updates done, and the newest figures, as log lines come in."""

    def __init__(self, progress: Progress | None):
        self.progress = progress
        self.figures: dict[str, Any] = {}

    def __call__(self, line: str) -> None:
        parsed = parse_line(line)
        if parsed is None or self.progress is None:
            return
        kind, figures = parsed
        if kind == "train_inner":
            self.figures |= {"ppl": figures["ppl"], "words/s": figures["wps"]}
            self.progress(int(figures["num_updates"]), self.figures)
        elif kind == "valid":
            self.figures["dev_ppl"] = figures["valid_ppl"]
            if "valid_bleu" in figures:
                self.figures["dev_bleu"] = figures["valid_bleu"]
            self.progress(int(figures["valid_num_updates"]), self.figures)
