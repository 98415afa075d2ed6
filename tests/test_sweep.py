"""Parts of a sweep without trainings: its name, its jobs, what is noted and said of them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from experiments import job, sweep
from experiments.commands import RunError
from experiments.locks import exclusive
from experiments.progress import LOCK, sweep_lines
from experiments.sweep import Begin, Sweep, jobs_of, line_of, name_of, summary
from hydra_plugins.qknorm_mt_launchers import SlurmArrays, result_of

from .test_commands import config_of

OPTUNA = "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper"


def test_a_sweep_is_named_by_its_runs_alone() -> None:
    given = ("+experiment=norms", "seed=1,2", "paths.work=w")
    name = name_of(config_of(*given, sweep=True))
    assert name.startswith("norms-")
    same = config_of(*reversed(given), "hydra/launcher=joblib", sweep=True)
    assert name_of(same) == name
    assert name_of(config_of(*given[:2], "paths.work=v", sweep=True)) != name
    assert name_of(config_of("seed=1,2", sweep=True)).startswith("sweep-")


def test_what_is_given_goes_before_what_an_experiment_has() -> None:
    jobs = jobs_of(config_of("+experiment=norms", "attn=l2", "recipe=smoke", sweep=True))
    shared = ["+experiment=norms", "recipe=smoke"]
    assert [sorted(each) for each in jobs] == [
        sorted(["attn=l2", f"seed={seed}", *shared]) for seed in (1, 2, 3)
    ]


def test_the_jobs_of_a_sweeper_that_looks_for_the_best_are_not_known() -> None:
    config = config_of("seed=1,2", sweep=True)
    config.hydra.sweeper = OmegaConf.create({"_target_": OPTUNA, "params": None})
    assert jobs_of(config) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("+experiment=norms,heads",), "experiment=norms,heads: one experiment a command"),
        (("hydra.sweep.dir=x",), "hydra.sweep.dir=x: a sweep's folder is named by its runs"),
    ],
)
def test_what_hydra_would_take_and_do_otherwise_is_refused(
    overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit, match=f"error: the sweep cannot begin: .?{message}"):
        Begin().on_multirun_start(config_of(*overrides, sweep=True))


@pytest.mark.parametrize("name", ["a b", "it's", "a\\b", "a\\'b\\"])
def test_jobs_are_told_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    config = config_of("seed=1,2", sweep=True)
    config.paths.work = str(tmp_path / name)
    monkeypatch.setattr(sweep, "current", None)
    Begin().on_multirun_start(config)
    made: Any = sweep.current
    assert sweep.end(1) == 1
    assert not (made.folder / "jobs.json").exists()  # nothing was begun
    (given,) = [o for o in config.hydra.overrides.hydra if o.startswith("hydra.sweep.dir=")]
    parsed = OverridesParser.create().parse_override(given)
    assert parsed.value() == config.hydra.sweep.dir == str(made.folder)
    assert made.folder.parents[1] == tmp_path / name


def hydra_of(tmp_path: Path, launcher: str = "joblib", **more: Any) -> Any:
    return OmegaConf.create(
        {
            "sweep": {"dir": str(tmp_path)},
            "job": {"num": 3, "config_name": "config"},
            "sweeper": {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"},
            "overrides": {
                "task": ["attn=l2"],
                "hydra": ["hydra.searchpath=[file://x]", "hydra.a=1"],
            },
            "runtime": {
                "choices": {"hydra/launcher": launcher},
                "config_sources": [
                    {"path": "/conf", "provider": "main"},
                    {"path": "/mine", "provider": "command-line"},
                ],
            },
            **more,
        },
        flags={"readonly": True},
    )


@pytest.mark.parametrize(
    ("launcher", "cpu", "core", "pinned"),
    [
        ("basic", True, None, False),
        ("joblib", True, None, True),
        ("submitit_local", True, None, True),
        ("submitit_slurm", True, None, False),
        ("joblib", True, 1, False),
        ("joblib", False, None, False),
    ],
)
def test_jobs_side_by_side_have_a_core_each(
    tmp_path: Path, launcher: str, cpu: bool, core: int | None, pinned: bool
) -> None:
    options = {"cpu": True} if cpu else {}
    config = OmegaConf.create({"recipe": {"options": options}, "runtime": {"core": core}})
    argv = job.job_argv(hydra_of(tmp_path, launcher), config)
    assert argv == [
        *(sys.executable, "-m", "experiments.run", "--config-name", "config"),
        *("--config-dir", "/mine", "hydra.searchpath=[file://x]", "hydra.mode=RUN", "attn=l2"),
        *(["runtime.core=free"] if pinned else []),
    ]


RESULT = '{"run": "toy/x/seed1-0", "dev": 2.5, "test": 3.5}'
ENDS = {
    "finished": f"print(1); print({RESULT!r}); print(2)",
    "nothing": "print(1)",
    "failed": "print(*range(9), sep='\\n'); raise SystemExit('error: no')",
    "killed": "import os, signal; print('a', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "interrupted": "raise SystemExit(130)",
}


def run_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> tuple[float, dict]:
    monkeypatch.setattr(job, "job_argv", lambda *given: [sys.executable, "-c", script])
    monkeypatch.setenv(job.TOKEN, f"{os.getppid()}-this")
    value = job.run_job(hydra_of(tmp_path), OmegaConf.create())
    return value, json.loads((tmp_path / "3.json").read_text())


def test_a_finished_job_returns_bleu_on_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, note = run_job(tmp_path, monkeypatch, ENDS["finished"])
    assert value == 2.5
    expected = {"number": 3, "overrides": ["attn=l2"], "state": "finished"}
    expected |= {"sweep": f"{os.getppid()}-this", "run": "toy/x/seed1-0", "dev": 2.5, "test": 3.5}
    assert {name: note[name] for name in expected} == expected
    assert (tmp_path / "3.log").read_text().startswith("1\n{")


@pytest.mark.parametrize(
    ("end", "state", "said"),
    [
        ("failed", "failed", ["5", "6", "7", "8", "error: no"]),
        ("killed", "failed", ["a", "ended by signal 9"]),
        ("interrupted", "interrupted", []),
        ("nothing", "failed", ["1"]),
    ],
)
def test_a_job_that_does_not_end_well_is_noted_and_does_not_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, state: str, said: list[str]
) -> None:
    (tmp_path / "3.log").write_text("said by an earlier start\n")
    value, note = run_job(tmp_path, monkeypatch, ENDS[end])
    assert math.isnan(value)
    assert (note["state"], note["said"]) == (state, said)


def test_a_sweeper_that_looks_for_the_best_is_told_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = hydra_of(tmp_path, sweeper={"_target_": OPTUNA})
    monkeypatch.setattr("tests.test_sweep.hydra_of", lambda folder: looking)
    with pytest.raises(RunError, match="job 4 failed: error: no"):
        run_job(tmp_path, monkeypatch, ENDS["failed"])
    assert json.loads((tmp_path / "3.json").read_text())["state"] == "failed"


def test_joblibs_process_ends_with_its_sweep_after_the_job_at_hand(tmp_path: Path) -> None:
    worker = """
