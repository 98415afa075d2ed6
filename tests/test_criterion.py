"""Label smoothing over the allowed types."""

from __future__ import annotations

import math

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from qknorm_mt.criterion import smoothed_loss

PAD = 1


def logits(*allowed: int) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(4, 10, dtype=torch.float64)
    mask = torch.ones(10, dtype=torch.bool)
    mask[list(allowed)] = False
    return x.masked_fill(mask, float("-inf")).requires_grad_()


def test_by_hand() -> None:
    """Two types allowed, with probabilities 1/4 and 3/4."""
    lprobs = torch.full((1, 5), float("-inf"))
    lprobs[0, 2], lprobs[0, 4] = math.log(0.25), math.log(0.75)
    loss, nll, forbidden = smoothed_loss(lprobs, torch.tensor([4]), 0.1, PAD).tolist()
    expected_mean = -(math.log(0.25) + math.log(0.75)) / 2
    assert nll == pytest.approx(-math.log(0.75))
    assert loss == pytest.approx(0.9 * nll + 0.1 * expected_mean)
    assert forbidden == 0


def test_masked_types_are_as_if_they_were_not_there() -> None:
    kept = [2, 3, 5, 7, 8]
    x = logits(*kept)
    masked = smoothed_loss(x.log_softmax(-1), torch.tensor([3, 5, 8, PAD]), 0.1, PAD)
    small = smoothed_loss(x[:, kept].log_softmax(-1), torch.tensor([1, 2, 4, 0]), 0.1, 99)
    last = smoothed_loss(x[3:, kept].log_softmax(-1), torch.tensor([0]), 0.1, 99)
    torch.testing.assert_close(masked, small - last)


def test_with_every_type_allowed_it_is_fairseqs_with_less_smoothing() -> None:
    """Ours leaves epsilon / V on the target, fairseq nothing."""
    x, target = logits(*range(10)).log_softmax(-1), torch.tensor([3, 5, 8, PAD])
    ours = smoothed_loss(x, target, 0.1, PAD)
    theirs = label_smoothed_nll_loss(x, target, 0.1 * 9 / 10, ignore_index=PAD)
    torch.testing.assert_close(ours[:2], torch.stack(theirs))


def test_gradients_are_finite_and_stay_off_the_masked_types() -> None:
    x = logits(2, 3, 5)
    smoothed_loss(x.log_softmax(-1), torch.tensor([2, 3, 5, PAD]), 0.1, PAD)[0].backward()
    assert x.grad is not None and x.grad.isfinite().all()
    assert not x.grad[:, [0, 1, 4, 6, 7, 8, 9]].any() and not x.grad[3].any()
    assert x.grad[:3, [2, 3, 5]].all()


def test_a_forbidden_target_counts_nothing_and_is_counted() -> None:
    x = logits(2, 3).log_softmax(-1)
    loss, nll, forbidden = smoothed_loss(x, torch.tensor([2, 7, 7, PAD]), 0.0, PAD).tolist()
    assert (nll, forbidden) == (pytest.approx(-x[0, 2].item()), 2)
    assert loss == pytest.approx(nll)
