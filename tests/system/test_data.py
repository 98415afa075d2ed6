"""Preparation under kills, two at once and on a full disk; a pair of one's own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from experiments.commands import prepare_argv

from ..conftest import ROOT
from .conftest import run

LANGS = ("gl", "en")
TABLES = {split: f"all_talks_{split}.tsv" for split in ("train", "dev", "test")}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small copy of the TED talks' layout, and a list of sources that names it."""
    folder = tmp_path_factory.mktemp("sources")
    rng = random.Random(1)
    words = ["".join(rng.choices("aeioubdlmnrst", k=rng.randint(2, 6))) for _ in range(400)]
    for split, size in (("train", 1200), ("dev", 40), ("test", 40)):
        rows = ["talk_name\ten\tgl"]
        for i in range(size):
            cells = (" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(2))
            rows.append("\t".join(("talk", *cells)) if i % 9 else "talk\t__NULL__\tun")
        (folder / TABLES[split]).write_text("\n".join(rows) + "\n")
    archive = folder / "ted.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in TABLES.values():
            tar.add(folder / name, name)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (folder / "sources.yaml").write_text(
        "ted: {about: a copy, tokenised: 'yes', terms: for research only, layout: tsv,\n"
        f"  splits: {json.dumps(TABLES)}, base: ['http://127.0.0.1:9/'],\n"
        f"  files: {{ted.tar.gz: {{bytes: {archive.stat().st_size}, sha256: {digest}}}}}}}\n"
    )
    return folder


def command(sources: Path, folder: Path) -> list[str]:
    return [
        *("data_prep", "prepare", "--source", "ted", "-s", "gl", "-t", "en"),
        *("--sources", str(sources / "sources.yaml"), "--mirror", str(sources)),
        *("--downloads", str(folder / "downloads"), "--root", str(folder / "root")),
        *("--subwords", "subword_nmt", "--subword-size", "200"),
    ]


def result(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout.splitlines()[-1])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def contents(root: Path) -> dict[str, str]:
    """Every file of finished stages, by checksum."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.fixture(scope="module")
def undisturbed(
    sources: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict, Path, float]:
    folder = tmp_path_factory.mktemp("undisturbed")
    start = time.monotonic()
    made = result(run(*command(sources, folder)))
    return made, folder, time.monotonic() - start


def test_twenty_kills_and_a_rerun_end_like_an_undisturbed_run(
    sources: Path, undisturbed: tuple[dict, Path, float], tmp_path: Path
) -> None:
    made, folder, seconds = undisturbed
    assert made["lines"] == {"train": 1066, "dev": 35, "test": 35}
    assert (made["source"], made["terms"]) == ("ted", "for research only")
    rng = random.Random()
    for _ in range(20):
        process = subprocess.Popen(
            [sys.executable, "-m", *command(sources, tmp_path)],
            cwd=ROOT,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=rng.uniform(0, seconds) * rng.random())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    again = result(run(*command(sources, tmp_path)))
    assert again["digest"] == made["digest"]
    assert contents(tmp_path / "root") == contents(folder / "root")


def test_a_killed_parent_takes_its_tool_along(
    sources: Path, undisturbed: tuple[dict, Path, float], tmp_path: Path
) -> None:
    """Or fairseq-preprocess would go on writing where the next run writes."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command(sources, tmp_path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("binarised: making"):
            break
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_for(lambda: bool(children.read_text()))
    (child,) = children.read_text().split()
    time.sleep(1)
    process.kill()
    process.wait()
    wait_for(lambda: not Path(f"/proc/{child}").exists())
    again = result(run(*command(sources, tmp_path)))
    assert again["digest"] == undisturbed[0]["digest"]


def test_two_at_once_make_every_stage_once(sources: Path, tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *command(sources, tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        for _ in range(2)
    ]
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    first, second = (json.loads(out) for out, _ in said)
    assert first == second
    errors = "".join(err for _, err in said)
    for stage in ("bitext", "clean", "subword", "binarised", "report"):
        assert errors.count(f"{stage}: making ") == 1
        assert errors.count(f"{stage}: found ") == 1
    assert errors.count("terms of use: for research only") == 1


def test_a_killed_parent_leaves_no_workers(tmp_path: Path) -> None:
    script = """
import time
from data_prep.parallel import map_chunks
def slow(chunk):
    time.sleep(60)
if __name__ == "__main__":
    print("started", flush=True)
    list(map_chunks(slow, range(100_000), 2))
"""
    (tmp_path / "parent.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    group = ["pgrep", "-g", str(process.pid)]

    def members() -> int:
        return len(subprocess.run(group, capture_output=True, check=False).stdout.split())

    wait_for(lambda: members() >= 4)  # itself, two workers, a resource tracker
    process.kill()
    process.wait()
    wait_for(lambda: members() == 0)


def test_earlier_stages_outlive_a_full_disk(sources: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = run(*command(sources, tmp_path / "elsewhere"))
    stages = {p.name.split("-")[0]: p for p in Path(result(made)["data"]).parent.iterdir()}
    held = sum(
        f.stat().st_size
        for name in ("bitext", "clean", "subword")
        for f in stages[name].rglob("*")
        if f.is_file()
    )
    size = f"size={held // 1024 + 60}k"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small tmpfs")
    try:
        argv = command(sources, tmp_path)
        argv[argv.index("--root") + 1] = str(disk / "root")
        done = run(*argv)
        assert done.returncode == 1
        assert "error: no space left on the disk" in done.stdout.splitlines()[-1]
        assert "Traceback" not in done.stdout
        assert not list(disk.rglob("*.partial"))
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        again = run(*argv)
        assert result(again)["digest"] == result(made)["digest"]
        assert "bitext: found" in again.stdout
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_worked_example_of_a_pair_of_ones_own(tmp_path: Path) -> None:
    """docs/data.md: the file as it stands there, outside the clone, with files of one's own."""
    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    (example,) = (block for block in text.split("```yaml\n")[1:])
    (tmp_path / "my" / "pair").mkdir(parents=True)
    (tmp_path / "my" / "pair" / "be-en.yaml").write_text(example.split("```")[0])
    (command,) = (line for line in text.split("\n") if "--config-dir" in line and "DIR" in line)
    words = command.replace("python -m ", "").replace("=DIR", f"={tmp_path}")
    words = words.replace("--config-dir my", f"--config-dir {tmp_path}/my")
    settings = [*words.split(), f"paths.work={tmp_path}/work", "prep.subword_size=30"]
    shown = run(*settings, "--cfg", "job", "--resolve")
    assert shown.returncode == 0, shown.stdout
    cfg = yaml.safe_load(shown.stdout)
    for split in ("train", "dev", "test"):
        for lang, letters in (("be", "абвгдзік"), ("en", "abcdefgh")):
            rng = random.Random(split)
            lines = (" ".join(rng.choices(letters, k=5)) for _ in range(200))
            (tmp_path / f"{split}.{lang}").write_text("".join(line + "\n" for line in lines))
    made = result(run("data_prep", *prepare_argv(cfg)))
    assert made["lines"]["train"] > 190
    assert made["length_percentile"] >= 5
