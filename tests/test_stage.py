"""Stages are found again, redone when something changes, and never half there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.stage import Stage, run_stage


def make(root: Path, calls: list[str], **changes: object) -> Stage:
    def build(folder: Path) -> dict[str, int]:
        calls.append("made")
        (folder / "out.txt").write_text("text\n")
        return {"lines": 1}

    arguments = {"version": 1, "config": {"size": 3}, "inputs": {"raw": "abc"}, **changes}
    return run_stage(root, "stage", build=build, **arguments)  # type: ignore[arg-type]


def test_a_finished_stage_is_found(tmp_path: Path) -> None:
    calls: list[str] = []
    first, second = make(tmp_path, calls), make(tmp_path, calls)
    assert calls == ["made"]
    assert first == second
    assert second.manifest["report"] == {"lines": 1}
    assert second.manifest["files"]["out.txt"]["bytes"] == 5


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"config": {"size": 4}}, {"inputs": {"raw": "abd"}}], ids=str
)
def test_a_change_makes_another_stage(tmp_path: Path, change: dict) -> None:
    calls: list[str] = []
    first, second = make(tmp_path, calls), make(tmp_path, calls, **change)
    assert calls == ["made", "made"]
    assert first.path != second.path
    assert first.digest == second.digest  # equal contents


def test_the_digest_is_of_the_contents(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        def build(folder: Path) -> dict:
            (folder / "out.txt").write_text(text)
            return {}

        return run_stage(tmp_path, "stage", 1, {"text": text}, {}, build).digest

    assert digest("abc") != digest("abd")


@pytest.mark.parametrize("text", ["[]", "null", '{"files": null}', '{"files": {}}', "{}"])
def test_an_odd_manifest_is_not_believed(tmp_path: Path, text: str) -> None:
    calls: list[str] = []
    path = make(tmp_path, calls).path
    (path / "manifest.json").write_text(text)
    make(tmp_path, calls)
    assert calls == ["made", "made"]


def test_nothing_of_a_killed_attempt_gets_in(tmp_path: Path) -> None:
    partial = tmp_path / (make(tmp_path / "other", []).path.name + ".partial")
    partial.mkdir(parents=True)
    (partial / "half.txt").write_text("half")
    path = make(tmp_path, []).path
    assert {p.name for p in path.iterdir()} == {"out.txt", "manifest.json"}


@pytest.mark.parametrize("damage", ["changed", "removed", "added", "manifest"])
def test_a_damaged_stage_is_made_again(tmp_path: Path, damage: str) -> None:
    calls: list[str] = []
    path = make(tmp_path, calls).path
    if damage == "changed":
        (path / "out.txt").write_text("tex!\n")
    elif damage == "removed":
        (path / "out.txt").unlink()
    elif damage == "added":
        (path / "other.txt").write_text("text")
    else:
        (path / "manifest.json").write_text("{")
    again = make(tmp_path, calls)
    assert calls == ["made", "made"]
    assert (again.path / "out.txt").read_text() == "text\n"


def test_a_failing_stage_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> dict:
        (folder / "out.txt").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run_stage(tmp_path, "stage", 1, {}, {}, build)
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".lock"] == []


def test_a_killed_stage_is_not_believed(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from data_prep.stage import run_stage
def build(folder):
    (folder / "out.txt").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
run_stage(Path({str(tmp_path)!r}), "stage", 1, {{"size": 3}}, {{"raw": "abc"}}, build)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, cwd=os.getcwd())
    assert done.returncode == -signal.SIGKILL
    calls: list[str] = []
    stage = make(tmp_path, calls)
    assert calls == ["made"]
    assert (stage.path / "out.txt").read_text() == "text\n"
    assert not list(tmp_path.glob("*.partial"))
