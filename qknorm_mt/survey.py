"""Survey of a checkpoint's attention over a data set: figures by head, and by token type.

Of a model of ours, or of a plain fairseq transformer from elsewhere. Writes into --out

``heads.json``
    of each attention module, figures by head: those of the probes (see
    :class:`qknorm_mt.measures.HeadFigures`), and what makes attention loud (see
    :class:`qknorm_mt.loudness.Loudness`); ``model``: loss (nats a token) and lengths of weights;
    what the figures are of;
``types.npz``
    arrays over the dictionaries' types: ``source/symbols``, ``source/train`` (how often each is in
    the training set, where DATA has one), ``source/embedding``, and so for ``target``; and of each
    module, over the types of its keys, ``<module>/count``, ``/mass``, ``/uniform`` (sums over
    tokens, means over heads, of the attention got and of what even attention would give),
    ``/k_norm``, ``/k_raw_norm`` (mean length over tokens and heads, normalised and as projected),
    ``/key`` (mean vector after the normaliser, heads side by side); over those of its queries,
    ``<module>/q_raw_norm``.

Sentences are those that stand evenly spread in the set, all of them without --sentences.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .checkpoint import ENCODER_DECODERS, CheckpointError, check, load
from .counts import count_types
from .loudness import Loudness, Means, uniform_masses
from .measures import HeadFigures
from .observe import Place, Seen, Tokens, attention_weights, norm_of, observed, places, tokens_of
from .probes import evenly, nll, of_weights, rounded, whole_model

EXAMPLES = """\
examples:
  python -m qknorm_mt.survey DATA --path checkpoint_best.pt --out survey
  python -m qknorm_mt.survey DATA --path model.pt --subset test --sentences 200 --out survey
"""
TOKENS = 4000  # real tokens of a batch, source and target


class TypeFigures:
    """Of one attention module, sums over the tokens of each type: see the module's docstring."""

    def __init__(self, asking: int, asked: int, width: int):
        self.sums = {
            name: torch.zeros(asked, dtype=torch.float64)
            for name in ("count", "mass", "uniform", "k_norm", "k_raw_norm")
        }
        self.asking = torch.zeros(asking, dtype=torch.float64)
        self.q_raw_norm = torch.zeros(asking, dtype=torch.float64)
        self.key = torch.zeros(asked, width)

    def add(self, place: Place, seen: Seen, tokens: Tokens, mass: Tensor, uniform: Tensor) -> None:
        (ids, real), (asking, asks) = tokens.keys(place.kind), tokens.queries(place.kind)
        ids = ids[real]
        values = {
            "count": torch.ones(ids.shape),
            "mass": mass.mean(dim=1)[real],
            "uniform": uniform[:, 0][real],
            "k_norm": seen.k.norm(dim=-1).mean(dim=1)[real],
            "k_raw_norm": seen.k_raw.norm(dim=-1).mean(dim=1)[real],
        }
        for name, each in values.items():
            self.sums[name].index_add_(0, ids.cpu(), each.double().cpu())
        keys = norm_of(place.module).k_norm(seen.k_raw, None, 1.0)  # not rotated
        keys = keys.transpose(1, 2).flatten(2)[real]
        self.key.index_add_(0, ids.cpu(), keys.float().cpu())
        lengths = seen.q_raw.norm(dim=-1).mean(dim=1)[asks].double().cpu()
        self.q_raw_norm.index_add_(0, asking[asks].cpu(), lengths)
        self.asking.index_add_(0, asking[asks].cpu(), torch.ones_like(lengths))

    def result(self) -> dict[str, np.ndarray]:
        count = self.sums["count"].clamp(min=1)
        found = {name: self.sums[name] for name in ("count", "mass", "uniform")}
        found |= {name: self.sums[name] / count for name in ("k_norm", "k_raw_norm")}
        found["key"] = self.key / count[:, None].float()
        found["q_raw_norm"] = self.q_raw_norm / self.asking.clamp(min=1)
        return {name: values.float().numpy() for name, values in found.items()}


