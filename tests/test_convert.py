"""A checkpoint of the released code, from its files to fairseq's own loading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary

import qknorm_mt  # noqa: F401  (registers)
from qknorm_mt import convert

from .test_parity import KEPT, Case, compact_case

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(36))]


def write_files(folder: Path, case: Case) -> list[str]:
    """What the released code leaves behind, and the converter's arguments for it."""
    folder.mkdir(exist_ok=True)
    torch.save(dict(case.released.parameters), folder / "en2vi-1.0.pth")
    lines = [f"{word} {i} {100 - i}\n" for i, word in enumerate(WORDS)]
    (folder / "vocab.joint").write_text("".join(lines))
    (folder / "lang.vocab").write_text("en 0\nvi 1\n")
    np.save(folder / "mask.vi.npy", case.released.allowed.numpy().astype(np.uint8))
    return [
        *("--checkpoint", str(folder / "en2vi-1.0.pth"), "--vocab", str(folder / "vocab.joint")),
        *("--languages", str(folder / "lang.vocab"), "--mask", str(folder / "mask.vi.npy")),
        *("-s", "en", "-t", "vi", "--heads", "4", str(folder / "out")),
        *([] if case.released.fix_norm else ["--no-fix-norm"]),
    ]


@pytest.mark.parametrize("name", KEPT)
def test_fairseq_loads_what_was_converted(name: str, tmp_path: Path) -> None:
    case = compact_case(name)
    assert convert.main(write_files(tmp_path, case)) == 0
    path = tmp_path / "out" / "checkpoint.pt"
    torch.load(path, weights_only=True)
    dictionary = Dictionary.load(str(tmp_path / "out" / "dict.vi.txt"))
    assert dictionary.symbols == ["<s>", "<pad>", "</s>", "<unk>", *WORDS[4:]]
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    assert (cfg.task.source_lang, cfg.task.target_lang) == ("en", "vi")
    assert task.target_dictionary == dictionary
    model.eval()
    output = model(case.inputs["src"], None, case.inputs["tgt_in"])
    lprobs = model.get_normalized_probs(output, log_probs=True)
    allowed = case.released.allowed
    real = case.inputs["tgt_in"] != 1
    ours = lprobs[real][:, torch.argsort(case.released.order)][:, allowed]
    theirs = torch.tensor(case.outputs["logprobs"])[real][:, allowed]
    torch.testing.assert_close(ours.detach(), theirs, atol=1e-5, rtol=0)


def test_language_rows_follow_the_language_vocabulary(tmp_path: Path) -> None:
    case = compact_case("qknorm_layernorm")
    argv = write_files(tmp_path, case)
    (tmp_path / "lang.vocab").write_text("vi 0\nen 1\n")
    assert convert.main(argv) == 0
    state = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)["model"]
    rows = case.released.parameters["lang_embedding"]
    assert torch.equal(state["encoder.embed_positions.language"], rows[1])
    assert torch.equal(state["decoder.embed_positions.language"], rows[0])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: (p / "lang.vocab").write_text("en 0\nfr 1\n"), "no language vi; it has"),
        (lambda p: (p / "lang.vocab").write_text("en\nvi 1\n"), "lang.vocab, line 1: expected"),
        (lambda p: (p / "vocab.joint").write_text("a 0\nb 2\n"), "the ids are not 0 to 1"),
        (
            lambda p: (p / "vocab.joint").write_text("p 0\nb 1\ne 2\nu 3\nw 4\n"),
            "5 types, the checkpoint has 40",
        ),
        (
            lambda p: (p / "vocab.joint").write_text("p 0\nb 1\ne 2\nu 3\n<pad> 4\n"),
            "a type is named like one of fairseq's own",
        ),
        (lambda p: np.save(p / "mask.vi.npy", np.ones(39)), "39 types, the checkpoint has 40"),
        (lambda p: (p / "mask.vi.npy").unlink(), "mask.vi.npy: No such file"),
        (lambda p: (p / "mask.vi.npy").write_text("x"), "mask.vi.npy"),
        (lambda p: (p / "en2vi-1.0.pth").write_text("x"), "en2vi-1.0.pth"),
        (lambda p: torch.save({"a": torch.ones(1)}, p / "en2vi-1.0.pth"), "no word_embedding"),
    ],
    ids=[
        "language",
        "line",
        "ids",
        "types",
        "special",
        "mask",
        "missing",
        "no-mask",
        "no-pth",
        "foreign",
    ],
)
def test_wrong_files_are_named(
    spoil: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = write_files(tmp_path, compact_case("qknorm_layernorm"))
    spoil(tmp_path)  # type: ignore[operator]
    assert convert.main(argv) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1
    assert not (tmp_path / "out" / "checkpoint.pt").exists()


@pytest.mark.parametrize("change", ["missing", "left-over"])
def test_parameters_that_do_not_fit_are_named(change: str) -> None:
    case = compact_case("qknorm_layernorm")
    parameters = dict(case.released.parameters)
    if change == "missing":
        del parameters["decoder.ffs.1.in_proj.bias"]
    else:
        parameters["encoder.extra"] = torch.ones(1)
    released = convert.Released(parameters, (0, 1), case.released.allowed, 4)
    name = "decoder.ffs.1.in_proj.bias" if change == "missing" else "encoder.extra"
    with pytest.raises(convert.ConvertError, match=name):
        convert.convert(released)
