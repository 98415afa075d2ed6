"""The one multi-head attention: self, causal and cross, training and step-by-step decoding."""

from __future__ import annotations

from typing import Dict, List, NoReturn, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor, nn

from .dropout import Dropout
from .qk_norm import QKNorm

# An attn_mask of this shape means: causal, with padding, if any, at the end of each row. Then no
# mask is needed, nor the key_padding_mask: what comes after a token is hidden from it anyway.
CAUSAL = (0,)

State = Dict[str, Optional[Tensor]]
IncrementalState = Optional[Dict[str, State]]


class MultiheadAttention(FairseqIncrementalState, nn.Module):
    """Multi-head attention whose query and key head vectors pass through a normaliser.

    Parameters, their names and their initial draws are those of fairseq's module, so stock
    checkpoints load and the same seed starts both at the same weights. The interface is what
    fairseq's transformer layers call.

    Args:
        embed_dim: width of queries, keys, values and output.
        num_heads: heads; must divide ``embed_dim``.
        qk_norm: normaliser with ``query`` and ``key`` methods (see :mod:`qknorm_mt.qk_norm`).
        dropout: dropout probability on attention weights.
        self_attention: keys and values come from the query's own sequence; else from ``key``,
            the encoder's output, once per sentence.
        qkv_bias: whether the projections of query, key and value have a bias.
        cpu_dropout: one of :data:`qknorm_mt.dropout.CPU_DROPOUTS`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        qk_norm: QKNorm,
        dropout: float = 0.0,
        self_attention: bool = False,
        qkv_bias: bool = True,
        cpu_dropout: str = "torch",
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout_module = Dropout(dropout, type(self).__name__, cpu_dropout)
        self.self_attention = self_attention
        # fairseq's order: the draws below must fall as they do there.
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=qkv_bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=qkv_bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.qk_norm = qk_norm
        self.beam_size = 1
        self.reset_parameters()

    def __prepare_scriptable__(self) -> None:
        refuse_jit()

    def reset_parameters(self) -> None:
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=2**-0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor],
        value: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: IncrementalState = None,
        need_weights: bool = False,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        need_head_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attend.

        Args:
            query: ``(query_len, batch, embed_dim)``.
            key: ``(key_len, batch, embed_dim)``; unread in self-attention, and in cross-attention
                once the keys are cached.
            value: unread: values are projected from ``key``, as in fairseq.
            key_padding_mask: ``(batch, key_len)``, true where a key is padding.
            incremental_state: cache of step-by-step decoding.
            need_weights: also return attention weights, averaged over heads.
            static_kv: keys do not change between steps (cross-attention).
            attn_mask: ``(query_len, key_len)``, added to the logits, or an empty tensor of shape
                :data:`CAUSAL`.
            need_head_weights: return the weights of each head.

        Returns:
            output ``(query_len, batch, embed_dim)``, and weights ``(batch, query_len, key_len)``,
            or ``(heads, batch, query_len, key_len)`` by head, or None.
        """
        if torch.jit.is_tracing():
            refuse_jit()
        causal = attn_mask is not None and attn_mask.shape == CAUSAL
        if causal:
            key_padding_mask = None
        if self.self_attention:
            q, k, v, key_padding_mask = self._own(query, key_padding_mask, incremental_state)
        else:
            q = self.qk_norm.query(self._project(query, self.q_proj)[0])
            k, v, key_padding_mask = self._source(
                key, key_padding_mask, incremental_state, query.size(1)
            )
        bias = None if causal else self._bias(q, attn_mask, key_padding_mask)
        output, weights = self._attend(q, k, v, bias, causal, need_weights or need_head_weights)
        if weights is not None:
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)
        return self.out_proj(output), weights

    def _project(self, x: Tensor, *projections: nn.Linear) -> Tuple[Tensor, ...]:
        """Head vectors ``(batch, heads, time, head_dim)`` of each projection, in one product."""
        if len(projections) == 1:
            y = projections[0](x)
        else:
            weight = torch.cat([p.weight for p in projections])
            biases: List[Tensor] = [p.bias for p in projections if p.bias is not None]
            y = F.linear(x, weight, torch.cat(biases) if biases else None)
        time, batch, _ = x.shape
        y = y.view(time, batch, len(projections), self.num_heads, self.head_dim)
        return y.permute(2, 1, 3, 0, 4).contiguous().unbind(0)

    def _own(
        self,
        x: Tensor,
        key_padding_mask: Optional[Tensor],
        incremental_state: IncrementalState,
    ) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
        """Queries of this step; keys, values and padding of all steps so far.

        What is kept for later steps are normalised keys.
        """
        q, k, v = self._project(x, self.q_proj, self.k_proj, self.v_proj)
        saved: State = {}
        if incremental_state is not None:
            saved = self._get_input_buffer(incremental_state)
        earlier_k, earlier_v = saved.get("prev_key"), saved.get("prev_value")
        offset = 0 if earlier_k is None else earlier_k.size(2)
        padding = append_padding(
            saved.get("prev_key_padding_mask"), key_padding_mask, (k.size(0), offset, k.size(2))
        )
        q, k = self.qk_norm.query(q, offset, padding), self.qk_norm.key(k, offset, padding)
        if earlier_k is not None and earlier_v is not None:
            k = torch.cat([earlier_k, k], dim=2)
            v = torch.cat([earlier_v, v], dim=2)
        if incremental_state is not None:
            self._store(incremental_state, k, v, padding)
        return q, k, v, padding

    def _source(
        self,
        encoder_out: Optional[Tensor],
        key_padding_mask: Optional[Tensor],
        incremental_state: IncrementalState,
        batch: int,
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """Keys, values and padding of the source; in decoding, computed at the first step."""
        if incremental_state is not None:
            saved = self._get_input_buffer(incremental_state)
            k, v = saved.get("prev_key"), saved.get("prev_value")
            if k is not None and v is not None:
                return k, v, saved.get("prev_key_padding_mask")
        assert encoder_out is not None, "cross-attention needs the encoder's output as key"
        # The hypotheses of a beam read one source: keep its keys once.
        if incremental_state is not None and self.beam_size > 1 and encoder_out.size(1) == batch:
            if batch % self.beam_size:
                raise ValueError(f"batch {batch} is no multiple of the beam {self.beam_size}")
            once = encoder_out[:, :: self.beam_size]
            again = once.repeat_interleave(self.beam_size, dim=1)
            if not torch.allclose(again, encoder_out, rtol=0, atol=0, equal_nan=True):
                raise ValueError(
                    f"the batch does not hold each source {self.beam_size} times, as a beam of "
                    f"{self.beam_size} does: call set_beam_size(1) before decoding otherwise"
                )
            encoder_out = once
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask[:: self.beam_size]
        k, v = self._project(encoder_out, self.k_proj, self.v_proj)
        k = self.qk_norm.key(k)
        if incremental_state is not None:
            self._store(incremental_state, k, v, key_padding_mask)
        return k, v, key_padding_mask

    def _bias(
        self,
        q: Tensor,
        attn_mask: Optional[Tensor],
        key_padding_mask: Optional[Tensor],
    ) -> Optional[Tensor]:
        """What is added to the logits, broadcastable to ``(batch, heads, query_len, key_len)``.

        A query left with no key at all (the padding at the left of a causal row) sees them all
        instead: its output is never read, and a softmax over nothing would spread NaN.
        """
        if key_padding_mask is None:
            return None if attn_mask is None else attn_mask.to(q)[None, None]
        padding = key_padding_mask.bool()[:, None, None, :]  # (batch, 1, 1, key_len)
        bias = q.new_zeros(()) if attn_mask is None else attn_mask.to(q)
        bias = bias.masked_fill(padding, float("-inf"))
        return bias.masked_fill((bias == float("-inf")).all(dim=-1, keepdim=True), 0.0)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Optional[Tensor],
        causal: bool,
        need_weights: bool,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Output ``(query_len, batch, embed_dim)``; weights ``(batch, heads, query, key)`` or None.

        The weights are made one by one where they are asked for, and where torch has no fused
        kernel that spares them: on a CPU with dropout.
        """
        batch, heads, time, head_dim = q.shape
        beam = batch // k.size(0)
        if beam > 1:  # hypotheses of one sentence become further queries of its keys
            q = q.reshape(-1, beam, heads, time, head_dim).transpose(1, 2).flatten(2, 3)
        dropout = self.dropout_module.p if self.dropout_module.active else 0.0
        weights = None
        if need_weights or (dropout > 0 and q.device.type == "cpu"):
            if causal:
                hidden = torch.ones(time, k.size(2), dtype=torch.bool, device=q.device).triu(1)
                bias = q.new_zeros(()).masked_fill(hidden, float("-inf"))
            logits = q @ k.transpose(-1, -2)
            weights = torch.softmax(logits if bias is None else logits + bias, dim=-1).type_as(q)
            output = self.dropout_module(weights) @ v
        else:
            output = F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=dropout, is_causal=causal, scale=1.0
            )
        if beam > 1:
            output = split_beam(output, beam)
            weights = None if weights is None else split_beam(weights, beam)
        output = output.permute(2, 0, 1, 3).reshape(time, batch, heads * head_dim)
        return output, weights if need_weights else None

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> IncrementalState:
        """Follow the beam: row i of the cache becomes what was row ``new_order[i]``."""
        saved = self._get_input_buffer(incremental_state)
        keys = saved.get("prev_key")
        if keys is None:
            return incremental_state
        if not self.self_attention and self.beam_size > 1:
            new_order = new_order[:: self.beam_size] // self.beam_size
            if torch.equal(new_order, torch.arange(keys.size(0)).to(new_order)):
                return incremental_state
        reordered = {
            name: None if tensor is None else tensor.index_select(0, new_order)
            for name, tensor in saved.items()
        }
        self._set_input_buffer(incremental_state, reordered)
        return incremental_state

    def set_beam_size(self, beam_size: int) -> None:
        """fairseq's generator announces its beam: cross-attention then keeps keys per sentence."""
        self.beam_size = beam_size

    def _get_input_buffer(self, incremental_state: IncrementalState) -> State:
        return self.get_incremental_state(incremental_state, "attn_state") or {}  # type: ignore

    def _set_input_buffer(self, incremental_state: IncrementalState, state: State) -> None:
        self.set_incremental_state(incremental_state, "attn_state", state)  # type: ignore

    def _store(
        self, incremental_state: IncrementalState, k: Tensor, v: Tensor, padding: Optional[Tensor]
    ) -> None:
        state = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding}
        self._set_input_buffer(incremental_state, state)


