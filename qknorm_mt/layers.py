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
from .norm import set_norm
from .qk_norm import build_qk_norm


def build_attention(
    cfg: TransformerConfig, embed_dim: int, heads: int, self_attention: bool
) -> MultiheadAttention:
    """The attention that ``cfg`` asks for, with its own normaliser (and so its own g)."""
    qk_norm = build_qk_norm(cfg.qk_norm, embed_dim // heads, cfg.qk_norm_init_length)
    return MultiheadAttention(embed_dim, heads, qk_norm, cfg.attention_dropout, self_attention)


class EncoderLayer(TransformerEncoderLayerBase):
    def __init__(self, cfg: TransformerConfig):
        super().__init__(cfg)
        set_norm(self, cfg.norm, self.embed_dim)

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> MultiheadAttention:
        return build_attention(cfg, embed_dim, cfg.encoder.attention_heads, self_attention=True)


class DecoderLayer(TransformerDecoderLayerBase):
    def __init__(self, cfg: TransformerConfig, no_encoder_attn: bool = False):
        super().__init__(cfg, no_encoder_attn)
        set_norm(self, cfg.norm, self.embed_dim)

    def build_self_attention(
        self,
        embed_dim: int,
        cfg: TransformerConfig,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
    ) -> MultiheadAttention:
        return build_attention(cfg, embed_dim, cfg.decoder.attention_heads, self_attention=True)

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> MultiheadAttention:
        return build_attention(cfg, embed_dim, cfg.decoder.attention_heads, self_attention=False)


def wrap(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Activation checkpointing and FSDP as fairseq's own ``build_*_layer`` applies them."""
    if cfg.checkpoint_activations:
        return fsdp_wrap(checkpoint_wrapper(layer), min_num_params=0)
    return fsdp_wrap(layer, min_num_params=cfg.min_params_to_wrap)
