"""The preset attn=qwen3 with rope=after_norm against Hugging Face's Qwen3 attention."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from qknorm_mt.attention import CAUSAL, MultiheadAttention
from qknorm_mt.layers import build_attention

from .test_commands import composed

DIM, HEADS = 32, 4


@pytest.fixture(scope="module")
def qwen3() -> Any:
    """Their module, imported without torchaudio, which it has no use for here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torchaudio", None)
        return pytest.importorskip("transformers.models.qwen3.modeling_qwen3")


def build_theirs(qwen3: Any, implementation: str) -> tuple[Any, Any]:
    config = qwen3.Qwen3Config(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=DIM // HEADS,
        rope_theta=10000.0,
        attention_bias=False,
    )
    config._attn_implementation = implementation
    torch.manual_seed(0)
    attention = qwen3.Qwen3Attention(config, layer_idx=0).eval()
    for name, parameter in attention.named_parameters():
        if "norm" in name:  # their gain starts at 1, which would hide it
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    return attention, qwen3.Qwen3RotaryEmbedding(config)


def build_ours(theirs: Any) -> MultiheadAttention:
    """From the presets' own options, with their weights; their out projection has no bias."""
    from omegaconf import OmegaConf

    cfg = composed("attn=qwen3", "rope=after_norm")
    defaults = {"qk_temperature": "auto", "g_per_head": False, "attention_dropout": 0.0}
    options = {**defaults, "g_init": None, "cpu_dropout": "torch", "max_source_positions": 64}
    options |= {**cfg["attn"]["options"], **cfg["rope"]["options"]}
    ours = build_attention(OmegaConf.create(options), DIM, HEADS, 64).eval()
    weights = {
        "q_proj.weight": theirs.q_proj.weight,
        "k_proj.weight": theirs.k_proj.weight,
        "v_proj.weight": theirs.v_proj.weight,
        "out_proj.weight": theirs.o_proj.weight,
        "out_proj.bias": torch.zeros(DIM),
        "qk_norm.q_norm.weight": theirs.q_norm.weight,
        "qk_norm.k_norm.weight": theirs.k_norm.weight,
    }
    ours.load_state_dict(weights)
    return ours


def causal(time: int) -> Tensor:
    return torch.full((time, time), float("-inf")).triu(1)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_equals_theirs_with_copied_weights(qwen3: Any, implementation: str) -> None:
    theirs, rotary = build_theirs(qwen3, implementation)
    ours = build_ours(theirs)
    x = torch.randn(3, 11, DIM)
    places = torch.arange(11)[None]
    expected, weights = theirs(x, rotary(x, places), causal(11).expand(3, 1, -1, -1))
    y = x.transpose(0, 1)
    got, _ = ours(y, y, y, attn_mask=torch.empty(CAUSAL))
    torch.testing.assert_close(got.transpose(0, 1), expected, atol=1e-5, rtol=0)
    if implementation == "eager":
        _, own = ours(y, y, y, attn_mask=causal(11), need_head_weights=True)
        torch.testing.assert_close(own.transpose(0, 1), weights, atol=1e-5, rtol=0)
    state: dict = {}
    steps = [ours(token[None], None, None, incremental_state=state)[0] for token in y]
    torch.testing.assert_close(torch.cat(steps).transpose(0, 1), expected, atol=1e-5, rtol=0)


def test_gradients_equal_theirs(qwen3: Any) -> None:
    theirs, rotary = build_theirs(qwen3, "eager")
    ours = build_ours(theirs)
    x = torch.randn(2, 7, DIM)
    theirs(x, rotary(x, torch.arange(7)[None]), causal(7).expand(2, 1, -1, -1))[
        0
    ].sin().sum().backward()
    y = x.transpose(0, 1)
    ours(y, y, y, attn_mask=torch.empty(CAUSAL))[0].sin().sum().backward()
    for mine, other in (
        (ours.q_proj.weight, theirs.q_proj.weight),
        (ours.k_proj.weight, theirs.k_proj.weight),
        (ours.qk_norm.q_norm.weight, theirs.q_norm.weight),
        (ours.qk_norm.k_norm.weight, theirs.k_norm.weight),
    ):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-5)


def test_the_other_order_is_another_function(qwen3: Any) -> None:
    """So the test above could fail."""
    theirs, rotary = build_theirs(qwen3, "eager")
    ours = build_ours(theirs)
    ours.qk_norm.rotate_first = True
    x = torch.randn(3, 11, DIM)
    expected, _ = theirs(x, rotary(x, torch.arange(11)[None]), causal(11).expand(3, 1, -1, -1))
    y = x.transpose(0, 1)
    got, _ = ours(y, y, y, attn_mask=causal(11))
    assert (got.transpose(0, 1) - expected).abs().max() > 1e-3
