"""What is observed of attention, and the figures made of it: closed forms, and fairseq's own."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.modules import MultiheadAttention as StockAttention
from torch import Tensor

from qknorm_mt import probes
from qknorm_mt.measures import HeadFigures, figures_of, quantile
from qknorm_mt.observe import Seen, Tokens, attention_weights, observed, places, tokens_of

from .conftest import MODELS, build_qknorm, build_stock, make_batch

PAD = 1


def sample_of(pad_left: bool) -> dict[str, Any]:
    batch = make_batch(pad_left)
    target = torch.roll(batch["prev_output_tokens"], -1, dims=1)
    target[target == PAD] = 2
    target[batch["prev_output_tokens"] == PAD] = PAD
    return {"net_input": batch, "target": target, "ntokens": 16}


def observe(model: Any, sample: dict[str, Any]) -> tuple[dict[str, Seen], Tokens]:
    found: dict[str, Seen] = {}
    tokens = tokens_of(sample, model)
    with torch.no_grad(), observed(model.eval(), tokens, lambda p, s: found.update({p.name: s})):
        model(**sample["net_input"])
    return found, tokens


@pytest.mark.parametrize("pad_left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("name", [*MODELS])
def test_weights_are_those_the_model_used(name: str, pad_left: bool, task: Any) -> None:
    model, sample = build_qknorm(task, name).eval(), sample_of(pad_left)
    seen, tokens = observe(model, sample)
    for place in places(model):
        own: dict[str, Tensor] = {}

        def ask(module: Any, args: Any, kwargs: Any) -> Any:
            return args, {**kwargs, "need_weights": True, "need_head_weights": True}

        def keep(module: Any, args: Any, output: Any, own: dict = own) -> None:
            own["weights"] = output[1].transpose(0, 1)

        hooks = [
            place.module.register_forward_pre_hook(ask, with_kwargs=True),
            place.module.register_forward_hook(keep),
        ]
        with torch.no_grad():
            model(**sample["net_input"])
        for hook in hooks:
            hook.remove()
        real = tokens.queries(place.kind)[1]
        ours = attention_weights(seen[place.name].logits, seen[place.name].visible)
        torch.testing.assert_close(
            ours.transpose(1, 2)[real], own["weights"].transpose(1, 2)[real], atol=1e-5, rtol=1e-5
        )


def test_stock_fairseq_is_observed_as_none(task: Any) -> None:
    """The same weights: the same queries, keys and logits."""
    stock, ours, sample = build_stock(task), build_qknorm(task, "none"), sample_of(True)
    ours.load_state_dict(stock.state_dict())
    assert isinstance(places(stock)[0].module, StockAttention)
    (theirs, _), (mine, _) = observe(stock, sample), observe(ours, sample)
    assert theirs.keys() == mine.keys() and len(mine) == 6
    for name, seen in mine.items():
        real = seen.visible.expand_as(seen.logits)
        torch.testing.assert_close(theirs[name].logits[real], seen.logits[real])
        assert torch.equal(theirs[name].visible, seen.visible)


@pytest.mark.parametrize("name", ["none", "l2", "qwen3", "rope-first"])
def test_a_padded_batch_is_its_sentences_alone(name: str, task: Any) -> None:
    """Padding never counts: figures of three sentences at once, and gathered one by one."""
    model = build_qknorm(task, name).eval()
    sample = sample_of(True)
    seen, tokens = observe(model, sample)
    alone = {name: HeadFigures(int(s.visible.sum())) for name, s in seen.items()}
    for i in range(3):
        lengths = tokens.source_real[i].sum(), tokens.target_real[i].sum()
        one = {
            "src_tokens": sample["net_input"]["src_tokens"][i : i + 1, -lengths[0] :],
            "src_lengths": lengths[0][None],
            "prev_output_tokens": sample["net_input"]["prev_output_tokens"][i : i + 1][
                :, : lengths[1]
            ],
        }
        found, own = observe(model, {"net_input": one})
        for place in places(model):
            s = found[place.name]
            real = own.queries(place.kind)[1], own.keys(place.kind)[1]
            alone[place.name].add(s, attention_weights(s.logits, s.visible), *real)
    for place in places(model):
        real = tokens.queries(place.kind)[1], tokens.keys(place.kind)[1]
        together = figures_of(seen[place.name], *real)
        for figure, values in alone[place.name].result().items():
            assert together[figure] == pytest.approx(values, abs=1e-4), (place.name, figure)


def hand_made(logits: list[list[float]], causal: bool = False) -> Seen:
    """One head of one sentence whose logits are as given: queries are rows, keys the unit axes."""
    rows = torch.tensor(logits)[None, None]
    k = torch.eye(rows.size(-1))[None, None]
    visible = torch.ones(1, 1, *rows.shape[-2:], dtype=torch.bool)
    return Seen(rows, k, rows, k, torch.ones(1), visible.tril() if causal else visible)


def figures(seen: Seen) -> dict[str, float]:
    queries, keys = seen.q.size(2), seen.k.size(2)
    real = (torch.ones(1, n, dtype=torch.bool) for n in (queries, keys))
    return {name: values[0] for name, values in figures_of(seen, *real).items()}


def test_uniform_attention() -> None:
    found = figures(hand_made([[2.0] * 8] * 3))
    assert found["entropy"] == pytest.approx(math.log(8))
    assert found["entropy_share"] == pytest.approx(1)
    assert (found["saturated"], found["logit_max"]) == (0, 2)
    assert found["q_norm"] == pytest.approx(2 * math.sqrt(8)) and found["k_norm"] == 1


def test_one_hot_attention() -> None:
    found = figures(hand_made([[100.0, 0, 0], [0, 100, 0]]))
    assert found["entropy"] == pytest.approx(0, abs=1e-6)
    assert (found["saturated"], found["logit_max"], found["q_norm_p95"]) == (1, 100, 100)


def test_a_softmax_known_in_closed_form() -> None:
    """Weights 1/2, 1/4, 1/4: an entropy of 3/2 bits; and 0.995, of the saturated."""
    found = figures(hand_made([[math.log(2), 0, 0], [math.log(398), 0, 0]]))
    sharp = -(0.995 * math.log(0.995) + 0.005 * math.log(0.0025))
    assert found["entropy"] == pytest.approx((1.5 * math.log(2) + sharp) / 2, rel=1e-5)
    assert found["saturated"] == 0.5
    assert found["entropy_share"] == pytest.approx(found["entropy"] / math.log(3), rel=1e-5)


def test_a_causal_row_counts_what_it_sees() -> None:
    found = figures(hand_made([[0.0, 9, 9, 9], [0, 0, 9, 9], [0, 0, 0, 9], [0, 0, 0, 0]], True))
    assert found["entropy"] == pytest.approx(sum(math.log(n) for n in (2, 3, 4)) / 3)
    assert (found["entropy_share"], found["logit_max"]) == (pytest.approx(1), 0)


def test_quantiles_are_numpys() -> None:
    x = torch.randn(3, 1001, generator=torch.Generator().manual_seed(0))
    for q in (0.0, 0.5, 0.95, 0.9991, 1.0):
        torch.testing.assert_close(
            quantile(x, q), torch.tensor(np.quantile(x.numpy(), q, axis=1)).float()
        )


def test_with_l2_lengths_are_1_and_logits_within_g(task: Any) -> None:
    model = build_qknorm(task, "l2", g_init="3.5")
    seen, tokens = observe(model, sample_of(True))
    for place in places(model):
        found = figures_of(
            seen[place.name], tokens.queries(place.kind)[1], tokens.keys(place.kind)[1]
        )
        for name in ("q_norm", "k_norm", "q_norm_p95", "k_norm_p95"):
            assert found[name] == pytest.approx([1.0] * 4)
        assert max(found["logit_max"]) <= 3.5 + 1e-5
        assert min(found["q_raw_norm"]) > 1.01 or max(found["q_raw_norm"]) < 0.99


def test_gradients_and_loss_are_autograds(task: Any) -> None:
    model, sample = build_qknorm(task, "l2", dropout=0.3).train(), sample_of(True)
    tokens = tokens_of(sample, model)
    state = torch.random.get_rng_state()
    found = probes.probed(model, sample, tokens)
    assert model.training and torch.equal(state, torch.random.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    logits = model(**sample["net_input"])[0]
    real = sample["target"] != PAD
    loss = torch.nn.functional.cross_entropy(logits[real], sample["target"][real])
    loss.backward()
    assert found["model"]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    whole = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert found["model"]["grad_norm"] == pytest.approx(whole.norm().item(), rel=1e-5)
    attention = model.decoder.layers[1].encoder_attn
    figures = found["modules"]["decoder.layers.1.encoder_attn"]
    third = attention.k_proj.weight.grad[16:24]  # heads of 8 rows
    assert figures["k_grad"][2] == pytest.approx(third.norm().item(), rel=1e-4)
    assert figures["g_grad"] == pytest.approx([attention.qk_norm.g.grad.abs().item()], rel=1e-4)
    assert figures["g"] == pytest.approx(attention.qk_norm.g.tolist())
    largest = np.linalg.norm(attention.q_proj.weight.detach().numpy(), ord=2)
    assert figures["q_spectral"] == pytest.approx(largest, rel=1e-5)


def test_what_the_decoder_reads_is_what_counts(task: Any) -> None:
    """With start_symbol=bos the decoder reads <s> where fairseq's batch has </s>."""
    sample = sample_of(True)
    for symbol, token in (("eos", 2), ("bos", 0)):
        tokens = tokens_of(sample, build_qknorm(task, "none", start_symbol=symbol))
        assert tokens.target[:, 0].tolist() == [token] * 3
        assert (tokens.target[:, 1:] == sample["net_input"]["prev_output_tokens"][:, 1:]).all()
    assert tokens_of(sample, build_stock(task)).target[0, 0] == 2


