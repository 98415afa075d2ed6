"""Many runs from one command: what a job does, what is noted of it, what is said at the end.

Hydra expands a sweep into jobs and hands them to its launcher. A job is ``python -m
experiments.run`` in a process of its own: one that fails, or is killed, leaves the others alone.
What is known of a sweep stands in a folder named by its overrides, so that the same command finds
it again::

    work/sweeps/<experiment>-<digest>/
        jobs.json       the overrides of every job
        <number>.json   what became of a job: see :func:`run_job`
        <number>.log    what it said, each time it was started
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, flag_override
from rich.live import Live
from tabulate import tabulate

from .changes import CONF
from .commands import RunError, digest_of, environment
from .locks import exclusive
from .process import write_atomically
from .progress import JOBS, LOCK
from .status import view

TOKEN = "QKNORM_MT_SWEEP"
SAID = 5  # last lines of a failed job's log in the summary
STATES = ("finished", "failed", "interrupted", "running", "not started")


@dataclass
class Sweep:
    """A sweep that this process has begun.

    Attributes:
        jobs: overrides of each job; none where they are known only as the sweep goes on.
        token: what tells this time from others that the same sweep was begun.
    """

    folder: Path
    jobs: list[list[str]]
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    done: threading.Event = field(default_factory=threading.Event)
    teller: threading.Thread | None = None
    live: Live | None = None
    lock: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def label(self, note: Mapping[str, Any]) -> str:
        """A job's run, or until that is known what tells its overrides from those of the others."""
        shared = set.intersection(*map(set, self.jobs)) if len(self.jobs) > 1 else set()
        return note.get("run") or " ".join(o for o in note["overrides"] if o not in shared)


current: Sweep | None = None


class Begin(Callback):
    """Gives a sweep its folder before Hydra begins it (hook: ``hydra.callbacks``)."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        global current
        folder = Path(config.paths.work) / "sweeps" / name_of(config)
        # Jobs compose the config anew, from the overrides.
        quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
        current = Sweep(folder, jobs_of(config))
        waiting = "this sweep is running already: waiting for it"
        lock = exclusive(folder / LOCK, lambda: say(waiting), threading.Event())
        current.lock.enter_context(lock)
        with flag_override(config, ["struct", "readonly"], False):
            config.hydra.sweep.dir = str(folder)
            config.hydra.overrides.hydra += [
                f"hydra.sweep.dir='{quoted}'",
                f"+hydra.job.env_set.{TOKEN}={current.token}",
            ]
        write_atomically(folder / JOBS, json.dumps(current.jobs, indent=1) + "\n")
        say(f"sweep: {folder}")
        current.teller = threading.Thread(target=tell, args=(current,), daemon=True)
        current.teller.start()
        if sys.stdout.isatty():
            draw = functools.partial(view, Path(config.paths.work), (), ("training", "decoding"))
            current.live = Live(get_renderable=draw, refresh_per_second=0.5, transient=True)
            current.live.start()


def use_own_launchers() -> None:
    """Let conf/hydra/launcher/ alone say how a launcher is set up.

    The launchers' packages have settings by the same names: Hydra would merge the two, and warn.
    """
    Plugins.instance()  # registers the packages' own
    theirs = ConfigStore.instance().repo["hydra"]["launcher"]
    for path in (CONF / "hydra" / "launcher").glob("*.yaml"):
        theirs.pop(path.name, None)


def name_of(config: DictConfig) -> str:
    """The same for the same runs, on whichever launcher, in whichever order they are given."""
    overrides = sorted(config.hydra.overrides.task)
    name = config.hydra.runtime.choices.get("experiment") or "sweep"
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


def expands(hydra: Any) -> bool:
    """Whether the sweeper is Hydra's own, which knows all jobs before it begins."""
    return str(hydra.sweeper._target_).endswith(f".{BasicSweeper.__name__}")


