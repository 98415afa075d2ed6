"""Load a checkpoint of the authors' released code: its parameters, in our layout.

    python -m qknorm_mt.convert --checkpoint en2vi-28.95.pth --vocab vocab.joint \\
        --languages lang.vocab --mask mask.vi.npy -s en -t vi --heads 8 OUT

writes ``OUT/checkpoint.pt`` and the dictionaries ``OUT/dict.<language>.txt``. Text is then made
with those (``fairseq-preprocess --srcdict OUT/dict.en.txt --tgtdict OUT/dict.vi.txt ...``) and
decoded with ``fairseq-generate --path OUT/checkpoint.pt --task translation_qknorm
--user-dir qknorm_mt``.

The files are those the released code leaves behind: ``vocab.joint`` holds a type, its id and its
count a line, ``lang.vocab`` a language and its id; ``mask.<language>.npy`` marks with 1 the types
that may be written in a language. The same holds for checkpoints of Nguyen & Salazar 2019, from
which that code comes.

Their parameters, and ours:

======================================== =======================================================
``word_embedding``                       ``encoder.embed_tokens.weight``, shared thrice
``lang_embedding`` row                   ``{encoder,decoder}.embed_positions.language``
``out_bias``                             ``decoder.output_projection.bias``
``*.atts.i.weights``, ``biases``         q, k, v, out stacked: ``*.layers.i.self_attn.*_proj``
``decoder.cross_atts.i``                 ``decoder.layers.i.encoder_attn``
``mha_scale.scale``                      ``qk_norm.g``
``*.ffs.i.in_proj``, ``out_proj``        ``*.layers.i.fc1``, ``fc2``
``*.scales.j``                           the layers' norms in order of use, then ``layer_norm``
======================================== =======================================================
"""

from __future__ import annotations

import argparse
import dataclasses
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from .config import QKNormTransformerConfig
from .model import NAME, QKNormTransformerModel

# The first types there are padding, <s>, </s>, UNK; fairseq has <s> before padding.
SPECIALS = [1, 0, 2, 3]
LAYER_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


class ConvertError(Exception):
    """The files are not what they should be; the message says which and why."""


@dataclass(frozen=True)
class Released:
    """A model of the released code.

    Attributes:
        parameters: its ``state_dict``.
        languages: rows of source and target language in ``lang_embedding``.
        allowed: ``(types,)``, true for the types that may be written, by their ids there.
        heads: attention heads, which the parameters do not tell.
        fix_norm: whether it was trained with FixNorm, which they do not tell either.
    """

    parameters: Mapping[str, Tensor]
    languages: tuple[int, int]
    allowed: Tensor
    heads: int
    fix_norm: bool = True

    def count(self, prefix: str) -> int:
        """How many numbered modules stand under ``prefix``."""
        return len(
            {n[len(prefix) :].split(".")[0] for n in self.parameters if n.startswith(prefix)}
        )

    @property
    def order(self) -> Tensor:
        """Ids there, in the order of our dictionary."""
        return torch.tensor([*SPECIALS, *range(len(SPECIALS), len(self.allowed))])


def model_options(released: Released) -> dict[str, Any]:
    """The options of :class:`QKNormTransformerConfig` that make the released model."""
    parameters = released.parameters
    width = parameters["word_embedding"].size(1)
    options: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sizes = {
            "embed_dim": width,
            "ffn_embed_dim": parameters[f"{side}.ffs.0.in_proj.weight"].size(0),
            "layers": released.count(f"{side}.atts."),
            "attention_heads": released.heads,
        }
        options |= {f"{side}_{name}": size for name, size in sizes.items()}
    has_g = "encoder.atts.0.mha_scale.scale" in parameters
    pre_norm = released.count("encoder.scales.") > 2 * options["encoder_layers"]
    return {
        **options,
        "qk_norm": "l2" if has_g else "none",
        # Where g started; the parameters say where it is.
        "qk_norm_init_length": 2.0 if has_g else None,
        "norm_position": "pre" if pre_norm else "post",
        "norm": "scale" if "encoder.scales.0.scale" in parameters else "layer",
        "fix_norm": released.fix_norm,
        "output_bias": True,
        "share_all_embeddings": True,
        "positions": "sin_sin",
        "language_embedding": True,
        "start_symbol": "bos",
        "logit_mask": True,
    }


