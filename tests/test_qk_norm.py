"""The normalisers, the temperature and rotary positions: identities that hold whatever the data."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import Tensor

from qknorm_mt.attention import MultiheadAttention
from qknorm_mt.g_log import log_g
from qknorm_mt.qk_norm import (
    AFFINES,
    QK_NORMS,
    QKNorm,
    RowScale,
    g_init_from_length,
    g_init_of,
)
from qknorm_mt.rope import RotaryEmbedding

HEADS, HEAD_DIM = 4, 8
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
VARIANTS = [(kind, affine) for kind in QK_NORMS for affine in AFFINES[kind]]
over_variants = pytest.mark.parametrize(("kind", "affine"), VARIANTS)


def build(kind: str, affine: str = "none", temperature: str = "auto", **options: object) -> QKNorm:
    """With gains and biases that do something."""
    norm = QKNorm(kind, HEAD_DIM, affine, temperature, g_init=12.3, **options)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in norm.named_parameters():
        if name != "g":
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return norm


def vectors(time: int = 5, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, HEADS, time, HEAD_DIM, generator=generator, dtype=dtype)


def logits(norm: QKNorm, q: Tensor, k: Tensor, offset: int = 0) -> Tensor:
    return norm.query(q, offset) @ norm.key(k, offset).mT


def rope(base: float = 100.0, positions: int = 64) -> RotaryEmbedding:
    return RotaryEmbedding(HEAD_DIM, base, positions)


# Each normaliser against its equation -----------------------------------------------------------


@over_variants
@pytest.mark.parametrize("temperature", ["learned", "fixed", "none"])
@pytest.mark.parametrize("heads", [0, HEADS], ids=["one-g", "g-per-head"])
def test_logits_are_the_published_equation(
    kind: str, affine: str, temperature: str, heads: int
) -> None:
    norm = build(kind, affine, temperature, heads=heads)
    if heads and norm.g is not None:
        norm.g.data *= torch.tensor([1.0, 2.0, -1.0, 0.5])
    q, k = vectors(), vectors(seed=1)

    def plain(x: Tensor, side: torch.nn.Module) -> Tensor:
        if kind == "l2":
            x = x / x.norm(dim=-1, keepdim=True)
        elif kind == "layernorm":
            x = x - x.mean(-1, keepdim=True)
        if kind in ("layernorm", "rmsnorm"):
            x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        x = x if side.weight is None else x * side.weight
        return x if side.bias is None else x + side.bias

    dot = plain(q, norm.q_norm) @ plain(k, norm.k_norm).mT
    if temperature == "learned":
        unit = 1 if kind == "l2" else HEAD_DIM
        dot = dot * norm.g.view(-1, 1, 1) / unit
    elif temperature == "fixed":
        dot = dot / HEAD_DIM**0.5
    torch.testing.assert_close(logits(norm, q, k), dot, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["l2", "layernorm", "rmsnorm"])
@pytest.mark.parametrize("heads", [0, HEADS], ids=["one-g", "g-per-head"])
def test_gradients_are_those_of_the_function(kind: str, heads: int) -> None:
    norm = build(kind, AFFINES[kind][-1], "learned", heads=heads).double()
    names, parameters = zip(*norm.named_parameters(), strict=True)

    def function(q: Tensor, k: Tensor, *values: Tensor) -> Tensor:
        both = {
            "query": dict(zip(names, values, strict=True)),
            "key": dict(zip(names, values, strict=True)),
        }
        query = torch.func.functional_call(Call(norm, "query"), rename(both["query"]), (q,))
        key = torch.func.functional_call(Call(norm, "key"), rename(both["key"]), (k,))
        return query @ key.mT

    inputs = [vectors(3, seed, torch.float64).requires_grad_() for seed in (0, 1)]
    assert torch.autograd.gradcheck(function, (*inputs, *parameters))


class Call(torch.nn.Module):
    def __init__(self, norm: QKNorm, method: str):
        super().__init__()
        self.norm, self.method = norm, method

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.norm, self.method)(x)


def rename(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"norm.{name}": value for name, value in parameters.items()}


@pytest.mark.parametrize("rms", [False, True], ids=["l2", "rms"])
def test_gradients_of_vectors_shorter_than_eps(rms: bool) -> None:
    x = (vectors(3, dtype=torch.float64) * 1e-3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: RowScale.apply(x, None, 1.7, rms, 0.5), (x,))


# Identities -------------------------------------------------------------------------------------


def test_gainless_rmsnorm_at_the_fixed_temperature_is_l2_with_g_sqrt_head_dim() -> None:
    l2 = QKNorm("l2", HEAD_DIM, g_init=g_init_of("sqrt_head_dim", HEAD_DIM))
    rms = QKNorm("rmsnorm", HEAD_DIM)
    learned = QKNorm("rmsnorm", HEAD_DIM, temperature="learned", g_init=HEAD_DIM**0.5)
    q, k = vectors(), vectors(seed=1)
    for norm in (rms, learned):
        torch.testing.assert_close(logits(norm, q, k), logits(l2, q, k), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["l2", "layernorm", "rmsnorm"])
def test_rescaling_one_heads_queries_changes_no_weights(kind: str) -> None:
    q, k = vectors(), vectors(seed=1)
    louder = q.clone()
    louder[:, 2] *= 50
    norm = build(kind)
    torch.testing.assert_close(
        logits(norm, louder, k).softmax(-1), logits(norm, q, k).softmax(-1), atol=1e-5, rtol=0
    )
    without = build("none")
    change = logits(without, louder, k).softmax(-1) - logits(without, q, k).softmax(-1)
    assert change[:, 2].abs().max() > 0.1 and change[:, [0, 1, 3]].abs().max() == 0


@pytest.mark.parametrize("kind", ["l2", "layernorm", "rmsnorm"])
@pytest.mark.parametrize("g", [12.3, -3.0, 1e4])
def test_logits_never_pass_g(kind: str, g: float) -> None:
    norm = QKNorm(kind, HEAD_DIM, temperature="learned", g_init=g)
    q = vectors() * 1e3
    assert logits(norm, q, vectors(seed=1)).abs().max() <= abs(g) * (1 + 1e-5)
    same = logits(norm, q, q).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(same, torch.full_like(same, g), rtol=1e-4, atol=0)


def test_without_normalisation_logits_do_pass_it() -> None:
    norm = QKNorm("none", HEAD_DIM, temperature="learned", g_init=12.3)
    assert logits(norm, vectors() * 1e3, vectors(seed=1)).abs().max() > 1000


def test_l2_without_g_stays_within_one() -> None:
    q = vectors()
    for temperature, bound in (("none", 1.0), ("fixed", HEAD_DIM**-0.5)):
        norm = QKNorm("l2", HEAD_DIM, temperature=temperature)
        assert logits(norm, q, q).max().item() == pytest.approx(bound, rel=1e-5)


# Numbers of any size ----------------------------------------------------------------------------


@over_variants
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("size", [0.0, 1e-4, 1e4])
@pytest.mark.parametrize("g", [12.3, -12.3])
def test_extreme_vectors_give_finite_outputs_and_gradients(
    kind: str, affine: str, dtype: torch.dtype, size: float, g: float
) -> None:
    if kind == "none" and size == 1e4 and dtype == torch.float16:
        pytest.skip("without normalisation fp16 logits overflow, as everywhere")
    norm = build(kind, affine, "learned").to(dtype)
    norm.g.data.fill_(g)
    q, k = ((vectors(seed=s).sign() * size).to(dtype).requires_grad_() for s in (0, 1))
    v = vectors(seed=2).to(dtype)
    weights = (norm.query(q) @ norm.key(k).mT).softmax(-1)
    (weights @ v).sum().backward()
    assert torch.isfinite(weights).all()
    for tensor in (q, k, *norm.parameters()):
        assert torch.isfinite(tensor.grad).all()


@pytest.mark.parametrize("kind", ["l2", "layernorm", "rmsnorm"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16", "fp16"])
def test_ordinary_and_large_vectors_have_one_length_in_every_dtype(
    kind: str, dtype: torch.dtype
) -> None:
    norm = QKNorm(kind, HEAD_DIM, g_init=1.0)
    length = 1.0 if kind == "l2" else HEAD_DIM**0.5
    for size in (0.1, 1.0, 1e4):
        lengths = norm.key((vectors() * size).to(dtype)).float().norm(dim=-1)
        torch.testing.assert_close(lengths, torch.full_like(lengths, length), rtol=1e-2, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@over_variants
def test_autocast_is_near_full_precision(kind: str, affine: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    attention = MultiheadAttention(32, HEADS, build(kind, affine), self_attention=True)
    x = torch.randn(6, 3, 32, requires_grad=True)
    full, _ = attention(x, x, x)
    with torch.autocast("cpu", dtype):
        half, _ = attention(x, x, x)
    half.float().sum().backward()
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), full, atol=0.05, rtol=0.05)
    for parameter in attention.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


# Rotary positions -------------------------------------------------------------------------------


@pytest.mark.parametrize("rotate_first", [False, True], ids=["after", "before"])
@over_variants
def test_logits_depend_on_distance_alone(kind: str, affine: str, rotate_first: bool) -> None:
    norm = build(kind, affine, rope=rope(), rotate_first=rotate_first)
    q, k = vectors(), vectors(seed=1)
    here, there = logits(norm, q, k), logits(norm, q, k, offset=37)
    if rotate_first and (kind == "layernorm" or affine != "none"):
        # A gain or a mean taken after the rotation sees absolute places: docs/attention.md says so.
        assert (there - here).abs().max() > 0.05
    else:
        torch.testing.assert_close(there, here, atol=1e-4, rtol=1e-4)
    apart = norm.query(q, 3) @ norm.key(k, 0).mT
    assert (apart - here).abs().max() > 0.1


@over_variants
def test_the_order_matters_only_with_a_gain_or_a_mean(kind: str, affine: str) -> None:
    after, before = (
        build(kind, affine, rope=rope(), rotate_first=first) for first in (False, True)
    )
    q, k = vectors(), vectors(seed=1)
    gap = (logits(after, q, k) - logits(before, q, k)).abs().max()
    if kind == "layernorm" or affine != "none":
        assert gap > 0.05
    else:
        assert gap < 1e-4


def test_a_rotation_keeps_lengths_and_place_zero() -> None:
    x, turn = vectors(64), rope()
    torch.testing.assert_close(turn(x).norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turn(x)[:, :, 0], x[:, :, 0])


def test_the_rotation_is_that_of_complex_numbers() -> None:
    """Dimensions i and i + head_dim/2 are a complex number, turned by place * base^(-2i/d)."""
    x = vectors(9)
    half = HEAD_DIM // 2
    number = torch.complex(x[..., :half], x[..., half:])
    angle = torch.arange(9)[:, None] * 100.0 ** (-torch.arange(half) * 2 / HEAD_DIM)
    turned = number * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    torch.testing.assert_close(rope()(x), expected, atol=1e-5, rtol=1e-5)


def test_rotary_positions_have_limits() -> None:
    with pytest.raises(ValueError, match="head_dim must be even for rotary positions, got 7"):
        RotaryEmbedding(7)
    with pytest.raises(ValueError, match="a sequence of 65 tokens is longer than the 64 places"):
        rope()(vectors(5), offset=60)


# The temperature's start and its log ------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "g"), [(72, 12.3197), (75, 12.4383), (79, 12.5892)], ids=["72", "75", "79"]
)
def test_published_starts_of_g(length: int, g: float) -> None:
    assert g_init_from_length(length) == pytest.approx(g, abs=5e-5)


@pytest.mark.parametrize("length", [1, 0, -3, float("nan"), float("inf")])
def test_lengths_without_a_start_are_refused(length: float) -> None:
    with pytest.raises(ValueError, match="length must be a finite number of at least 2"):
        g_init_from_length(length)


def test_other_starts_of_g() -> None:
    assert g_init_of("sqrt_head_dim", 64) == 8
    assert g_init_of("7.5", 64) == 7.5
    for start in ("much", "nan", "inf", "-1", "0"):
        with pytest.raises(ValueError, match="expected a number over 0, or sqrt_head_dim"):
            g_init_of(start, 64)


def test_what_no_normaliser_is() -> None:
    with pytest.raises(ValueError, match=r"unknown normaliser 'l1', expected one of none, l2"):
        QKNorm("l1", HEAD_DIM)
    with pytest.raises(ValueError, match="unknown affine of l2 'gain', expected one of none"):
        QKNorm("l2", HEAD_DIM, "gain")
    with pytest.raises(ValueError, match="unknown temperature 'hot'"):
        QKNorm("l2", HEAD_DIM, temperature="hot")
    with pytest.raises(ValueError, match="a learned temperature needs g_init"):
        QKNorm("l2", HEAD_DIM)


def test_g_is_logged_and_unusual_ones_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    from fairseq.logging import metrics

    model = torch.nn.ModuleDict({"a": build("l2"), "b": build("rmsnorm", "none", "learned")})
    warned: set[str] = set()
    with caplog.at_level(logging.WARNING), metrics.aggregate() as logged:
        log_g(model, warned)
        assert not caplog.records
        model["a"].g.data.fill_(-2.0)
        model["b"].g.data.fill_(400.0)
        log_g(model, warned)
        log_g(model, warned)
        model["a"].g.data.fill_(math.nan)
        log_g(model, warned)
    values = logged.get_smoothed_values()
    assert math.isnan(values["g_min"])
    texts = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[0] for text in texts] == [
        "g of a is -2",
        "g of b is 400",
        "g of a is nan",
    ]
    assert "least like the query" in texts[0] and "its gradient vanishes" in texts[1]


def test_what_a_very_large_or_negative_g_does() -> None:
    """What the warnings say, and that it stays finite."""
    q, k = vectors(), vectors(seed=1)
    cosine = torch.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)
    for g, preferred in ((1e4, cosine.argmax(-1)), (-1e4, cosine.argmin(-1))):
        norm = QKNorm("l2", HEAD_DIM, g_init=g)
        inputs = q.clone().requires_grad_()
        weights = logits(norm, inputs, k).softmax(-1)
        assert torch.equal(weights.argmax(-1), preferred)
        assert weights.max(-1).values.min() > 0.999
        (weights * vectors(seed=3)[..., :5]).sum().backward()
        assert inputs.grad.abs().max() < 1e-3