def refuse_jit() -> NoReturn:
    """For torch.jit.script's hook, ``__prepare_scriptable__``, and where torch.jit.trace passes: a
    trace would keep this batch's sizes as constants."""
    raise NotImplementedError(
        "torch.jit (script and trace) is not supported by qknorm_mt: use torch.compile, which is"
    )


def split_beam(x: Tensor, beam: int) -> Tensor:
    """``(sentences, heads, beam * time, n)`` to ``(sentences * beam, heads, time, n)``."""
    sentences, heads, queries, n = x.shape
    x = x.reshape(sentences, heads, beam, queries // beam, n)
    return x.transpose(1, 2).flatten(0, 1)


def append_padding(
    earlier: Optional[Tensor], new: Optional[Tensor], sizes: Tuple[int, int, int]
) -> Optional[Tensor]:
    """Padding mask of earlier and new keys together; a missing mask means no padding.

    Args:
        earlier, new: ``(batch, keys)`` or None.
        sizes: the batch, and how many keys are earlier and new.
    """
    if earlier is None and new is None:
        return None
    batch, *lengths = sizes
    device = (earlier if new is None else new).device  # type: ignore[union-attr]
    masks = [
        torch.zeros(batch, length, dtype=torch.bool, device=device) if mask is None else mask.bool()
        for mask, length in zip((earlier, new), lengths, strict=True)
    ]
    return torch.cat(masks, dim=1)
