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

from .dropout import CPU_DROPOUTS
from .embedding import POSITIONS
from .norm import NORMS
from .qk_norm import (
    AFFINES,
    QK_NORMS,
    SQRT_HEAD_DIM,
    TEMPERATURES,
    g_init_from_length,
    g_init_of,
    resolve_temperature,
)
from .rope import ROPES

# A choice, not fairseq's pair of booleans: its command line turns a boolean whose default is true
# *off* when the option is given.
NORM_POSITIONS = ("pre", "post")
ROPE_BASE = 10000.0
INITS = ("fairseq", "small")
START_SYMBOLS = ("eos", "bos")


QK_NORM_AFFINES = ("none", "gain", "gain_bias")
CHOICES = {
    "qk_norm": QK_NORMS,
    "qk_norm_affine": QK_NORM_AFFINES,
    "qk_temperature": TEMPERATURES,
    "rope": ROPES,
    "norm_position": NORM_POSITIONS,
    "norm": NORMS,
    "positions": POSITIONS,
    "start_symbol": START_SYMBOLS,
    "init": INITS,
    "cpu_dropout": CPU_DROPOUTS,
}


def option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class QKNormTransformerConfig(FairseqDataclass):
    """Options of ``--arch transformer_qknorm``; the defaults are the paper's larger model."""

    qk_norm: ChoiceEnum(QK_NORMS) = option(  # type: ignore[valid-type]
        "l2",
        "normalisation of query and key head vectors: none, l2 (to length 1), layernorm or "
        "rmsnorm (to length sqrt(head_dim))",
    )
    qk_norm_affine: ChoiceEnum(QK_NORM_AFFINES) = option(  # type: ignore[valid-type]
        "none",
        "what layernorm and rmsnorm learn for each dimension of a head, of queries and of keys: "
        "none, gain, or, layernorm alone, gain_bias",
    )
    qk_temperature: ChoiceEnum(TEMPERATURES) = option(  # type: ignore[valid-type]
        "auto",
        "what logits are multiplied by: a learned g in each attention module (learned), "
        "1/sqrt(head_dim) (fixed), 1 (none); auto: learned with l2, else fixed",
    )
    g_per_head: bool = option(False, "a learned g for each head, not one for each module")
    qk_norm_init_length: Optional[float] = option(
        None,
        "L that g starts from, log2(L^2 - L): the 97.5th percentile of training sequence "
        "lengths in subword tokens, source and target; a learned g needs this or --g-init",
    )
    g_init: Optional[str] = option(
        None, f"where g starts: a number, or {SQRT_HEAD_DIM}, the fixed temperature"
    )
    allow_flat_attention: bool = option(
        False,
        "allow l2 without a learned g: logits then stay within 1 and attention is almost uniform",
    )
    no_qkv_bias: bool = option(False, "no bias in the projections of query, key and value")
    rope: ChoiceEnum(ROPES) = option(  # type: ignore[valid-type]
        "off",
        "rotary positions in self-attention: rotate after the normalisation or before it; "
        "needs --positions none",
    )
    rope_base: float = option(ROPE_BASE, "base of the rotary positions' frequencies")
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
    cpu_dropout: ChoiceEnum(CPU_DROPOUTS) = option(  # type: ignore[valid-type]
        "torch",
        "how dropout masks are drawn on a CPU: as torch does, or from one random byte a value "
        "(bytes), which is faster and rounds probabilities to 1/256",
    )
    pack_output: bool = option(
        False,
        "in training, project real target tokens alone onto the vocabulary, not padding: the "
        "model then returns logits (tokens, types), which fairseq's criteria take as they are "
        "(not with --ignore-prefix-size)",
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
    for name, legal in CHOICES.items():
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
        probability = getattr(cfg, name)
        if not 0 <= probability < 1:
            refuse(name, "at least 0 and under 1")
        by_bytes = str(cfg.cpu_dropout) == "bytes" and name != "word_dropout"
        if by_bytes and probability and not 0 < round(256 * probability) < 256:
            refuse(name, "0, or from 1/256 to 255/256 when cpu_dropout=bytes")
    validate_attention(cfg)


def validate_attention(cfg: QKNormTransformerConfig) -> None:
    """The part of :func:`validate` that is about queries and keys."""

    refuse = partial(refuse_option, cfg)
    kind = str(cfg.qk_norm)
    if str(cfg.qk_norm_affine) not in AFFINES[kind]:
        refuse("qk_norm_affine", f"{' or '.join(AFFINES[kind])} when qk_norm={kind}")
    learned = temperature_of(cfg) == "learned"
    if kind == "l2" and not learned and not cfg.allow_flat_attention:
        refuse(
            "qk_temperature",
            "learned when qk_norm=l2: cosines alone keep all logits within 1, and the softmax "
            "almost uniform; allow_flat_attention=True lets it pass",
        )
    if cfg.allow_flat_attention and (kind != "l2" or learned):
        refuse("allow_flat_attention", "false unless qk_norm=l2 and qk_temperature is not learned")
    length = cfg.qk_norm_init_length
    if not learned:
        for name in ("qk_norm_init_length", "g_init"):
            if getattr(cfg, name) is not None:
                refuse(name, f"no value when qk_norm={kind} has no learned g")
        if cfg.g_per_head:
            refuse("g_per_head", f"false when qk_norm={kind} has no learned g")
    elif cfg.g_init is None and not (length is not None and 2 <= length < math.inf):
        refuse(
            "qk_norm_init_length",
            "a number of at least 2 when g is learned and g_init is not given (the 97.5th "
            "percentile of training sequence lengths in subword tokens; `python -m data_prep` "
            "prints it)",
        )
    elif cfg.g_init is not None and length is not None:
        refuse("g_init", "no value beside qk_norm_init_length: both say where g starts")
    elif cfg.g_init is not None:
        try:
            g_init_of(cfg.g_init, 1)
        except ValueError:
            refuse("g_init", f"a number over 0, or {SQRT_HEAD_DIM}")
    validate_rope(cfg)


def validate_rope(cfg: QKNormTransformerConfig) -> None:
    """The part of :func:`validate` that is about rotary positions."""

    refuse = partial(refuse_option, cfg)
    on = str(cfg.rope) != "off"
    if on and str(cfg.positions) != "none":
        refuse("positions", f"none when rope={cfg.rope}, which tells positions instead")
    if not on and cfg.rope_base != ROPE_BASE:
        refuse("rope_base", f"{ROPE_BASE:g}, its default, when rope=off")
    if on and not 1 < cfg.rope_base < math.inf:
        refuse("rope_base", "a number over 1")
    for side in ("encoder", "decoder"):
        heads = getattr(cfg, f"{side}_attention_heads")
        if on and getattr(cfg, f"{side}_embed_dim") // heads % 2:
            refuse(f"{side}_attention_heads", f"heads of an even size when rope={cfg.rope}")


def temperature_of(cfg: Any) -> str:
    """``learned``, ``fixed`` or ``none``."""
    return resolve_temperature(str(cfg.qk_norm), str(cfg.qk_temperature))


def g_start(cfg: Any, head_dim: int) -> float | None:
    """Where g starts; None where it is not learned."""
    if temperature_of(cfg) != "learned":
        return None
    if cfg.g_init is not None:
        return g_init_of(cfg.g_init, head_dim)
    return g_init_from_length(cfg.qk_norm_init_length)


# Options that may differ when a training is resumed: they change no function of the weights.
NOT_ARCHITECTURE = {
    "qk_norm_init_length",
    "g_init",
    "allow_flat_attention",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "word_dropout",
    "init",
    "cpu_dropout",
    "pack_output",
    "checkpoint_activations",
    "max_source_positions",
    "max_target_positions",
}


def changed_options(saved: Mapping[str, Any], cfg: Any) -> str:
    """Options of the architecture that differ between a checkpoint's model and ``cfg``.

    Returns:
        a list for a message; empty if all are the same or the checkpoint is of another model.
    """
    if "qk_norm" not in saved:
        return ""
    options = [f for f in fields(QKNormTransformerConfig) if f.name not in NOT_ARCHITECTURE]
    # An option that a checkpoint is too old to have was then what its default is.
    pairs = {
        f.name: (saved.get(f.name, f.default), getattr(cfg, f.name))
        for f in options
        if hasattr(cfg, f.name)
    }
    return ", ".join(
        f"{name}={then} there, {now} here"
        for name, (then, now) in pairs.items()
        if str(then) != str(now)
    )


def to_transformer_config(cfg: QKNormTransformerConfig) -> TransformerConfig:
    """fairseq's nested config with our flat options in it, those it lacks as extra attributes."""
    flat = {f.name: getattr(cfg, f.name) for f in fields(QKNormTransformerConfig)}
    for name in CHOICES:
        flat[name] = str(flat[name])  # an enum on the command line
    pre_norm = str(flat.pop("norm_position")) == "pre"
    flat["encoder_normalize_before"] = flat["decoder_normalize_before"] = pre_norm
    flat["no_token_positional_embeddings"] = flat["positions"] != "fairseq"
    nested = TransformerConfig.from_namespace(argparse.Namespace(**flat))
    nested.decoder.input_dim = nested.decoder.output_dim = cfg.decoder_embed_dim
    return nested
