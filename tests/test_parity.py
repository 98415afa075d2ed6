"""The paper's whole model against numbers from the authors' released one.

``golden/recipe.npz`` carries four of the six recorded cases, their gradients as a norm and a
projection each; where the recording itself is at hand, all six are compared whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from qknorm_mt.convert import Released, build, convert
from qknorm_mt.criterion import smoothed_loss
from qknorm_mt.embedding import position_table
from qknorm_mt.generator import PaperBeamSearch
from qknorm_mt.model import QKNormTransformerModel

from .conftest import ROOT

COMPACT = Path(__file__).parent / "golden" / "recipe.npz"
FOLDER = Path(os.environ.get("QKNORM_MT_GOLDEN", ROOT.parent / "shared" / "golden"))
KEPT = ("qknorm_layernorm", "qknorm_no_fixnorm", "qknorm_postnorm", "baseline_scalenorm")
CASES = (*KEPT, "baseline_layernorm", "qknorm_scalenorm")
PAD, EOS = 1, 2  # fairseq's


@dataclass
class Case:
    """A recorded model, its inputs (fairseq's ids) and outputs."""

    released: Released
    inputs: dict[str, Tensor]
    outputs: dict[str, np.ndarray]
    losses: dict[str, float]
    beams: list[dict[str, Any]]
    gradients: dict[str, Any]

    def model(self) -> QKNormTransformerModel:
        return build(self.released, dictionary()).eval()

    def ids(self, theirs: np.ndarray) -> Tensor:
        return torch.argsort(self.released.order)[torch.tensor(theirs)]


def dictionary() -> Dictionary:
    result = Dictionary()
    for i in range(36):
        result.add_symbol(f"w{i}")
    return result


def compact_case(name: str) -> Case:
    file = np.load(COMPACT)
    meta = json.loads(file["meta"].tobytes())[name]
    parameters = {n: torch.tensor(file[f"a/{digest}"]) for n, digest in meta["params"].items()}
    return make_case(file, name, parameters, meta, meta["beams"], meta["grads"])


def whole_case(name: str) -> Case:
    if not (FOLDER / "official_qknorm.npz").is_file():
        pytest.skip(f"no recording at {FOLDER} (set QKNORM_MT_GOLDEN)")
    file = np.load(FOLDER / "official_qknorm.npz")
    meta = json.loads((FOLDER / "official_qknorm.json").read_text())[name]

    def tensors(kind: str) -> dict[str, Tensor]:
        prefix = f"{name}/{kind}/"
        names = [n for n in file.files if n.startswith(prefix)]
        return {n.removeprefix(prefix): torch.tensor(file[n]) for n in names}

    beams = []
    for beam in meta["beam"]:
        best = int(np.argmax(beam["scores"]))
        symbols = beam["symbols"][best]
        end = symbols.index(EOS) + 1 if EOS in symbols else len(symbols)
        beams.append({"symbols": symbols[:end], "score": beam["scores"][best]})
    losses = {"heads": 4, "fix_norm": meta["args"]["fix_norm"], **meta}
    return make_case(file, name, tensors("param"), losses, beams, tensors("grad"))


def make_case(
    file: Any,
    name: str,
    parameters: dict[str, Tensor],
    meta: dict[str, Any],
    beams: list[dict[str, Any]],
    gradients: dict[str, Any],
) -> Case:
    allowed = torch.tensor(file["logit_mask"]).bool()
    released = Released(parameters, (0, 1), allowed, meta["heads"], meta["fix_norm"])
    case = Case(released, {}, {}, {}, beams, gradients)
    case.inputs = {n: case.ids(file[n]) for n in ("src", "tgt_in", "targets")}
    outputs = ("encoder_in", "encoder_out", "decoder_out", "logprobs")
    case.outputs = {n: file[f"{name}/{n}"] for n in outputs}
    case.losses = {n: meta[n] for n in ("loss", "nll_loss", "num_words")}
    return case


SOURCES = [pytest.param(compact_case, name, id=f"compact-{name}") for name in KEPT]
SOURCES += [pytest.param(whole_case, name, id=f"whole-{name}") for name in CASES]
over_cases = pytest.mark.parametrize(("load", "name"), SOURCES)


def close(ours: Tensor, theirs: np.ndarray) -> None:
    torch.testing.assert_close(ours.detach(), torch.tensor(theirs), atol=1e-5, rtol=1e-5)


@over_cases
def test_outputs_and_losses(load: Any, name: str) -> None:
    case = load(name)
    model, src, prev = case.model(), case.inputs["src"], case.inputs["tgt_in"]
    real, there = src != PAD, (src != PAD).numpy()
    close(model.encoder.forward_embedding(src)[0][real], case.outputs["encoder_in"][there])
    encoded = model.encoder(src)
    states = encoded["encoder_out"][0].transpose(0, 1)
    close(states[real], case.outputs["encoder_out"][there])
    real, there = prev != PAD, (prev != PAD).numpy()
    features, _ = model.decoder(prev, encoded, features_only=True)
    close(features[real], case.outputs["decoder_out"][there])
    lprobs = model.get_normalized_probs(model.decoder(prev, encoded), log_probs=True)
    allowed = case.released.allowed
    theirs = case.outputs["logprobs"][there][:, allowed.numpy()]
    close(lprobs[real][:, torch.argsort(case.released.order)][:, allowed], theirs)
    forbidden = lprobs[:, :, model.decoder.allowed == 0]
    assert forbidden.numel() and torch.isneginf(forbidden).all()
    loss, nll, _ = losses(model, case).tolist()
    assert loss == pytest.approx(case.losses["loss"], rel=1e-5)
    assert nll == pytest.approx(case.losses["nll_loss"], rel=1e-5)


def losses(model: QKNormTransformerModel, case: Case) -> Tensor:
    output = model(case.inputs["src"], None, case.inputs["tgt_in"])
    lprobs = model.get_normalized_probs(output, log_probs=True)
    return smoothed_loss(lprobs.flatten(0, 1), case.inputs["targets"].flatten(), 0.1, PAD)


@over_cases
def test_gradients(load: Any, name: str) -> None:
    case = load(name)
    model = case.model()
    (losses(model, case)[0] / case.losses["num_words"]).backward()
    ours = {n: p.grad for n, p in model.named_parameters()}
    largest = max(g.norm().item() for g in ours.values())
    # A bias of the keys moves no softmax, so without QKNorm its gradient is rounding alone.
    atol = 1e-7 * largest
    if load is whole_case:
        theirs = dict(convert(dataclasses.replace(case.released, parameters=case.gradients)))
        for name_, gradient in ours.items():
            error = (gradient - theirs[name_]).norm().item()
            assert error <= 1e-4 * theirs[name_].norm().item() + atol, name_
    else:
        for name_, (norm, projection) in case.gradients.items():
            mine = ours_as_theirs(ours, case.released, name_).double().flatten()
            direction = torch.arange(mine.numel(), dtype=torch.float64).cos()
            assert mine.norm().item() == pytest.approx(norm, rel=1e-4, abs=atol), name_
            tolerance = 1e-4 * norm * direction.norm().item() + atol
            assert (mine @ direction).item() == pytest.approx(projection, abs=tolerance), name_


def ours_as_theirs(gradients: dict[str, Tensor], released: Released, name: str) -> Tensor:
    """Our gradient of one of their parameters, found by converting its elements' numbers."""
    numbers = {
        n: torch.full(p.shape, -1.0, dtype=torch.float64) for n, p in released.parameters.items()
    }
    size = numbers[name].numel()
    numbers[name] = torch.arange(size, dtype=torch.float64).view(numbers[name].shape)
    result = torch.zeros(size, dtype=torch.float64)
    converted = convert(dataclasses.replace(released, parameters=numbers))
    for ours, places in converted.items():
        if ours in gradients:
            chosen = places >= 0
            result[places[chosen].long()] = gradients[ours][chosen].double()
    return result


@over_cases
def test_beam_search(load: Any, name: str) -> None:
    """One sentence at a time: the released search lets all but the longest sentence of a batch
    run one token past the limit, which then depends on the batch."""
    case = load(name)
    model = case.model()
    for i, beam in enumerate(case.beams):
        source = case.inputs["src"][i]
        source = source[source != PAD][None]
        limit = 50 if i == 0 else 51  # the first is the longest
        best = search(PaperBeamSearch, model, source, max_len_b=limit)
        assert best["tokens"].tolist() == case.ids(np.array(beam["symbols"])).tolist()
        assert best["score"].item() == pytest.approx(beam["score"], abs=1e-5)


def search(kind: type, model: torch.nn.Module, source: Tensor, **options: Any) -> dict[str, Tensor]:
    options = {"beam_size": 4, "len_penalty": 0.6, "max_len_a": 1, "max_len_b": 50, **options}
    generator = kind([model], model.decoder.dictionary, **options)
    sample = {"net_input": {"src_tokens": source}}
    return generator.generate([model], sample)[0][0]


def test_fairseqs_own_beam_search_is_another() -> None:
    """With the options nearest to the paper's it finds another best hypothesis."""
    case = whole_case("qknorm_scalenorm")
    model = case.model()
    source = case.inputs["src"][:1]
    ours = search(PaperBeamSearch, model, source)["tokens"]
    stock = search(SequenceGenerator, model, source)["tokens"]
    assert ours[-1] == EOS and stock[-1] == EOS  # neither was cut by the limit
    assert (len(ours), len(stock)) == (2, 6)


def test_sin_sin_positions() -> None:
    recorded = np.load(COMPACT)["pos_encoding_sin_sin_d32"]
    close(position_table("sin_sin", 20, 32), recorded)
