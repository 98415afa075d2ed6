"""What only one process at a time may have: a run's folder, a CPU core.

A run is locked twice over. ``flock`` is held by every process that was handed the descriptor, so a
training whose runner was killed keeps its run, and the kernel lets go when the last of them ends.
Some shared file systems keep ``flock`` to each machine, or have none (Lustre and NFS by their mount
options), so a lease stands beside it: a file that its holder touches, and that another machine may
take once it has seen no sign of life for :data:`LEASE` seconds. There alone, a training that
outlives its runner is not seen by other machines.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import SoftFileLease, Timeout

from .commands import RunError

LEASE = 30.0  # seconds; all machines must agree
NO_FLOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
POLL = 0.5


@dataclass
class Cores:
    """CPU cores that a run's processes are pinned to (none: not pinned)."""

    numbers: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def release(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


@contextlib.contextmanager
def exclusive(path: Path, on_wait: Callable[[], None], stop: threading.Event) -> Iterator[int]:
    """Hold a lock file; yields its descriptor, to be handed to child processes.

    Waits while another process holds it, until ``stop`` is set, which also happens if the lock is
    lost to another machine.

    Raises:
        RunError: if it was stopped while waiting.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tell = functools.cache(on_wait)  # once
    descriptor = open_lock(path)
    try:
        while not try_flock(descriptor):
            tell()
            if stop.wait(POLL):
                raise RunError("stopped while waiting for another process")
        with leased(path, tell, stop):
            yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def leased(path: Path, on_wait: Callable[[], None], stop: threading.Event) -> Iterator[None]:
    lease = SoftFileLease(
        lease_path(path),
        lease_duration=LEASE,
        thread_local=False,
        on_compromise=lambda loss: stop.set(),
    )
    try:
        lease.acquire(blocking=False)
    except Timeout:
        on_wait()
        try:
            lease.acquire(poll_interval=POLL, cancel_check=stop.is_set)
        except Timeout:
            raise RunError("stopped while waiting for another machine") from None
    try:
        yield
    finally:
        lease.release()


def is_held(path: Path) -> bool:
    """Whether a process, on whatever machine, holds the lock file; takes nothing."""
    lease = lease_path(path)
    with contextlib.suppress(FileNotFoundError):
        owner, touched = SoftFileLease(lease, lease_duration=LEASE).owner, lease.stat().st_mtime
        if owner and owner.hostname == socket.gethostname():
            if Path(f"/proc/{owner.pid}").exists():
                return True
        # Clocks of machines differ: believed for twice as long as it lasts.
        elif owner and time.time() - touched < 2 * LEASE:
            return True
    if not path.exists():
        return False
    descriptor = open_lock(path)
    try:
        return not try_flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def free_cores(wanted: int, on_wait: Callable[[], None], stop: threading.Event) -> Iterator[Cores]:
    """Have CPU cores of this machine, of those this process may use, that no other run has.

    Waits until there are as many as wanted.

    Raises:
        RunError: if there never can be; or if it was stopped while waiting.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if wanted > len(allowed):
        raise RunError(
            f"runtime.threads={wanted} is not allowed with runtime.core=free: legal is up to "
            f"{len(allowed)}, the cores there are"
        )
    folder = core_locks()
    tell = functools.cache(on_wait)
    while (cores := take_cores(folder, allowed, wanted)) is None:
        tell()
        if stop.wait(POLL):
            raise RunError("stopped while waiting for a free CPU core")
    try:
        yield cores
    finally:
        cores.release()


@contextlib.contextmanager
def given_core(number: int) -> Iterator[Cores]:
    """A core that was asked for by its number: no other run gets it as a free one."""
    cores = Cores([number], [open_lock(core_locks() / str(number))])
    try_flock(cores.descriptors[0])
    try:
        yield cores
    finally:
        cores.release()


def core_locks() -> Path:
    """Folder of this user's locks of this machine's cores."""
    folder = Path(tempfile.gettempdir()) / f"qknorm-mt-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def take_cores(folder: Path, allowed: Sequence[int], wanted: int) -> Cores | None:
    """As many cores as wanted, locked; None, and none locked, if so many are not free."""
    cores = Cores()
    for number in allowed:
        descriptor = open_lock(folder / str(number))
        if len(cores.numbers) < wanted and try_flock(descriptor):
            cores.numbers.append(number)
            cores.descriptors.append(descriptor)
        else:
            os.close(descriptor)
    if len(cores.numbers) < wanted:
        cores.release()
        return None
    return cores


def lease_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lease")


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def try_flock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_FLOCK:  # then the lease stands alone
            raise
    return True
