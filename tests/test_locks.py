"""Runs and CPU cores are had by one process at a time: here, on other machines, after a kill."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from experiments import locks
from experiments.commands import RunError
from experiments.locks import Cores, exclusive, free_cores, given_core, is_held

ELSEWHERE = "another-machine"


def never() -> None:
    raise AssertionError("waited")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LEASE", 0.6)
    monkeypatch.setattr(locks, "POLL", 0.05)


def lease_of_another_machine(path: Path) -> Path:
    """What a holder on another machine, where ``flock`` is not seen, has written."""
    lease = locks.lease_path(path)
    fields = {"pid": 1, "host": ELSEWHERE, "mode": "lease", "token": "0" * 32}
    fields["duration"] = locks.LEASE
    lease.write_text("filelock/2\n" + "".join(f"{n}={v}\n" for n, v in fields.items()))
    return lease


def test_another_machines_run_is_waited_for_until_it_shows_no_sign_of_life(
    tmp_path: Path, quick: None
) -> None:
    path, waited = tmp_path / "lock", []
    lease = lease_of_another_machine(path)
    stopped = threading.Event()

    def live() -> None:
        for _ in range(20):
            os.utime(lease)
            time.sleep(0.1)
        stopped.set()

    thread = threading.Thread(target=live)
    thread.start()
    with exclusive(path, lambda: waited.append(stopped.is_set()), threading.Event()):
        assert stopped.is_set()
    thread.join()
    assert waited == [False]


def test_a_run_of_another_machine_is_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    lease = lease_of_another_machine(path)
    assert is_held(path)
    os.utime(lease, (1, 1))
    assert not is_held(path)
    with exclusive(tmp_path / "mine", never, threading.Event()):
        assert is_held(tmp_path / "mine")
    assert not is_held(tmp_path / "mine")


def test_a_lock_lost_to_another_machine_stops_the_run(tmp_path: Path, quick: None) -> None:
    stop = threading.Event()
    with exclusive(tmp_path / "lock", never, stop):
        locks.lease_path(tmp_path / "lock").unlink()
        lease_of_another_machine(tmp_path / "lock")
        assert stop.wait(5)


def test_the_lease_stands_alone_where_there_is_no_flock(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOSYS, "no flock here")

    monkeypatch.setattr(fcntl, "flock", flock)
    script = (
        "import sys, time, threading; from pathlib import Path; from experiments import locks;"
        "locks.LEASE = 0.6; lock = locks.exclusive(Path(sys.argv[1]), print, threading.Event());"
        "lock.__enter__(); print('has it', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")], stdout=subprocess.PIPE
    )
    assert holder.stdout and holder.stdout.readline() == b"has it\n"
    waited: list[float] = []

    def kill() -> None:
        waited.append(time.monotonic())
        holder.kill()
        holder.wait()

    assert is_held(tmp_path / "lock")
    with exclusive(tmp_path / "lock", kill, threading.Event()):
        assert len(waited) == 1
    assert not is_held(tmp_path / "lock")


def test_other_faults_of_flock_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="the disk"), exclusive(tmp_path / "l", never, None):  # type: ignore[arg-type]
        pass


@pytest.fixture
def two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 3})
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(locks, "POLL", 0.05)


def test_no_two_runs_have_a_core(two_cores: None) -> None:
    stop = threading.Event()
    with free_cores(1, never, stop) as first, free_cores(1, never, stop) as second:
        assert (first.numbers, second.numbers) == ([3], [5])
        with pytest.raises(RunError, match="free CPU core"), free_cores(1, stop.set, stop):
            pass
    stop.clear()
    with free_cores(2, never, stop) as both:
        assert both.numbers == [3, 5]


def test_a_core_that_was_asked_for_is_not_free(two_cores: None) -> None:
    stop = threading.Event()
    with given_core(3) as first, given_core(3) as again, free_cores(1, never, stop) as free:
        assert (first.numbers, again.numbers, free.numbers) == ([3], [3], [5])
    with free_cores(2, never, stop):
        pass


def test_waiting_for_two_cores_holds_none(two_cores: None) -> None:
    stop = threading.Event()
    with free_cores(1, never, stop):
        with pytest.raises(RunError), free_cores(2, stop.set, stop):
            pass
        with free_cores(1, never, threading.Event()) as other:
            assert other.numbers == [5]


def test_a_training_keeps_its_core_when_its_runner_is_killed(two_cores: None) -> None:
    with free_cores(1, never, threading.Event()) as mine:
        child = subprocess.Popen(["sleep", "60"], pass_fds=mine.descriptors)
    with free_cores(1, never, threading.Event()) as other:
        assert other.numbers == [5]
    child.kill()
    child.wait()
    with free_cores(1, never, threading.Event()) as other:
        assert other.numbers == [3]


def test_more_threads_than_cores_are_refused(two_cores: None) -> None:
    with (
        pytest.raises(RunError, match=r"runtime.threads=3 is not allowed .* legal is up to 2"),
        free_cores(3, never, threading.Event()),
    ):
        pass


def test_cores_that_are_not_reserved_have_nothing_to_release() -> None:
    Cores([1]).release()
