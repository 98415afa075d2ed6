"""Many runs from one command: their folder, their jobs, and what is said of them at the end.

Hydra expands a sweep into jobs and hands them to its launcher. A job is ``python -m
experiments.run`` in a process of its own (:mod:`experiments.job`): one that fails, or is killed,
leaves the others alone. What is known of a sweep stands in a folder named by its overrides, so that
the same command finds it again::

    work/sweeps/<experiment>-<digest>/
        jobs.json       the overrides of every job
        <number>.json   what became of a job
        <number>.log    what it said, each time it was started
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, flag_override
from rich.live import Live
from tabulate import tabulate

from .changes import CONF
from .command_line import INTERRUPTED
from .commands import RunError, digest_of
from .job import TOKEN, expands
from .locks import exclusive
from .process import write_atomically
from .progress import JOBS, LOCK
from .status import view

STATES = ("finished", "failed", "interrupted", "running", "not started")


@dataclass
class Sweep:
    """A sweep that this process has begun.

    Attributes:
        jobs: overrides of each job; none where they are known only as the sweep goes on.
        token: what tells this time from others that the same sweep was begun.
        going_on: what to end with the sweep.
    """

    folder: Path
    jobs: list[list[str]]
    token: str = field(default_factory=lambda: f"{os.getpid()}-{uuid.uuid4().hex}")
    going_on: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def label(self, note: Mapping[str, Any]) -> str:
        """A job's run, or until that is known what tells its overrides from those of the others."""
        shared = set.intersection(*map(set, self.jobs)) if len(self.jobs) > 1 else set()
        return note.get("run") or " ".join(o for o in note["overrides"] if o not in shared)


current: Sweep | None = None


