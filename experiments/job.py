"""A job of a sweep: one run in a process of its own, and a note of what became of it."""

from __future__ import annotations

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
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf

from .command_line import INTERRUPTED
from .commands import RunError, environment
from .process import write_atomically

SAID = 5  # last lines of a failed job's log that its note has
BUSY = threading.Lock()  # held while a job is done
# Environment variable: which start of the sweep a job belongs to, and its process: "<pid>-<hex>".
TOKEN = "QKNORM_MT_SWEEP"


def run_job(hydra: HydraConf, config: DictConfig) -> float:
    """Run a job of a sweep to its end and note what became of it; BLEU on dev, NaN without.

    Raises:
        RunError: if it failed, and the sweeper looks for the best, and so must know.

    ``<number>.json`` says: number, overrides, state (running, finished, failed, interrupted), host,
    started, seconds; then the run's name, folder, BLEU on dev and test, or the last lines it said.
    """
    if hydra.runtime.choices["hydra/launcher"] == "joblib":
        end_with_sweep()
    with BUSY:
        return note_job(hydra, config)


@functools.cache  # once a process
def end_with_sweep() -> None:
    """End this process, joblib's, once the sweep's has gone, after the job at hand: it would wait
    for the next job for ever."""
    parent = int(os.environ[TOKEN].partition("-")[0])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        BUSY.acquire()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def note_job(hydra: HydraConf, config: DictConfig) -> float:
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
        if isinstance(error, Exception):
            write(state="failed", said=[f"{type(error).__name__}: {error}"])
        else:
            write(state="interrupted")
        raise
    with log.open("rb") as file:
        file.seek(before)
        said = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    result = result_of(said) if code == 0 else None
    if result:
        write(state="finished", **result)
        return float(result.get("dev", math.nan))
    ended = [f"ended by signal {-code}"] if code < 0 else []
    stopped = code in (INTERRUPTED, -signal.SIGINT, -signal.SIGTERM)
    write(state="interrupted" if stopped else "failed", said=[*said, *ended][-SAID:])
    if not expands(hydra):  # a sweeper that looks for the best is told by an error
        raise RunError(f"job {number + 1} {note['state']}: {' '.join(note['said'][-1:])}")
    return math.nan


def result_of(said: Sequence[str]) -> dict[str, Any] | None:
    """What a run printed last of all, but for what its process may have said in ending."""
    for line in reversed(said):
        if line.startswith('{"run"'):
            result: dict[str, Any] = json.loads(line)
            return result
    return None


def job_argv(hydra: HydraConf, config: DictConfig) -> list[str]:
    """The job as a command of its own, which can be pasted too."""
    argv = [sys.executable, "-m", "experiments.run", "--config-name", str(hydra.job.config_name)]
    for source in hydra.runtime.config_sources:
        argv += ["--config-dir", source.path] if source.provider == "command-line" else []
    argv += [given for given in hydra.overrides.hydra if given.startswith("hydra.searchpath")]
    argv += ["hydra.mode=RUN", *hydra.overrides.task]  # a file may have set it to MULTIRUN
    # SLURM gives a job its own cores.
    side_by_side = hydra.runtime.choices["hydra/launcher"] in ("joblib", "submitit_local")
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


def expands(hydra: Any) -> bool:
    """Whether the sweeper is Hydra's own, which knows all jobs before it begins."""
    return str(hydra.sweeper._target_).endswith(f".{BasicSweeper.__name__}")
