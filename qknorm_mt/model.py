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

from .config import QKNormTransformerConfig, to_transformer_config, validate
from .layers import DecoderLayer, EncoderLayer, wrap

NAME = "transformer_qknorm"


class Encoder(TransformerEncoderBase):
    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        return wrap(EncoderLayer(cfg), cfg)


class Decoder(TransformerDecoderBase):
    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        return wrap(DecoderLayer(cfg, no_encoder_attn), cfg)


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
        model = super().build_model(to_transformer_config(cfg), task)
        model.register_buffer("vocabulary", fingerprint(task))
        return model

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
