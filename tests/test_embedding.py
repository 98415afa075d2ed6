"""Inputs, norms and initial values of the paper's model, by their identities."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from qknorm_mt.attention import MultiheadAttention
from qknorm_mt.embedding import InputOffset, drop_words, position_table
from qknorm_mt.norm import ScaleNorm

from .conftest import build_qknorm, make_batch

PAD, UNK = 1, 3
PAPER = {
    "fix_norm": True,
    "output_bias": True,
    "language_embedding": True,
    "positions": "sin_sin",
    "start_symbol": "bos",
    "init": "small",
}


@pytest.mark.parametrize("kind", ["sinusoidal", "sin_sin"])
def test_positions_are_interleaved_sinusoids_from_zero(kind: str) -> None:
    table = position_table(kind, 30, 8)
    for position in (0, 1, 29):
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            second = math.cos(angle) if kind == "sinusoidal" else math.sin(angle)
            pair = table[position, 2 * i : 2 * i + 2].tolist()
            assert pair == pytest.approx([math.sin(angle), second], abs=1e-5)


def test_padding_takes_no_position_on_either_side() -> None:
    offset = InputOffset("sinusoidal", 20, 8, PAD, language=True)
    left, right = torch.tensor([[PAD, PAD, 5, 6, 7]]), torch.tensor([[5, 6, 7, PAD, PAD]])
    torch.testing.assert_close(offset(left)[:, 2:], offset(right)[:, :3], rtol=0, atol=0)


def test_positions_none_leaves_the_language_alone(task: SimpleNamespace) -> None:
    offset = InputOffset("none", 20, 8, PAD, language=True)
    assert torch.equal(offset(torch.tensor([[5, 6, 7]])), offset.language.expand(1, 3, 8))
    assert build_qknorm(task, "none", positions="none").encoder.embed_positions is None


@pytest.mark.parametrize("positions", ["sinusoidal", "sin_sin", "none"])
@pytest.mark.parametrize("pad_left", [True, False], ids=["left", "right"])
def test_step_by_step_equals_full_with_targets_padded_on_either_side(
    task: SimpleNamespace, positions: str, pad_left: bool
) -> None:
    model = build_qknorm(task, "l2", **{**PAPER, "positions": positions}).eval()
    batch = make_batch(pad_left)
    prev = batch["prev_output_tokens"]
    if pad_left:
        prev = torch.stack([torch.cat([row[row == PAD], row[row != PAD]]) for row in prev])
    encoded = model.encoder(batch["src_tokens"])
    full, _ = model.decoder(prev, encoded)
    state: dict = {}
    steps = [
        model.decoder(prev[:, : t + 1], encoded, incremental_state=state)[0]
        for t in range(prev.size(1))
    ]
    real = prev != PAD
    torch.testing.assert_close(torch.cat(steps, 1)[real], full[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize("pad_left", [True, False], ids=["left", "right"])
def test_batch_equals_single(task: SimpleNamespace, pad_left: bool) -> None:
    model = build_qknorm(task, "l2", norm="scale", **PAPER).eval()
    batch = make_batch(pad_left)
    together, _ = model(**batch)
    for i in range(3):
        src, prev = batch["src_tokens"][i], batch["prev_output_tokens"][i]
        src, prev = src[src != PAD][None], prev[prev != PAD][None]
        alone, _ = model(src, None, prev)
        torch.testing.assert_close(together[i, : prev.size(1)], alone[0], atol=1e-5, rtol=0)


def test_fix_norm_knows_no_lengths(task: SimpleNamespace) -> None:
    model = build_qknorm(task, "l2", **PAPER).eval()
    batch = make_batch(False)
    before, _ = model(**batch)
    with torch.no_grad():
        model.encoder.embed_tokens.weight *= torch.linspace(0.1, 9, 40)[:, None]
    after, _ = model(**batch)
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)
    assert model.encoder.embed_tokens.weight is model.decoder.output_projection.weight
    lengths = model.encoder.embed_tokens(torch.arange(4, 40)).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(36))


@pytest.mark.parametrize("init", ["fairseq", "small"])
def test_fix_norm_has_finite_gradients_from_the_start(task: SimpleNamespace, init: str) -> None:
    """Padding's logit is not masked here; a vector that starts at 0 would get 1e12."""
    model = build_qknorm(task, "l2", **{**PAPER, "init": init})
    logits, _ = model(**make_batch(True))
    logits.log_softmax(-1)[..., 5].sum().backward()
    assert model.encoder.embed_tokens.weight.grad.abs().max() < 1e4


