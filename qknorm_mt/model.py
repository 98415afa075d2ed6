"""The transformer and its architectures, registered with fairseq.

Architectures (``--arch``):

================================= =============================================================
``transformer_qknorm``            512/2048, 6+6 layers, 8 heads (the paper, four of five pairs)
``transformer_qknorm_4x4``        512/2048, 4+4 layers, 4 heads (the paper, gl-en)
``transformer_qknorm_cpu``        128/512, 3+3 layers, 4 heads: trains on one CPU core
================================= =============================================================
"""

from __future__ import annotations

import argparse
import hashlib
import json
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.tasks import FairseqTask
from hydra.core.hydra_config import HydraConfig
from torch import Tensor, nn

from .attention import CAUSAL, refuse_jit
from .config import QKNormTransformerConfig, to_transformer_config, validate
from .dropout import set_dropout
from .embedding import FixNormEmbedding, InputOffset, OutputProjection, drop_words
from .g_log import log_g
from .init import small_init
from .layers import DecoderLayer, EncoderLayer, wrap
from .norm import set_norm

NAME = "transformer_qknorm"
NO_LAYER = -1


class Encoder(TransformerEncoderBase):
    embed_positions: nn.Module | None

    def __init__(self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding):
        super().__init__(cfg, dictionary, embed_tokens)
        set_norm(self, cfg.norm, cfg.encoder.embed_dim)
        set_dropout(self, cfg.cpu_dropout)
        self.embed_positions = self.embed_positions or build_offset(
            cfg, cfg.max_source_positions, self.padding_idx
        )

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        return wrap(EncoderLayer(cfg), cfg)

    def forward_embedding(
        self, src_tokens: Tensor, token_embedding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if self.training:
            src_tokens = drop_words(
                src_tokens, self.cfg.word_dropout, self.padding_idx, self.dictionary.unk()
            )
        return super().forward_embedding(src_tokens, token_embedding)


class Decoder(TransformerDecoderBase):
    embed_positions: nn.Module | None
    output_projection: Any
    allowed: Tensor | None
    padded_left = False

    def __init__(self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding):
        super().__init__(cfg, dictionary, embed_tokens)
        set_norm(self, cfg.norm, cfg.decoder.embed_dim)
        set_dropout(self, cfg.cpu_dropout)
        self.embed_positions = self.embed_positions or build_offset(
            cfg, cfg.max_target_positions, self.padding_idx
        )
        # 1 for the types that may be written; uint8, so that averaging checkpoints keeps it.
        allowed = torch.zeros(len(dictionary), dtype=torch.uint8) if cfg.logit_mask else None
        self.register_buffer("allowed", allowed)

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        return wrap(DecoderLayer(cfg, no_encoder_attn), cfg)

    def build_output_projection(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().build_output_projection(cfg, dictionary, embed_tokens)
        if cfg.fix_norm or cfg.output_bias:
            weight = self.output_projection.weight
            self.output_projection = OutputProjection(weight, cfg.fix_norm, cfg.output_bias)

    def allow(self, types: Tensor) -> None:
        """Set the types, by id, that may be written; all others get probability 0."""
        assert self.allowed is not None, "the model was built without logit_mask"
        self.allowed.zero_()
        self.allowed[types] = 1

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any = None,
        incremental_state: Any = None,
        features_only: bool = False,
        **options: Any,
    ) -> Any:
        """Logits ``(batch, time, types)``; with ``pack_output``, in training, ``(tokens, types)``
        of the tokens that are not padding, row after row."""
        features, extra = super().forward(
            prev_output_tokens, encoder_out, incremental_state, features_only=True, **options
        )
        if features_only:
            return features, extra
        if self.training and self.cfg.pack_output:
            features = features[prev_output_tokens.ne(self.padding_idx)]
        return self.output_layer(features), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any = None,
        incremental_state: Any = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> Any:
        tokens = prev_output_tokens
        self.padded_left = bool(tokens[:, 0].eq(self.padding_idx).any())
        if self.cfg.start_symbol == "bos":  # the end of sentence stands at the start only
            tokens = tokens.masked_fill(tokens == self.dictionary.eos(), self.dictionary.bos())
        if self.training:
            tokens = drop_words(
                tokens, self.cfg.word_dropout, self.padding_idx, self.dictionary.unk()
            )
            if alignment_layer is None:  # fairseq would have the last layer's weights made
                alignment_layer = NO_LAYER
        return super().extract_features(
            tokens,
            encoder_out,
            incremental_state,
            full_context_alignment,
            alignment_layer,
            alignment_heads,
        )

    def buffered_future_mask(self, tensor: Tensor) -> Tensor:
        """fairseq's hook for the causal mask: none is made where attention does without."""
        if self.padded_left:
            return super().buffered_future_mask(tensor)
        return tensor.new_empty(CAUSAL)

    def output_layer(self, features: Tensor) -> Tensor:
        """Logits ``(batch, time, types)``; minus infinity for types that are not allowed."""
        logits = super().output_layer(features)
        if self.allowed is None:
            return logits
        return logits.masked_fill(self.allowed == 0, float("-inf"))


def build_offset(cfg: TransformerConfig, max_positions: int, padding_idx: int) -> nn.Module | None:
    """Our positions and language embedding; None if the inputs are word vectors alone."""
    if cfg.positions == "none" and not cfg.language_embedding:
        return None
    width = cfg.encoder.embed_dim
    return InputOffset(cfg.positions, max_positions, width, padding_idx, cfg.language_embedding)


@register_model(NAME, dataclass=QKNormTransformerConfig)
class QKNormTransformerModel(TransformerModelBase):
    """Encoder-decoder transformer with query-key normalisation (Henry et al. 2020)."""

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        # The base class lists stock options here whatever the dataclass; skip past it.
        super(TransformerModelBase, cls).add_args(parser)

    @classmethod
    def build_model(cls, cfg: QKNormTransformerConfig, task: FairseqTask) -> TransformerModelBase:
        """Build from the flat config.

        Raises:
            ValueError: for an illegal value or combination, naming field and legal values.
        """
        # fairseq-hydra-train fills in the dataclass's defaults before it looks up an architecture,
        # whose sizes would then silently never apply.
        if HydraConfig.initialized() and cfg._name != NAME:
            raise ValueError(
                f"model._name={cfg._name!r} is not allowed under Hydra: legal is {NAME}, with the "
                "sizes as model.encoder_layers and so on"
            )
        validate(cfg)
        if cfg.logit_mask and not hasattr(task, "target_types"):
            raise ValueError(
                "logit_mask=True is not allowed: legal is False without "
                "--task translation_qknorm, which knows the target's vocabulary"
            )
        nested = to_transformer_config(cfg)
        model = super().build_model(nested, task)
        if nested.init == "small":
            small_init(model)
        model.g_warned = set()
        model.register_buffer("vocabulary", fingerprint(task))
        return model

    @classmethod
    def build_embedding(
        cls, cfg: TransformerConfig, dictionary: Dictionary, embed_dim: int, path: None = None
    ) -> nn.Embedding:
        if cfg.fix_norm:
            return FixNormEmbedding(len(dictionary), embed_dim, dictionary.pad())
        return super().build_embedding(cfg, dictionary, embed_dim, path)

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> Encoder:
        return Encoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> Decoder:
        return Decoder(cfg, tgt_dict, embed_tokens)

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq's hook after each update."""
        super().set_num_updates(num_updates)
        log_g(self, self.g_warned)

    def __prepare_scriptable__(self) -> None:
        refuse_jit()

    def get_targets(self, sample: dict[str, Tensor], net_output: Any) -> Tensor:
        """fairseq's hook for criteria: what the logits should have said, packed as they are."""
        target = super().get_targets(sample, net_output)
        if net_output[0].dim() == 3:
            return target
        return target[target.ne(self.decoder.padding_idx)]

    def set_beam_size(self, beam_size: int) -> None:
        """fairseq's generator announces its beam."""
        for layer in self.decoder.layers:
            layer.encoder_attn.set_beam_size(beam_size)

    def load_state_dict(
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: argparse.Namespace | None = None,
    ) -> Any:
        """Load a checkpoint's parameters; stock fairseq's go into ``qk_norm=none`` as they are.

        Raises:
            ValueError: if they do not fit, saying whether vocabulary, normaliser or sizes differ.
        """
        theirs = state_dict.get("vocabulary")
        if theirs is None:  # stock fairseq's checkpoints carry none
            state_dict = {**state_dict, "vocabulary": self.vocabulary}
        elif not torch.equal(theirs.cpu(), self.vocabulary.cpu()):
            raise ValueError(
                "the checkpoint was trained with another vocabulary: use the data folder it was "
                "trained on"
            )
        try:
            return super().load_state_dict(state_dict, strict, model_cfg, args)
        except RuntimeError as error:
            raise ValueError(misfit(state_dict, self.state_dict())) from error


def fingerprint(task: FairseqTask) -> Tensor:
    """Eight numbers that tell vocabularies apart, kept with the parameters.

    Small int64 numbers, so that averaging checkpoints leaves them as they are.
    """
    symbols = [task.source_dictionary.symbols, task.target_dictionary.symbols]
    digest = hashlib.sha256(json.dumps(symbols).encode()).digest()
    return torch.tensor([int.from_bytes(digest[i : i + 4], "big") for i in range(0, 32, 4)])


def misfit(theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> str:
    """Why a checkpoint's parameters do not fit the model."""
    for name in sorted(set(theirs) ^ set(ours)):
        if ".qk_norm." in name:
            has, lacks = ("checkpoint", "model") if name in theirs else ("model", "checkpoint")
            return f"the {has} has {name} but the {lacks} has not: their qk_norm options differ"
        where = "checkpoint" if name in theirs else "model"
        return f"only the {where} has {name}: it is another architecture"
    for name, tensor in ours.items():
        if theirs[name].shape != tensor.shape:
            sizes = f"{name} is {tuple(theirs[name].shape)}, here {tuple(tensor.shape)}"
            if ".qk_norm." in name:
                return f"the checkpoint's {sizes}: their qk_norm options differ"
            return f"the checkpoint has other sizes ({sizes})"
    return "the checkpoint does not fit the model"


def set_sizes(args: argparse.Namespace, width: int, ffn: int, layers: int, heads: int) -> None:
    """Sizes of a named architecture; an option given by the user stays."""
    for side in ("encoder", "decoder"):
        sizes = {"embed_dim": width, "ffn_embed_dim": ffn, "layers": layers}
        for name, value in {**sizes, "attention_heads": heads}.items():
            setattr(args, f"{side}_{name}", getattr(args, f"{side}_{name}", value))


@register_model_architecture(NAME, "transformer_qknorm_4x4")
def transformer_qknorm_4x4(args: argparse.Namespace) -> None:
    set_sizes(args, width=512, ffn=2048, layers=4, heads=4)


@register_model_architecture(NAME, "transformer_qknorm_cpu")
def transformer_qknorm_cpu(args: argparse.Namespace) -> None:
    set_sizes(args, width=128, ffn=512, layers=3, heads=4)
