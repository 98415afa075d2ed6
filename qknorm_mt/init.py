"""Where parameters start, if not where fairseq has them start."""

from __future__ import annotations

from torch import nn

from .attention import MultiheadAttention
from .embedding import FixNormEmbedding
from .layers import DecoderLayer, EncoderLayer


def small_init(model: nn.Module) -> None:
    """Start from the paper's smaller normals (SmallInit; Nguyen & Salazar 2019, section 3.1).

    Attention N(0, 2/(5d)) and feed-forward N(0, 2/(d + d_ff)), as variances, without biases;
    embeddings U(-0.01, 0.01) under FixNorm, which fixes their length, else N(0, 1/d).
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            if isinstance(module, FixNormEmbedding):
                nn.init.uniform_(module.weight, -0.01, 0.01)
            else:
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, MultiheadAttention):
            std = (2 / (5 * module.embed_dim)) ** 0.5
            for linear in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
                restart(linear, std)
        elif isinstance(module, (EncoderLayer, DecoderLayer)):
            std = (2 / sum(module.fc1.weight.shape)) ** 0.5
            for linear in (module.fc1, module.fc2):
                restart(linear, std)


def restart(linear: nn.Linear, std: float) -> None:
    nn.init.normal_(linear.weight, std=std)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