def test_fix_norm_and_bias_in_the_output(task: SimpleNamespace) -> None:
    projection = build_qknorm(task, "none", fix_norm=True, output_bias=True).decoder
    weight, bias = projection.output_projection.weight, projection.output_projection.bias
    assert torch.equal(bias, torch.zeros(40))
    with torch.no_grad():
        bias += torch.arange(40.0)
    features = torch.randn(2, 3, 32)
    expected = features @ (weight / weight.norm(dim=-1, keepdim=True)).T + torch.arange(40.0)
    torch.testing.assert_close(projection.output_layer(features), expected)


def test_each_side_has_its_own_language(task: SimpleNamespace) -> None:
    model = build_qknorm(task, "none", **PAPER).eval()
    source, target = (m.embed_positions.language for m in (model.encoder, model.decoder))
    assert not torch.equal(source, target)
    batch = make_batch(False)
    embedded, _ = model.encoder.forward_embedding(batch["src_tokens"])
    with torch.no_grad():
        source += 1
    moved, _ = model.encoder.forward_embedding(batch["src_tokens"])
    torch.testing.assert_close(moved - embedded, torch.ones_like(moved))


@pytest.mark.parametrize(("start", "row"), [("bos", 0), ("eos", 2)])
def test_the_decoder_starts_with_its_start_symbol(
    task: SimpleNamespace, start: str, row: int
) -> None:
    model = build_qknorm(task, "none", **{**PAPER, "start_symbol": start}).eval()
    batch = make_batch(False)
    encoded = model.encoder(batch["src_tokens"])
    before, _ = model.decoder(batch["prev_output_tokens"], encoded, features_only=True)
    for other in (0, 2):
        with torch.no_grad():
            model.decoder.embed_tokens.weight[other] = torch.randn(32)
        after, _ = model.decoder(batch["prev_output_tokens"], encoded, features_only=True)
        assert torch.equal(after, before) == (other != row)
        before = after


def test_word_dropout_spares_padding_and_hits_the_rest() -> None:
    torch.manual_seed(1)
    tokens = torch.full((200, 100), 7)
    tokens[:, 90:] = PAD
    dropped = drop_words(tokens, 0.1, PAD, UNK)
    assert torch.equal(dropped[:, 90:], tokens[:, 90:])
    rate = (dropped[:, :90] == UNK).float().mean().item()
    assert rate == pytest.approx(0.1, abs=0.01)
    assert set(dropped.unique().tolist()) == {PAD, UNK, 7}


def test_word_dropout_is_for_training_and_for_both_sides(task: SimpleNamespace) -> None:
    model = build_qknorm(task, "none", word_dropout=0.9)
    seen: dict[str, torch.Tensor] = {}
    for side in (model.encoder, model.decoder):
        name = type(side).__name__
        side.embed_tokens.register_forward_hook(
            lambda m, i, o, name=name: seen.update({name: i[0]})
        )
    batch = make_batch(True)
    # One embedding serves both sides, and its last call is the decoder's.
    model.eval().encoder(batch["src_tokens"])
    assert torch.equal(seen["Encoder"], batch["src_tokens"])
    model(**batch)
    assert torch.equal(seen["Decoder"], batch["prev_output_tokens"])
    model.train().encoder(batch["src_tokens"])
    real = batch["src_tokens"] != PAD
    assert (seen["Encoder"][real] == UNK).float().mean() > 0.5
    assert (seen["Encoder"][~real] == PAD).all()
    model(**batch)
    assert (seen["Decoder"] == UNK).any()