def run_job(hydra: HydraConf, config: DictConfig) -> float:
    """Run a job of a sweep to its end and note what became of it; BLEU on dev, NaN without.

    Raises:
        RunError: if it failed, and the sweeper looks for the best, and so must know.

    ``<number>.json`` says: number, overrides, state (running, finished, failed, interrupted), host,
    started, seconds; then the run's name, folder, BLEU on dev and test, or the last lines it said.
    """
    folder, number = Path(hydra.sweep.dir), int(hydra.job.num)
    started, log = time.monotonic(), folder / f"{number}.log"
    note: dict[str, Any] = {
        "number": number,
        "overrides": list(hydra.overrides.task),
        "state": "running",
        "sweep": os.environ.get(TOKEN),
        "host": socket.gethostname(),
        "started": datetime.now(UTC).isoformat("T", "seconds"),
    }

    def write(**more: Any) -> None:
        note.update(seconds=round(time.monotonic() - started, 1), **more)
        text = json.dumps(note, indent=1, ensure_ascii=False) + "\n"
        write_atomically(folder / f"{number}.json", text)

    write()
    before = log.stat().st_size if log.exists() else 0
    try:
        code = run_process(job_argv(hydra, config), log)
    except BaseException as error:
        write(state="failed" if isinstance(error, Exception) else "interrupted")
        raise
    with log.open("rb") as file:
        file.seek(before)
        said = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    if code == 0:
        result = json.loads(said[-1])
        write(state="finished", **result)
        return float(result["dev"])
    ended = [f"ended by signal {-code}"] if code < 0 else []
    stopped = code in (130, -signal.SIGINT, -signal.SIGTERM)
    write(state="interrupted" if stopped else "failed", said=[*said, *ended][-SAID:])
    if not expands(hydra):  # a sweeper that looks for the best is told by an error
        raise RunError(f"job {number + 1} {note['state']}: {note['said'][-1]}")
    return math.nan


def job_argv(hydra: HydraConf, config: DictConfig) -> list[str]:
    """The job as a command of its own, which can be pasted too."""
    argv = [sys.executable, "-m", "experiments.run"]
    for source in hydra.runtime.config_sources:
        argv += ["--config-dir", source.path] if source.provider == "command-line" else []
    argv += [given for given in hydra.overrides.hydra if given.startswith("hydra.searchpath")]
    argv += [*hydra.overrides.task]
    side_by_side = hydra.runtime.choices["hydra/launcher"] != "basic"
    on_cpu = OmegaConf.select(config, "recipe.options.cpu")
    if side_by_side and on_cpu and config.runtime.core is None:
        argv.append("runtime.core=free")
    return argv


def run_process(argv: Sequence[str], log: Path) -> int:
    """Run a job, its output appended to ``log``; its exit code. Interrupted, it stops the job."""
    with log.open("ab") as sink:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment(threads=1),
        )
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def notes_of(sweep: Sweep) -> list[dict[str, Any]]:
    """What became of each job in this process's time, in order."""
    count = len(sweep.jobs) or len([*sweep.folder.glob("[0-9]*.json")])
    notes = []
    for number in range(count):
        overrides = sweep.jobs[number] if sweep.jobs else []
        note = {"number": number, "overrides": overrides, "state": "not started"}
        try:
            found = json.loads((sweep.folder / f"{number}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            found = {}
        notes.append(found if found.get("sweep") == sweep.token else note)
    return notes


def say(message: str) -> None:
    print(message, flush=True)


def tell(sweep: Sweep, seconds: float = 1.0) -> None:
    """Say what becomes of the jobs, as it does, until the sweep is done."""
    told: dict[int, str] = {}
    while True:
        last = sweep.done.wait(seconds)
        for note in notes_of(sweep):
            if note["state"] not in (told.get(note["number"], "not started"), "running"):
                say(line_of(sweep, note))
            told[note["number"]] = note["state"]
        if last:
            return


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
    current.done.set()
    if current.teller:
        current.teller.join()
    if current.live:
        current.live.stop()
    current.lock.close()
    notes = notes_of(current)
    for note in notes:
        if note["state"] == "running":  # it could not write that it was killed
            note.update(state="failed", said=["killed"])
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
    if counts["finished"] < len(notes):
        parts.append("the same command does what is missing")
    return "\n".join(parts)