def test_layers_that_training_drops_are_probed(task: Any) -> None:
    model, sample = build_stock(task, encoder_layerdrop=0.9).train(), sample_of(True)
    found = probes.probed(model, sample, tokens_of(sample, model))
    assert len(found["modules"]) == 6
    assert all("q_grad" in figures for figures in found["modules"].values())


@pytest.mark.parametrize(
    ("options", "model", "said"),
    [
        ({"probe_every": -1}, {}, r"probe_every=-1 .* legal is at least 0"),
        ({"probe_every": 5, "probe_sentences": 0}, {}, r"probe_sentences=0 .* at least 1"),
        ({"probe_every": 5}, {"checkpoint_activations": True}, r"False with probe_every"),
    ],
)
def test_what_does_not_go_with_probes_is_refused(options: dict, model: dict, said: str) -> None:
    class Task(probes.Probed):
        cfg = SimpleNamespace(**{"probe_sentences": 16, **options})

    with pytest.raises(ValueError, match=said):
        Task().build_model(SimpleNamespace(**model))


def test_update_ratio() -> None:
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(3)
        model.bias.fill_(4)
        before = [p.clone() for p in model.parameters()]
        model.bias += 1
    assert probes.update_ratio(before, model) == pytest.approx(0.2)


def test_hooks_are_gone_afterwards(task: Any) -> None:
    model = build_qknorm(task, "none")
    observe(model, sample_of(False))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_file_cut_short_is_read(tmp_path: Any) -> None:
    path = tmp_path / "probes.jsonl"
    path.write_text('{"batch": {"subset": "valid"}}\n{"updates": 0}\n{"updates": 1')
    assert probes.read_probes(path) == ({"subset": "valid"}, [{"updates": 0}])


def test_probes_after_the_checkpoint_are_taken_back(tmp_path: Any) -> None:
    path, batch = tmp_path / "probes.jsonl", {"sentences": [0, 3]}
    probes.write_lines(path, [{"batch": batch}, *({"updates": n} for n in (0, 5, 10, 15))])
    assert probes.earlier(path, batch, 10) == [{"updates": n} for n in (0, 5, 10)]
    assert probes.earlier(path, batch, 0) == []
    with pytest.raises(ValueError, match=r"probes\.jsonl has probes of another batch of dev"):
        probes.earlier(path, {"sentences": [0]}, 10)
