"""The whole model: against stock fairseq, and decoding against the full forward."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator

from qknorm_mt.attention import MultiheadAttention
from qknorm_mt.config import QKNormTransformerConfig, changed_options
from qknorm_mt.criterion import LabelSmoothedAllowedCriterion
from qknorm_mt.qk_norm import QKNorm
from qknorm_mt.rope import RotaryEmbedding

from .conftest import MODELS, build_qknorm, build_stock, make_batch

over_models = pytest.mark.parametrize("kind", MODELS)


def gs(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {n: p for n, p in model.named_parameters() if n.endswith("qk_norm.g")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("pad_left", [True, False], ids=["left", "right"])
def test_none_equals_stock_outputs_and_gradients(
    task: SimpleNamespace, pad_left: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    # Stock cross-attention takes its softmax in float32 even of float64 logits, which alone is
    # 1e-7 off: let stock keep the dtype, so that the rest can be compared to 1e-10.
    monkeypatch.setattr("fairseq.utils.softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))
    stock = build_stock(task).to(dtype)
    ours = build_qknorm(task, "none", seed=2).to(dtype)
    ours.load_state_dict(stock.state_dict())  # a stock checkpoint loads as it is
    batch = make_batch(pad_left)
    results = []
    for model in (stock, ours):
        logits, _ = model(**batch)
        real = batch["prev_output_tokens"] != 1
        logits[real].log_softmax(-1)[:, 5].sum().backward()
        gradients = {n: p.grad for n, p in model.named_parameters()}
        attention = model.eval()(**batch)[1]["attn"][0]  # in training ours makes none
        results.append((logits[real], attention[real], gradients))
    torch.testing.assert_close(results[1], results[0], atol=tolerance, rtol=tolerance)


def test_same_seed_gives_the_weights_stock_gives(task: SimpleNamespace) -> None:
    stock, ours = build_stock(task, seed=5), build_qknorm(task, "l2", seed=5)
    shared = dict(ours.state_dict())
    for name in ("vocabulary", *gs(ours)):
        del shared[name]
    torch.testing.assert_close(shared, dict(stock.state_dict()), atol=0, rtol=0)


@pytest.mark.parametrize("pad_left", [True, False], ids=["left", "right"])
@over_models
def test_step_by_step_equals_full(task: SimpleNamespace, kind: str, pad_left: bool) -> None:
    model = build_qknorm(task, kind).eval()
    batch = make_batch(pad_left)
    encoder_out = model.encoder(batch["src_tokens"], batch["src_lengths"])
    prev = batch["prev_output_tokens"]
    full, _ = model.decoder(prev, encoder_out)
    state: dict = {}
    steps = [
        model.decoder(prev[:, : t + 1], encoder_out, incremental_state=state)[0]
        for t in range(prev.size(1))
    ]
    real = prev != 1
    torch.testing.assert_close(torch.cat(steps, 1)[real], full[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize("pad_left", [True, False], ids=["left", "right"])
@over_models
def test_batch_equals_single(task: SimpleNamespace, kind: str, pad_left: bool) -> None:
    model = build_qknorm(task, kind).eval()
    batch = make_batch(pad_left)
    together, _ = model(**batch)
    for i in range(3):
        src, prev = batch["src_tokens"][i], batch["prev_output_tokens"][i]
        src, prev = src[src != 1][None], prev[prev != 1][None]
        alone, _ = model(src, torch.tensor([src.size(1)]), prev)
        torch.testing.assert_close(together[i, : prev.size(1)], alone[0], atol=1e-5, rtol=0)


@over_models
def test_beam_search_equals_single_sentences_and_full_scores(
    task: SimpleNamespace, kind: str
) -> None:
    """fairseq's generator (it reorders, drops finished sentences and sets the beam size)."""
    model = build_qknorm(task, kind).eval()
    with torch.no_grad():  # an untrained model repeats one word: sharpen it so that beams differ
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=4, max_len_b=12)
    batch = make_batch(pad_left=True)
    sample = {"net_input": {k: batch[k] for k in ("src_tokens", "src_lengths")}}
    together = generator.generate([model], sample)
    for module in model.modules():  # the generator leaves its beam size behind
        if hasattr(module, "set_beam_size"):
            module.set_beam_size(1)
    for i, hypotheses in enumerate(together):
        src = batch["src_tokens"][i]
        src = src[src != 1][None]
        one = SequenceGenerator([model], task.target_dictionary, beam_size=4, max_len_b=12)
        alone = one.generate(
            [model], {"net_input": {"src_tokens": src, "src_lengths": torch.tensor([src.size(1)])}}
        )[0]
        for got, expected in zip(hypotheses, alone, strict=True):
            assert got["tokens"].tolist() == expected["tokens"].tolist()
            torch.testing.assert_close(got["score"], expected["score"], atol=1e-5, rtol=0)
        best = hypotheses[0]["tokens"]
        prev = torch.cat([torch.tensor([2]), best[:-1]])[None]
        logits, _ = model(src, torch.tensor([src.size(1)]), prev)
        scores = logits.log_softmax(-1)[0].gather(1, best[:, None])[:, 0]
        torch.testing.assert_close(hypotheses[0]["positional_scores"], scores, atol=1e-5, rtol=0)


