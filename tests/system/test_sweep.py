"""Sweeps on the toy pair: the table is complete and the same, whatever happened to it before."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import ROOT
from .conftest import run

EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf/experiment").glob("*.yaml"))
ARMS = ("attn=none,l2", "recipe=smoke")
# Long enough to be killed in, and with checkpoints to go on from.
LONGER = ("recipe.max_updates=200", "recipe.options.save_interval_updates=20")


def argv(folder: Path, *settings: str) -> list[str]:
    places = [f"paths.work={folder}/work", f"paths.results={folder}/results"]
    return ["experiments.run", "-m", *places, *settings]


def table(folder: Path) -> list[dict]:
    """The rows, but for when and how fast."""
    rows = [json.loads(line) for line in (folder / "results/runs.jsonl").open(encoding="utf-8")]
    for row in rows:
        row["training"] = row["training"]["dev"]
        row.pop("decode_seconds")
    return sorted(rows, key=lambda row: row["run"])


def notes(folder: Path) -> list[dict]:
    (sweep,) = (folder / "work" / "sweeps").iterdir()
    return [json.loads(p.read_text()) for p in sorted(sweep.glob("[0-9]*.json"))]


def test_a_failed_job_leaves_the_others_alone_and_is_done_by_the_same_command(
    tmp_path: Path,
) -> None:
    """Two at once; then one after the other, which is another launcher but the same sweep."""
    broken = ("recipe=smoke", "attn=none", "recipe.options.dropout=0.1,1.5")
    done = run(*argv(tmp_path, *broken, "hydra/launcher=joblib"))
    assert done.returncode == 1, done.stdout
    assert "1 finished, 1 failed\nthe same command does what is missing" in done.stdout
    assert "ValueError: dropout=1.5 is not allowed: legal is at least 0 and under 1" in done.stdout
    first = notes(tmp_path)
    assert [note["state"] for note in first] == ["finished", "failed"]
    assert [row["run"] for row in table(tmp_path)] == [first[0]["run"]]
    (sweep,) = (tmp_path / "work" / "sweeps").iterdir()

    status = run("experiments.status", "--work", str(tmp_path / "work"))
    assert "1 failed, 1 finished" in status.stdout and "dropout=1.5 is not" in status.stdout

    before = table(tmp_path)
    done = run(*argv(tmp_path, *broken))
    assert done.returncode == 1, done.stdout
    assert notes(tmp_path)[1]["started"] > first[1]["started"]
    assert (sweep / "0.log").read_text().count("trained already") == 1
    assert table(tmp_path) == before


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run(*argv(folder, *ARMS, *LONGER, "hydra/launcher=joblib"))
    assert done.returncode == 0, done.stdout
    assert "2 finished" in done.stdout
    return table(folder)


def start(folder: Path, launcher: str, *more: str) -> subprocess.Popen[bytes]:
    settings = (*ARMS, *LONGER, *more, f"hydra/launcher={launcher}")
    return subprocess.Popen(
        [sys.executable, "-m", *argv(folder, *settings)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "SWEPT": str(folder)},
    )


def processes_of(folder: Path) -> Iterator[int]:
    """Every process that a sweep begun by :func:`start` has left."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"SWEPT={folder}".encode() in entry.read_bytes().split(b"\0"):
                yield int(entry.parent.name)


def wait_until_gone(folder: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := [*processes_of(folder)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def pinned_to(folder: Path) -> list[set[int]]:
    """CPU cores of each training that goes on, all of which have one thread."""
    cores = []
    for pid in processes_of(folder):
        with contextlib.suppress(OSError):  # it may end meanwhile
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            threads = b"OMP_NUM_THREADS=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if b"fairseq_cli.train" in command:
                assert threads
                cores.append(os.sched_getaffinity(pid))
    return cores


def check(folder: Path, undisturbed: list[dict], launcher: str) -> None:
    done = run(*argv(folder, *ARMS, *LONGER, f"hydra/launcher={launcher}"))
    assert done.returncode == 0, done.stdout
    assert table(folder) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_ctrl_c_stops_every_job_and_the_same_command_goes_on(
    launcher: str, tmp_path: Path, undisturbed: list[dict]
) -> None:
    process = start(tmp_path, launcher)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("work/runs/*/*/*/checkpoints/checkpoint_last.pt")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    if launcher == "joblib" and len(os.sched_getaffinity(0)) > 1:
        (one, other) = pinned_to(tmp_path)
        assert len(one) == len(other) == 1 and one != other
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(timeout=30) == 130
    wait_until_gone(tmp_path, 5)
    check(tmp_path, undisturbed, launcher)


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [False, True], ids=["sweep", "everything"])
def test_kills_at_ten_random_moments(
    whole_group: bool, tmp_path: Path, undisturbed: list[dict]
) -> None:
    """SIGKILL of the sweep alone, which leaves its jobs, or of all at once, as in a power cut."""
    moments = random.Random(7)
    for number in range(10):
        process = start(tmp_path, "joblib")
        if number % 2:  # every other within a training, as long as there is any to do
            while process.poll() is None and not pinned_to(tmp_path):
                time.sleep(0.1)
        try:
            process.wait(timeout=moments.uniform(0.5, 7 if number % 2 else 25))
        except subprocess.TimeoutExpired:
            (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
            process.wait()
    check(tmp_path, undisturbed, "joblib")
    if whole_group:
        wait_until_gone(tmp_path, 5)
    for left in processes_of(tmp_path):  # joblib's that had no job yet wait for ever
        os.kill(left, signal.SIGKILL)
    starts = [json.loads(p.read_text()) for p in tmp_path.glob("work/runs/*/*/*/segments.json")]
    assert len(starts) == len(undisturbed)
    if whole_group:  # else what was killed has left trainings that came to their own end
        assert max(map(len, starts)) > 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_to_its_end(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On the toy pair, with one seed, at the size of nothing."""
    folder = tmp_path_factory.getbasetemp() / "experiments"
    trial = (f"+experiment={name}", "pair=toy", "recipe=smoke", "seed=1", "hydra/launcher=joblib")
    done = run(*argv(folder, *trial))
    assert done.returncode == 0, done.stdout
    (jobs,) = (folder / "work" / "sweeps").glob(f"{name}-*/jobs.json")
    assert f"\n{len(json.loads(jobs.read_text()))} finished\n" in done.stdout


@pytest.mark.slow
def test_two_sweeps_at_once_train_each_run_once(tmp_path: Path, undisturbed: list[dict]) -> None:
    """Another sweep of the same runs goes on beside it, the very same waits for it."""
    sweeps = [start(tmp_path, "joblib", *more) for more in ((), ("seed=1",), ())]
    assert [process.wait(timeout=400) for process in sweeps] == [0, 0, 0]
    assert table(tmp_path) == undisturbed
    for segments in tmp_path.glob("work/runs/*/*/*/segments.json"):
        assert len(json.loads(segments.read_text())) == 1
