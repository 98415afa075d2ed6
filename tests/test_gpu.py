"""On a GPU: half precision, the fused kernels, and memory that grows with length, not its square.

`python -m pytest -m gpu` runs these alone; without a GPU they are skipped.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from qknorm_mt.attention import CAUSAL, MultiheadAttention
from qknorm_mt.qk_norm import AFFINES, QK_NORMS, QKNorm
from qknorm_mt.rope import RotaryEmbedding

from .conftest import MODELS, build_qknorm, make_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]
DIM, HEADS = 256, 4
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
DTYPES = [torch.float16, torch.bfloat16]


def build(kind: str, affine: str = "none", places: int = 0) -> MultiheadAttention:
    torch.manual_seed(0)
    rope = RotaryEmbedding(DIM // HEADS, max_positions=places) if places else None
    norm = QKNorm(kind, DIM // HEADS, affine, g_init=12.3, rope=rope)
    return MultiheadAttention(DIM, HEADS, norm, self_attention=True).cuda()


def attend(module: MultiheadAttention, x: Tensor) -> Tensor:
    return module(x, x, x, attn_mask=torch.empty(CAUSAL))[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp16", "bf16"])
@pytest.mark.parametrize("kind", QK_NORMS)
def test_half_precision_through_a_fused_kernel_is_near_full(kind: str, dtype: torch.dtype) -> None:
    module = build(kind, AFFINES[kind][-1], places=128)
    x = torch.randn(128, 4, DIM, device="cuda")
    full = attend(module, x)
    half = module.to(dtype)
    y = x.to(dtype).requires_grad_()
    with sdpa_kernel(FUSED):  # raises where none can be used
        output = attend(half, y)
        output.float().sum().backward()
    torch.testing.assert_close(output.float(), full, atol=0.05, rtol=0.05)
    for gradient in (y.grad, *(p.grad for p in half.parameters())):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp16", "bf16"])
@pytest.mark.parametrize("kind", ["l2", "layernorm", "rmsnorm"])
@pytest.mark.parametrize("size", [0.0, 1e-4, 1e4])
def test_extreme_vectors(kind: str, dtype: torch.dtype, size: float) -> None:
    norm = QKNorm(kind, 64, AFFINES[kind][-1], "learned", g_init=12.3).cuda().to(dtype)
    q, k = (
        (torch.randn(2, HEADS, 16, 64, device="cuda").sign() * size).to(dtype).requires_grad_()
        for _ in range(2)
    )
    weights = (norm.query(q) @ norm.key(k).mT).softmax(-1)
    (weights @ torch.ones_like(k)).sum().backward()
    for tensor in (weights, q.grad, k.grad):
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "padded"])
@pytest.mark.parametrize("kind", QK_NORMS)
def test_training_memory_grows_linearly_from_1k_to_8k_tokens(kind: str, causal: bool) -> None:
    module = build(kind, places=8192).to(torch.bfloat16)
    used = []
    for time in (1024, 2048, 4096, 8192):
        x = torch.randn(time, 1, DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        padding = torch.zeros(1, time, dtype=torch.bool, device="cuda")
        padding[:, -3:] = True
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        if causal:
            output = attend(module, x)
        else:
            output, _ = module(x, x, x, key_padding_mask=padding)
        output.float().sum().backward()
        used.append(torch.cuda.max_memory_allocated() - before)
        module.zero_grad()
    assert used[3] < 2.5 * used[2] < 6.25 * used[1]  # a quarter of it would be 4 times


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_model_equals_the_cpus(task: SimpleNamespace, name: str) -> None:
    batch = make_batch(True)
    real = batch["prev_output_tokens"] != 1
    expected = build_qknorm(task, name).eval()(**batch)[0][real]
    model = build_qknorm(task, name).eval().cuda()
    got = model(**{n: t.cuda() for n, t in batch.items()})[0][real.cuda()]
    torch.testing.assert_close(got.cpu(), expected, atol=1e-4, rtol=1e-4)
