"""Label smoothing over the types that may be written, as in the released code."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from torch import Tensor

NAME = "label_smoothed_allowed"


def smoothed_loss(lprobs: Tensor, target: Tensor, epsilon: float, padding_idx: int) -> Tensor:
    """Summed losses of targets that are not padding.

    The smoothed one is ``(1 - epsilon) nll + epsilon m``, with m the mean over the allowed types,
    the target among them, of their negative log-probabilities; fairseq's own spreads epsilon over
    all types but the target, which is infinite once one of them has probability 0. A target that
    is not allowed itself (a type of dev that the target side of train lacks) has no finite loss;
    it counts 0, as in the released code, and is counted.

    Args:
        lprobs: ``(tokens, types)``, minus infinity for a type that is not allowed.
        target: ``(tokens,)``.
        epsilon: the mass that is spread.
        padding_idx: id of padding.

    Returns:
        ``(3,)``: smoothed loss, negative log-likelihood, number of targets not allowed.
    """
    allowed = lprobs > float("-inf")
    finite = lprobs.masked_fill(~allowed, 0.0)
    nll = -finite.gather(-1, target[:, None]).squeeze(-1)
    smooth = -finite.sum(-1) / allowed.sum(-1)
    forbidden = ~allowed.gather(-1, target[:, None]).squeeze(-1)
    losses = torch.stack([(1 - epsilon) * nll + epsilon * smooth, nll, forbidden.type_as(nll)])
    return losses.masked_fill(target == padding_idx, 0.0).sum(-1)


@register_criterion(NAME, dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class LabelSmoothedAllowedCriterion(LabelSmoothedCrossEntropyCriterion):
    """Cross-entropy whose label smoothing leaves masked types out (:func:`smoothed_loss`)."""

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> Any:
        loss, sample_size, logging_output = super().forward(model, sample, reduce)
        logging_output["forbidden_targets"] = self.forbidden
        return loss, sample_size, logging_output

    def compute_loss(
        self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        lprobs, target = self.get_lprobs_and_target(model, net_output, sample)
        loss, nll, forbidden = smoothed_loss(lprobs, target, self.eps, self.padding_idx)
        self.forbidden = forbidden.detach()
        return loss, nll

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        super().reduce_metrics(logging_outputs)
        forbidden = sum(log.get("forbidden_targets", 0) for log in logging_outputs)
        metrics.log_scalar_sum("forbidden_targets", int(forbidden), priority=500)
