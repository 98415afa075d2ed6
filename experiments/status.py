"""How far the runs under work/ are: a table to look at while they go on, from any shell.

    python -m experiments.status                            # every run, once
    python -m experiments.status --watch                    # again every 2 seconds, until Ctrl-C
    python -m experiments.status --watch 30 --state training decoding
    python -m experiments.status --pair gl-en sk-en --work /elsewhere/work

A run is finished (decoded and scored, unless decode=off), training, decoding, failed (the reason
stands under the table) or interrupted (the same command goes on with it). One that waits for a free
CPU core counts as training. The curve is that of BLEU on dev, or of perplexity where training does
not decode dev. Words/s is the median of the last 20 log intervals;
the time left is that of training alone. Under the table are the sweeps with jobs that are not
finished.

Nothing is written. Where a terminal is narrow, less important columns are left out.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .command_line import catch, parser_of
from .commands import RunError
from .progress import Status, find_runs, folders, sweep_lines

STATES = dict(
    finished="green", training="cyan", decoding="cyan", failed="red", interrupted="yellow"
)
BLOCKS = "▁▂▃▄▅▆▇█"
UNKNOWN = "–"


def duration(seconds: float) -> str:
    """The two largest units: 45s, 12m, 2h05m, 3d04h."""
    minutes, rest = divmod(round(seconds), 60)
    days, hours = divmod(minutes // 60, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m" if minutes else f"{rest}s"


def sparkline(values: Sequence[float], width: int = 10) -> str:
    """The values in blocks from lowest to highest; of more than ``width``, as many at even steps,
    the first and the last among them. What is not finite is a gap."""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(BLOCKS) - 1) / ((high - low) or 1.0)
    return "".join(BLOCKS[round((v - low) * scale)] if math.isfinite(v) else " " for v in values)


def shown(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


COLUMNS: dict[str, Callable[[Status], str]] = {
    "run": lambda run: run.name,
    "state": lambda run: run.state,
    "epoch": lambda run: shown(run.log.epoch, "d"),
    "updates": lambda run: f"{shown(run.log.updates, 'd')}/{shown(run.total, 'd')}",
    "dev\nBLEU": lambda run: shown(next(reversed(run.log.bleu), None), ".2f"),
    "dev\nppl": lambda run: shown(next(reversed(run.log.ppl), None), ".2f"),
    "curve": lambda run: sparkline(run.log.bleu or run.log.ppl) or UNKNOWN,
    "rate": lambda run: shown(run.log.rate, ".2e"),
    "words/s": lambda run: shown(run.log.speed, ".0f"),
    "left": lambda run: UNKNOWN if run.left is None else duration(run.left),
    "test\nBLEU": lambda run: shown(run.test, ".2f"),
}
LEFT_ALIGNED = ("run", "state", "curve")
LEAST = ("rate", "words/s", "epoch", "curve")  # the first is the first to go


@dataclass(frozen=True)
class Runs:
    """A table of runs. Where it is too wide, columns without any figure are left out, then those of
    :data:`LEAST`, as many as must be; at last the runs' names are folded."""

    runs: Sequence[Status]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        cells = {name: [cell(run) for run in self.runs] for name, cell in COLUMNS.items()}
        empty = [name for name in cells if {*cells[name]} == {UNKNOWN}]
        unbound = options.update_width(10_000)
        for name in dict.fromkeys([*empty, *LEAST]):
            if console.measure(self.table(cells), options=unbound).maximum <= options.max_width:
                break
            del cells[name]
        yield self.table(cells)

    def table(self, cells: dict[str, list[str]]) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        for name in cells:
            side: Any = "left" if name in LEFT_ALIGNED else "right"
            table.add_column(name, justify=side, no_wrap=name != "run", overflow="fold")
        for row in zip(*cells.values(), strict=True):
            table.add_row(*(Text(cell, style=STATES.get(cell, "")) for cell in row))
        return table


def view(work: Path, pairs: Collection[str] = (), states: Collection[str] = ()) -> RenderableType:
    """Runs and sweeps as they are now, for a console or ``Live(get_renderable=...)``."""
    runs = find_runs(work, pairs, states)
    wanted = f" is {' or '.join(states)}" if states else ""
    none = f"no run of {' or '.join(pairs) or 'any pair'} under {work / 'runs'}{wanted}"
    if not pairs and not states:
        none += ": begin one with `python -m experiments.run`, or give another folder with --work"
    said = [f"{run.name} failed: {run.said}" for run in runs if run.state == "failed"]
    said += [line for sweep in folders(work / "sweeps") for line in sweep_lines(sweep)]
    return Group(Runs(runs) if runs else Text(none), *map(Text, ["", *said] if said else []))


def watch(console: Console, draw: Callable[[], RenderableType], seconds: float) -> None:
    """Draw again and again, in place where there is a terminal, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        if not console.is_interactive:
            while True:
                console.print(draw())
                time.sleep(seconds)
        with Live(get_renderable=draw, console=console, auto_refresh=False) as live:
            while True:
                live.refresh()
                time.sleep(seconds)


@catch
def main(argv: list[str] | None = None) -> int:
    parser = parser_of("status", __doc__)
    add = parser.add_argument
    add("--work", type=Path, default=Path("work"), help="(%(default)s)")
    often = "draw again every so many seconds (%(const)s)"
    add("--watch", type=float, nargs="?", const=2.0, metavar="SECONDS", help=often)
    add("--pair", nargs="+", default=[], metavar="P", help="only runs of these pairs")
    legal = f"only runs in these states: {', '.join(STATES)}"
    add("--state", nargs="+", default=[], metavar="S", choices=STATES, help=legal)
    args = parser.parse_args(argv)
    if not args.work.is_dir():
        raise RunError(f"{args.work} is no folder: give the one that has runs/ with --work")
    if args.watch is not None and not 0 < args.watch <= 86400:
        raise RunError(f"--watch {args.watch:g}: legal is above 0 and up to 86400 seconds, a day")
    console = Console(width=None if sys.stdout.isatty() else 160)
    draw = functools.partial(view, args.work, args.pair, args.state)
    if args.watch is None:
        console.print(draw())
    else:
        watch(console, draw, args.watch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
