"""Fixtures shared by all tests: a tiny fairseq task, stock and QKNorm models, real data."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerModelBase

from qknorm_mt.config import QKNormTransformerConfig
from qknorm_mt.model import QKNormTransformerModel

ROOT = Path(__file__).resolve().parents[1]
SIZES = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {
        "embed_dim": 32,
        "ffn_embed_dim": 64,
        "layers": 2,
        "attention_heads": 4,
    }.items()
}


# Models that are put through everything, by the names of conf/attn where they have one.
MODELS: dict[str, dict] = {
    "none": {},
    "l2": {},
    "layernorm": {"qk_norm": "layernorm"},
    "vit22b": {"qk_norm": "layernorm", "qk_norm_affine": "gain"},
    "qwen3": {
        "qk_norm": "rmsnorm",
        "qk_norm_affine": "gain",
        "no_qkv_bias": True,
        "rope": "after_norm",
        "positions": "none",
    },
    "rope-first": {
        "qk_norm": "rmsnorm",
        "qk_norm_affine": "gain",
        "qk_temperature": "learned",
        "g_per_head": True,
        "g_init": "sqrt_head_dim",
        "rope": "before_norm",
        "positions": "none",
    },
}


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder with the real bitext: $QKNORM_MT_DATA, or shared/data beside the clone."""
    folder = Path(os.environ.get("QKNORM_MT_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "manifest.json").is_file():
        pytest.skip(f"no real bitext at {folder} (set QKNORM_MT_DATA)")
    return folder


@pytest.fixture
def task() -> SimpleNamespace:
    """What a model needs of a fairseq task: a joined dictionary of 40 types."""
    dictionary = Dictionary()
    for i in range(36):
        dictionary.add_symbol(f"w{i}")
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def build_stock(task: SimpleNamespace, seed: int = 1, **options: object) -> TransformerModelBase:
    """fairseq's own PreNorm transformer at the test size."""
    flat = {**SIZES, "share_all_embeddings": True, "dropout": 0.0, **options}
    flat |= {"encoder_normalize_before": True, "decoder_normalize_before": True}
    cfg = TransformerConfig.from_namespace(argparse.Namespace(**flat))
    cfg.decoder.input_dim = cfg.decoder.output_dim = cfg.decoder.embed_dim
    torch.manual_seed(seed)
    return TransformerModelBase.build_model(cfg, task)


def build_qknorm(
    task: SimpleNamespace, qk_norm: str, seed: int = 1, **options: object
) -> QKNormTransformerModel:
    """Our transformer at the same size; ``qk_norm`` may name one of :data:`MODELS`."""
    flat = {**SIZES, "share_all_embeddings": True, "dropout": 0.0, "qk_norm": qk_norm}
    flat |= {**MODELS.get(qk_norm, {}), **options}
    if flat["qk_norm"] == "l2" and "g_init" not in options:
        flat.setdefault("qk_norm_init_length", 72.0)
    torch.manual_seed(seed)
    model = QKNormTransformerModel.build_model(QKNormTransformerConfig(**flat), task)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "_norm.weight" in name and ".qk_norm." in name:  # a gain of 1 would hide its absence
                parameter.copy_(torch.linspace(0.5, 1.5, parameter.numel()))
    return model


def make_batch(pad_left: bool, seed: int = 0) -> dict[str, torch.Tensor]:
    """Three sentences of different lengths: source padded on either side, target on the right."""
    generator = torch.Generator().manual_seed(seed)
    source_lengths, target_lengths = [7, 4, 6], [5, 8, 3]
    src = torch.full((3, 7), 1)
    prev = torch.full((3, 8), 1)
    for i, (s, t) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        words = torch.randint(4, 40, (s,), generator=generator)
        words[-1] = 2
        if pad_left:
            src[i, 7 - s :] = words
        else:
            src[i, :s] = words
        prev[i, :t] = torch.randint(4, 40, (t,), generator=generator)
        prev[i, 0] = 2
    return {
        "src_tokens": src,
        "src_lengths": torch.tensor(source_lengths),
        "prev_output_tokens": prev,
    }
