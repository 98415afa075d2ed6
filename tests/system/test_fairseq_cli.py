"""The plugin alone under fairseq's own commands, from a directory of the user's."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from .conftest import PLUGIN, SUBWORDS, run

SIZES = ["--encoder-layers", "1", "--decoder-layers", "1", "--encoder-ffn-embed-dim", "64"]
L2 = ["--qk-norm", "l2", "--qk-norm-init-length", "41"]


def train(data: Path, save_dir: Path, *argv: str, cwd: Path, arch: str = "transformer_qknorm_cpu"):
    return run(
        "fairseq_cli.train",
        *(str(data), "--user-dir", PLUGIN, "--arch", arch, "--share-all-embeddings", *SIZES),
        *("--optimizer", "adam", "--lr", "0.001", "--max-tokens", "1000", "--cpu"),
        *("--criterion", "label_smoothed_cross_entropy", "--disable-validation"),
        *("--save-dir", str(save_dir), "--log-format", "simple", "--num-workers", "0"),
        *argv,
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def checkpoint(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    done = train(toy, folder, *L2, "--max-update", "4", cwd=folder)
    assert done.returncode == 0, done.stdout
    return folder / "checkpoint_last.pt"


def test_a_trained_checkpoint_loads_without_running_code(checkpoint: Path) -> None:
    state = torch.load(checkpoint, weights_only=True)
    gs = [v for k, v in state["model"].items() if k.endswith("qk_norm.g")]
    assert len(gs) == 3
    start = torch.tensor(math.log2(41 * 41 - 41)).item()
    assert all(g.item() != start for g in gs)  # they were trained
    assert state["cfg"]["model"]["qk_norm"] == "l2"
    # the architecture's size, and the option given over it
    assert state["cfg"]["model"]["decoder_ffn_embed_dim"] == 512
    assert state["cfg"]["model"]["encoder_ffn_embed_dim"] == 64


def test_training_resumes(toy: Path, checkpoint: Path) -> None:
    done = train(toy, checkpoint.parent, *L2, "--max-update", "6", cwd=checkpoint.parent)
    assert done.returncode == 0, done.stdout
    assert re.search(r"Loaded checkpoint .*@ 4 updates", done.stdout)


QWEN3 = ["--qk-norm", "rmsnorm", "--qk-norm-affine", "gain", "--no-qkv-bias", "--g-per-head"]
QWEN3 += ["--qk-temperature", "learned", "--g-init", "sqrt_head_dim"]
QWEN3 += ["--rope", "after_norm", "--positions", "none"]
FAST = ["--cpu-dropout", "bytes", "--pack-output", "--optimizer", "adam_fused"]


def test_another_normaliser_trains_resumes_and_decodes_beside_l2(
    toy: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """With the speed-ups, from fairseq's command line; as an ensemble with a model of l2."""
    for updates in ("3", "5"):
        argv = [*QWEN3, *FAST, "--max-update", updates, "--log-interval", "1"]
        done = train(toy, tmp_path, *argv, cwd=tmp_path)
        assert done.returncode == 0, done.stdout
    assert re.search(r"Loaded checkpoint .*@ 3 updates", done.stdout)
    assert "g_min=" in done.stdout and "g_max=" in done.stdout
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    gs = [v for k, v in state["model"].items() if k.endswith("qk_norm.g")]
    assert [g.shape for g in gs] == [(4,)] * 3
    assert all((g - 32**0.5).abs().max() < 0.1 and (g != 32**0.5).all() for g in gs)
    done = run(
        "fairseq_cli.generate",
        *(str(toy), "--user-dir", PLUGIN, "--cpu", "--beam", "3", "--max-len-b", "6"),
        *("--path", f"{checkpoint}:{tmp_path / 'checkpoint_last.pt'}"),
        *("--required-batch-size-multiple", "1"),
    )
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"^H-", done.stdout, re.M)) == 300


def test_generate_prints_alignments(toy: Path, checkpoint: Path, tmp_path: Path) -> None:
    done = run(
        "fairseq_cli.generate",
        *(str(toy), "--user-dir", PLUGIN, "--path", str(checkpoint), "--cpu", "--beam", "3"),
        *("--max-len-b", "6", "--print-alignment", "--required-batch-size-multiple", "1"),
        *("--max-tokens", "4000"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"^H-\d+\t", done.stdout, re.M)) == 300
    assert len(re.findall(r"^A-\d+\t\d+-\d+", done.stdout, re.M)) == 300


def test_interactive(toy: Path, checkpoint: Path, tmp_path: Path) -> None:
    done = run(
        "fairseq_cli.interactive",
        *(str(toy), "--user-dir", PLUGIN, "--path", str(checkpoint), "--cpu", "--beam", "2"),
        *("--source-lang", "qaa", "--target-lang", "qab", "--max-len-b", "6"),
        cwd=tmp_path,
        stdin="▁ti ▁mom\n\n▁ke\n",
    )
    assert done.returncode == 0, done.stdout
    assert [m for m in re.findall(r"^H-(\d+)", done.stdout, re.M)] == ["0", "1", "2"]