def test_every_g_gets_a_gradient_and_acts(task: SimpleNamespace) -> None:
    """Two encoder layers have one g each, two decoder layers two each; all count."""
    model = build_qknorm(task, "l2")
    batch = make_batch(pad_left=True)
    real = batch["prev_output_tokens"] != 1
    before = model(**batch)[0][real]
    before.log_softmax(-1)[:, 5].sum().backward()
    parameters = gs(model)
    assert len(parameters) == 6
    assert {n.split(".")[3] for n in parameters} == {"self_attn", "encoder_attn"}
    for name, g in parameters.items():
        assert g.item() == pytest.approx(12.3197, abs=5e-5)
        assert g.grad.abs().item() > 0, name
        with torch.no_grad():
            g.add_(5)
            changed = (model(**batch)[0][real] - before).abs().max().item()
            g.sub_(5)
        assert changed > 1e-4, name


def test_scaling_projections_of_the_whole_model(task: SimpleNamespace) -> None:
    model = build_qknorm(task, "l2")
    batch = make_batch(pad_left=True)
    real = batch["prev_output_tokens"] != 1

    def scale(*names: str) -> torch.Tensor:
        other = build_qknorm(task, "l2")
        with torch.no_grad():
            for name, parameter in other.named_parameters():
                if any(n in name for n in names):
                    parameter.mul_(7)
        return other(**batch)[0][real]

    before = model(**batch)[0][real]
    torch.testing.assert_close(scale("q_proj", "k_proj"), before, atol=1e-4, rtol=0)
    assert (scale("v_proj") - before).abs().max() > 1e-2


@over_models
@pytest.mark.parametrize("cpu_dropout", ["torch", "bytes"])
def test_activation_checkpointing_changes_nothing(
    task: SimpleNamespace, kind: str, cpu_dropout: str
) -> None:
    results = []
    dropout = {"dropout": 0.3, "attention_dropout": 0.3, "cpu_dropout": cpu_dropout}
    for checkpointing in (False, True):
        model = build_qknorm(task, kind, checkpoint_activations=checkpointing, **dropout)
        logits, _ = model(**make_batch(True))
        logits.square().mean().backward()
        gradients = [p.grad for p in model.parameters()]
        results.append((logits, gradients))
    torch.testing.assert_close(results[0], results[1])


