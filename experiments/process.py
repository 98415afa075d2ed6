"""Tools in processes of their own: what they say goes to a log, their progress to a callback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from .commands import PLUGIN, RunError, environment

TAIL = 15


def run_module(
    module: str,
    argv: list[str],
    log: Path,
    threads: int = 1,
    cores: Sequence[int] = (),
    keep: Sequence[int] = (),
    on_line: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
) -> None:
    """Run ``python -m module argv``, appending its output to ``log``; ``stop`` ends it early.

    Args:
        cores: pin it to these CPU cores.
        keep: descriptors of locks, which it holds too, should this process be killed.

    Raises:
        RunError: with the log's last line, if it exits with an error; or if it was stopped.
        OSError: if it ran out of disk space.
    """
    stop = stop or threading.Event()
    with log.open("ab") as sink, log.open("rb") as source:
        source.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [sys.executable, "-m", module, *argv],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment(threads),
            pass_fds=keep,
        )
        try:
            if cores:
                pin(process.pid, cores)
            pending = b""
            while True:
                ended = process.poll() is not None
                *lines, pending = (pending + source.read()).split(b"\n")
                for line in lines:
                    on_line(line.decode(errors="replace"))
                if ended:
                    break
                if stop.wait(0.2):
                    raise RunError(f"{module} was stopped")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode:
        said = [line for line in log.read_text(errors="replace").split("\n") if line.strip()]
        if any("No space left on device" in line for line in said[-TAIL:]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(log.parent))
        last = said[-1].strip() if said else "nothing said"
        raise RunError(
            f"{module} ended with exit code {process.returncode}: {last} (all it said: {log})"
        )


def pin(pid: int, cores: Sequence[int]) -> None:
    try:
        os.sched_setaffinity(pid, cores)
    except OSError:
        there = sorted(os.sched_getaffinity(0))
        named = ",".join(map(str, cores))
        raise RunError(f"runtime.core={named}: no such CPU core here; there are {there}") from None


def check_libraries() -> None:
    """Refuse combinations of libraries that are known not to work, before any is imported.

    Raises:
        RunError: naming them.
    """
    script = [sys.executable, str(PLUGIN / "compat.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(done.stderr.strip())


def read_module(module: str, argv: list[str], stdin: str | None = None) -> str:
    """Run ``python -m module argv`` and return its stdout; its stderr passes through.

    Raises:
        RunError: if it exits with an error, which it has explained on stderr.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *argv],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env=environment(threads=1),
        check=False,
    )
    if done.returncode:
        raise RunError(f"{module} {argv[0]} failed")
    return done.stdout


def explain(error: OSError) -> str:
    """One sentence for a file that cannot be read or written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space left on the disk: free some, then run the same command again"
    return f"{error.filename or 'a file'}: {error.strerror or error}"


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by a file with ``text``; a kill leaves the old one or the new one."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
