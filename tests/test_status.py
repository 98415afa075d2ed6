"""What `python -m experiments.status` says of runs and sweeps, from folders made by hand."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from experiments import progress, status
from experiments.locks import exclusive

START = "2026-11-29 12:00:00 | INFO | fairseq_cli.train | {'_name': None, 'common': {}}"


def line(kind: str, **figures: Any) -> str:
    return f"2026-11-29 12:00:00 | INFO | {kind} | {json.dumps(figures)}"


def inner(updates: int, wall: float, wps: float = 1000) -> str:
    figures = {"num_updates": updates, "wall": wall, "wps": wps, "lr": updates / 1e6}
    return line("train_inner", epoch=updates // 100, **{k: str(v) for k, v in figures.items()})


def valid(updates: int, ppl: float, **more: str) -> str:
    figures = {"valid_num_updates": str(updates), "valid_loss": "1", "valid_ppl": str(ppl), **more}
    return line("valid", epoch=updates // 100, **figures)


def make_run(work: Path, name: str, *log: str, **files: str) -> Path:
    """A run of 1000 updates; ``files`` by their names without the suffix."""
    folder = work / "runs" / name
    settings = {"cfg": {}, "data": {}, "options": {"max_update": 1000}, "changed": {}}
    texts = {"run.json": json.dumps(settings)} | {
        {"failed": "failed.txt", "row": "decode-1/row.json"}.get(key, f"{key}.json"): text
        for key, text in files.items()
    }
    if log:
        texts["train.log"] = "\n".join(log) + "\n"
    for file, text in texts.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def make_sweep(work: Path, *notes: dict[str, Any] | None) -> Path:
    folder = work / "sweeps" / "norms-12345678"
    folder.mkdir(parents=True)
    (folder / "jobs.json").write_text(json.dumps([["seed=1"]] * len(notes)))
    for number, note in enumerate(notes):
        if note is not None:
            (folder / f"{number}.json").write_text(json.dumps(note))
    return folder


def row(test: float) -> str:
    return json.dumps({"scores": {"test": {"bleu_tok": {"score": test}}}})


def held(folder: Path) -> AbstractContextManager[int]:
    return exclusive(folder / "lock", lambda: None, threading.Event())


def draw(work: Path, width: int = 160) -> str:
    console = Console(width=width, file=io.StringIO(), _environ={})
    console.print(status.view(work))
    return console.file.getvalue()  # type: ignore[attr-defined]


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*argv: object) -> tuple[int, str, str]:
        code = status.main([str(each) for each in argv])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Ctrl-C in the third of the waits, which are noted and take no time."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", sleep)
    return waits


def test_a_sparkline_goes_from_the_lowest_to_the_highest() -> None:
    assert status.sparkline(range(8)) == "▁▂▃▄▅▆▇█"
    assert status.sparkline([30.0, 2.0, 16.0]) == "█▁▅"
    assert status.sparkline([5.0, 5.0]) == "▁▁"
    assert status.sparkline([]) == ""
    assert status.sparkline([float("inf"), 1.0, float("nan"), 2.0]) == " ▁ █"


def test_a_long_curve_keeps_its_ends() -> None:
    drawn = status.sparkline([9.0, *[1.0] * 500, 5.0], width=6)
    assert drawn == "█▁▁▁▁▅"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0s"), (59.7, "1m"), (45, "45s"), (3599, "59m"), (7500, "2h05m"), (273600, "3d04h")],
)
def test_a_duration_has_two_units(seconds: float, said: str) -> None:
    assert status.duration(seconds) == said


def test_states(tmp_path: Path) -> None:
    work = tmp_path
    training = make_run(work, "toy/a/training", failed="of the start before")
    decoding = make_run(work, "toy/a/decoding", trained="{}", row=row(1))
    make_run(work, "toy/a/finished", trained="{}", row=row(27.125), failed="long ago")
    make_run(work, "toy/a/failed", failed="no space left on the disk\n")
    (make_run(work, "toy/a/interrupted") / "lock").touch()
    with held(training), held(decoding):
        found = {run.name: run for run in status.find_runs(work, (), ())}
    assert len(found) == 5
    assert all(name == f"toy/a/{run.state}" for name, run in found.items())
    assert found["toy/a/finished"].test == 27.125
    assert found["toy/a/decoding"].test is None
    drawn = draw(work)
    assert "toy/a/failed failed: no space left on the disk\n" in drawn
    assert "long ago" not in drawn


def test_the_newest_decoding_counts(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "toy/a/1", row=row(20))
    (folder / "decode-0").mkdir()
    (folder / "decode-0" / "row.json").write_text(row(21))
    os.utime(folder / "decode-1" / "row.json", (1, 1))
    assert [run.test for run in status.find_runs(tmp_path, (), ())] == [21.0]


def test_time_left_is_that_of_the_segment_that_goes_on(tmp_path: Path) -> None:
    first = [START, inner(100, 1000), inner(500, 5000), valid(500, 80)]
    second = [START, inner(420, 30, 2000), inner(440, 40, 4000), '2026 | INFO | valid | {"epo']
    folder = make_run(tmp_path, "toy/a/1", *first, *second)
    (stopped,) = status.find_runs(tmp_path, (), ())
    assert stopped.log.pace == 0.5
    assert (stopped.log.epoch, stopped.log.updates, stopped.log.speed) == (4, 440, 3000)
    assert stopped.log.rate == pytest.approx(440e-6)
    assert stopped.left is None
    with held(folder):
        (going,) = status.find_runs(tmp_path, (), ())
        assert going.left == 280.0
        drawn = draw(tmp_path)
    assert "440/1000" in drawn and "4.40e-04" in drawn and " 4m " in drawn


def test_a_segment_without_two_log_intervals_has_no_time_left(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "toy/a/1", START, inner(100, 10), inner(200, 20), START)
    with held(folder):
        assert [run.left for run in status.find_runs(tmp_path, (), ())] == [None]
        with (folder / "train.log").open("a") as log:
            log.write(inner(220, 5) + "\n")
        assert [run.left for run in status.find_runs(tmp_path, (), ())] == [None]


def test_the_curve_is_bleu_where_training_decodes_dev(tmp_path: Path) -> None:
    make_run(tmp_path, "toy/a/1", valid(100, 50), valid(200, 20), valid(300, 10))
    bleu = [valid(n, 9 / n, valid_bleu=str(n)) for n in (1, 2, 3)]
    make_run(tmp_path, "toy/a/2", *bleu)
    perplexity, both = draw(tmp_path).splitlines()[-2:]
    assert "– 10.00 █▃▁ " in perplexity
    assert "3.00  3.00 ▁▅█ " in both


def test_a_log_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "toy/a/1", START, inner(100, 10))
    before = progress.read_log.cache_info()
    for _ in range(3):
        status.find_runs(tmp_path, (), ())
    after = progress.read_log.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 2)
    with (folder / "train.log").open("a") as log:
        log.write(inner(200, 20) + "\n")
    assert [run.log.updates for run in status.find_runs(tmp_path, (), ())] == [200]


@pytest.mark.parametrize("text", ['{"cfg": {}, "da', "[]", '{"cfg": 1}', "\ud800", ""])
def test_a_folder_with_half_a_file_has_its_name_and_what_is_known(
    tmp_path: Path, text: str
) -> None:
    folder = make_run(tmp_path, "toy/a/1", inner(100, 10), row="{", jobs="{")
    (folder / "run.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    sweep = make_sweep(tmp_path, {"state": "finished"})
    shutil.copy(folder / "run.json", sweep / "0.json")
    drawn = draw(tmp_path)
    assert "toy/a/1 finished" in drawn and "100/–" in drawn
    assert "1 not started" in drawn


def test_a_log_of_another_version_is_no_error(tmp_path: Path) -> None:
    make_run(tmp_path, "toy/[b]/1", line("train_inner", updates=3))
    assert "toy/[b]/1 interrupted" in draw(tmp_path)


def test_a_folder_may_go_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, "toy/a/1", inner(100, 10), row=row(1))
    make_run(tmp_path, "toy/a/2")

    def remove(lock: Path) -> bool:
        shutil.rmtree(tmp_path / "runs" / "toy", ignore_errors=True)
        raise FileNotFoundError(lock)

    monkeypatch.setattr(progress, "is_held", remove)
    drawn = draw(tmp_path)
    assert "toy/a/1 interrupted" in drawn and "toy/a/2 interrupted" in drawn
    assert "no run of any pair" in draw(tmp_path)


def test_sweeps_are_silent_once_they_are_finished(tmp_path: Path) -> None:
    folder = make_sweep(
        tmp_path,
        {"state": "finished"},
        {"state": "failed", "said": ["first", "error: [no] GPU here"]},
        {"state": "running"},
        None,
    )
    assert draw(tmp_path).endswith(
        "sweep norms-12345678: 1 failed, 1 finished, 1 interrupted, 1 not started\n"
        "  job 2 failed: error: [no] GPU here\n"
    )
    for number in range(4):
        (folder / f"{number}.json").write_text('{"state": "finished"}')
    assert folder.name not in draw(tmp_path)


def test_a_sweep_whose_jobs_are_not_known_has_those_it_began(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, {"state": "finished"}, {"state": "running"})
    (folder / "jobs.json").write_text("[]")
    assert "sweep norms-12345678: 1 finished, 1 interrupted\n" in draw(tmp_path)


def test_a_narrow_terminal_drops_columns_before_it_folds_names(tmp_path: Path) -> None:
    name = "gl-en/cpu_fast-none/seed1-749c095afd35"
    log = [inner(900, 10), valid(900, 23.5, valid_bleu="11.25")]
    make_run(tmp_path, name, *log, row=row(13.5))
    assert all(word in draw(tmp_path) for word in ("rate", "words/s", "epoch", "curve", "left"))
    for width, absent in ((100, "rate"), (80, "words/s")):
        drawn = draw(tmp_path, width)
        assert name in drawn and "13.50" in drawn and "11.25" in drawn and absent not in drawn
    folded = draw(tmp_path, 45)
    assert name[:8] in folded and name not in folded and "900/1000" in folded


def test_only_what_is_asked_for_is_shown(tmp_path: Path, say: Say) -> None:
    make_run(tmp_path, "toy/a/1", row=row(1))
    make_run(tmp_path, "toy/a/2", failed="why")
    make_run(tmp_path, "gl-en/a/3")
    _, out, _ = say("--work", tmp_path, "--state", "finished", "interrupted")
    assert "toy/a/1" in out and "gl-en/a/3" in out and "toy/a/2" not in out
    _, out, _ = say("--work", tmp_path, "--pair", "toy")
    assert "toy/a/1" in out and "toy/a/2 failed: why" in out and "gl-en" not in out
    code, out, _ = say("--work", tmp_path, "--pair", "gl-en", "--state", "failed")
    assert (code, out) == (0, f"no run of gl-en under {tmp_path / 'runs'} is failed\n")


def test_an_empty_folder_is_explained_and_a_missing_one_refused(tmp_path: Path, say: Say) -> None:
    code, out, err = say("--work", tmp_path)
    assert (code, err) == (0, "")
    assert str(tmp_path / "runs") in out.replace("\n", "") and "experiments.run" in out
    code, out, err = say("--work", tmp_path / "none")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {tmp_path / 'none'} is no folder") and "--work" in err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_watching_has_a_period(tmp_path: Path, say: Say, ctrl_c: list[float], seconds: str) -> None:
    code, out, err = say("--work", tmp_path, f"--watch={seconds}")
    assert (code, out) == (1, "") and "--watch" in err


def test_watching_without_a_terminal_prints_each_table(
    tmp_path: Path, say: Say, ctrl_c: list[float]
) -> None:
    make_run(tmp_path, "toy/a/1")
    code, out, err = say("--work", tmp_path, "--watch")
    assert (code, err, ctrl_c) == (0, "", [2.0] * 3)
    assert out.count("toy/a/1 interrupted") == 3 and "\x1b" not in out


def test_watching_leaves_the_last_table_on_the_screen(tmp_path: Path, ctrl_c: list[float]) -> None:
    folder = make_run(tmp_path, "toy/a/1")
    screen = io.StringIO()
    console = Console(
        file=screen, width=100, force_terminal=True, _environ={"TERM": "xterm"}, no_color=True
    )

    def draw() -> RenderableType:
        if len(ctrl_c) == 2:
            (folder / "failed.txt").write_text("why")
        return status.view(tmp_path)

    status.watch(console, draw, 1.0)
    assert screen.getvalue().count("interrupted") == 2
    assert "toy/a/1 failed: why" in screen.getvalue()
    assert "\x1b[?25h" in screen.getvalue()  # the cursor is back
