"""Probes while training and of checkpoints, as a user runs them."""

from __future__ import annotations

import csv
import json
import math
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboardX.proto.event_pb2 import Event

from experiments import probe
from qknorm_mt import survey

from ..conftest import ROOT
from .conftest import PLUGIN, run

SIZES = [f"--{s}-{n}" for s in ("encoder", "decoder") for n in ("layers", "embed-dim")]
MODEL = [word for size in SIZES for word in (size, "1" if "layers" in size else "32")]
MODEL += ["--encoder-ffn-embed-dim", "32", "--decoder-ffn-embed-dim", "32"]
MODEL += ["--share-all-embeddings", "--cpu", "--optimizer", "adam", "--lr", "0.01"]
TRAINING = ["--max-update", "12", "--max-tokens", "512", "--save-interval-updates", "6"]
TRAINING += ["--keep-interval-updates", "2", "--no-epoch-checkpoints", "--disable-validation"]
TRAINING += ["--log-format", "json", "--log-interval", "1", "--num-workers", "0", "--seed", "1"]
QKNORM = ["--arch", "transformer_qknorm", "--qk-norm-init-length", "40"]
TASK = ["--user-dir", PLUGIN, "--task", "translation_probed"]
PROBE = ["--probe-every", "3", "--probe-sentences", "4"]


def train(toy: Path, out: Path, *argv: str) -> list[dict[str, Any]]:
    """Train into ``out``; what the log says of each update, but for times."""
    options = [*MODEL, *TRAINING, "--save-dir", str(out), *argv]
    done = run("fairseq_cli.train", str(toy), *options)
    assert done.returncode == 0, done.stdout
    lines = [
        line.split(" | ")[3] for line in done.stdout.splitlines() if " | train_inner | " in line
    ]
    timed = ("wps", "ups", "wall", "train_wall", "gb_free")
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]


