"""The model's options: one flat, strict dataclass.

Flat, because fairseq's command line silently ignores options of nested model configs; strict,
because an option that has no effect is a wrong experiment.
"""

import argparse
import math
from dataclasses import dataclass, field, fields
from typing import Any, Optional

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig

from .qk_norm import QK_NORMS

# A choice, not fairseq's pair of booleans: its command line turns a boolean whose default is true
# *off* when the option is given.
NORM_POSITIONS = ("pre", "post")


def option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class QKNormTransformerConfig(FairseqDataclass):
    """Options of ``--arch transformer_qknorm``; the defaults are the paper's larger model."""

    qk_norm: ChoiceEnum(QK_NORMS) = option(  # type: ignore[valid-type]
        "l2",
        "normalisation of query and key head vectors: none (logits q.k/sqrt(head_dim)) or "
        "l2 (logits g cos(q, k) with a learned scalar g in each attention module)",
    )
    qk_norm_init_length: Optional[float] = option(
        None,
        "L that g starts from, log2(L^2 - L): the 97.5th percentile of training sequence "
        "lengths in subword tokens, source and target; needed by --qk-norm l2, and only by it",
    )
    encoder_embed_dim: int = option(512, "width of the encoder")
    encoder_ffn_embed_dim: int = option(2048, "inner width of the encoder's feed-forward layers")
    encoder_layers: int = option(6, "number of encoder layers")
    encoder_attention_heads: int = option(8, "attention heads in each encoder layer")
    decoder_embed_dim: int = option(512, "width of the decoder; must equal the encoder's")
    decoder_ffn_embed_dim: int = option(2048, "inner width of the decoder's feed-forward layers")
    decoder_layers: int = option(6, "number of decoder layers")
    decoder_attention_heads: int = option(8, "attention heads in each decoder layer")
    norm_position: ChoiceEnum(NORM_POSITIONS) = option(  # type: ignore[valid-type]
        "pre",
        "layer norms before each block, and one at the end of encoder and decoder (pre), or "
        "after each residual sum (post)",
    )
    activation_fn: ChoiceEnum(utils.get_available_activation_fns()) = option(  # type: ignore[valid-type]
        "relu", "activation function of the feed-forward layers"
    )
    dropout: float = option(0.1, "dropout on embeddings and block outputs")
    attention_dropout: float = option(0.0, "dropout on attention weights")
    activation_dropout: float = option(0.0, "dropout after the feed-forward activation")
    share_decoder_input_output_embed: bool = option(
        False, "share the decoder's input and output embeddings"
    )
    share_all_embeddings: bool = option(
        False, "share encoder, decoder and output embeddings (needs a joined dictionary)"
    )
    no_scale_embedding: bool = option(False, "do not multiply embeddings by sqrt(width)")
    no_token_positional_embeddings: bool = option(False, "no positions: a model blind to order")
    checkpoint_activations: bool = option(False, "recompute activations in the backward pass")
    max_source_positions: int = option(1024, "longest source, in tokens")
    max_target_positions: int = option(1024, "longest target, in tokens")


def validate(cfg: QKNormTransformerConfig) -> None:
    """Refuse illegal values and combinations.

    Raises:
        ValueError: naming the field, its value and what is legal.
    """

    def refuse(name: str, legal: str) -> None:
        raise ValueError(f"{name}={getattr(cfg, name)!r} is not allowed: legal is {legal}")

    length = cfg.qk_norm_init_length
    if str(cfg.qk_norm) not in QK_NORMS:
        refuse("qk_norm", f"one of {', '.join(QK_NORMS)}")
    if str(cfg.qk_norm) == "l2" and not (length is not None and 2 <= length < math.inf):
        refuse(
            "qk_norm_init_length",
            "a number of at least 2 when qk_norm=l2 (the 97.5th percentile of training sequence "
            "lengths in subword tokens; `python -m data_prep` prints it)",
        )
    if str(cfg.qk_norm) == "none" and length is not None:
        refuse("qk_norm_init_length", "no value when qk_norm=none, which has no g")
    if str(cfg.norm_position) not in NORM_POSITIONS:
        refuse("norm_position", f"one of {', '.join(NORM_POSITIONS)}")
    if cfg.decoder_embed_dim != cfg.encoder_embed_dim:
        refuse("decoder_embed_dim", f"encoder_embed_dim, {cfg.encoder_embed_dim}")
    for side in ("encoder", "decoder"):
        width = getattr(cfg, f"{side}_embed_dim")
        for size in ("embed_dim", "ffn_embed_dim", "layers", "attention_heads"):
            if getattr(cfg, f"{side}_{size}") < 1:
                refuse(f"{side}_{size}", "at least 1")
        if width % getattr(cfg, f"{side}_attention_heads"):
            refuse(f"{side}_attention_heads", f"a divisor of {side}_embed_dim, {width}")
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        if not 0 <= getattr(cfg, name) < 1:
            refuse(name, "at least 0 and under 1")


def to_transformer_config(cfg: QKNormTransformerConfig) -> TransformerConfig:
    """fairseq's nested config with our flat options in it, ``qk_norm*`` as extra attributes."""
    flat = {f.name: getattr(cfg, f.name) for f in fields(QKNormTransformerConfig)}
    flat["qk_norm"] = str(flat["qk_norm"])
    pre_norm = str(flat.pop("norm_position")) == "pre"
    flat["encoder_normalize_before"] = flat["decoder_normalize_before"] = pre_norm
    nested = TransformerConfig.from_namespace(argparse.Namespace(**flat))
    nested.decoder.input_dim = nested.decoder.output_dim = cfg.decoder_embed_dim
    return nested