import pathlib, sys, time
from experiments import job
job.end_with_sweep()
with job.BUSY:
    print("busy", flush=True)
    time.sleep(3)
    pathlib.Path(sys.argv[1], "done").touch()
time.sleep(60)
"""
    # What stands for the sweep says its own number to its worker, as joblib's processes inherit it.
    begun = """
import os, subprocess, sys
os.environ[sys.argv[3]] = f"{os.getpid()}-x"
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]]).wait()
"""
    argv = [sys.executable, "-c", begun, worker, str(tmp_path), job.TOKEN]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"busy\n"
    process.kill()
    assert process.stdout.read() == b""  # until the worker has ended
    assert (tmp_path / "done").exists()


def test_ctrl_c_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Interrupted(subprocess.Popen):
        def wait(self, timeout: float | None = None) -> int:
            if not started:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_job(tmp_path, monkeypatch, "import time; time.sleep(60)")
    assert started[0].poll() is not None
    assert json.loads((tmp_path / "3.json").read_text())["state"] == "interrupted"


def make_sweep(tmp_path: Path, *states: str) -> Sweep:
    """A sweep over seeds, with a note for each job but those not started."""
    jobs = [["attn=l2", f"seed={seed}"] for seed, _ in enumerate(states)]
    made = Sweep(tmp_path, jobs, token="now")
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    for number, state in enumerate(states):
        note = {"number": number, "overrides": jobs[number], "state": state, "seconds": 90.0}
        note["sweep"] = "now"
        if state == "finished":
            note |= {"run": f"toy/l2/seed{number}-0", "dev": 10.0, "test": 11.0 + number}
        if state == "failed":
            note["said"] = ["Traceback", "error: it broke"]
        if state != "not started":
            (tmp_path / f"{number}.json").write_text(json.dumps(note))
    return made


def test_the_summary_has_every_job_and_what_the_failed_said(tmp_path: Path) -> None:
    made = make_sweep(tmp_path, "finished", "failed", "interrupted", "not started")
    text = summary(made, sweep.notes_of(made))
    rows = [line.split() for line in text.splitlines()[2:6]]
    assert rows == [
        ["1", "toy/l2/seed0-0", "finished", "10.00", "11.00", "1.5"],
        ["2", "seed=1", "failed", "–", "–", "1.5"],
        ["3", "seed=2", "interrupted", "–", "–", "1.5"],
        ["4", "seed=3", "not", "started", "–", "–", "–"],
    ]
    assert (
        f"job 2: attn=l2 seed=1\n  Traceback\n  error: it broke\n  all it said: {tmp_path}/1.log"
        in text
    )
    assert "1 finished, 1 failed, 1 interrupted, 1 not started\n" in text
    lines = [line_of(made, note) for note in sweep.notes_of(made)[:2]]
    assert lines[0] == "[1/4] toy/l2/seed0-0: finished, test BLEU 11.00"
    assert lines[1] == "[2/4] seed=1: failed: error: it broke"


def test_what_an_earlier_start_of_the_sweep_left_is_not_of_this_one(tmp_path: Path) -> None:
    made = make_sweep(tmp_path, "finished", "failed")
    made.token = "later"
    assert [note["state"] for note in sweep.notes_of(made)] == ["not started"] * 2


def test_of_a_sweep_whose_jobs_are_not_known_those_of_this_time_count(tmp_path: Path) -> None:
    made = make_sweep(tmp_path, "finished", "finished", "finished")
    made.jobs = []
    (tmp_path / "2.json").write_text('{"number": 2, "sweep": "before", "state": "finished"}')
    assert [note["number"] for note in sweep.notes_of(made)] == [0, 1]


@pytest.mark.parametrize(
    ("states", "code", "expected"),
    [
        (("finished", "finished"), 0, 0),
        (("finished", "failed"), 0, 1),
        (("finished", "running"), 0, 1),
        (("running", "not started"), 130, 130),
    ],
)
def test_the_exit_code_tells(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    states: tuple[str, ...],
    code: int,
    expected: int,
) -> None:
    monkeypatch.setattr(sweep, "current", make_sweep(tmp_path, *states))
    assert sweep.end(code) == expected
    said = capsys.readouterr().out
    assert ("the same command does what is missing" in said) == (expected != 0)
    assert ("killed" in said) == (states == ("finished", "running"))
    assert ("1 interrupted, 1 not started" in said) == (code == 130)
    monkeypatch.setattr(sweep, "current", None)
    assert sweep.end(code) == code


def test_jobs_of_a_sweep_that_was_killed_do_not_run(tmp_path: Path) -> None:
    make_sweep(tmp_path, "finished", "running")
    assert [line.partition(": ")[2] for line in sweep_lines(tmp_path)] == [
        "1 finished, 1 interrupted"
    ]
    with exclusive(tmp_path / LOCK, lambda: None, threading.Event()):
        (line,) = sweep_lines(tmp_path)
    assert line.endswith(": 1 finished, 1 running")


class Submitted:
    def __init__(self, value: float | Exception):
        self.value, self.cancelled = value, False

    def result(self) -> JobReturn:
        if isinstance(self.value, BaseException):
            raise self.value
        return JobReturn(_return_value=self.value, status=JobStatus.COMPLETED)

    def cancel(self, check: bool) -> None:
        self.cancelled = True

    def done(self) -> bool:
        return self.cancelled


def launcher_of(monkeypatch: pytest.MonkeyPatch, values: list) -> tuple[SlurmArrays, list, list]:
    """A launcher whose jobs ask for as many minutes as their override says."""
    monkeypatch.setenv("PYTHONPATH", "")
    launcher = SlurmArrays()
    launcher.config = OmegaConf.create()

    def load(config: Any, overrides: list[str]) -> Any:
        settings = {"_target_": "x", "timeout_min": int(overrides[0].partition("=")[2])}
        return OmegaConf.create({"hydra": {"launcher": settings}})

    launcher.hydra_context = SimpleNamespace(config_loader=SimpleNamespace(load_sweep_config=load))
    arrays: list[tuple[dict, list[int]]] = []
    jobs = [Submitted(value) for value in values]

    def submit(request: dict, given: list[tuple[int, list[str]]]) -> dict[int, Submitted]:
        arrays.append((request, [number for number, _ in given]))
        return {number: jobs[number - 10] for number, _ in given}

    monkeypatch.setattr(launcher, "submit", submit)
    return launcher, arrays, jobs


OVERRIDES = [["minutes=60"], ["minutes=5"], ["minutes=60"]]


def test_jobs_that_ask_for_the_same_are_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, arrays, _ = launcher_of(monkeypatch, [1.0, 2.0, RuntimeError("killed\nat line 3")])
    returned = [each.return_value for each in launcher.launch(OVERRIDES, 10)]
    assert arrays == [({"timeout_min": 60}, [10, 12]), ({"timeout_min": 5}, [11])]
    assert returned[:2] == [1.0, 2.0] and math.isnan(returned[2])


def test_ctrl_c_cancels_what_was_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, _, jobs = launcher_of(monkeypatch, [1.0, KeyboardInterrupt(), 3.0])
    with pytest.raises(KeyboardInterrupt):
        launcher.launch(OVERRIDES, 10)
    assert all(each.cancelled for each in jobs)


def test_what_became_of_a_killed_job_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert math.isnan(result_of(Submitted(ValueError("no\nmore"))).return_value)
    assert capsys.readouterr().out.endswith(": ValueError: no\n")