def probes_in(out: Path) -> list[dict[str, Any]]:
    lines = (out / "probes.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def probed(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    out = tmp_path_factory.mktemp("probed")
    board = ["--tensorboard-logdir", str(out / "board")]
    return out, train(toy, out, *TASK, *QKNORM, *PROBE, *board)


def test_weights_and_log_are_the_same_without_probes(
    probed: tuple[Path, list[dict]], toy: Path, tmp_path: Path
) -> None:
    folder, log = probed
    plain = train(toy, tmp_path, "--user-dir", PLUGIN, *QKNORM)
    assert log == plain and len(log) == 12
    models = [
        torch.load(out / "checkpoint_last.pt", weights_only=True)["model"]
        for out in (folder, tmp_path)
    ]
    torch.testing.assert_close(*models, atol=0, rtol=0)


def test_a_resumed_training_has_the_probes_of_an_undisturbed_one(
    probed: tuple[Path, list[dict]], toy: Path, tmp_path: Path
) -> None:
    """Stopped after update 6, and with probes, and half a line, that lie beyond its checkpoint."""
    folder, _ = probed
    (first,) = folder.glob("checkpoint_*_6.pt")
    (tmp_path / "checkpoint_last.pt").write_bytes(first.read_bytes())
    text = (folder / "probes.jsonl").read_text()
    (tmp_path / "probes.jsonl").write_text(text.replace('"updates": 9', '"updates": 8') + '{"upd')
    train(toy, tmp_path, *TASK, *QKNORM, *PROBE)
    assert probes_in(tmp_path) == probes_in(folder)


def test_what_a_probe_says(probed: tuple[Path, list[dict]]) -> None:
    folder, _ = probed
    batch, *records = probes_in(folder)
    assert len(batch["batch"]["sentences"]) == 4
    assert [record["updates"] for record in records] == [0, 3, 6, 9, 12]
    for record in records:
        assert len(record["modules"]) == 3
        for figures in record["modules"].values():
            (g,) = figures["g"]
            assert max(figures["logit_max"]) <= abs(g) * (1 + 1e-5)
            assert figures["k_norm"] == pytest.approx([1.0] * 8, rel=1e-5)
            assert 0 < min(figures["entropy_share"]) <= max(figures["entropy_share"]) < 1 + 1e-6
            assert min(figures["q_grad"]) > 0 and figures["g_grad"][0] > 0
    assert records[0]["model"]["update_ratio"] is None
    assert 0 < records[1]["model"]["update_ratio"] < 1
    assert records[-1]["model"]["loss"] < records[0]["model"]["loss"]
    drawn = curve(folder / "board" / "probes", "probe/logit_max/decoder.layers.0.encoder_attn")
    largest = [max(r["modules"]["decoder.layers.0.encoder_attn"]["logit_max"]) for r in records]
    updates = [r["updates"] for r in records]
    assert drawn == pytest.approx(dict(zip(updates, largest, strict=True)), rel=1e-5)


def curve(folder: Path, tag: str) -> dict[int, float]:
    """What TensorBoard's event file has under a name: values by update."""
    (path,) = folder.glob("events*")
    data, found = path.read_bytes(), {}
    while data:  # length, its checksum, event, its checksum
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        for value in event.summary.value:
            if value.tag == tag:
                found[event.step] = value.simple_value
        data = data[16 + length :]
    return found


@pytest.fixture(scope="module")
def stock(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain fairseq transformer, trained without the plugin."""
    out = tmp_path_factory.mktemp("stock")
    train(toy, out, "--arch", "transformer", "--dropout", "0.1", "--max-update", "2")
    return out / "checkpoint_last.pt"


def test_ours_beside_a_plain_fairseq_checkpoint(
    probed: tuple[Path, list[dict]], stock: Path, toy: Path, tmp_path: Path
) -> None:
    ours = probed[0] / "checkpoint_last.pt"
    argv = ["--data", str(toy), "--sentences", "20", "--out", str(tmp_path)]
    done = run("experiments.probe", str(ours), str(stock), *argv)  # of one file name
    assert done.returncode == 0, done.stdout
    with (tmp_path / "heads.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {line["run"] for line in lines} == {str(ours), str(stock)}
    heads = [line for line in lines if line["module"] == "encoder.layers.0.self_attn"]
    assert [line["g"] != "" for line in heads] == [True] * 8 + [False] * 8
    for name in ("k_norm", "logit_by_cos"):
        assert [abs(float(line[name]) - 1) < 1e-4 for line in heads] == [True] * 8 + [False] * 8
    assert (tmp_path / "entropy_share.svg").read_text().startswith("<svg")


def test_bad_input_is_one_sentence(
    stock: Path, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without data, with another vocabulary, and what is no model: each says what is missing."""
    (tmp_path / "none.pt").write_bytes(b"no model")
    state = torch.load(stock, weights_only=False)
    planted = tmp_path / "planted"
    code = {"adaptive_softmax_cutoff": f"open({str(planted)!r}, 'w') and [10]"}
    model = vars(state["cfg"]["model"])
    evil, older = tmp_path / "evil.pt", tmp_path / "older.pt"
    torch.save({**state, "args": Namespace(**{**model, **code, "task": "translation"})}, older)
    vars(state["cfg"]["model"]).update(code)
    torch.save(state, evil)
    for language in ("qaa", "qab"):
        (tmp_path / f"dict.{language}.txt").write_text("a 1\nb 1\n")
    for main, argv, said in (
        (probe.main, (stock,), "give the binarised folder it was trained on as --data DIR"),
        (probe.main, (tmp_path / "gone", "--data", toy), "no such run's folder or checkpoint"),
        (probe.main, (tmp_path,), "is no run's folder, which holds run.json"),
        (probe.main, (stock, "--data", toy, "--sentences", "0"), "legal is at least 1"),
        (probe.main, (stock, stock, "--data", toy), "is given twice"),
        (survey.main, (tmp_path, "--path", stock), "use the folder that it was trained on"),
        (survey.main, (toy, "--path", tmp_path / "none.pt"), "damaged, or not of a qknorm_mt or"),
        (survey.main, (toy, "--path", evil), "adaptive_softmax_cutoff is refused"),
        (survey.main, (toy, "--path", older), "adaptive_softmax_cutoff is refused"),
        (survey.main, (toy, "--path", stock, "--subset", "gone"), "gone"),
        (survey.main, (toy, "--path", stock, "--sentences", "0"), "legal is at least 1"),
    ):
        assert main([*map(str, argv), "--out", str(tmp_path / "out")]) == 1
        assert said in capsys.readouterr().err
    assert not planted.exists()


def test_a_run_that_is_probed_and_not_decoded(tmp_path: Path) -> None:
    """From the runner to a claim's table; and probes asked for too late."""
    settings = ["recipe=proxy", "recipe.max_updates=4", "attn=none"]
    settings += [f"paths.work={tmp_path}/work", f"paths.results={tmp_path}/results"]
    done = run("experiments.run", *settings, "probe.every=2")
    assert done.returncode == 0, done.stdout
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) == {"run", "folder", "dev_ppl"}
    assert not (tmp_path / "results").exists()
    measured = run("experiments.claims", "stability", result["folder"], "--results", str(tmp_path))
    assert measured.returncode == 0, measured.stdout
    found = json.loads((tmp_path / "claims" / "stability-toy.json").read_text())
    assert found["runs"][0]["curve"]["updates"] == [0, 2, 4]
    assert found["runs"][0]["final"] == pytest.approx(math.log(result["dev_ppl"]), abs=1e-3)
    shown = run("experiments.status", "--work", f"{tmp_path}/work")
    assert "finished" in shown.stdout
    (Path(result["folder"]) / "probes.jsonl").unlink()
    again = run("experiments.run", *settings, "probe.every=2")
    assert again.returncode == 1
    assert "is trained already, without probes: remove the folder" in again.stdout


@pytest.mark.slow
def test_a_killed_training_goes_on_with_its_probes(toy: Path, tmp_path: Path) -> None:
    options = [*MODEL, *TRAINING, *TASK, *QKNORM, "--save-dir", str(tmp_path)]
    options += ["--max-update", "60", "--probe-every", "1", "--probe-sentences", "2"]
    argv = [sys.executable, "-m", "fairseq_cli.train", str(toy), *options]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 120
        while len([*tmp_path.glob("checkpoint_*_12.pt")]) == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = run("fairseq_cli.train", str(toy), *options)
    assert done.returncode == 0, done.stdout
    _, *records = probes_in(tmp_path)
    assert [record["updates"] for record in records] == [*range(61)]
