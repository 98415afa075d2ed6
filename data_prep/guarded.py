"""Run a module that must not outlive the process that started it.

    python -m data_prep.guarded PARENT_PID MODULE ARGUMENT...

A killed parent cannot end its children, and a tool that goes on writing would get in the way of
the next run. The module gets a process group of its own, its workers included, which ends with the
parent.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time


def watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    parent, module = int(sys.argv[1]), sys.argv[2]
    os.setpgid(0, 0)
    threading.Thread(target=watch, args=(parent,), daemon=True).start()
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