def convert(released: Released) -> dict[str, Tensor]:
    """The parameters under our names, in the order of our dictionary.

    Raises:
        ConvertError: naming a parameter that is missing or left over.
    """
    left = dict(released.parameters)
    try:
        ours = dict(rename(left, released))
    except KeyError as error:
        raise ConvertError(f"the checkpoint has no parameter {error}") from None
    if left:
        raise ConvertError(f"the checkpoint has unknown parameters: {', '.join(sorted(left))}")
    return ours


def rename(left: dict[str, Tensor], released: Released) -> Iterator[tuple[str, Tensor]]:
    """Take the parameters out of ``left``, one after the other."""
    embedding = left.pop("word_embedding")[released.order]
    yield "encoder.embed_tokens.weight", embedding
    yield "decoder.embed_tokens.weight", embedding
    yield "decoder.output_projection.weight", embedding
    yield "decoder.output_projection.bias", left.pop("out_bias")[released.order]
    yield "decoder.allowed", released.allowed[released.order].to(torch.uint8)
    languages = left.pop("lang_embedding")
    for side, language in zip(("encoder", "decoder"), released.languages, strict=True):
        yield f"{side}.embed_positions.language", languages[language]
        layers, norms = released.count(f"{side}.atts."), LAYER_NORMS[side]
        places = [f"layers.{i}.{norm}" for i in range(layers) for norm in norms]
        if released.count(f"{side}.scales.") > len(places):
            places.append("layer_norm")
        for j, place in enumerate(places):
            kinds = ("scale",) if f"{side}.scales.{j}.scale" in left else ("weight", "bias")
            for kind in kinds:
                parameter = left.pop(f"{side}.scales.{j}.{kind}")
                yield f"{side}.{place}.{kind}", parameter.reshape(-1)
        for i in range(layers):
            for theirs, our in (("in_proj", "fc1"), ("out_proj", "fc2")):
                for kind in ("weight", "bias"):
                    name = f"{side}.ffs.{i}.{theirs}.{kind}"
                    yield f"{side}.layers.{i}.{our}.{kind}", left.pop(name)
            yield from attention(left, f"{side}.atts.{i}", f"{side}.layers.{i}.self_attn")
            if side == "decoder":
                yield from attention(
                    left, f"{side}.cross_atts.{i}", f"{side}.layers.{i}.encoder_attn"
                )


def attention(left: dict[str, Tensor], theirs: str, ours: str) -> Iterator[tuple[str, Tensor]]:
    for name, kind in (("weights", "weight"), ("biases", "bias")):
        parts = left.pop(f"{theirs}.{name}").chunk(4)
        for projection, part in zip(("q", "k", "v", "out"), parts, strict=True):
            yield f"{ours}.{projection}_proj.{kind}", part
    g = left.pop(f"{theirs}.mha_scale.scale", None)
    if g is not None:
        yield f"{ours}.qk_norm.g", g.reshape(1)


def build(released: Released, dictionary: Dictionary) -> QKNormTransformerModel:
    """Our model with the released parameters.

    Args:
        released: the model.
        dictionary: its joint vocabulary, specials as fairseq has them.
    """
    task = SimpleNamespace(
        source_dictionary=dictionary, target_dictionary=dictionary, target_types=None
    )
    config = QKNormTransformerConfig(**model_options(released))
    model = QKNormTransformerModel.build_model(config, task)
    parameters = {**model.state_dict(), **convert(released)}
    model.load_state_dict(parameters)
    return model


