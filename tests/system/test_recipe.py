"""The paper's training procedure under plain ``fairseq-train``, and through the runner."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary

from ..conftest import ROOT
from .conftest import PLUGIN, SMALL_MODEL, SUBWORDS, run

MODEL = [
    *("--arch", "transformer_qknorm", "--encoder-layers", "1", "--decoder-layers", "1"),
    *("--encoder-attention-heads", "2", "--decoder-attention-heads", "2"),
    *("--encoder-embed-dim", "32", "--decoder-embed-dim", "32"),
    *("--encoder-ffn-embed-dim", "64", "--decoder-ffn-embed-dim", "64"),
    *("--fix-norm", "--share-all-embeddings", "--output-bias", "--language-embedding"),
    *("--positions", "sin_sin", "--start-symbol", "bos", "--logit-mask", "--init", "small"),
    *("--qk-norm", "l2", "--qk-norm-init-length", "30"),
    *("--dropout", "0.1", "--attention-dropout", "0.1", "--activation-dropout", "0.1"),
    *("--word-dropout", "0.1"),
]
PROCEDURE = [
    *("--task", "translation_qknorm", "--criterion", "label_smoothed_allowed"),
    *("--label-smoothing", "0.1", "--optimizer", "adam", "--clip-norm", "1.0"),
    *("--max-tokens", "1024", "--required-batch-size-multiple", "1"),
    *("--lr-scheduler", "dev_bleu", "--lr", "0.02", "--warmup-updates", "20"),
    *("--decay-patience", "1", "--updates-per-epoch", "20", "--no-epoch-checkpoints"),
    *("--eval-bleu", "--eval-tokenized-bleu", "--eval-bleu-remove-bpe", "sentencepiece"),
    *("--eval-bleu-args", '{"beam": 2, "lenpen": 0.6, "max_len_a": 1, "max_len_b": 3}'),
    *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
    *("--cpu", "--seed", "1", "--num-workers", "0"),
    *("--log-format", "json", "--log-interval", "5"),
]


# fairseq's order, whose ties depend on the epoch, and two batches an update.
WHOLE = ["--max-update", "120", "--batch-order", "fairseq", "--update-freq", "2"]
WHOLE += ["--max-tokens", "512"]


def argv(data: Path, folder: Path, *more: str) -> list[str]:
    return [
        *("fairseq_cli.train", str(data), "--user-dir", PLUGIN, *MODEL, *PROCEDURE),
        *("--save-dir", str(folder), *more),
    ]


def figures(text: str) -> dict[tuple[str, str], dict[str, str]]:
    """All that a log says, but for times and speeds, by kind of line and update."""
    found = {}
    for line in text.split("\n"):
        parts = line.split(" | ", 3)
        if len(parts) == 4 and parts[2] in ("train", "train_inner", "valid"):
            said = json.loads(parts[3])
            kept = {k: v for k, v in said.items() if not k.endswith(("wps", "ups", "wall"))}
            (updates,) = (v for k, v in kept.items() if k.endswith("num_updates"))
            found[parts[2], updates] = kept
    return found


def trained(folder: Path) -> dict[str, Any]:
    """All of a last checkpoint that a resumed training must have in common with one in one go."""
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    return {
        "model": state["model"],
        "optimizer": state["last_optimizer_state"],
        "schedule": state["optimizer_history"][-1]["lr_scheduler_state"],
        "iterator": state["extra_state"]["train_iterator"],
        "best": state["extra_state"]["best"],
        "best_model": torch.load(folder / "checkpoint_best.pt", weights_only=True)["model"],
    }


@pytest.fixture(scope="module")
def in_one_go(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("whole")
    done = run(*argv(toy, folder, *WHOLE), cwd=folder)
    assert done.returncode == 0, done.stdout
    return folder, done.stdout


def kill_after(lines: int, command: list[str], cwd: Path) -> str:
    """Run, and SIGKILL as soon as the log has so many lines of figures."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        if said.count("| train_inner |") >= lines:
            time.sleep(random.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, said
    return said


def test_three_pieces_are_the_same_as_one_go(
    toy: Path, in_one_go: tuple[Path, str], tmp_path: Path
) -> None:
    """Killed at a random moment, stopped in the middle of an epoch, then to the end."""
    whole, whole_log = in_one_go
    moment = random.randrange(5, 15)
    print(f"killed after {moment} lines")
    log = kill_after(moment, argv(toy, tmp_path, *WHOLE), tmp_path)
    for updates in ("90", "120"):
        done = run(*argv(toy, tmp_path, *WHOLE, "--max-update", updates), cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        log += done.stdout
    theirs, ours = trained(whole), trained(tmp_path)
    assert ours.pop("schedule") == theirs["schedule"]
    torch.testing.assert_close(ours, {n: theirs[n] for n in ours}, atol=0, rtol=0)
    said = figures(log)
    for kind in ("train", "valid"):  # the stop is one more occasion to validate
        del said[kind, "90"]
    assert said == figures(whole_log)
    assert theirs["schedule"]["epoch"] == 6
    # The comparison is worth something: BLEU moved, and so did the rate.
    assert theirs["best"] > 0 and max(theirs["schedule"]["bleus"]) == theirs["best"]


def test_the_log_reports_how_full_the_batches_are(
    toy: Path, in_one_go: tuple[Path, str], tmp_path: Path
) -> None:
    def filled(log: str) -> float:
        return float(re.search(r"batches, ([\d.]+)% of their positions filled", log)[1])

    longer = run(
        *argv(toy, tmp_path, *WHOLE, "--batch-order", "longer_side", "--max-update", "1"),
        *("--required-batch-size-multiple", "7"),
        cwd=tmp_path,
    )
    assert longer.returncode == 0, longer.stdout
    assert filled(longer.stdout) > filled(in_one_go[1]) > 50
    assert "of 4000 training sentences are in no batch" in longer.stdout
    assert "are in no batch" not in in_one_go[1]


def test_the_logit_mask_is_the_targets_own_vocabulary(
    toy: Path, in_one_go: tuple[Path, str]
) -> None:
    state = torch.load(in_one_go[0] / "checkpoint_last.pt", weights_only=True)["model"]
    dictionary = Dictionary.load(str(toy / "dict.qab.txt"))
    (pieces,) = toy.parent.glob("subword-*/train.qab")
    types = {piece for line in pieces.read_text().split("\n") for piece in line.split()}
    allowed = {dictionary[i] for i in state["decoder.allowed"].nonzero().flatten().tolist()}
    assert allowed == types | {"</s>", "<unk>"}
    assert len(allowed) < 0.8 * len(dictionary)


def test_resuming_with_other_data_vocabulary_or_architecture_is_refused(
    toy: Path, in_one_go: tuple[Path, str], tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(in_one_go[0], checkpoints)
    before = (checkpoints / "checkpoint_last.pt").read_bytes()

    for name, split, other in (("other-text", "train", "valid"), ("other-dev", "valid", "test")):
        shutil.copytree(toy, tmp_path / name)
        for path in (tmp_path / name).glob(f"{other}.*"):
            shutil.copy(path, path.with_name(path.name.replace(other, split)))
    root = tmp_path / "other-vocabulary"
    prepare = ["prepare", "--toy-seed", "1", "--root", str(root), *SUBWORDS, "500"]
    other_vocabulary = Path(json.loads(run("data_prep", *prepare).stdout.splitlines()[-1])["data"])

    for data, more, message in (
        (tmp_path / "other-text", [], "ValueError: the checkpoint was trained on other text than"),
        (tmp_path / "other-dev", [], "ValueError: the checkpoint was trained on other text than"),
        (other_vocabulary, [], "ValueError: the checkpoint was trained with another vocabulary"),
        (toy, ["--encoder-attention-heads", "4"], "encoder_attention_heads=2 there, 4 here"),
        (toy, ["--positions", "sinusoidal"], "positions=sin_sin there, sinusoidal here"),
        (toy, ["--decoder-layers", "2"], "decoder_layers=1 there, 2 here"),
    ):
        done = run(*argv(data, checkpoints, "--max-update", "140", *more), cwd=tmp_path)
        assert done.returncode != 0
        assert message in done.stdout.strip().split("\n")[-1], done.stdout
    assert (checkpoints / "checkpoint_last.pt").read_bytes() == before


def test_a_schedule_that_ended_stays_ended_while_its_options_stay(
    toy: Path, tmp_path: Path
) -> None:
    # Warm after 20 updates; the first epoch that ends later is the second. The third start asks
    # for another stop rate.
    for stop_lr, updates in (("1.0", 40), ("1.0", 40), ("0.0", 50)):
        stop = ("--max-update", "50", "--stop-lr", stop_lr)
        done = run(*argv(toy, tmp_path, *stop), cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
        assert state["optimizer_history"][-1]["num_updates"] == updates
        assert ("is under --stop-lr" in done.stdout) == (updates == 40)


TWO_RUNS = """
import sys
import time
from fairseq_cli.train import cli_main
for arguments in {calls!r}:
    sys.argv = arguments
    cli_main()
"""


def test_two_runs_in_one_process_do_not_share_best_or_patience(toy: Path, tmp_path: Path) -> None:
    """The second run is worse in every epoch than the first ever was, and never gets better."""
    own = ["--disable-validation", "--eval-bleu", "--eval-tokenized-bleu", "--lr-scheduler"]
    common = [word for word in argv(toy, tmp_path)[1:] if word not in own]
    for option in ("--eval-bleu-remove-bpe", "--eval-bleu-args", "--best-checkpoint-metric"):
        place = common.index(option)
        del common[place : place + 2]
    for option in ("dev_bleu", "--maximize-best-checkpoint-metric"):
        common.remove(option)
    for option in ("--decay-patience", "--warmup-updates", "--lr", "--save-dir"):
        place = common.index(option)
        del common[place : place + 2]
    common += ["--lr-scheduler", "fixed", "--patience", "2"]

    def call(name: str, lr: str, updates: str) -> list[str]:
        folder = str(tmp_path / name)
        return ["train", *common, "--save-dir", folder, "--lr", lr, "--max-update", updates]

    calls = [call("first", "0.02", "60"), call("second", "1e-30", "200")]
    for name, runs in (("both", calls), ("alone", [call("alone", "1e-30", "200")])):
        done = subprocess.run(
            [sys.executable, "-c", TWO_RUNS.format(calls=runs)],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )
        assert done.returncode == 0, (name, done.stderr)
    second, alone = (
        torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=True)
        for name in ("second", "alone")
    )
    assert (tmp_path / "second" / "checkpoint_best.pt").exists()
    assert second["extra_state"]["best"] == alone["extra_state"]["best"]
    # patience 2: best in the first epoch, two without a better one
    updates = [s["optimizer_history"][-1]["num_updates"] for s in (second, alone)]
    assert updates == [60, 60]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["--lr-scheduler", "dev_bleu", "--best-checkpoint-metric", "loss"],
            "best_checkpoint_metric=",
        ),
        (["--dev-reference", "short.txt"], "short.txt: 1 lines for 300 sentences of dev"),
        (["--dev-reference", "none.txt"], "none.txt"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_illegal_options_are_named(
    toy: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    (tmp_path / "short.txt").write_text("one line\n")
    command = argv(toy, tmp_path, "--max-update", "1", *more)
    done = run(*command, cwd=tmp_path)
    assert done.returncode != 0
    assert message in done.stdout.strip().split("\n")[-1], done.stdout


def test_alignments_need_fairseqs_search(
    toy: Path, in_one_go: tuple[Path, str], tmp_path: Path
) -> None:
    def generate(*more: str) -> subprocess.CompletedProcess[str]:
        return run(
            *("fairseq_cli.generate", str(toy), "--user-dir", PLUGIN, "--cpu"),
            *("--path", str(in_one_go[0] / "checkpoint_last.pt"), "--beam", "2"),
            *("--max-len-b", "3", *more),
            cwd=tmp_path,
        )

    with_task = ("--task", "translation_qknorm")
    done = generate(*with_task, "--print-alignment")
    assert "add --beam-search fairseq" in done.stdout.strip().split("\n")[-1]
    done = generate(*with_task, "--print-alignment", "--beam-search", "fairseq")
    assert done.returncode == 0 and "\nA-0\t" in done.stdout, done.stdout
    done = generate()
    assert "--task translation_qknorm" in done.stdout.strip().split("\n")[-1]


# Through the runner ------------------------------------------------------------------------------

SMALL = [
    *SMALL_MODEL,
    *("decode.beam=2", "decode.max_len_b=3"),
]


@pytest.fixture(scope="module")
def bitext(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local bitext under the names of the published en-vi files."""
    folder = tmp_path_factory.mktemp("mirror")
    (clean,) = (p for p in toy.parent.glob("clean-*") if p.is_dir())
    (folder / "iwslt15_en_vi").mkdir()
    for split, name in (("train", "train"), ("dev", "tst2012"), ("test", "tst2013")):
        for lang, theirs in (("qaa", "en"), ("qab", "vi")):
            shutil.copy(clean / f"{split}.{lang}", folder / "iwslt15_en_vi" / f"{name}.{theirs}")
    return folder


@pytest.mark.slow
def test_twenty_updates_of_the_papers_recipe_on_a_local_bitext(
    bitext: Path, tmp_path: Path
) -> None:
    done = run(
        *("experiments.run", "pair=en-vi", "attn=l2", "recipe=paper", "recipe.max_updates=20"),
        *(f"data.local={bitext}", f"paths.work={tmp_path}/work"),
        *(f"paths.results={tmp_path}/results", "prep.subword_size=400", *SMALL),
    )
    assert done.returncode == 0, done.stdout
    row = json.loads((tmp_path / "results" / "runs.jsonl").read_text())
    assert row["training"]["updates"] == 20
    (point,) = row["training"]["dev"]
    assert point["bleu"] == 0 and point["ppl"] < 700
    assert row["options"]["qk_norm_init_length"] == 72
    assert row["options"]["updates_per_epoch"] == 1500


def test_dev_bleu_in_training_is_that_of_the_best_checkpoint_afterwards(tmp_path: Path) -> None:
    """Of a run that was killed, runner and training, after its first epoch."""
    command = [
        *("experiments.run", "pair=toy", "recipe=paper", "recipe.max_updates=150", *SMALL),
        *(f"paths.work={tmp_path}/work", f"paths.results={tmp_path}/results"),
        *("recipe.options.lr=0.02", "recipe.options.warmup_updates=20"),
        "recipe.options.updates_per_epoch=75",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while not list(tmp_path.glob("work/runs/*/*/*/checkpoints/checkpoint_last.pt")):
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = run(*command)
    assert done.returncode == 0, done.stdout
    row = json.loads((tmp_path / "results" / "runs.jsonl").read_text())
    assert len(row["training"]["segments"]) == 2
    dev = row["training"]["dev"]
    assert [point["updates"] for point in dev] == [75, 150]
    best = max(point["bleu"] for point in dev)
    assert best > 0
    assert row["scores"]["dev"]["bleu_tok"]["score"] == best
    assert row["best_update"] == max(p["updates"] for p in dev if p["bleu"] == best)
