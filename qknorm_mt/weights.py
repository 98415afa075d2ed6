"""Attention weights of a trained model for one sentence and its translation, as JSON.

Reads ``{"source": "...", "target": "..."}`` from standard input, subword pieces separated by
spaces, and lets the model read both once, as in training but without dropout. Writes

``source``
    the encoder's pieces, ``</s>`` last;
``target``
    the decoder's input pieces, the start symbol first;
``predicted``
    what the decoder is asked for at each of them: the target's pieces, ``</s>`` last;
``attention``
    ``encoder``, ``decoder_self`` and ``decoder_cross``, each ``[layer][head][query][key]``,
    rounded to 4 decimals. Queries and keys are those of ``source`` and ``target``.

Pieces that the dictionary lacks are shown as the model sees them, ``<unk>``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from .checkpoint import CheckpointError, load
from .model import QKNormTransformerModel

EXAMPLES = """\
example:
  echo '{"source": "▁ti ▁mom", "target": "▁mo m"}' | python -m qknorm_mt.weights DATA \\
      --path work/runs/toy/.../checkpoints/checkpoint_best.pt > weights.json

DATA is the binarised folder that the model was trained on; its dictionaries are enough.
"""
MAX_LEN = 100
DECIMALS = 4


class WeightsError(Exception):
    """A sentence is not what it should be; the message says why."""


def weights(
    model: QKNormTransformerModel, task: Any, source: str, target: str, max_len: int = MAX_LEN
) -> dict[str, Any]:
    """What the module's docstring lists, of a model in evaluation mode.

    Raises:
        WeightsError: if a side is longer than ``max_len`` or than the model reads.
    """
    src_dict, tgt_dict = task.source_dictionary, task.target_dictionary
    source_ids, target_ids = encode(source, src_dict), encode(target, tgt_dict)
    for side, ids, own in zip(
        ("source", "target"), (source_ids, target_ids), model.max_positions(), strict=True
    ):
        limit, whose = min((max_len, "--max-len"), (own, "the model's own"))
        if len(ids) > limit:
            raise WeightsError(
                f"the {side} has {len(ids)} pieces with </s>, over the limit of {limit} ({whose})"
            )
    # fairseq starts every target with </s>; a model with another start symbol replaces it.
    inputs = [tgt_dict.eos(), *target_ids[:-1]]
    start = tgt_dict.bos() if model.decoder.cfg.start_symbol == "bos" else tgt_dict.eos()
    return {
        "source": [src_dict[i] for i in source_ids],
        "target": [tgt_dict[i] for i in (start, *inputs[1:])],
        "predicted": [tgt_dict[i] for i in target_ids],
        "attention": {
            name: [rounded(layer) for layer in layers]
            for name, layers in attend(model, source_ids, inputs).items()
        },
    }


def encode(text: str, dictionary: Dictionary) -> list[int]:
    """Ids of pieces separated by white space, ``</s>`` last; ``<unk>`` for unknown ones."""
    return [*(dictionary.index(piece) for piece in text.split()), dictionary.eos()]


def attend(
    model: QKNormTransformerModel, source: list[int], inputs: list[int]
) -> dict[str, list[Tensor]]:
    """Weights ``(heads, query, key)`` of each layer.

    Args:
        model: in evaluation mode.
        source: ids that the encoder reads.
        inputs: ids that the decoder reads, its start symbol first.
    """
    modules = {
        "encoder": [layer.self_attn for layer in model.encoder.layers],
        "decoder_self": [layer.self_attn for layer in model.decoder.layers],
        "decoder_cross": [layer.encoder_attn for layer in model.decoder.layers],
    }
    everywhere = [module for layers in modules.values() for module in layers]
    with torch.no_grad(), recorded(everywhere) as found:
        model(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([inputs]))
    return {name: [found[module] for module in layers] for name, layers in modules.items()}


@contextlib.contextmanager
def recorded(modules: list[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Within the context, keep each attention's weights of its first sentence.

    fairseq's layers ask for the weights of one layer at most, and pass on only those of
    cross-attention, so the modules are asked themselves.
    """
    found: dict[nn.Module, Tensor] = {}

    def ask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "need_weights": True, "need_head_weights": True}

    def keep(module: nn.Module, args: Any, output: tuple[Tensor, Tensor]) -> None:
        found[module] = output[1][:, 0]

    with contextlib.ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_pre_hook(ask, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(keep).remove)
        yield found


def rounded(layer: Tensor) -> list[list[list[float]]]:
    # In double, so that the decimals are printed as few as they are.
    return layer.double().round(decimals=DECIMALS).tolist()


def read_sentence(raw: bytes) -> tuple[str, str]:
    """Source and target of the JSON object.

    Raises:
        WeightsError: if it is no such object.
    """
    try:
        sentence = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise WeightsError(f"standard input is not UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise WeightsError(f"standard input is not JSON: {error}") from None
    match sentence:
        case {"source": str(source), "target": str(target)}:
            return source, target
    raise WeightsError(
        'standard input is no object of two strings: expected {"source": ..., "target": ...}'
    )


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m qknorm_mt.weights",
        description=__doc__,
        epilog=EXAMPLES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("data", type=Path, help="binarised folder, for its dictionaries")
    options.add_argument("--path", type=Path, required=True, help="checkpoint")
    options.add_argument(
        "--max-len",
        type=int,
        default=MAX_LEN,
        metavar="N",
        help="longest source or target, in pieces with </s> (%(default)s)",
    )
    return options


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        source, target = read_sentence(sys.stdin.buffer.read())
        model, task = load(args.path, args.data)
        found = weights(model, task, source, target, args.max_len)
    except (WeightsError, CheckpointError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    sys.stdout.buffer.write(text.encode("utf-8") + b"\n")
    return 0


if __name__ == "__main__":
    logging.disable(logging.INFO)  # fairseq tells of each dictionary it reads
    sys.exit(main())
