"""A sweep on a real SLURM of one node (``make test-slurm``: Debian, root; installs SLURM)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..conftest import ROOT
from .conftest import run
from .test_sweep import ARMS, LONGER, argv, notes, table

pytestmark = pytest.mark.slurm
SLURM = Path(__file__).with_name("slurm.sh")
ON_SLURM = (*ARMS, *LONGER, "hydra/launcher=submitit_slurm", "recipe.request.minutes=20")


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """Starts it; its commands find it by $SLURM_CONF."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("needs root on Debian, to install and start SLURM")
    # Not pytest's own folder, which other users' daemons may not enter.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        try:
            said = subprocess.run([SLURM, "up", folder], stdout=subprocess.PIPE, text=True)
            assert said.returncode == 0
            patch.setenv("SLURM_CONF", said.stdout.strip().rpartition("=")[2])
            yield
        finally:
            subprocess.run([SLURM, "down", folder], check=True)
            shutil.rmtree(folder)


def wait_for(found: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180
    while not found():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)


def slurm_says(*command: str) -> list[str]:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split()


def test_a_cancelled_job_is_done_by_the_same_command(slurm: None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", *argv(tmp_path, *ON_SLURM)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
    second = "work/runs/toy/*-l2/*/checkpoints/checkpoint_last.pt"
    wait_for(lambda: list(tmp_path.glob(second)), process)
    (array,) = set(slurm_says("squeue", "-h", "-r", "-o", "%F"))
    # One array of two, each with what its recipe asks for: minutes, CPUs, memory.
    asked = slurm_says("squeue", "-h", "-r", "-j", array, "-o", "%K:%l:%C:%m")
    assert sorted(asked) == ["0:20:00:1:4G", "1:20:00:1:4G"]
    subprocess.run(["scancel", f"{array}_1"], check=True)
    assert process.wait(timeout=300) == 1, log.read_text()
    assert "1 finished, 1 interrupted\nthe same command does what is missing" in log.read_text()
    assert [note["state"] for note in notes(tmp_path)] == ["finished", "interrupted"]
    assert len(table(tmp_path)) == 1

    done = run(*argv(tmp_path, *ON_SLURM))
    assert done.returncode == 0, done.stdout
    assert "2 finished" in done.stdout
    assert [row["attn"] for row in table(tmp_path)] == ["l2", "none"]
    (segments,) = tmp_path.glob("work/runs/toy/*-l2/*/segments.json")
    assert len(json.loads(segments.read_text())) == 2

    here = tmp_path / "here"
    done = run(*argv(here, *ARMS, *LONGER))
    assert done.returncode == 0, done.stdout
    assert table(here) == table(tmp_path)


def test_a_job_that_runs_out_of_time_goes_on(slurm: None, tmp_path: Path) -> None:
    """Two minutes, of which SLURM leaves one: submitit requeues the job until it is done."""
    short = ("recipe.request.minutes=2", "hydra.launcher.signal_delay_s=60")
    longer = ("recipe.max_updates=2000", "recipe.options.save_interval_updates=50")
    sweep = ("recipe=smoke", "attn=l2", *longer, *short, "hydra/launcher=submitit_slurm")
    done = run(*argv(tmp_path, *sweep))
    assert done.returncode == 0, done.stdout
    assert "1 finished" in done.stdout
    (segments,) = tmp_path.glob("work/runs/*/*/*/segments.json")
    assert len(json.loads(segments.read_text())) > 1
    (row,) = table(tmp_path)
    assert [point["updates"] for point in row["training"]] == [*range(50, 2001, 50)]
