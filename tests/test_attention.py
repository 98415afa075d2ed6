"""The attention module alone, against the authors' numbers, fairseq's module and itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.modules import MultiheadAttention as StockAttention
from torch import Tensor

from qknorm_mt.attention import CAUSAL, MultiheadAttention
from qknorm_mt.dropout import Dropout, byte_mask
from qknorm_mt.qk_norm import QKNorm, g_init_from_length
from qknorm_mt.rope import RotaryEmbedding

GOLDEN = np.load(Path(__file__).parent / "golden" / "attention.npz")
DIM, HEADS = 32, 4

# Name to normaliser and options; the last needs absolute places.
VARIANTS: dict[str, tuple[str, dict]] = {
    "none": ("none", {}),
    "l2": ("l2", {}),
    "l2-per-head": ("l2", {"heads": HEADS}),
    "layernorm": ("layernorm", {"affine": "gain_bias"}),
    "rmsnorm": ("rmsnorm", {"affine": "gain", "temperature": "learned"}),
    "none-rope": ("none", {"rotary": True}),
    "qwen3": ("rmsnorm", {"affine": "gain", "rotary": True}),
    "rope-first": ("rmsnorm", {"affine": "gain", "rotary": True, "rotate_first": True}),
}
over_variants = pytest.mark.parametrize("kind", VARIANTS)


def build(name: str, self_attention: bool = True, dtype: torch.dtype = torch.float32):
    torch.manual_seed(3)
    kind, options = VARIANTS[name]
    options = dict(options)
    if options.pop("rotary", False) and self_attention:
        options["rope"] = RotaryEmbedding(DIM // HEADS, base=100.0, max_positions=64)
    qk_norm = QKNorm(kind, DIM // HEADS, g_init=g_init_from_length(72), **options)
    module = MultiheadAttention(DIM, HEADS, qk_norm, self_attention=self_attention)
    for path, parameter in module.named_parameters():
        if path.endswith("bias"):  # the zero start would hide a forgotten bias
            torch.nn.init.normal_(parameter, std=0.3)
        elif "_norm.weight" in path or parameter.numel() == HEADS:  # gains, and g of each head
            parameter.data *= torch.linspace(0.5, 1.5, parameter.numel())
    return module.to(dtype).eval()


def build_stock(ours: MultiheadAttention) -> StockAttention:
    stock = StockAttention(
        DIM,
        HEADS,
        self_attention=ours.self_attention,
        encoder_decoder_attention=not ours.self_attention,
    )
    stock.load_state_dict(ours.state_dict())
    return stock.to(next(ours.parameters()).dtype).eval()


def causal(time: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((time, time), float("-inf"), dtype=dtype).triu(1)


def padding(*lengths: int, side: str = "right") -> Tensor:
    mask = torch.arange(max(lengths))[None] >= torch.tensor(lengths)[:, None]
    return mask.flip(1) if side == "left" else mask


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "weights"])
@pytest.mark.parametrize(
    ("case", "kind"), [("qknorm_layernorm", "l2"), ("baseline_layernorm", "none")]
)
def test_equals_the_authors_released_attention(case: str, kind: str, need_weights: bool) -> None:
    module = build(kind)
    weight = torch.from_numpy(GOLDEN[f"{case}.param.encoder.atts.0.weights"])
    bias = torch.from_numpy(GOLDEN[f"{case}.param.encoder.atts.0.biases"])
    projections = (module.q_proj, module.k_proj, module.v_proj, module.out_proj)
    with torch.no_grad():
        for projection, w, b in zip(projections, weight.chunk(4), bias.chunk(4), strict=True):
            projection.weight.copy_(w)
            projection.bias.copy_(b)
        if kind == "l2":
            module.qk_norm.g.fill_(float(GOLDEN[f"{case}.param.encoder.atts.0.mha_scale.scale"]))
    x = torch.from_numpy(GOLDEN[f"{case}.enc_att0_in"]).transpose(0, 1)
    pad = torch.from_numpy(GOLDEN["src"]) == 0
    output, weights = module(
        x, x, x, key_padding_mask=pad, need_weights=need_weights, need_head_weights=need_weights
    )
    expected = torch.from_numpy(GOLDEN[f"{case}.enc_att0_out"])
    torch.testing.assert_close(output.transpose(0, 1), expected, atol=1e-5, rtol=0)
    if need_weights:
        expected = torch.from_numpy(GOLDEN[f"{case}.enc_att0_weights"])
        torch.testing.assert_close(weights.transpose(0, 1), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("mask", ["free", "padded", "causal", "causal-padded", "cross-padded"])
def test_none_equals_stock_fairseq(mask: str, dtype: torch.dtype) -> None:
    atol = 1e-5 if dtype == torch.float32 else 1e-10
    ours = build("none", self_attention="cross" not in mask, dtype=dtype)
    stock = build_stock(ours)
    x = torch.randn(6, 3, DIM, dtype=dtype)
    y = torch.randn(6, 3, DIM, dtype=dtype) if "cross" in mask else x
    options = {
        "key_padding_mask": padding(6, 4, 5) if "padded" in mask else None,
        "attn_mask": causal(6, dtype) if "causal" in mask else None,
    }
    results = []
    for module in (ours, stock):
        query, key = x.clone().requires_grad_(), y.clone().requires_grad_()
        key = query if ours.self_attention else key
        output, weights = module(query, key, key, need_weights=True, **options)
        fused, _ = module(query, key, key, need_weights=False, **options)
        (output.square().sum() + fused.sin().sum()).backward()
        gradients = {n: p.grad for n, p in module.named_parameters()}
        results.append((output, fused, weights, query.grad, key.grad, gradients))
    torch.testing.assert_close(results[0], results[1], atol=atol, rtol=atol)


def test_same_seed_starts_where_stock_starts() -> None:
    torch.manual_seed(7)
    ours = MultiheadAttention(DIM, HEADS, QKNorm("l2", 8, g_init=12.3), self_attention=True)
    torch.manual_seed(7)
    stock = StockAttention(DIM, HEADS, self_attention=True)
    state = ours.state_dict()
    del state["qk_norm.g"]
    torch.testing.assert_close(state, dict(stock.state_dict()), atol=0, rtol=0)


@over_variants
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_step_by_step_equals_full(kind: str, side: str) -> None:
    module = build(kind)
    x = torch.randn(6, 3, DIM)
    pad = None if side == "none" else padding(6, 4, 5, side=side)
    full, _ = module(x, x, x, key_padding_mask=pad, attn_mask=causal(6))
    state: dict = {}
    steps = []
    for t in range(6):
        column = None if pad is None or not pad[:, t].any() else pad[:, t : t + 1]
        step, _ = module(x[t : t + 1], None, None, column, incremental_state=state)
        steps.append(step)
    real = torch.ones(6, 3, dtype=torch.bool) if pad is None else ~pad.T
    torch.testing.assert_close(torch.cat(steps)[real], full[real], atol=1e-5, rtol=0)
    for need_weights in (False, True):  # a row of padding alone must not be NaN: NaN would spread
        output, _ = module(
            x, x, x, key_padding_mask=pad, attn_mask=causal(6), need_weights=need_weights
        )
        assert torch.isfinite(output).all()


@over_variants
@pytest.mark.parametrize("self_attention", [True, False], ids=["self", "cross"])
def test_padding_on_either_side_equals_each_sentence_alone(kind: str, self_attention: bool) -> None:
    module = build(kind, self_attention)
    lengths = (6, 4, 5)
    x, query = torch.randn(6, 3, DIM), torch.randn(4, 3, DIM)
    for side in ("left", "right"):
        pad = padding(*lengths, side=side)
        batched, _ = module(x if self_attention else query, x, x, key_padding_mask=pad)
        for i in range(3):
            alone = x[~pad[i], i : i + 1]
            expected, _ = module(alone if self_attention else query[:, i : i + 1], alone, alone)
            got = batched[~pad[i], i : i + 1] if self_attention else batched[:, i : i + 1]
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@over_variants
def test_beam_reordering_moves_the_cache(kind: str) -> None:
    module = build(kind)
    x = torch.randn(5, 4, DIM)
    order = torch.tensor([2, 2, 0, 1])
    state: dict = {}
    for t in range(3):
        module(x[t : t + 1], None, None, incremental_state=state)
    module.reorder_incremental_state(state, order)
    got, _ = module(x[3:4], None, None, incremental_state=state)
    history = torch.cat([x[:3, order], x[3:4]])
    expected, _ = module(history, history, history, attn_mask=causal(4))
    torch.testing.assert_close(got[0], expected[3], atol=1e-5, rtol=0)


@over_variants
@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "weights"])
def test_cross_attention_keeps_keys_once_per_beam(kind: str, need_weights: bool) -> None:
    """set_beam_size: same output from a third of the cached keys, also when sentences leave."""
    module = build(kind, self_attention=False)
    sentences, beam = 3, 3
    source = torch.randn(5, sentences, DIM).repeat_interleave(beam, dim=1)
    pad = padding(5, 3, 4).repeat_interleave(beam, dim=0)
    query = torch.randn(2, 1, sentences * beam, DIM)
    keep = torch.tensor([3, 5, 4, 6, 6, 8])  # sentence 0 is finished
    options = {"static_kv": True, "need_weights": need_weights, "need_head_weights": need_weights}

    def decode(beam_size: int) -> list:
        module.set_beam_size(beam_size)
        state: dict = {}
        first = module(query[0], source, source, pad, incremental_state=state, **options)
        module.reorder_incremental_state(state, torch.arange(9))
        module.reorder_incremental_state(state, keep)
        second = module(query[1][:, keep], None, None, None, incremental_state=state, **options)
        cached = module._get_input_buffer(state)["prev_key"].size(0)
        module.set_beam_size(1)
        return [*first, *second, cached]

    shared, plain = decode(beam), decode(1)
    assert (shared.pop(), plain.pop()) == (2, 6)
    torch.testing.assert_close(shared, plain, atol=1e-5, rtol=0)


def test_a_batch_that_is_no_beam_is_refused() -> None:
    module = build("l2", self_attention=False)
    module.set_beam_size(2)
    x = torch.randn(4, 3, DIM)
    with pytest.raises(ValueError, match="batch 3 is no multiple of the beam 2"):
        module(x[:1], x, x, incremental_state={})
    x = torch.randn(4, 4, DIM)
    with pytest.raises(ValueError, match="does not hold each source 2 times"):
        module(x[:1], x, x, incremental_state={})


def test_dropout_in_training_and_where_it_is_retained() -> None:
    x = torch.randn(6, 3, DIM)
    module = build("l2")
    module.dropout_module.p = 0.5
    plain, _ = module(x, x, x)
    torch.testing.assert_close(module(x, x, x)[0], plain)
    retain = {"retain_dropout": True, "retain_dropout_modules": ["MultiheadAttention"]}
    for need_weights in (False, True):
        module.train()
        assert (module(x, x, x, need_weights=need_weights)[0] - plain).abs().max() > 0.01
        module.eval()
        module.dropout_module.make_generation_fast_("self_attn", **retain)
        assert (module(x, x, x, need_weights=need_weights)[0] - plain).abs().max() > 0.01
        module.dropout_module.apply_during_inference = False


@over_variants
def test_fused_equals_explicit_weights(kind: str) -> None:
    module = build(kind)
    x = torch.randn(6, 3, DIM)
    options = {"key_padding_mask": padding(6, 4, 5), "attn_mask": causal(6)}
    fused, nothing = module(x, x, x, **options)
    explicit, weights = module(x, x, x, need_weights=True, need_head_weights=True, **options)
    assert nothing is None
    torch.testing.assert_close(fused, explicit, atol=1e-5, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(HEADS, 3, 6))


@pytest.mark.parametrize("self_attention", [True, False], ids=["self", "cross"])
def test_l2_ignores_the_length_of_queries_and_keys_but_not_of_values(self_attention: bool) -> None:
    module = build("l2", self_attention)
    x, y = torch.randn(6, 3, DIM), torch.randn(5, 3, DIM)
    key = x if self_attention else y
    before, _ = module(x, key, key)

    def scaled(*names: str) -> Tensor:
        other = build("l2", self_attention)
        with torch.no_grad():
            for name in names:
                getattr(other, name).weight.mul_(7)
                getattr(other, name).bias.mul_(7)
        return other(x, key, key)[0]

    torch.testing.assert_close(scaled("q_proj", "k_proj"), before, atol=1e-5, rtol=0)
    assert (scaled("v_proj") - before).abs().max() > 0.1


def test_l2_logits_are_g_times_the_cosine() -> None:
    norm = QKNorm("l2", 8, g_init=12.3)
    q, k = torch.randn(1, 1, 5, 8), torch.randn(1, 1, 6, 8)
    cosine = torch.cosine_similarity(q[0, 0, :, None], k[0, 0, None], dim=-1)
    torch.testing.assert_close((norm.query(q) @ norm.key(k).mT)[0, 0], norm.g * cosine)
    assert torch.equal(norm.key(torch.zeros(1, 1, 1, 8)), torch.zeros(1, 1, 1, 8))


@over_variants
def test_permuting_the_batch_permutes_the_output(kind: str) -> None:
    module = build(kind)
    x, pad, order = torch.randn(6, 3, DIM), padding(6, 4, 5, side="left"), torch.tensor([2, 0, 1])
    output, _ = module(x, x, x, key_padding_mask=pad)
    y = x[:, order]
    permuted, _ = module(y, y, y, key_padding_mask=pad[order])
    torch.testing.assert_close(permuted, output[:, order], atol=1e-6, rtol=0)


@over_variants
@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "weights"])
def test_a_row_of_padding_alone_harms_no_other(kind: str, need_weights: bool) -> None:
    module = build(kind)
    x = torch.randn(6, 3, DIM)
    pad = padding(6, 4, 5)
    pad[1] = True
    x = x.requires_grad_()
    output, _ = module(x, x, x, key_padding_mask=pad, need_weights=need_weights)
    assert torch.isfinite(output).all()
    others = [0, 2]
    y = x.detach()[:, others]
    expected, _ = module(y, y, y, key_padding_mask=pad[others])
    torch.testing.assert_close(output[:, others], expected, atol=1e-6, rtol=0)
    output.sum().backward()
    assert torch.isfinite(x.grad).all()
    for parameter in module.parameters():
        assert torch.isfinite(parameter.grad).all()


@over_variants
@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "weights"])
def test_the_causal_sign_equals_a_causal_mask(kind: str, need_weights: bool) -> None:
    """An empty mask: causal, and padding at the end of rows needs no mask of its own."""
    module = build(kind)
    x, pad = torch.randn(6, 3, DIM), padding(6, 4, 5)
    options = {"need_weights": need_weights, "need_head_weights": need_weights}
    masked, weights = module(x, x, x, pad, attn_mask=causal(6), **options)
    signed, others = module(x, x, x, pad, attn_mask=torch.empty(CAUSAL), **options)
    real = ~pad.T
    torch.testing.assert_close(signed[real], masked[real], atol=1e-6, rtol=0)
    if need_weights:
        rows = real.T[None].expand(HEADS, -1, -1)
        torch.testing.assert_close(others[rows], weights[rows], atol=1e-6, rtol=0)


def test_no_bias_in_the_projections() -> None:
    module = MultiheadAttention(DIM, HEADS, QKNorm("none", 8), self_attention=True, qkv_bias=False)
    names = {name for name, _ in module.named_parameters()}
    assert names == {f"{p}_proj.weight" for p in "qkv"} | {"out_proj.weight", "out_proj.bias"}
    x = torch.randn(6, 3, DIM)
    output, _ = module(x, x, x)
    weights = torch.softmax(head(module.q_proj(x)) @ head(module.k_proj(x)).mT / 8**0.5, dim=-1)
    expected = (weights @ head(module.v_proj(x))).permute(2, 0, 1, 3).flatten(2)
    torch.testing.assert_close(output, module.out_proj(expected), atol=1e-5, rtol=0)


def head(x: Tensor) -> Tensor:
    """``(time, batch, embed_dim)`` to ``(batch, heads, time, head_dim)``."""
    return x.unflatten(-1, (HEADS, -1)).permute(1, 2, 0, 3)


def test_dropout_from_bytes() -> None:
    """The right share, the right mean, seeds; and the attention that uses it."""
    torch.manual_seed(0)
    x = torch.ones(1_000_003)
    for p in (0.1, 0.15, 0.4):
        mask = byte_mask(x, p)
        rounded = round(256 * p) / 256
        assert (mask == 0).float().mean().item() == pytest.approx(rounded, abs=2e-3)
        assert mask.max().item() == pytest.approx(1 / (1 - rounded))
        assert mask.mean().item() == pytest.approx(1, abs=4e-3)  # five deviations
    neighbours = (mask[1:] == 0) & (mask[:-1] == 0)
    assert neighbours.float().mean().item() == pytest.approx(rounded**2, abs=2e-3)
    for seed, same in ((5, True), (6, False)):
        torch.manual_seed(5)
        first = byte_mask(x[:100].view(4, 25), 0.4)
        torch.manual_seed(seed)
        assert torch.equal(first, byte_mask(x[:100].view(4, 25), 0.4)) is same
    assert byte_mask(x[:8].half(), 0.5).dtype == torch.float16
    module = build("l2").train()
    module.dropout_module = Dropout(0.5, "attention", "bytes")
    y = torch.randn(6, 3, DIM, requires_grad=True)
    module(y, y, y)[0].sum().backward()
    assert torch.isfinite(y.grad).all()
    assert not torch.equal(module(y, y, y)[0], module(y, y, y)[0])
    assert torch.equal(module.eval()(y, y, y)[0], module(y, y, y)[0])


def test_scripting_and_tracing_are_refused() -> None:
    x = torch.randn(6, 3, DIM)
    with pytest.raises(NotImplementedError, match=r"torch.jit .* is not supported.*compile"):
        torch.jit.script(build("l2"))
    with pytest.raises(NotImplementedError, match=r"torch.jit .* is not supported.*compile"):
        torch.jit.trace(build("l2"), (x, x, x))


@over_variants
@pytest.mark.parametrize("mask", ["causal", "padded", "cross"])
def test_nothing_of_time_times_time_is_kept_for_the_backward_pass(kind: str, mask: str) -> None:
    """Where torch has a fused kernel, which on a CPU it has without dropout."""
    time = 40  # no size of a parameter
    module = build(kind, self_attention=mask != "cross").train()
    x, y = torch.randn(time, 2, DIM, requires_grad=True), torch.randn(time, 2, DIM)
    kept: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    options = {"attn_mask": torch.empty(CAUSAL)} if mask == "causal" else {}
    pad = None if mask == "causal" else padding(time, time - 3)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x, y, y, pad, **options)
    assert kept
    assert not [shape for shape in kept if shape[-2:] == (time, time)]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x, y, y, pad, need_weights=True, **options)
    assert [shape for shape in kept if shape[-2:] == (time, time)]  # the test can fail
