"""The released code's beam search, beside what golden numbers show (test_parity.py)."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.search import Sampling

from qknorm_mt.generator import Beam, PaperBeamSearch, length_penalty

from .conftest import build_qknorm, make_batch

EOS = 2


def generate(models: list, batch: dict, **options: Any) -> list:
    options = {"beam_size": 4, "len_penalty": 0.6, "max_len_a": 1, "max_len_b": 3, **options}
    generator = PaperBeamSearch(models, models[0].decoder.dictionary, **options)
    return generator.generate(models, {"net_input": {"src_tokens": batch["src_tokens"]}})


def sharper(task: SimpleNamespace, kind: str = "l2", seed: int = 1) -> Any:
    """A model whose hypotheses end at different lengths."""
    model = build_qknorm(task, kind, seed=seed, output_bias=True, positions="sinusoidal").eval()
    with torch.no_grad():
        model.decoder.output_projection.weight *= 2
        model.decoder.output_projection.bias[EOS] = 2.0
    return model


def test_length_penalty() -> None:
    assert length_penalty(1, 0.6) == 1
    assert length_penalty(7, 0.6) == pytest.approx(2**0.6)
    assert length_penalty(30, 0.0) == 1


def test_it_finds_the_best_of_all_when_the_beam_holds_them_all() -> None:
    """Every sequence over four types, up to three tokens, scored without the search."""
    dictionary = Dictionary()
    for word in ("a", "b"):
        dictionary.add_symbol(word)
    small = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = sharper(small)
    source = torch.tensor([[4, 5, EOS]])
    hypotheses = generate([model], {"src_tokens": source}, beam_size=5, max_len_a=0, max_len_b=2)[0]
    encoded = model.encoder(source)
    scored = []
    symbols = [s for s in range(6) if s != 1]  # all but padding
    for first, second in itertools.product([s for s in symbols if s != EOS], symbols):
        prev = torch.tensor([[EOS, first]])
        lprobs = model.decoder(prev, encoded)[0].log_softmax(-1)[0]
        total = (lprobs[0, first] + lprobs[1, second]).item()
        scored.append((total / length_penalty(2, 0.6), (first, second)))
    best = sorted(scored, reverse=True)[:5]
    for hypothesis, (score, tokens) in zip(hypotheses, best, strict=True):
        assert hypothesis["tokens"].tolist() == list(tokens)
        assert hypothesis["score"].item() == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("kind", ["none", "l2"])
@pytest.mark.parametrize("pad_left", [True, False], ids=["left", "right"])
def test_batch_equals_single_and_scores_are_the_models(
    task: SimpleNamespace, kind: str, pad_left: bool
) -> None:
    model = sharper(task, kind)
    batch = make_batch(pad_left)
    together = generate([model], batch)
    lengths = set()
    for i in range(3):
        source = batch["src_tokens"][i]
        source = source[source != 1][None]
        (alone,) = generate([model], {"src_tokens": source})
        encoded = model.encoder(source)
        for one, other in zip(together[i], alone, strict=True):
            assert one["tokens"].tolist() == other["tokens"].tolist()
            assert one["score"].item() == pytest.approx(other["score"].item(), abs=1e-5)
            tokens = one["tokens"]
            lengths.add(len(tokens))
            assert len(tokens) <= source.size(1) + 3
            assert EOS not in tokens[:-1].tolist() and tokens[0] != EOS
            assert tokens[-1] == EOS or len(tokens) == source.size(1) + 3
            prev = torch.cat([torch.tensor([EOS]), tokens[:-1]])[None]
            lprobs = model.decoder(prev, encoded)[0].log_softmax(-1)[0]
            each = lprobs.gather(1, tokens[:, None]).flatten()
            torch.testing.assert_close(one["positional_scores"], each.detach(), atol=1e-5, rtol=0)
            expected = each.sum().item() / length_penalty(len(tokens), 0.6)
            assert one["score"].item() == pytest.approx(expected, abs=1e-5)
        scores = [h["score"].item() for h in together[i]]
        assert scores == sorted(scores, reverse=True)
    assert len(lengths) > 1  # the models do end sentences


def test_a_sentence_goes_on_until_its_whole_beam_has_ended() -> None:
    """A later ending may overtake: here an ended hypothesis is beaten by one that ends next."""
    beam = Beam(1, 2, EOS, EOS, torch.device("cpu"))
    lprobs = torch.full((2, 6), -9.0)
    lprobs[:, 4], lprobs[:, 5] = -0.5, -1.0
    beam.step(lprobs, 0.6)
    lprobs = torch.full((2, 6), -9.0)
    lprobs[0, EOS], lprobs[1, 3] = -1.0, -0.1
    beam.step(lprobs, 0.6)
    assert beam.tokens[:, 1:].tolist() == [[5, 3], [4, EOS]]
    assert not beam.finished().any()
    lprobs = torch.full((2, 6), -9.0)
    lprobs[0, EOS] = -0.1
    beam.step(lprobs, 0.6)
    assert beam.finished().all()
    best, second = beam.hypotheses(0)
    assert best["tokens"].tolist() == [5, 3, EOS] and second["tokens"].tolist() == [4, EOS]
    assert best["score"].item() == pytest.approx(-1.2 / length_penalty(3, 0.6))
    assert second["score"].item() == pytest.approx(-1.5 / length_penalty(2, 0.6))


def test_beam_one_is_greedy(task: SimpleNamespace) -> None:
    model = sharper(task)
    batch = make_batch(False)
    source = batch["src_tokens"][:1]
    hypothesis = generate([model], {"src_tokens": source}, beam_size=1)[0][0]
    encoded, prev = model.encoder(source), [EOS]
    for t, token in enumerate(hypothesis["tokens"].tolist()):
        logits = model.decoder(torch.tensor([prev]), encoded)[0][0, -1].clone()
        logits[1] = float("-inf")
        if t == 0:
            logits[EOS] = float("-inf")
        assert token == logits.argmax().item()
        prev.append(token)


def test_an_ensemble_of_different_normalisers(task: SimpleNamespace) -> None:
    models = [sharper(task, "l2"), sharper(task, "none", seed=2)]
    (together,) = generate(models, {"src_tokens": make_batch(False)["src_tokens"][:1]})
    tokens = together[0]["tokens"]
    source, prev = (
        make_batch(False)["src_tokens"][:1],
        torch.cat([torch.tensor([EOS]), tokens[:-1]]),
    )
    probabilities = [m(source, None, prev[None])[0].softmax(-1)[0] for m in models]
    mean = torch.stack(probabilities).mean(0).log()
    each = mean.gather(1, tokens[:, None]).flatten()
    torch.testing.assert_close(together[0]["positional_scores"], each.detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_len": 3}, "min_len=3 is not allowed: legal is 1"),
        ({"unk_penalty": 1.0}, "unk_penalty"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size"),
        ({"normalize_scores": False}, "normalize_scores"),
        ({"lm_model": 1}, "lm_model=1 is not allowed: legal is None"),
        ({"search_strategy": Sampling(Dictionary())}, "Sampling is not allowed"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_without_meaning_are_refused(
    task: SimpleNamespace, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generate([sharper(task)], make_batch(False), **options)
