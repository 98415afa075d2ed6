"""The runner end to end on the toy pair: scored, not run twice, resumed after a kill."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ..conftest import ROOT
from .conftest import run

QUICK = [
    *("recipe.max_updates=60", "recipe.options.save_interval_updates=20"),
    *("recipe.options.encoder_layers=1", "recipe.options.decoder_layers=1"),
    *("recipe.options.encoder_embed_dim=32", "recipe.options.decoder_embed_dim=32"),
    *("decode.beam=1", "decode.max_len_b=5", "decode.max_len_a=0"),
]


def settings(folder: Path, *more: str) -> list[str]:
    return [f"paths.work={folder}/work", f"paths.results={folder}/results", *QUICK, *more]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("run")
    done = run("experiments.run", *settings(folder))
    assert done.returncode == 0, done.stdout
    return folder, done.stdout


def read_row(folder: Path) -> dict:
    (line,) = (folder / "results" / "runs.jsonl").read_text().splitlines()
    return json.loads(line)


def test_the_row_says_all(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    row = read_row(folder)
    assert row["training"]["updates"] == 60
    assert [point["updates"] for point in row["training"]["dev"]] == [20, 40, 60]
    assert row["dev_ppl"] < 400
    assert set(row["g"]) == {
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.encoder_attn",
    }
    for split in ("dev", "test"):
        hypotheses = (folder / "results" / row["hypotheses"][split]).read_text().split("\n")[:-1]
        assert len(hypotheses) == 300
        assert "tok:none" in row["scores"][split]["bleu_tok"]["signature"]
    assert str(folder) not in json.dumps(row)


def test_the_printed_command_trains_the_same_model(finished: tuple[Path, str], tmp_path) -> None:
    folder, output = finished
    (line,) = [text for text in output.splitlines() if text.startswith("  fairseq-train ")]
    argv = shlex.split(line)[1:]
    (trained,) = folder.glob("work/runs/*/*/*/checkpoints/checkpoint_last.pt")
    done = run("fairseq_cli.train", *argv, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    ours, theirs = (
        torch.load(p, weights_only=True)["model"]
        for p in (tmp_path / "checkpoints" / trained.name, trained)
    )
    torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_a_finished_run_is_not_run_again(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    row = read_row(folder)
    done = run("experiments.run", *settings(folder))
    assert done.returncode == 0
    assert "trained already" in done.stdout
    assert "scored already" in done.stdout
    assert read_row(folder) == row


def test_another_decoding_does_not_train_again(finished: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = finished
    places = [f"paths.work={folder}/work", f"paths.results={tmp_path}"]
    done = run("experiments.run", *places, *QUICK, "decode.lenpen=0.5")
    assert done.returncode == 0, done.stdout
    assert "trained already" in done.stdout
    assert "scored already" not in done.stdout
    row = json.loads((tmp_path / "runs.jsonl").read_text())
    assert row["run"] == read_row(folder)["run"]
    assert row["decode"]["lenpen"] == 0.5


def start(folder: Path) -> subprocess.Popen:
    """Start a run and return when its first checkpoint is written."""
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.run", *settings(folder)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not list(folder.glob("work/runs/*/*/*/checkpoints/checkpoint_last.pt")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def check_equal(folder: Path, whole: dict) -> None:
    row = read_row(folder)
    assert row["run"] == whole["run"]
    assert row["training"]["dev"] == whole["training"]["dev"]
    assert row["g"] == whole["g"]
    assert row["scores"] == whole["scores"]


def test_a_killed_run_goes_on_and_ends_the_same(finished: tuple[Path, str], tmp_path: Path) -> None:
    """SIGKILL of runner and training together after the first checkpoint; then the same command."""
    process = start(tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(tmp_path.glob("work/runs/*/*/*/trained.json"))
    done = run("experiments.run", *settings(tmp_path))
    assert done.returncode == 0, done.stdout
    (log,) = tmp_path.glob("work/runs/*/*/*/train.log")
    assert "Loaded checkpoint" in log.read_text()
    assert len(read_row(tmp_path)["training"]["segments"]) == 2
    check_equal(tmp_path, read_row(finished[0]))


@pytest.mark.slow
def test_a_killed_runner_leaves_its_training_to_end_once(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    """SIGKILL of the runner alone: the next one lets the orphan end and does not train again."""
    process = start(tmp_path)
    process.kill()
    process.wait()
    done = run("experiments.run", *settings(tmp_path))
    assert done.returncode == 0, done.stdout
    assert len(read_row(tmp_path)["training"]["segments"]) == 1
    check_equal(tmp_path, read_row(finished[0]))


def test_ctrl_c_stops_the_training_and_says_how_to_go_on(tmp_path: Path) -> None:
    process = start(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    group = subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True, check=False)
    assert group.stdout == b""


def test_a_failing_training_shows_the_end_of_its_log(tmp_path: Path) -> None:
    done = run("experiments.run", *settings(tmp_path, "recipe.options.dropout=1.5"))
    assert done.returncode == 1
    assert (
        "error: fairseq_cli.train ended with exit code 1: ValueError: dropout=1.5 is not allowed: "
        "legal is at least 0 and under 1 (all it said: "
    ) in done.stdout
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["pair=gl-en", "data.source=null"],
            "error: pair=gl-en has no published data set: give the ",
        ),
        (["pair=gl-en", "data.local=/nowhere"], "error: data.local=/nowhere: no such folder"),
        (["pair=xx-yy"], "Could not find 'pair/xx-yy'"),
    ],
    ids=["no-source", "wrong-folder", "no-pair"],
)
def test_bad_settings(tmp_path: Path, argv: list[str], message: str) -> None:
    done = run("experiments.run", *settings(tmp_path, *argv))
    assert done.returncode == 1
    assert message in done.stdout
    assert not (tmp_path / "work" / "runs").exists()
