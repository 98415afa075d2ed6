"""What a stranger's machine may lack is said in one sentence; the wheel holds the plugin alone."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import bootstrap

from .conftest import ROOT


def test_a_wrong_python_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"^error: Python 3.11 or 3.12 is needed, this is 3.9"):
        bootstrap.supported_python()


def test_a_supported_python_elsewhere_on_the_path_is_taken(monkeypatch, tmp_path: Path) -> None:
    shutil.copy("/bin/true", tmp_path / "python3.11")
    shutil.copy("/bin/false", tmp_path / "python3.12")  # found, but broken
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 1))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bootstrap.supported_python() == str(tmp_path / "python3.11")


def test_too_little_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=0.5e9)
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SystemExit, match=r"^error: 0.5 GB are free .* about 3 GB are needed"):
        bootstrap.check_disk()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("NewConnectionError(...): Temporary failure in name resolution", "cannot be reached"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES", "not the one that was tested"),
        ("ERROR: No matching distribution found for ve-fairseq==0.12.3", "no wheel of the package"),
        ("error: command 'gcc' failed: No such file or directory", "no compiler is there"),
        ("something else", "pip failed, see its last lines above"),
    ],
)
def test_a_failing_pip_is_explained(monkeypatch, tmp_path: Path, said: str, message: str) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "{said}"\nexit 1\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(bootstrap, "VENV", str(tmp_path))
    with pytest.raises(SystemExit, match=rf"^error: .*{message}"):
        bootstrap.pip("install", "something")


def test_every_pin_is_what_is_installed() -> None:
    """constraints.txt names the environment the tests ran in."""
    from importlib import metadata

    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        name, version = line.split("==")
        assert metadata.version(name).split("+")[0] == version, name


def test_the_wheel_holds_the_plugin_alone(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    ignore = shutil.ignore_patterns(".venv", "work", ".git", "*.egg-info", "build")
    shutil.copytree(ROOT, tree, ignore=ignore)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*build, "-w", str(tmp_path), str(tree)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"qknorm_mt"}
    assert "qknorm_mt/attention.py" in names
