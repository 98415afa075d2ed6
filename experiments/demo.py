"""Baseline and QKNorm side by side on the toy pair, from nothing to a table: ``make demo``.

    python -m experiments.demo [--work work/demo] [field=value ...]

Two trainings run at once, each on its own CPU core, with a progress bar each. Interrupted, the
same command goes on from the last checkpoints.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .changes import CONF
from .command_line import INTERRUPTED
from .commands import RunError
from .plan import open_run
from .process import explain
from .report.build import make_report
from .run import execute, line_progress

VARIANTS = ("none", "l2")


def compose_run(attn: str, work: Path, core: int | None, overrides: list[str]) -> dict[str, Any]:
    settings = ["pair=toy", "recipe=demo", f"attn={attn}", *overrides]
    if core is not None:
        settings.append(f"runtime.core={core}")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", settings)
    # Not as overrides: a path may hold what Hydra's grammar would read as something else.
    config.paths.work, config.paths.results = str(work), str(work / "results")
    cfg = OmegaConf.to_container(config, resolve=True)
    assert isinstance(cfg, dict)
    return {str(key): value for key, value in cfg.items()}


def cores() -> list[int | None]:
    """A CPU core for each variant; no pinning where there are too few, or none can be chosen."""
    try:
        free: list[int | None] = sorted(os.sched_getaffinity(0))  # type: ignore[assignment]
    except AttributeError:
        free = []
    return free[: len(VARIANTS)] if len(free) >= len(VARIANTS) else [None] * len(VARIANTS)


def train_side_by_side(runs: dict[str, Any], console: Console) -> None:
    columns = (
        TextColumn("{task.description:>5}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars, ThreadPoolExecutor(len(runs)) as pool:

        def one(name: str) -> None:
            run = runs[name]
            task = bars.add_task(name, total=run.updates, figures="")

            def progress(updates: int, figures: Mapping[str, Any]) -> None:
                text = "  ".join(f"{key} {value}" for key, value in figures.items())
                bars.update(task, completed=updates, figures=text)

            def say(message: str) -> None:
                console.print(f"[{name}] {message}", markup=False, soft_wrap=True)

            execute(run, progress if console.is_terminal else line_progress(say), say)

        jobs = [pool.submit(one, name) for name in runs]
        try:
            for job in wait(jobs, return_when=FIRST_EXCEPTION).done:
                job.result()
        except BaseException:  # Ctrl-C among them: end the processes, or the pool waits for them
            for run in runs.values():
                run.stop.set()
            raise


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, default=Path("work/demo"), help="where all goes")
    parser.add_argument("overrides", nargs="*", help="settings of both runs, as for a single run")
    args = parser.parse_args(argv)
    console = Console(stderr=True)
    try:
        runs = {
            attn: open_run(compose_run(attn, args.work, core, args.overrides))
            for attn, core in zip(VARIANTS, cores(), strict=True)
        }
        train_side_by_side(runs, console)
        paths = make_report(args.work / "results")
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from the last checkpoints", file=sys.stderr)
        return INTERRUPTED
    print((args.work / "results/tables/variants.md").read_text(encoding="utf-8"))
    print("\n".join(str(path.resolve()) for path in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