def survey(
    model: Any, task: Any, subset: str, sentences: int | None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What ``heads.json`` and ``types.npz`` hold of a model in evaluation mode."""
    dataset = task.dataset(subset)
    ids = evenly(dataset, model.max_positions(), sentences)
    if not ids:
        raise ValueError(f"{subset} has no sentence that the model can read")
    batches = list(batches_of(dataset, ids))
    means = {place.name: Means() for place in places(model)}
    loss, count, read, digest = 0.0, 0, [0, 0], hashlib.sha256()
    with torch.no_grad():
        for sample in tqdm(batches, desc="means", disable=None):
            tokens = tokens_of(sample, model)
            with observed(model, tokens, lambda place, seen: means[place.name].add(seen)):
                there = int(tokens.target_real.sum())
                loss += float(nll(model, sample, tokens)) * there
            read[0] += int(tokens.source_real.sum())
            read[1] += there
            count += len(tokens.source)
            for ids in (sample["net_input"]["src_tokens"], sample["target"]):
                digest.update(ids.int().cpu().numpy().tobytes())
        gather = Gather(model, task, means)
        for sample in tqdm(batches, desc="figures", disable=None):
            tokens = tokens_of(sample, model)
            with observed(model, tokens, functools.partial(gather.add, tokens)):
                model(**sample["net_input"])
    heads = {
        "subset": subset,
        "sentences": count,
        "text": digest.hexdigest(),
        **dict(zip(("source_tokens", "target_tokens"), read, strict=True)),
        "model": {"loss": loss / read[1], **whole_model(model)},
        "modules": gather.heads(),
    }
    return heads, gather.types()


class Gather:
    """All figures of all modules."""

    def __init__(self, model: Any, task: Any, means: dict[str, Means]):
        self.places = places(model)
        sides = len(task.source_dictionary), len(task.target_dictionary)
        types = {"encoder": (0, 0), "decoder": (1, 1), "cross": (1, 0)}  # of queries, of keys
        self.figures = {place.name: HeadFigures(means[place.name].pairs) for place in self.places}
        self.loudness = {place.name: Loudness(means[place.name].result()) for place in self.places}
        self.by_type = {
            place.name: TypeFigures(sides[queries], sides[keys], width_of(place.module))
            for place in self.places
            for queries, keys in [types[place.kind]]
        }

    def add(self, tokens: Tokens, place: Place, seen: Seen) -> None:
        asking, asked = tokens.queries(place.kind)[1], tokens.keys(place.kind)[1]
        weights = attention_weights(seen.logits, seen.visible)
        self.figures[place.name].add(seen, weights, asking, asked)
        mass = self.loudness[place.name].add(seen, asking, asked)
        uniform = uniform_masses(seen.visible, asking)
        self.by_type[place.name].add(place, seen, tokens, mass, uniform)

    def heads(self) -> dict[str, dict[str, Any]]:
        return {
            place.name: {
                "kind": place.kind,
                "layer": place.layer,
                **self.figures[place.name].result(),
                **self.loudness[place.name].result(),
                **of_weights(place.module, {}),
            }
            for place in self.places
        }

    def types(self) -> dict[str, np.ndarray]:
        return {
            f"{name}/{what}": values
            for name, each in self.by_type.items()
            for what, values in each.result().items()
        }


def width_of(attention: Any) -> int:
    return int(attention.k_proj.out_features)


def batches_of(dataset: Any, ids: list[int]) -> Iterator[dict[str, Any]]:
    """Batches of sentences of about the same length."""
    ids = sorted(ids, key=lambda i: (dataset.src_sizes[i], dataset.tgt_sizes[i], i))
    batch: list[int] = []
    for i in ids:
        longest = max(int(dataset.src_sizes[j] + dataset.tgt_sizes[j]) for j in [*batch, i])
        if batch and longest * (len(batch) + 1) > TOKENS:
            yield dataset.collater([dataset[j] for j in batch])
            batch = []
        batch.append(i)
    if batch:
        yield dataset.collater([dataset[j] for j in batch])


def dictionaries(model: Any, task: Any, data: Path) -> dict[str, np.ndarray]:
    """What ``types.npz`` holds of each side."""
    found = {}
    languages = task.cfg.source_lang, task.cfg.target_lang
    sides = (
        ("source", task.source_dictionary, model.encoder),
        (
            "target",
            task.target_dictionary,
            model.decoder,
        ),
    )
    for (side, dictionary, half), language in zip(sides, languages, strict=True):
        found[f"{side}/symbols"] = np.array(dictionary.symbols)
        found[f"{side}/embedding"] = half.embed_tokens.weight.detach().float().numpy()
        counts = count_types(data, languages, language, dictionary)
        if counts is not None:
            found[f"{side}/train"] = counts
    return found


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m qknorm_mt.survey",
        description=__doc__,
        epilog=EXAMPLES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("data", type=Path, help="binarised folder, as fairseq-preprocess makes it")
    options.add_argument("--path", type=Path, required=True, help="checkpoint")
    options.add_argument("--out", type=Path, required=True, help="folder to write to")
    options.add_argument(
        "--subset", default="valid", help="data set, by fairseq's name (%(default)s)"
    )
    options.add_argument("--sentences", type=int, metavar="N", help="how many sentences (all)")
    return options


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        if args.sentences is not None and args.sentences < 1:
            raise ValueError(f"--sentences {args.sentences} is not allowed: legal is at least 1")
        state = check(args.path, ENCODER_DECODERS)
        model, task = load(args.path, args.data, ENCODER_DECODERS)
        task.load_dataset(args.subset)
        heads, types = survey(model, task, args.subset, args.sentences)
        types |= dictionaries(model, task, args.data)
        heads = {"updates": updates_of(state), **heads}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **types)
        args.out.mkdir(parents=True, exist_ok=True)
        write(args.out / "types.npz", buffer.getvalue())
        write(args.out / "heads.json", json.dumps(rounded(heads), indent=1).encode())
    except (CheckpointError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or error}: {error.strerror or 'missing'}", file=sys.stderr)
        return 1
    return 0


def updates_of(state: dict[str, Any]) -> int | None:
    """How long the model was trained, if the checkpoint says so; an averaged one does not."""
    history = state.get("optimizer_history") or [{}]
    updates = history[-1].get("num_updates")
    return None if updates is None else int(updates)


def write(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)


if __name__ == "__main__":
    logging.disable(logging.INFO)  # fairseq tells of each dictionary it reads
    sys.exit(main())