class Begin(Callback):
    """Gives a sweep its folder before Hydra begins it (hook: ``hydra.callbacks``)."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            begin(config)
        except Exception as error:  # Hydra would warn, and go on without a folder
            raise SystemExit(f"error: the sweep cannot begin: {error}") from error


def begin(config: DictConfig) -> None:
    global current
    check(config.hydra.overrides)
    work = Path(config.paths.work)
    folder = work / "sweeps" / name_of(config)
    current = Sweep(folder, jobs_of(config))
    waiting = "this sweep is running already: waiting for it"
    lock = exclusive(folder / LOCK, lambda: say(waiting), threading.Event())
    current.going_on.enter_context(lock)
    # Jobs compose the config anew, from the overrides. In quotes, a backslash is itself, but
    # before a quote.
    quoted = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + (m[2] and "\\'"), str(folder))
    with flag_override(config, ["struct", "readonly"], False):
        config.hydra.sweep.dir = str(folder)
        config.hydra.overrides.hydra += [
            f"hydra.sweep.dir='{quoted}'",
            f"+hydra.job.env_set.{TOKEN}={current.token}",
        ]
    write_atomically(folder / JOBS, json.dumps(current.jobs, indent=1) + "\n")
    say(f"sweep: {folder}")
    current.going_on.enter_context(telling(current))
    if sys.stdout.isatty():
        draw = functools.partial(view, work, (), ("training", "decoding"))
        live = Live(get_renderable=draw, refresh_per_second=0.5, transient=True)
        current.going_on.enter_context(live)


def check(overrides: Any) -> None:
    """Refuse what Hydra would take and do otherwise than it looks.

    Raises:
        RunError: naming the override.
    """
    for given in overrides.task:
        name, _, values = given.lstrip("+").partition("=")
        if name == "experiment" and "," in values:
            raise RunError(f"{given}: one experiment a command, since each has values of its own")
    for given in overrides.hydra:
        if given.startswith("hydra.sweep.dir="):
            raise RunError(f"{given}: a sweep's folder is named by its runs; give paths.work=DIR")


def use_own_launchers() -> None:
    """Let conf/hydra/launcher/ alone say how a launcher is set up.

    The launchers' packages have settings by the same names: Hydra would merge the two, and warn.
    """
    Plugins.instance()  # registers the packages' own
    theirs = ConfigStore.instance().repo.get("hydra", {}).get("launcher", {})
    for path in (CONF / "hydra" / "launcher").glob("*.yaml"):
        theirs.pop(path.name, None)


def name_of(config: DictConfig) -> str:
    """The same for the same runs, on whichever launcher, in whichever order they are given."""
    hydra = config.hydra
    sources = hydra.runtime.config_sources
    own = [source.path for source in sources if source.provider == "command-line"]
    overrides = [hydra.job.config_name, *own, *sorted(hydra.overrides.task)]
    name = hydra.runtime.choices.get("experiment") or "sweep"
    return f"{name}-{digest_of(overrides)[:8]}"


def jobs_of(config: DictConfig) -> list[list[str]]:
    """Overrides of every job, as Hydra's own sweeper expands them; none for another sweeper."""
    if not expands(config.hydra):
        return []
    sweeper = config.hydra.sweeper
    params = [f"{name}={value}" for name, value in (sweeper.params or {}).items()]
    overrides = OverridesParser.create().parse_overrides([*params, *config.hydra.overrides.task])
    (batch,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    return batch


def notes_of(sweep: Sweep) -> list[dict[str, Any]]:
    """What became of each job since this process began the sweep, in order."""
    notes: dict[int, dict[str, Any]] = {
        number: {"number": number, "overrides": overrides, "state": "not started"}
        for number, overrides in enumerate(sweep.jobs)
    }
    for path in sweep.folder.glob("[0-9]*.json"):
        note = json.loads(path.read_text(encoding="utf-8"))
        if note["sweep"] == sweep.token:
            notes[note["number"]] = note
    return [notes[number] for number in sorted(notes)]


def say(message: str) -> None:
    print(message, flush=True)


@contextlib.contextmanager
def telling(sweep: Sweep, seconds: float = 1.0) -> Iterator[None]:
    """Say what becomes of the jobs, as it does."""
    done, told = threading.Event(), dict[int, str]()

    def tell() -> None:
        while True:
            last = done.wait(seconds)
            for note in notes_of(sweep):
                if note["state"] not in (told.get(note["number"], "not started"), "running"):
                    say(line_of(sweep, note))
                told[note["number"]] = note["state"]
            if last:
                return

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def line_of(sweep: Sweep, note: dict[str, Any]) -> str:
    of = f"/{len(sweep.jobs)}" if sweep.jobs else ""
    line = f"[{note['number'] + 1}{of}] {sweep.label(note)}: {note['state']}"
    if "test" in note:
        line += f", test BLEU {note['test']:.2f}"
    return line + (f": {note['said'][-1]}" if note.get("said") else "")


def end(code: int) -> int:
    """Say what became of the sweep, if this process began one; the exit code.

    Returns:
        130 if it was interrupted, 1 if a job failed or was not done, else ``code``.
    """
    if current is None:
        return code
    current.going_on.close()
    notes = notes_of(current)
    if code not in (0, INTERRUPTED) and {note["state"] for note in notes} <= {"not started"}:
        if not any(current.folder.glob("[0-9]*.json")):
            (current.folder / JOBS).unlink(missing_ok=True)
        return code  # Hydra has refused it, and said why
    for note in notes:
        if note["state"] == "running":  # killed, it could not note that
            note["state"] = "interrupted" if code == INTERRUPTED else "failed"
            note["said"] = [] if code == INTERRUPTED else ["killed"]
    say("\n" + summary(current, notes))
    if code == 0 and any(note["state"] != "finished" for note in notes):
        code = 1
    return code


def summary(sweep: Sweep, notes: Sequence[dict[str, Any]]) -> str:
    """A table of the jobs, and what the failed ones said last."""
    rows = [
        {
            "job": note["number"] + 1,
            "run": sweep.label(note),
            "state": note["state"],
            "dev BLEU": note.get("dev"),
            "test BLEU": note.get("test"),
            "minutes": note["seconds"] / 60 if "seconds" in note else None,
        }
        for note in notes
    ]
    formats = ("", "", "", ".2f", ".2f", ".1f")
    parts = [tabulate(rows, headers="keys", tablefmt="simple", floatfmt=formats, missingval="–")]
    for note in notes:
        if note.get("said"):
            parts.append(f"job {note['number'] + 1}: {' '.join(note['overrides'])}")
            parts.append("  " + "\n  ".join(note["said"]))
            parts.append(f"  all it said: {sweep.folder / str(note['number'])}.log\n")
    counts = Counter(note["state"] for note in notes)
    parts.append(", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]))
    if sweep.jobs and counts["finished"] < len(notes):
        parts.append("the same command does what is missing")
    return "\n".join(parts)