def read_table(path: Path) -> dict[str, int]:
    """A type or language and its id a line, as ``vocab.joint`` and ``lang.vocab`` hold them."""
    table: dict[str, int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        fields = line.split(" ")
        if line and (len(fields) < 2 or not fields[1].isdecimal()):
            raise ConvertError(f"{path}, line {number}: expected a type and its id, got {line!r}")
        if line:
            table[fields[0]] = int(fields[1])
    if sorted(table.values()) != list(range(len(table))):
        raise ConvertError(f"{path}: the ids are not 0 to {len(table) - 1}, each once")
    return table


def read_dictionary(path: Path) -> Dictionary:
    """fairseq's dictionary of a ``vocab.joint``."""
    types = read_table(path)
    dictionary = Dictionary()
    for name in sorted(types, key=types.__getitem__)[len(SPECIALS) :]:
        dictionary.add_symbol(name)
    if len(dictionary) != len(types):
        raise ConvertError(f"{path}: a type is named like one of fairseq's own (<s>, </s>, ...)")
    return dictionary


def read_released(args: argparse.Namespace) -> Released:
    languages = read_table(args.languages)
    for language in (args.source_lang, args.target_lang):
        if language not in languages:
            raise ConvertError(f"{args.languages}: no language {language}; it has {[*languages]}")
    try:
        parameters = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        raise ConvertError(f"{args.checkpoint}: no file of tensors that torch can read") from None
    try:
        allowed = torch.from_numpy(np.load(args.mask, allow_pickle=False).astype(bool))
    except (ValueError, EOFError):
        raise ConvertError(f"{args.mask}: no array that numpy can read") from None
    rows = (languages[args.source_lang], languages[args.target_lang])
    released = Released(parameters, rows, allowed, args.heads, not args.no_fix_norm)
    if "word_embedding" not in parameters:
        raise ConvertError(f"{args.checkpoint}: no word_embedding: not of the released code")
    types = parameters["word_embedding"].size(0)
    if types != len(allowed):
        raise ConvertError(f"{args.mask}: {len(allowed)} types, the checkpoint has {types}")
    return released


def save(model: QKNormTransformerModel, released: Released, args: argparse.Namespace) -> Path:
    """Write dictionaries and checkpoint; nothing is left half written."""
    args.out.mkdir(parents=True, exist_ok=True)
    dictionary = model.encoder.dictionary
    for language in (args.source_lang, args.target_lang):
        dictionary.save(str(args.out / f"dict.{language}.txt"))
    config = QKNormTransformerConfig(**model_options(released))
    options = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    languages = {"source_lang": args.source_lang, "target_lang": args.target_lang}
    state = {
        "args": None,
        "cfg": {
            "model": {**options, "_name": NAME},
            "task": {"_name": "translation_qknorm", "data": str(args.out), **languages},
        },
        "model": model.state_dict(),
        # fairseq reads the last entry, and takes one without these for a checkpoint of old.
        "optimizer_history": [{"optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}],
        "extra_state": {},
    }
    path = args.out / "checkpoint.pt"
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)
    return path


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m qknorm_mt.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="folder for checkpoint and dictionaries")
    parser.add_argument("--checkpoint", type=Path, required=True, help="their .pth file")
    parser.add_argument("--vocab", type=Path, required=True, help="their vocab.joint")
    parser.add_argument("--languages", type=Path, required=True, help="their lang.vocab")
    parser.add_argument("--mask", type=Path, required=True, help="their mask.<target>.npy")
    parser.add_argument("-s", "--source-lang", required=True)
    parser.add_argument("-t", "--target-lang", required=True)
    parser.add_argument("--heads", type=int, required=True, help="attention heads, 4 for gl-en")
    parser.add_argument("--no-fix-norm", action="store_true", help="trained without FixNorm")
    args = parser.parse_args(argv)
    try:
        released = read_released(args)
        dictionary = read_dictionary(args.vocab)
        if len(dictionary) != len(released.allowed):
            raise ConvertError(
                f"{args.vocab}: {len(dictionary)} types, the checkpoint has {len(released.allowed)}"
            )
        path = save(build(released, dictionary), released, args)
    except (ConvertError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
