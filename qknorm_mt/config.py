"""The model's options: one flat, strict dataclass.

Flat, because fairseq's command line silently ignores options of nested model configs; strict,
because an option that has no effect is a wrong experiment.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NoReturn, Optional

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig

from .embedding import POSITIONS
from .norm import NORMS
from .qk_norm import QK_NORMS

# A choice, not fairseq's pair of booleans: its command line turns a boolean whose default is true
# *off* when the option is given.
NORM_POSITIONS = ("pre", "post")
INITS = ("fairseq", "small")
START_SYMBOLS = ("eos", "bos")


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
    norm: ChoiceEnum(NORMS) = option(  # type: ignore[valid-type]
        "layer", "LayerNorm, or ScaleNorm: one learned length for every vector, from sqrt(width)"
    )
    fix_norm: bool = option(
        False, "divide each word vector by its L2 norm, in the input and in the output projection"
    )
    output_bias: bool = option(False, "a learned bias for each type in the output projection")
    positions: ChoiceEnum(POSITIONS) = option(  # type: ignore[valid-type]
        "fairseq",
        "sinusoids as fairseq lays them out (halves, from 2); interleaved from 0, correct "
        "(sinusoidal) or with the sine twice, as released (sin_sin); or none: a model blind to "
        "order",
    )
    language_embedding: bool = option(False, "add a learned vector for the language to the inputs")
    start_symbol: ChoiceEnum(START_SYMBOLS) = option(  # type: ignore[valid-type]
        "eos", "the decoder's first input: fairseq's end of sentence, or <s> (bos)"
    )
    word_dropout: float = option(
        0.0, "probability that an input token, source or target, becomes UNK in training"
    )
    logit_mask: bool = option(
        False,
        "give types outside the target language's own training vocabulary probability 0; needs "
        "--task translation_qknorm",
    )
    init: ChoiceEnum(INITS) = option(  # type: ignore[valid-type]
        "fairseq",
        "how parameters start: as fairseq's, or from the smaller normals of the paper (SmallInit)",
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
    checkpoint_activations: bool = option(False, "recompute activations in the backward pass")
    max_source_positions: int = option(1024, "longest source, in tokens")
    max_target_positions: int = option(1024, "longest target, in tokens")


def refuse_option(cfg: Any, name: str, legal: str) -> NoReturn:
    """Raise the ValueError of an illegal option: its name, its value and what is legal."""
    raise ValueError(f"{name}={getattr(cfg, name)!r} is not allowed: legal is {legal}")


def validate(cfg: QKNormTransformerConfig) -> None:
    """Refuse illegal values and combinations.

    Raises:
        ValueError: naming the field, its value and what is legal.
    """

    refuse = partial(refuse_option, cfg)
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
    choices = {
        "norm_position": NORM_POSITIONS,
        "norm": NORMS,
        "positions": POSITIONS,
        "start_symbol": START_SYMBOLS,
        "init": INITS,
    }
    for name, legal in choices.items():
        if str(getattr(cfg, name)) not in legal:
            refuse(name, f"one of {', '.join(legal)}")
    if cfg.language_embedding and str(cfg.positions) == "fairseq":
        refuse("language_embedding", "false when positions=fairseq")
    if cfg.decoder_embed_dim != cfg.encoder_embed_dim:
        refuse("decoder_embed_dim", f"encoder_embed_dim, {cfg.encoder_embed_dim}")
    for side in ("encoder", "decoder"):
        width = getattr(cfg, f"{side}_embed_dim")
        for size in ("embed_dim", "ffn_embed_dim", "layers", "attention_heads"):
            if getattr(cfg, f"{side}_{size}") < 1:
                refuse(f"{side}_{size}", "at least 1")
        if width % getattr(cfg, f"{side}_attention_heads"):
            refuse(f"{side}_attention_heads", f"a divisor of {side}_embed_dim, {width}")
    for name in ("dropout", "attention_dropout", "activation_dropout", "word_dropout"):
        if not 0 <= getattr(cfg, name) < 1:
            refuse(name, "at least 0 and under 1")


# Options that may differ when a training is resumed: they change no function of the weights.
NOT_ARCHITECTURE = {
    "qk_norm_init_length",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "word_dropout",
    "init",
    "checkpoint_activations",
    "max_source_positions",
    "max_target_positions",
}


def changed_options(saved: Mapping[str, Any], cfg: Any) -> str:
    """Options of the architecture that differ between a checkpoint's model and ``cfg``.

    Returns:
        a list for a message; empty if all are the same or the checkpoint is of another model.
    """
    names = [f.name for f in fields(QKNormTransformerConfig) if f.name not in NOT_ARCHITECTURE]
    pairs = {n: (saved[n], getattr(cfg, n)) for n in names if n in saved and hasattr(cfg, n)}
    return ", ".join(
        f"{name}={then} there, {now} here"
        for name, (then, now) in pairs.items()
        if str(then) != str(now)
    )


def to_transformer_config(cfg: QKNormTransformerConfig) -> TransformerConfig:
    """fairseq's nested config with our flat options in it, those it lacks as extra attributes."""
    flat = {f.name: getattr(cfg, f.name) for f in fields(QKNormTransformerConfig)}
    for name in ("qk_norm", "norm", "positions", "start_symbol", "init"):
        flat[name] = str(flat[name])  # an enum on the command line
    pre_norm = str(flat.pop("norm_position")) == "pre"
    flat["encoder_normalize_before"] = flat["decoder_normalize_before"] = pre_norm
    flat["no_token_positional_embeddings"] = flat["positions"] != "fairseq"
    nested = TransformerConfig.from_namespace(argparse.Namespace(**flat))
    nested.decoder.input_dim = nested.decoder.output_dim = cfg.decoder_embed_dim
    return nested