def test_post_norm_equals_stock(task: SimpleNamespace) -> None:
    import argparse

    from fairseq.models.transformer import TransformerConfig, TransformerModelBase

    from .conftest import SIZES

    cfg = TransformerConfig.from_namespace(
        argparse.Namespace(**SIZES, share_all_embeddings=True, dropout=0.0)
    )
    cfg.decoder.input_dim = cfg.decoder.output_dim = 32
    stock = TransformerModelBase.build_model(cfg, task)
    ours = build_qknorm(task, "none", norm_position="post")
    ours.load_state_dict(stock.state_dict())
    batch = make_batch(True)
    real = batch["prev_output_tokens"] != 1
    torch.testing.assert_close(ours(**batch)[0][real], stock(**batch)[0][real])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qk_norm": "l3"}, "qk_norm='l3' is not allowed: legal is one of none, l2"),
        ({"qk_norm": "l2", "qk_norm_init_length": None}, "qk_norm_init_length=None .*at least 2"),
        ({"qk_norm": "l2", "qk_norm_init_length": 1.0}, "qk_norm_init_length=1.0 .*at least 2"),
        ({"qk_norm": "none", "qk_norm_init_length": 72.0}, "no value when qk_norm=none"),
        ({"qk_norm_affine": "gain"}, "qk_norm_affine='gain' .*legal is none when qk_norm=none"),
        (
            {"qk_norm": "rmsnorm", "qk_norm_affine": "gain_bias"},
            "none or gain when qk_norm=rms",
        ),
        ({"qk_temperature": "hot"}, "qk_temperature='hot' .*auto, learned, fixed, none"),
        ({"qk_norm": "l2", "qk_temperature": "fixed"}, "learned when qk_norm=l2: cosines alone"),
        ({"qk_norm": "l2", "qk_temperature": "none"}, "learned when qk_norm=l2: .*almost uniform"),
        ({"allow_flat_attention": True}, "allow_flat_attention=True .*false unless qk_norm=l2"),
        ({"g_per_head": True}, "g_per_head=True .*has no learned g"),
        ({"g_init": "10"}, "g_init='10' .*has no learned g"),
        ({"qk_temperature": "learned"}, "qk_norm_init_length=None .*g_init is not given"),
        ({"qk_norm": "l2", "g_init": "0"}, "g_init='0' .*a number over 0, or sqrt_head_dim"),
        (
            {"qk_norm": "l2", "g_init": "9", "qk_norm_init_length": 72.0},
            "g_init='9' .*no value beside qk_norm_init_length",
        ),
        ({"rope": "sideways"}, "rope='sideways' .*off, after_norm, before_norm"),
        ({"rope": "after_norm"}, "positions=.*legal is none when rope=after_norm"),
        ({"rope": "after_norm", "positions": "none", "rope_base": 1.0}, "rope_base=1.0 .*over 1"),
        (
            {"rope": "after_norm", "positions": "none", "encoder_attention_heads": 32},
            "encoder_attention_heads=32 .*even size when rope=after_norm",
        ),
        ({"rope_base": 500.0}, "rope_base=500.0 .*10000, its default, when rope=off"),
        ({"cpu_dropout": "bytes", "dropout": 0.999}, "dropout=0.999 .*255/256"),
        ({"cpu_dropout": "bytes", "dropout": 0.001}, "dropout=0.001 .*from 1/256"),
        ({"cpu_dropout": "bits"}, "cpu_dropout='bits' .*torch, bytes"),
        ({"norm_position": "mid"}, "norm_position='mid' .*pre, post"),
        ({"decoder_embed_dim": 64}, "decoder_embed_dim=64 .*encoder_embed_dim, 32"),
        ({"encoder_attention_heads": 5}, "encoder_attention_heads=5 .*divisor of .*32"),
        ({"decoder_layers": 0}, "decoder_layers=0 .*at least 1"),
        ({"dropout": 1.0}, "dropout=1.0 .*at least 0 and under 1"),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_illegal_options_are_refused(task: SimpleNamespace, options: dict, message: str) -> None:
    options = {"qk_norm": "none", **options}
    with pytest.raises(ValueError, match=message):
        build_qknorm(task, **options)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="qk_nrom"):
        QKNormTransformerConfig(qk_nrom="l2")


def test_checkpoints_that_do_not_fit_say_why(task: SimpleNamespace) -> None:
    model = build_qknorm(task, "l2")
    with pytest.raises(ValueError, match=r"qk_norm.g but the checkpoint has not: .*qk_norm"):
        model.load_state_dict(build_stock(task).state_dict())
    with pytest.raises(ValueError, match=r"qk_norm.g but the model has not: .*qk_norm"):
        build_qknorm(task, "none").load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match=r"g is \(4,\), here \(1,\): their qk_norm options differ"):
        model.load_state_dict(build_qknorm(task, "l2", g_per_head=True).state_dict())
    deeper = build_qknorm(task, "l2", encoder_layers=3)
    with pytest.raises(ValueError, match=r"only the checkpoint has encoder.layers.2.*another"):
        model.load_state_dict(deeper.state_dict())
    wider = build_qknorm(task, "l2", encoder_ffn_embed_dim=96)
    with pytest.raises(ValueError, match=r"other sizes \(encoder.layers.0.fc1.weight is \(96, 32"):
        model.load_state_dict(wider.state_dict())
    other = Dictionary()  # of equal size
    for i in range(36):
        other.add_symbol(f"v{i}")
    task = SimpleNamespace(source_dictionary=other, target_dictionary=other)
    with pytest.raises(ValueError, match="trained with another vocabulary"):
        model.load_state_dict(build_qknorm(task, "l2").state_dict())


