"""fairseq's encoder and decoder layers with our attention, through their ``build_*`` hooks."""

from __future__ import annotations

from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import nn

from .attention import MultiheadAttention
from .config import g_start
from .dropout import set_dropout
from .norm import set_norm
from .qk_norm import QKNorm
from .rope import RotaryEmbedding


def build_attention(
    cfg: TransformerConfig, embed_dim: int, heads: int, max_positions: int | None
) -> MultiheadAttention:
    """The attention that ``cfg`` asks for, with its own normaliser (and so its own g).

    Args:
        cfg: fairseq's config with our options in it.
        embed_dim: width.
        heads: number of heads.
        max_positions: longest sequence of self-attention; None for cross-attention, where keys
            and queries stand in different sequences and have no distance.
    """
    head_dim = embed_dim // heads
    rope = None
    if cfg.rope != "off" and max_positions is not None:
        rope = RotaryEmbedding(head_dim, cfg.rope_base, max_positions)
    qk_norm = QKNorm(
        cfg.qk_norm,
        head_dim,
        affine=cfg.qk_norm_affine,
        temperature=cfg.qk_temperature,
        g_init=g_start(cfg, head_dim),
        heads=heads if cfg.g_per_head else 0,
        rope=rope,
        rotate_first=cfg.rope == "before_norm",
    )
    return MultiheadAttention(
        embed_dim,
        heads,
        qk_norm,
        cfg.attention_dropout,
        self_attention=max_positions is not None,
        qkv_bias=not cfg.no_qkv_bias,
        cpu_dropout=cfg.cpu_dropout,
    )


class EncoderLayer(TransformerEncoderLayerBase):
    def __init__(self, cfg: TransformerConfig):
        super().__init__(cfg)
        set_norm(self, cfg.norm, self.embed_dim)
        set_dropout(self, cfg.cpu_dropout)

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> MultiheadAttention:
        heads = cfg.encoder.attention_heads
        return build_attention(cfg, embed_dim, heads, cfg.max_source_positions)


class DecoderLayer(TransformerDecoderLayerBase):
    def __init__(self, cfg: TransformerConfig, no_encoder_attn: bool = False):
        super().__init__(cfg, no_encoder_attn)
        self.need_attn = False  # weights only where the decoder asks for this layer's
        set_norm(self, cfg.norm, self.embed_dim)
        set_dropout(self, cfg.cpu_dropout)

    def build_self_attention(
        self,
        embed_dim: int,
        cfg: TransformerConfig,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
    ) -> MultiheadAttention:
        heads = cfg.decoder.attention_heads
        return build_attention(cfg, embed_dim, heads, cfg.max_target_positions)

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> MultiheadAttention:
        return build_attention(cfg, embed_dim, cfg.decoder.attention_heads, None)


def wrap(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Activation checkpointing and FSDP as fairseq's own ``build_*_layer`` applies them."""
    if cfg.checkpoint_activations:
        return fsdp_wrap(checkpoint_wrapper(layer), min_num_params=0)
    return fsdp_wrap(layer, min_num_params=cfg.min_params_to_wrap)
