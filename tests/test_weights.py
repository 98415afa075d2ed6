"""Attention weights as JSON, and the page that draws them."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from torch import Tensor

from experiments import heatmap
from qknorm_mt import weights
from qknorm_mt.config import QKNormTransformerConfig
from qknorm_mt.model import NAME, QKNormTransformerModel

from .conftest import MODELS, SIZES, build_qknorm
from .system.conftest import run

SENTENCE = {"source": "a b </script> סוף", "target": "b a unheard"}
INPUTS = ["</s>", "b", "a", "<unk>"]
# Sides, layers and heads of sizes that cannot be taken for one another; dropout that must be off.
SHAPE = {
    **{"encoder_layers": 3, "encoder_attention_heads": 8, "dropout": 0.3, "attention_dropout": 0.3},
    **{"encoder_embed_dim": 32, "decoder_embed_dim": 32},
}


def build_task() -> SimpleNamespace:
    dictionary = Dictionary()
    for piece in ("a", "b", "</script>", "סוף", *(f"w{i}" for i in range(32))):
        dictionary.add_symbol(piece)
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def save(folder: Path, name: str, **options: Any) -> tuple[Path, Path, QKNormTransformerModel]:
    """Data folder and checkpoint of an untrained model, as fairseq saves them, and the model."""
    task = build_task()
    options = {**SHAPE, **options}
    model = build_qknorm(task, name, **options)
    flat: dict[str, Any] = {**SIZES, "share_all_embeddings": True, "qk_norm": name}
    flat |= {**MODELS[name], **options}
    if name == "l2":
        flat["qk_norm_init_length"] = 72.0
    config = dataclasses.asdict(QKNormTransformerConfig(**flat))
    for language in ("xx", "yy"):
        task.source_dictionary.save(str(folder / f"dict.{language}.txt"))
    languages = {"source_lang": "xx", "target_lang": "yy"}
    state = {
        "args": None,
        "cfg": {
            "model": {**config, "_name": NAME},
            "task": {"_name": "translation", "data": "elsewhere", **languages},
        },
        "model": model.state_dict(),
        "optimizer_history": [{"optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}],
        "extra_state": {},
    }
    torch.save(state, folder / "model.pt")
    return folder, folder / "model.pt", model.eval()


def ask(
    monkeypatch: pytest.MonkeyPatch, data: Path, path: Path, sentence: bytes, *argv: str
) -> int:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(sentence)))
    return weights.main([str(data), "--path", str(path), *argv])


def encoded(sentence: dict[str, Any]) -> bytes:
    return json.dumps(sentence, ensure_ascii=False).encode()


@pytest.fixture(params=[*MODELS])
def answer(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> tuple[dict[str, Any], QKNormTransformerModel]:
    """What the command prints, for each kind of model, and the model."""
    data, path, model = save(tmp_path, request.param)
    assert ask(monkeypatch, data, path, encoded(SENTENCE)) == 0
    return json.loads(capsys.readouterr().out), model


def batch() -> tuple[Tensor, Tensor, Tensor]:
    index = build_task().source_dictionary.index
    source = [index(piece) for piece in [*SENTENCE["source"].split(), "</s>"]]
    inputs = [index(piece) for piece in INPUTS]
    return torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([inputs])


def close(found: Any, expected: Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), expected.float(), atol=6e-5, rtol=0)


def test_weights_are_distributions_over_what_may_be_seen(answer: tuple[dict, Any]) -> None:
    found, _ = answer
    assert found["source"] == ["a", "b", "</script>", "סוף", "</s>"]
    assert found["target"] == INPUTS
    assert found["predicted"] == ["b", "a", "<unk>", "</s>"]
    layers = {name: torch.tensor(each) for name, each in found["attention"].items()}
    assert {name: tuple(each.shape) for name, each in layers.items()} == {
        "encoder": (3, 8, 5, 5),
        "decoder_self": (2, 4, 4, 4),
        "decoder_cross": (2, 4, 4, 5),
    }
    for each in layers.values():
        torch.testing.assert_close(each.sum(-1), torch.ones(each.shape[:-1]), atol=3e-4, rtol=0)
    seen = layers["decoder_self"]
    assert (seen.triu(1) == 0).all()
    assert (seen[:, :, 3, :3] > 0).any()
    assert (layers["encoder"].triu(1) > 0).any()


def test_the_model_is_left_as_it_was() -> None:
    model = build_qknorm(build_task(), "l2").eval()
    weights.attend(model, [4, 2], [2, 4])
    for module in model.modules():
        assert not module._forward_pre_hooks and not module._forward_hooks


@pytest.mark.parametrize("layer", [0, 1])
def test_cross_attention_is_what_fairseq_returns(answer: tuple[dict, Any], layer: int) -> None:
    found, model = answer
    source, lengths, inputs = batch()
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        _, extra = model.decoder.extract_features(inputs, encoder_out, alignment_layer=layer)
        _, default = model(source, lengths, inputs)
    heads = torch.tensor(found["attention"]["decoder_cross"][layer])
    close(heads.mean(0).tolist(), extra["attn"][0][0])
    if layer == 1:
        close(heads.mean(0).tolist(), default["attn"][0][0])


@pytest.mark.parametrize("kind", ["encoder", "decoder_self", "decoder_cross"])
def test_l2_weights_are_a_softmax_of_g_times_the_cosine(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, path, model = save(tmp_path, "l2")
    assert ask(monkeypatch, data, path, encoded(SENTENCE)) == 0
    found = json.loads(capsys.readouterr().out)["attention"][kind][1]
    side = model.encoder if kind == "encoder" else model.decoder
    module = side.layers[1].encoder_attn if kind == "decoder_cross" else side.layers[1].self_attn
    read: dict[str, Tensor] = {}
    hook = module.register_forward_pre_hook(
        lambda module, args, kwargs: read.update(query=kwargs["query"], key=kwargs["key"]),
        with_kwargs=True,
    )
    with torch.no_grad():
        model(*batch())
        hook.remove()
        q, k = module.q_proj(read["query"])[:, 0], module.k_proj(read["key"])[:, 0]
        q, k = (x.view(len(x), module.num_heads, -1).transpose(0, 1) for x in (q, k))
        cosine = torch.cosine_similarity(q[:, :, None], k[:, None], dim=-1)
        logits = module.qk_norm.g * cosine
    if kind == "decoder_self":
        logits += torch.full(logits.shape[1:], -math.inf).triu(1)
    close(found, torch.softmax(logits, dim=-1))


def test_the_start_symbol_is_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, path, _ = save(tmp_path, "l2", start_symbol="bos")
    assert ask(monkeypatch, data, path, encoded({"source": "a", "target": ""})) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["target"], found["predicted"]) == (["<s>"], ["</s>"])
    assert found["attention"]["decoder_self"][1] == [[[1.0]]] * 4


def another_model(path: Path, **options: str | None) -> None:
    """Change an option that the checkpoint holds, or (None) leave it out."""
    state = torch.load(path, weights_only=True)
    held = {**state["cfg"]["model"], **options}
    state["cfg"]["model"] = {k: v for k, v in held.items() if k not in options or v is not None}
    torch.save(state, path)


def forget_option(path: Path) -> None:
    # By a named architecture; under the model's own name, fairseq fills in the default.
    another_model(path, _name=f"{NAME}_cpu", qk_norm_affine=None)


def another_vocabulary(folder: Path) -> None:
    for language in ("xx", "yy"):
        (folder / f"dict.{language}.txt").write_text("a 1\n")


@pytest.mark.parametrize(
    ("spoil", "sentence", "message"),
    [
        (lambda p: (p / "model.pt").unlink(), SENTENCE, "model.pt: No such file"),
        (lambda p: (p / "model.pt").write_text("x"), SENTENCE, "model.pt: damaged, or not of"),
        (
            lambda p: torch.save(torch.ones(1), p / "model.pt"),
            SENTENCE,
            "model.pt: not of a qknorm_mt model: it names",
        ),
        (lambda p: torch.save({"a": p}, p / "model.pt"), SENTENCE, "model.pt: damaged, or not of"),
        (
            lambda p: another_model(p / "model.pt", _name="transformer"),
            SENTENCE,
            "model.pt: not of a qknorm_mt model but of transformer",
        ),
        (
            lambda p: forget_option(p / "model.pt"),
            SENTENCE,
            "model.pt: of another version of qknorm_mt: no option qk_norm_affine",
        ),
        (lambda p: (p / "dict.xx.txt").unlink(), SENTENCE, "dict.xx.txt: No such file"),
        (
            lambda p: another_vocabulary(p),
            SENTENCE,
            "the checkpoint was trained with another vocab",
        ),
        (None, {"source": "a " * 9, "target": ""}, "the source has 10 pieces with </s>, over the "),
        (None, {"source": "", "target": "a " * 9}, "the target has 10 pieces with </s>, over the "),
        (None, {"source": "a"}, "standard input is no object of two strings"),
        (None, ["a", "b"], "standard input is no object of two strings"),
        (None, b"{", "standard input is not JSON"),
        (None, b'{"source": "\xff"}', "standard input is not UTF-8"),
    ],
    ids=[
        *(
            "missing",
            "no-file-of-torch",
            "tensor",
            "code",
            "stock",
            "old",
            "dictionary",
            "vocabulary",
        ),
        *("long-source", "long-target", "no-target", "list", "no-json", "no-utf8"),
    ],
)
def test_mistakes_are_named_in_one_line(
    spoil: Any,
    sentence: Any,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, path, _ = save(tmp_path, "none")
    if spoil:
        spoil(tmp_path)
    raw = sentence if isinstance(sentence, bytes) else encoded(sentence)
    assert ask(monkeypatch, data, path, raw, "--max-len", "9") == 1
    said, error = capsys.readouterr()
    assert said == ""
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("longest", "whose"), [("9", "9 (--max-len)"), ("50", "12 (the model's own)")]
)
def test_the_limit_is_named_and_kept(
    longest: str,
    whose: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, path, _ = save(tmp_path, "none", max_source_positions=12)
    limit = int(whose.split()[0])
    for pieces, code in ((limit - 1, 0), (limit, 1)):
        sentence = encoded({"source": "a " * pieces, "target": "b"})
        assert ask(monkeypatch, data, path, sentence, "--max-len", longest) == code
    assert f"over the limit of {whose}" in capsys.readouterr().err


def test_as_a_user_runs_it(tmp_path: Path) -> None:
    """Nothing but JSON is said, on stderr neither; in UTF-8 whatever the locale."""
    data, path, _ = save(tmp_path, "qwen3")
    argv = ("qknorm_mt.weights", str(data), "--path", str(path))
    done = run(*argv, stdin=json.dumps(SENTENCE), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["source"][3] == "סוף"


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        weights.main(["--help"])
    assert "| python -m qknorm_mt.weights DATA" in capsys.readouterr().out


# The page ----------------------------------------------------------------------------------------

HOSTILE = ["</script><script>alert(1)</script>", "<!--<b>", "&amp;", 'שלום"', "السلام", "</s>"]


def uniform(layers: int, heads: int, queries: int, keys: int) -> list:
    return [[[[1 / keys] * keys] * queries] * heads] * layers


def example(pieces: list[str], layers: int = 1, heads: int = 2) -> dict[str, Any]:
    n = len(pieces)
    each = {name: uniform(layers, heads, n, n) for name, *_ in heatmap.SECTIONS}
    target = ["</s>", *pieces[:-1]]
    return {"source": pieces, "target": target, "predicted": pieces, "attention": each}


def embedded(text: str) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def test_pieces_are_escaped_and_isolated() -> None:
    text = heatmap.page(example(HOSTILE), "<i>title</i> & more")
    assert "<title>&lt;i&gt;title&lt;/i&gt; &amp; more</title>" in text
    assert "<i>title" not in text and "alert(1)</script>" not in text and "<!--" not in text
    assert text.count("<script") == text.count("</script>") == 2
    for piece in HOSTILE:
        assert text.count(f"<bdi>{html.escape(piece)}</bdi>") == 2  # source and target
    data = embedded(text)
    assert data["pieces"]["source"] == HOSTILE
    assert data["pieces"]["target"] == ["</s>", *HOSTILE[:-1]]
    assert "innerHTML" not in text


def test_the_page_loads_nothing() -> None:
    text = heatmap.page(example(["a", "</s>"]), "title")
    assert "http" not in text and "//" not in re.sub(r"<style>.*?</style>", "", text, flags=re.S)
    assert not re.search(r"\b(src|href)=|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text


def test_every_head_has_its_map_and_its_numbers() -> None:
    sentence = example(["a", "b", "</s>"], layers=2, heads=2)
    one = [[0.0, 0.9, 0.1], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    half = uniform(2, 2, 3, 3)
    half[1] = [half[0][0], one]
    sentence["attention"]["decoder_cross"] = half
    text = heatmap.page(sentence, "title")
    assert text.count("<canvas>") == 12
    assert len(re.findall("<b>layer 2, head 1</b>", text)) == 3
    assert text.count(f"entropy {math.log(3):.2f} nats") == 11
    assert text.count("largest weight 0.33") == 11
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / 3
    numbers = f"entropy {entropy:.2f} nats</small><small>largest weight 1.00"
    assert (
        f'data-section="2" data-layer="1" data-head="1"><b>layer 2, head 2</b><small>{numbers}'
        in text
    )
    cross = embedded(text)["sections"][2]
    assert (cross["rows"], cross["columns"]) == ("target", "source")
    assert cross["layers"][1][1] == [0, 9000, 1000, 10000, 0, 0, 0, 10000, 0]


@pytest.mark.parametrize(
    ("pieces", "direction"),
    [(["▁", "(", "שלום", "a"], "rtl"), (["1", "a", "ש"], "ltr"), ([], "ltr")],
)
def test_a_sentence_runs_in_its_own_direction(pieces: list[str], direction: str) -> None:
    assert f'<bdi dir="{direction}">' in heatmap.sentence("Source", pieces)


def test_a_long_sentence_of_a_large_model_stays_small() -> None:
    text = heatmap.page(example(["piece"] * 30, layers=6, heads=8), "title")
    assert len(text.encode()) < 3e6