def test_hydra_train(toy: Path, tmp_path: Path) -> None:
    model = {
        **{"_name": "transformer_qknorm", "qk_norm": "l2", "qk_norm_init_length": "41"},
        **{"encoder_layers": "1", "decoder_layers": "1", "share_all_embeddings": "true"},
        **{"encoder_embed_dim": "32", "decoder_embed_dim": "32"},
    }
    settings = [
        *(f"common.user_dir={PLUGIN}", "common.cpu=true", "task=translation", f"task.data={toy}"),
        *("task.source_lang=qaa", "task.target_lang=qab", "optimizer=adam"),
        *("criterion=label_smoothed_cross_entropy", "optimization.lr=[0.001]"),
        *("optimization.max_update=2", "dataset.max_tokens=1000", "dataset.num_workers=0"),
        *("dataset.disable_validation=true", "checkpoint.save_dir=checkpoints"),
    ]
    main = ["fairseq_cli.hydra_train", *settings]
    done = run(*main, *(f"+model.{k}={v}" for k, v in model.items()), cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    state = torch.load(tmp_path / "checkpoints" / "checkpoint_last.pt", weights_only=True)
    assert state["cfg"]["model"]["encoder_embed_dim"] == 32
    assert sum(name.endswith("qk_norm.g") for name in state["model"]) == 3
    done = run(*main, "+model._name=transformer_qknorm", "+model.qk_nrom=l2", cwd=tmp_path)
    assert done.returncode != 0
    assert "Key 'qk_nrom' not in 'QKNormTransformerConfig'" in done.stdout
    done = run(*main, "+model._name=transformer_qknorm_cpu", "+model.qk_norm=none", cwd=tmp_path)
    assert done.returncode != 0
    assert "model._name='transformer_qknorm_cpu' is not allowed under Hydra" in done.stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--qk-norm", "l3"], "argument --qk-norm: invalid choice: 'l3' (choose from"),
        (["--qk-norm", "l2"], "qk_norm_init_length=None is not allowed: legal is a number of at"),
        ([*L2, "--qk-temperature", "none"], "qk_temperature=none is not allowed: legal is learned"),
        ([*L2, "--rope", "after_norm"], "legal is none when rope=after_norm"),
        ([*L2, "--qk-nrom", "l2"], "unrecognized arguments: --qk-nrom l2"),
        ([*L2, "--encoder-attention-heads", "5"], "encoder_attention_heads=5 is not allowed"),
    ],
    ids=["norm", "length", "flat", "positions", "typo", "heads"],
)
def test_illegal_options(toy: Path, tmp_path: Path, argv: list[str], message: str) -> None:
    done = train(toy, tmp_path, *argv, cwd=tmp_path)
    assert done.returncode != 0
    assert message in done.stdout
    assert not (tmp_path / "checkpoint_last.pt").exists()


def test_a_checkpoint_of_another_architecture(toy: Path, checkpoint: Path, tmp_path: Path) -> None:
    restore = ["--restore-file", str(checkpoint)]
    done = train(toy, tmp_path, "--qk-norm", "none", *restore, cwd=tmp_path)
    assert done.returncode != 0
    assert "their qk_norm options differ" in done.stdout
    assert not (tmp_path / "checkpoint_last.pt").exists()


def test_data_of_another_vocabulary(checkpoint: Path, tmp_path: Path) -> None:
    prepared = run(
        *("data_prep", "prepare", "--toy-seed", "1", "--root", str(tmp_path)),
        *(*SUBWORDS, "400"),
    )
    data = next(tmp_path.glob("binarised-*[0-9a-f]"))
    assert prepared.returncode == 0
    done = run(
        "fairseq_cli.generate",
        *(str(data), "--user-dir", PLUGIN, "--path", str(checkpoint), "--cpu"),
    )
    assert done.returncode != 0
    assert "the checkpoint was trained with another vocabulary" in done.stdout


def test_a_stock_checkpoint_trains_on_without_normalisation(toy: Path, tmp_path: Path) -> None:
    """fairseq's own model, then ours from its weights: the same loss goes on."""
    stock_sizes = ["--encoder-normalize-before", "--decoder-normalize-before"]
    width = [f"--{side}-{name}" for side in ("encoder", "decoder") for name in ("embed-dim",)]
    sizes = [word for name in width for word in (name, "128")]
    heads = ["--encoder-attention-heads", "4", "--decoder-attention-heads", "4"]
    ffn = ["--decoder-ffn-embed-dim", "512"]
    stock = train(
        *(toy, tmp_path / "stock", *stock_sizes, *sizes, *heads, *ffn, "--max-update", "3"),
        cwd=tmp_path,
        arch="transformer",
    )
    assert stock.returncode == 0, stock.stdout
    state = torch.load(tmp_path / "stock" / "checkpoint_last.pt", weights_only=False)
    plain = tmp_path / "weights.pt"
    torch.save({**state, "args": None, "cfg": None}, plain)
    ours = train(
        *(toy, tmp_path / "ours", "--qk-norm", "none", "--restore-file", str(plain)),
        *("--max-update", "5"),
        cwd=tmp_path,
    )
    assert ours.returncode == 0, ours.stdout
    assert re.search(r"Loaded checkpoint .*@ 3 updates", ours.stdout)
