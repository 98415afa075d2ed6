"""What every attention module of a model makes of a batch: queries, keys, logits, weights.

Works on our models and on stock fairseq transformers: logits are made again from a module's inputs
and its own projections and normaliser, because fused attention never shows them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .qk_norm import QKNorm

KINDS = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class Place:
    """Which attention of a model a module is; ``layer`` counts from 1."""

    name: str
    kind: str
    layer: int
    module: nn.Module


@dataclass(frozen=True)
class Tokens:
    """Ids ``(batch, time)`` and which of them are real, of the source and the decoder's input."""

    source: Tensor
    target: Tensor
    source_real: Tensor
    target_real: Tensor

    def queries(self, kind: str) -> tuple[Tensor, Tensor]:
        """Ids and which are real, of the tokens that ask."""
        return (
            (self.source, self.source_real)
            if kind == "encoder"
            else (self.target, self.target_real)
        )

    def keys(self, kind: str) -> tuple[Tensor, Tensor]:
        """Ids and which are real, of the tokens that are asked."""
        return (
            (self.target, self.target_real)
            if kind == "decoder"
            else (self.source, self.source_real)
        )


@dataclass(frozen=True)
class Seen:
    """What one attention module made of a batch, in float32.

    Attributes:
        q_raw, k_raw: ``(batch, heads, time, head_dim)``, as projected.
        q, k: the same normalised (and rotated); their dot product times ``scale`` is the logit.
        scale: ``(heads,)``, the temperature: g, g/d, 1/sqrt(d) or 1.
        visible: ``(batch, 1, queries, keys)``: the query is real and may see the key. A query that
            is padding sees nothing.
    """

    q_raw: Tensor
    k_raw: Tensor
    q: Tensor
    k: Tensor
    scale: Tensor
    visible: Tensor

    @property
    def logits(self) -> Tensor:
        """``(batch, heads, queries, keys)``, also where nothing is visible."""
        return self.scale[:, None, None] * (self.q @ self.k.transpose(-1, -2))


def attention_weights(logits: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the visible keys; rows that see nothing are 0."""
    hidden = logits.masked_fill(~visible, float("-inf"))
    return torch.softmax(hidden, dim=-1).masked_fill(~visible, 0.0)


def places(model: Any) -> list[Place]:
    """Every attention of an encoder-decoder transformer, in the order of its layers."""
    found = [
        Place(f"encoder.layers.{i}.self_attn", "encoder", i + 1, layer.self_attn)
        for i, layer in enumerate(model.encoder.layers)
    ]
    for kind, name in (("decoder", "self_attn"), ("cross", "encoder_attn")):
        found += [
            Place(f"decoder.layers.{i}.{name}", kind, i + 1, getattr(layer, name))
            for i, layer in enumerate(model.decoder.layers)
        ]
    return found


def tokens_of(sample: Mapping[str, Any], model: Any) -> Tokens:
    """The tokens of one of fairseq's batches, as the model reads them: its decoder may put another
    symbol at the start."""
    source, target = (sample["net_input"][n] for n in ("src_tokens", "prev_output_tokens"))
    symbols = model.decoder.dictionary
    if getattr(model.decoder.cfg, "start_symbol", "eos") == "bos":
        target = target.masked_fill(target == symbols.eos(), symbols.bos())
    return Tokens(source, target, source.ne(symbols.pad()), target.ne(symbols.pad()))


@contextlib.contextmanager
def observed(model: Any, tokens: Tokens, each: Callable[[Place, Seen], None]) -> Iterator[None]:
    """Within the context, call ``each`` for every attention that a forward pass goes through.

    The pass must be one of whole sentences, with teacher forcing and without dropout, and
    ``tokens`` its batch. What ``each`` is given has no gradient.
    """
    with contextlib.ExitStack() as hooks:
        for place in places(model):

            def look(module: Any, args: Any, kwargs: Any, output: Any, place: Any = place) -> None:
                query, key = (kwargs[n] for n in ("query", "key"))
                with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
                    each(place, see(place, query, query if key is None else key, tokens))

            hooks.callback(place.module.register_forward_hook(look, with_kwargs=True).remove)
        yield


def see(place: Place, query: Tensor, key: Tensor, tokens: Tokens) -> Seen:
    """What the module makes of inputs ``(time, batch, embed_dim)``."""
    module: Any = place.module
    q_raw = heads_of(module.q_proj, query, module.num_heads)
    k_raw = heads_of(module.k_proj, key, module.num_heads)
    (_, asking), (_, asked) = tokens.queries(place.kind), tokens.keys(place.kind)
    visible = asking[:, None, :, None] & asked[:, None, None, :]
    if place.kind == "decoder":
        visible = visible & torch.ones_like(visible[0, 0]).tril()
    norm = norm_of(module)
    padding = None if place.kind == "cross" or bool(asked.all()) else ~asked
    q, k = norm.unscaled_query(q_raw, padding=padding), norm.key(k_raw, padding=padding)
    scale = norm.scale().detach().to(query.device).float().expand(module.num_heads)
    return Seen(q_raw.float(), k_raw.float(), q.float(), k.float(), scale, visible)


def heads_of(projection: nn.Module, x: Tensor, heads: int) -> Tensor:
    """Projected, ``(batch, heads, time, head_dim)``."""
    y = projection(x.to(next(projection.parameters()).dtype))
    time, batch, width = y.shape
    return y.view(time, batch, heads, width // heads).permute(1, 2, 0, 3)


def norm_of(module: Any) -> QKNorm:
    """A module's normaliser; stock fairseq's attention has none, and 1/sqrt(head_dim)."""
    norm: QKNorm = getattr(module, "qk_norm", None) or QKNorm("none", module.head_dim)
    return norm
