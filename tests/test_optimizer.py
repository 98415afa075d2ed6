"""The fused Adam against fairseq's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fairseq.optim.adam import FairseqAdam

from qknorm_mt.optimizer import FusedAdam, L2Adam


def config(**options: object) -> SimpleNamespace:
    defaults = {"adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "weight_decay": 0.01, "lr": [0.01]}
    flags = {"_name": "adam_fused", "use_old_adam": False, "fp16_adam_stats": False, "tpu": False}
    return SimpleNamespace(**{**defaults, **flags, **options})


def test_the_same_steps_as_fairseqs() -> None:
    results = []
    for kind in (FairseqAdam, FusedAdam):
        generator = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(7, 5, generator=generator))
        optimizer = kind(config(), [weight])
        for step in range(20):
            weight.grad = torch.randn(7, 5, generator=generator)
            optimizer.set_lr(0.01 * (step + 1))
            optimizer.step()
        results.append(weight)
    torch.testing.assert_close(results[1], results[0], atol=1e-6, rtol=1e-5)
    assert optimizer.supports_flat_params  # else --fp16 refuses it
    assert (results[0] - torch.zeros(7, 5)).abs().max() > 0.5


def test_it_goes_on_from_its_state() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(6, 4, generator=generator)
    whole = torch.nn.Parameter(torch.zeros(4))
    optimizer = FusedAdam(config(), [whole])
    for gradient in gradients:
        whole.grad = gradient.clone()
        optimizer.step()
    part = torch.nn.Parameter(torch.zeros(4))
    first = FusedAdam(config(), [part])
    for gradient in gradients[:3]:
        part.grad = gradient.clone()
        first.step()
    second = FusedAdam(config(), [part])
    second.load_state_dict(first.state_dict())
    for gradient in gradients[3:]:
        part.grad = gradient.clone()
        second.step()
    assert torch.equal(part, whole)


def test_options_it_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="fp16_adam_stats=True is not allowed"):
        FusedAdam(config(fp16_adam_stats=True), [torch.nn.Parameter(torch.zeros(1))])


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_l2_decay_is_added_to_the_gradient(decay: float) -> None:
    """A gradient that holds the decay already gives the same steps without it."""
    weights = [torch.nn.Parameter(torch.linspace(-2, 2, 6)) for _ in range(2)]
    settings = ({"weight_decay": decay}, {"weight_decay": 0.0})
    l2, plain = (L2Adam(config(**s), [w]) for s, w in zip(settings, weights, strict=True))
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        gradient = torch.randn(6, generator=generator)
        weights[0].grad = gradient.clone()
        weights[1].grad = gradient + decay * weights[1].detach()
        l2.step()
        plain.step()
    torch.testing.assert_close(weights[0], weights[1])
    fused = torch.nn.Parameter(torch.linspace(-2, 2, 6))
    adamw = FusedAdam(config(weight_decay=decay), [fused])
    generator.manual_seed(0)
    for _ in range(10):
        fused.grad = torch.randn(6, generator=generator)
        adamw.step()
    assert torch.allclose(fused, weights[0]) == (decay == 0.0)