def test_flat_attention_passes_where_it_is_allowed(task: SimpleNamespace) -> None:
    options = {"allow_flat_attention": True, "qk_norm_init_length": None}
    for temperature in ("fixed", "none"):
        model = build_qknorm(task, "l2", qk_temperature=temperature, **options)
        assert not gs(model)
        weights = model.eval()(**make_batch(False))[1]["attn"][0]
        real = weights[weights > 0]
        assert real.max() / real.min() < math.e**2  # logits within 1 of 0


def test_rope_is_in_self_attention_alone(task: SimpleNamespace) -> None:
    model = build_qknorm(task, "qwen3")
    names = [n for n, m in model.named_modules() if isinstance(m, RotaryEmbedding)]
    assert len(names) == 4 and all(n.endswith("self_attn.qk_norm.rope") for n in names)
    assert model.encoder.embed_positions is None and model.decoder.embed_positions is None
    batch = make_batch(False)
    swapped = batch["src_tokens"].clone()
    swapped[:, :2] = swapped[:, [1, 0]]
    real = batch["prev_output_tokens"] != 1
    plain = model(**batch)[0][real]
    assert (model(**{**batch, "src_tokens": swapped})[0][real] - plain).abs().max() > 1e-3
    blind = build_qknorm(task, "qwen3", rope="off")
    logits = [blind(**{**batch, "src_tokens": s})[0][real] for s in (batch["src_tokens"], swapped)]
    torch.testing.assert_close(*logits, atol=1e-5, rtol=0)


def test_options_reach_every_attention(task: SimpleNamespace) -> None:
    norms = [m for m in build_qknorm(task, "rope-first").modules() if isinstance(m, QKNorm)]
    assert len(norms) == 6 and all(m.rotate_first for m in norms)
    for norm in norms:
        torch.testing.assert_close(norm.g.data, torch.full((4,), 8**0.5))
    assert not any(getattr(m, "rotate_first", False) for m in build_qknorm(task, "qwen3").modules())


@over_models
def test_packed_output_is_the_logits_of_real_tokens(task: SimpleNamespace, kind: str) -> None:
    """Same loss and gradients through fairseq's criterion and ours; no packing in evaluation."""
    batch = make_batch(True)
    target = torch.cat([batch["prev_output_tokens"][:, 1:], torch.full((3, 1), 1)], dim=1)
    last = (batch["prev_output_tokens"] != 1).sum(1) - 1
    target[torch.arange(3), last] = 2
    sample = {"net_input": batch, "target": target, "ntokens": int((target != 1).sum())}
    fake = SimpleNamespace(target_dictionary=task.target_dictionary)
    for criterion in (
        LabelSmoothedCrossEntropyCriterion(fake, True, 0.1, report_accuracy=True),
        LabelSmoothedAllowedCriterion(fake, True, 0.1),
    ):
        results = []
        for pack in (False, True):
            model = build_qknorm(task, kind, pack_output=pack)
            assert model(**batch)[0].dim() == (2 if pack else 3)
            loss, _, log = criterion(model, sample)
            loss.backward()
            numbers = {n: torch.as_tensor(v) for n, v in log.items()}
            results.append((loss, numbers, [p.grad for p in model.parameters()]))
            assert model.eval()(**batch)[0].dim() == 3
        torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-4)


@over_models
def test_no_weights_in_training_unless_a_layer_is_named(task: SimpleNamespace, kind: str) -> None:
    model, batch = build_qknorm(task, kind), make_batch(False)
    made: list[bool] = []
    for module in model.modules():
        if isinstance(module, MultiheadAttention):
            module.register_forward_hook(lambda m, i, output: made.append(output[1] is not None))
    assert model(**batch)[1]["attn"] == [None] and not any(made)
    made.clear()
    weights = model(**batch, alignment_layer=0)[1]["attn"][0]
    assert weights.shape == (3, 8, 7) and sum(made) == 1
    made.clear()
    model.eval()
    assert model(**batch)[1]["attn"][0].shape == (3, 8, 7) and sum(made) == 1  # the last layer's


@pytest.mark.parametrize("pad_left", [False, True], ids=["right", "left"])
def test_the_decoder_makes_a_mask_only_for_padding_on_the_left(
    task: SimpleNamespace, pad_left: bool
) -> None:
    model, batch = build_qknorm(task, "l2"), make_batch(False)
    prev = batch["prev_output_tokens"][[1, 0, 2]]  # the first row has no padding
    if pad_left:
        lengths = (prev != 1).sum(1)
        prev = torch.stack([row.roll(8 - int(n)) for row, n in zip(prev, lengths, strict=True)])
    masks = []
    for layer in model.decoder.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda m, args, kwargs: masks.append(tuple(kwargs["attn_mask"].shape)), with_kwargs=True
        )
    model(**{**batch, "prev_output_tokens": prev})
    assert masks == [(8, 8) if pad_left else (0,)] * 2


