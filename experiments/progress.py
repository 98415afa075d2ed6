"""How far runs and sweeps are, from what stands in their folders; nothing is written."""

from __future__ import annotations

import functools
import itertools
import json
import os
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .commands import decodes
from .locks import is_held
from .plan import FAILED, SETTINGS, Run
from .training_log import KINDS, parse_line, summarise

T = TypeVar("T")
JOBS = "jobs.json"  # of a sweep: the overrides of every job
LOCK = "lock"  # of a sweep: held while it goes on
SEGMENT = " | fairseq_cli.train | {"  # every start of fairseq-train first logs its config
RECENT = 20  # log intervals of words/s
PACE = 100  # log intervals of the time left: more, so that validations have their share
# Files come and go, are half written, or of another version: what they say is then not known.
BROKEN = (OSError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)


@dataclass(frozen=True)
class Log:
    """The newest figures of a training log, and the curves on dev.

    Attributes:
        pace: seconds an update since the training was last started.
    """

    epoch: int | None = None
    updates: int | None = None
    rate: float | None = None
    speed: float | None = None
    pace: float | None = None
    bleu: tuple[float, ...] = ()
    ppl: tuple[float, ...] = ()


@dataclass(frozen=True)
class Status:
    """A run's line; what is not known is None.

    Attributes:
        total: updates to train for.
        test: BLEU of the newest decoding.
        said: why the last start failed.
    """

    name: str
    state: str
    log: Log
    total: int | None
    test: float | None
    said: str | None

    @property
    def left(self) -> float | None:
        """Seconds of training left."""
        if self.state != "training":
            return None
        return time_left(self.log.updates, self.total, self.log.pace)


def time_left(done: int | None, total: int | None, pace: float | None) -> float | None:
    if done is None or total is None or pace is None:
        return None
    return max(total - done, 0) * pace


def folders(parent: Path) -> list[Path]:
    """Folders in a folder; none if that has gone, where ``Path.glob`` would raise."""
    with suppress(OSError), os.scandir(parent) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    return []


def read_json(path: Path, kind: type[T]) -> T:
    """An empty list or object, as asked for, if the file does not hold one."""
    with suppress(*BROKEN):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, kind) else kind()
    return kind()


def newest(lines: Sequence[str], *kinds: str) -> Iterator[dict[str, Any]]:
    """Figures of the log lines of these kinds, the newest first, ``valid_ppl`` as ``ppl``."""
    for parsed in map(parse_line, reversed(lines)):
        if parsed and parsed[0] in kinds:
            yield {name.removeprefix(f"{parsed[0]}_"): value for name, value in parsed[1].items()}


@functools.lru_cache(maxsize=1024)
def read_log(path: Path, size: int, mtime_ns: int) -> Log:
    """A log may be megabytes: it is read again only when it has another size or time.

    The pace is of ``wall``, not of the lines' dates, which daylight saving shifts.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    start = max((i for i, line in enumerate(lines) if SEGMENT in line), default=0)
    now = next(newest(lines, *KINDS), None)
    if now is None:
        return Log()
    rate = next(newest(lines, "train_inner", "train"), {}).get("lr")
    inner = [*itertools.islice(newest(lines[start:], "train_inner"), PACE + 1)]
    speeds = [float(figures["wps"]) for figures in inner[:RECENT]]
    points = [(int(figures["num_updates"]), float(figures["wall"])) for figures in inner]
    dev = summarise(line for line in lines if " | valid | " in line)["dev"]
    return Log(
        epoch=int(now["epoch"]),
        updates=int(now["num_updates"]),
        rate=None if rate is None else float(rate),
        speed=statistics.median(speeds) if speeds else None,
        pace=seconds_an_update(points),
        bleu=tuple(point["bleu"] for point in dev if "bleu" in point),
        ppl=tuple(point["ppl"] for point in dev),
    )


def seconds_an_update(points: Sequence[tuple[int, float]]) -> float | None:
    """Mean over updates and the seconds they were done at, the newest first."""
    if not points:
        return None
    (newest, end), (oldest, start) = points[0], points[-1]
    return (end - start) / (newest - oldest) if newest > oldest else None


def status_of(folder: Path) -> Status:
    log, total, test, said, held, scored = Log(), None, None, None, False, True
    with suppress(*BROKEN):  # not readable: another user's
        held = is_held(folder / "lock")
    with suppress(*BROKEN):
        found = (path := folder / "train.log").stat()
        log = read_log(path, found.st_size, found.st_mtime_ns)
    with suppress(*BROKEN):
        run = Run(**read_json(folder / SETTINGS, dict), folder=folder)
        total = run.updates
        scored = decodes(run.cfg)
    with suppress(*BROKEN):
        said = (folder / FAILED).read_text(encoding="utf-8", errors="replace").strip()
    decodings = [f for f in folders(folder) if os.path.exists(f / "row.json")]
    with suppress(*BROKEN):
        row = max(decodings, key=lambda f: (f / "row.json").stat().st_mtime_ns) / "row.json"
        test = float(read_json(row, dict)["scores"]["test"]["bleu_tok"]["score"])
    trained = os.path.exists(folder / "trained.json")
    if held:
        state = "decoding" if trained else "training"
    else:
        state = "interrupted" if said is None else "failed"
        state = "finished" if decodings or (trained and not scored) else state
    name = "/".join(folder.parts[-3:])
    return Status(name, state, log, total, test if state == "finished" else None, said)


def find_runs(work: Path, pairs: Collection[str], states: Collection[str]) -> list[Status]:
    """Runs of these pairs in these states; of all if none is given."""
    runs = (
        status_of(folder)
        for pair in folders(work / "runs")
        if not pairs or pair.name in pairs
        for variant in folders(pair)
        for folder in folders(variant)
    )
    return [run for run in runs if not states or run.state in states]


def sweep_lines(folder: Path) -> list[str]:
    """How many jobs of a sweep are in which state, and what the failed ones said last; nothing if
    every job is finished."""
    found = (read_json(folder / f"{number}.json", dict) for number in itertools.count())
    jobs = read_json(folder / JOBS, list)
    # A sweeper that chooses as it goes on does not say how many there will be.
    notes = [*(itertools.islice(found, len(jobs)) if jobs else itertools.takewhile(bool, found))]
    states = [str(note.get("state", "not started")) for note in notes]
    if "running" in states and not is_held(folder / LOCK):  # killed, it could not note that
        states = ["interrupted" if state == "running" else state for state in states]
    if {*states} <= {"finished"}:
        return []
    counts = ", ".join(f"{count} {state}" for state, count in sorted(Counter(states).items()))
    lines = [f"sweep {folder.name}: {counts}"]
    for number, note in enumerate(notes):
        if note.get("state") == "failed":
            said = note.get("said") or [f"see {folder / str(number)}.log"]
            lines.append(f"  job {number + 1} failed: {said[-1]}")
    return lines