def test_scale_norm_gives_every_vector_one_learned_length() -> None:
    norm = ScaleNorm(16)
    x = torch.randn(5, 16)
    torch.testing.assert_close(norm(x).norm(dim=-1), torch.full((5,), 4.0))
    torch.testing.assert_close(norm(3 * x), norm(x))
    with torch.no_grad():
        norm.scale.fill_(2.5)
    torch.testing.assert_close(norm(x).norm(dim=-1), torch.full((5,), 2.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [0.0, 1e-4, 1e4])
def test_scale_norm_stays_finite(dtype: torch.dtype, size: float) -> None:
    x = (size * torch.ones(2, 64)).to(dtype).requires_grad_()
    y = ScaleNorm(64).to(dtype)(x)
    y.sum().backward()
    assert y.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("position", ["pre", "post"])
def test_scale_norm_stands_wherever_layer_norm_stood(task: SimpleNamespace, position: str) -> None:
    counts = {}
    for norm, kind in (("layer", nn.LayerNorm), ("scale", ScaleNorm)):
        model = build_qknorm(task, "none", norm=norm, norm_position=position)
        counts[norm] = sum(isinstance(m, kind) for m in model.modules())
    # two in each encoder layer, three in each decoder layer, and one each at the end of PreNorm
    assert counts["scale"] == counts["layer"] == 2 * 2 + 2 * 3 + (2 if position == "pre" else 0)


def test_small_init() -> None:
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for i in range(996):
        dictionary.add_symbol(f"w{i}")
    big = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    sizes = {
        f"{s}_{n}": v
        for s in ("encoder", "decoder")
        for n, v in {
            "embed_dim": 256,
            "ffn_embed_dim": 512,
            "attention_heads": 4,
            "layers": 1,
        }.items()
    }
    for fix_norm in (True, False):
        model = build_qknorm(big, "l2", **{**PAPER, **sizes, "fix_norm": fix_norm})
        words = model.encoder.embed_tokens.weight
        if fix_norm:
            assert words.abs().max() <= 0.01 and words.min() < -0.0099
            assert words.std().item() == pytest.approx(0.02 / 12**0.5, rel=0.02)
        else:
            assert words.std().item() == pytest.approx(256**-0.5, rel=0.02)
        for module in model.modules():
            if isinstance(module, MultiheadAttention):
                for linear in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
                    std = linear.weight.std().item()
                    assert std == pytest.approx((2 / (5 * 256)) ** 0.5, rel=0.02)
                    assert not linear.bias.any()
        for layer in (*model.encoder.layers, *model.decoder.layers):
            for linear in (layer.fc1, layer.fc2):
                assert linear.weight.std().item() == pytest.approx((2 / 768) ** 0.5, rel=0.02)
                assert not linear.bias.any()
        language = model.encoder.embed_positions.language.detach()
        assert language.std().item() == pytest.approx(256**-0.5, rel=0.2)


def test_both_arms_start_from_the_same_weights(task: SimpleNamespace) -> None:
    states = [build_qknorm(task, kind, seed=3, **PAPER).state_dict() for kind in ("none", "l2")]
    shared = {n: t for n, t in states[1].items() if not n.endswith("qk_norm.g")}
    torch.testing.assert_close(shared, dict(states[0]), atol=0, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "rms"}, "norm='rms' is not allowed: legal is one of layer, scale"),
        ({"positions": "learned"}, "positions='learned' is not allowed: legal is one of"),
        ({"language_embedding": True}, "language_embedding=True is not allowed: legal is false"),
        ({"word_dropout": 1.0}, "word_dropout=1.0 is not allowed"),
        ({"logit_mask": True}, "logit_mask=True is not allowed: .* translation_qknorm"),
        ({"init": "xavier"}, "init='xavier' is not allowed: legal is one of fairseq, small"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_illegal_options_are_named(task: SimpleNamespace, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_qknorm(task, "none", **options)