@over_models
def test_ensembles_average_probabilities(task: SimpleNamespace, kind: str) -> None:
    """Of models with different normalisers, step by step, each with its own cache."""
    models = [build_qknorm(task, kind).eval(), build_qknorm(task, "l2", seed=3).eval()]
    batch = make_batch(True)
    sample = {"net_input": {k: batch[k] for k in ("src_tokens", "src_lengths")}}
    generator = SequenceGenerator(models, task.target_dictionary, beam_size=3, max_len_b=8)
    for i, hypotheses in enumerate(generator.generate(models, sample)):
        tokens = hypotheses[0]["tokens"]
        prev = torch.cat([torch.tensor([2]), tokens[:-1]])[None]
        src = batch["src_tokens"][i]
        src = src[src != 1][None]
        each = [m(src, torch.tensor([src.size(1)]), prev)[0].softmax(-1)[0] for m in models]
        expected = torch.stack(each).mean(0).log().gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(hypotheses[0]["positional_scores"], expected, atol=1e-5, rtol=0)


def test_the_generators_beam_reaches_cross_attention(task: SimpleNamespace) -> None:
    """Keys of the source are kept once per sentence; sampling, whose rows are alike, works too."""
    model = build_qknorm(task, "l2").eval()
    kept: list[int] = []
    attention = model.decoder.layers[0].encoder_attn
    attention.register_forward_hook(
        lambda m, args, kwargs, output: kept.append(
            m._get_input_buffer(kwargs["incremental_state"])["prev_key"].size(0)
        ),
        with_kwargs=True,
    )
    batch = make_batch(True)
    sample = {"net_input": {k: batch[k] for k in ("src_tokens", "src_lengths")}}
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=4, max_len_b=5)
    generator.generate([model], sample)
    assert set(kept) == {3}


@over_models
def test_averaging_checkpoints(task: SimpleNamespace, kind: str) -> None:
    """As fairseq's script does it: sums, divided; whole numbers by whole division."""
    models = [build_qknorm(task, kind, seed=seed) for seed in (1, 2)]
    for i, model in enumerate(models):
        for name, parameter in model.named_parameters():
            if name.endswith(".g"):
                parameter.data += i
    states = [model.state_dict() for model in models]
    averaged = {
        name: (tensor + states[1][name]) / 2
        if tensor.is_floating_point()
        else (tensor + states[1][name]) // 2
        for name, tensor in states[0].items()
    }
    mean = build_qknorm(task, kind, seed=3)
    mean.load_state_dict(averaged)
    first, second = (dict(m.named_parameters()) for m in models)
    for name, parameter in mean.named_parameters():
        torch.testing.assert_close(parameter, (first[name] + second[name]) / 2)


@over_models
def test_small_init(task: SimpleNamespace, kind: str) -> None:
    model = build_qknorm(task, kind, init="small")
    projection = model.encoder.layers[0].self_attn.q_proj
    assert projection.weight.std().item() == pytest.approx((2 / (5 * 32)) ** 0.5, rel=0.1)
    assert projection.bias is None or not projection.bias.any()


def test_a_checkpoint_too_old_for_an_option_had_its_default() -> None:
    saved = {"qk_norm": "none", "positions": "none"}
    now = QKNormTransformerConfig(
        qk_norm="none", qk_temperature="none", positions="none", rope="before_norm"
    )
    assert (
        changed_options(saved, now)
        == "qk_temperature=auto there, none here, rope=off there, before_norm here"
    )
    assert changed_options({"arch": "transformer"}, now) == ""


def test_scripting_is_refused(task: SimpleNamespace) -> None:
    with pytest.raises(NotImplementedError, match=r"torch.jit .* is not supported"):
        torch.jit.script(build_qknorm(task, "l2"))


@over_models
def test_half_precision_is_near_full(task: SimpleNamespace, kind: str) -> None:
    batch = make_batch(True)
    real = batch["prev_output_tokens"] != 1
    full = build_qknorm(task, kind).eval()(**batch)[0][real]
    for dtype in (torch.float16, torch.bfloat16):
        half = build_qknorm(task, kind).to(dtype).eval()(**batch)[0][real]
        assert half.dtype == dtype
        torch.testing.assert_close(half.float(), full, atol=0.1, rtol=0.1)
