"""Adam in torch's fused kernel, with weight decay of either kind.

fairseq's own goes over the parameters in Python, which takes a tenth of the training of a small
model on a CPU. Both are AdamW; they differ in what epsilon is added to (the root of the second
moment before or after its bias correction), 1e-8 here, and in rounding.
"""

import torch
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

NAME = "adam_fused"
L2_NAME = "adam_l2"


@register_optimizer(NAME, dataclass=FairseqAdamConfig)
class FusedAdam(FairseqAdam):
    """``--optimizer adam_fused``, with the options of fairseq's ``adam``."""

    kind: type[torch.optim.Adam] = torch.optim.AdamW

    def __init__(self, cfg: FairseqAdamConfig, params):  # type: ignore[no-untyped-def]
        for name in ("fp16_adam_stats", "tpu", "use_old_adam"):
            if getattr(cfg, name):
                raise ValueError(
                    f"{name}=True is not allowed: legal is False with --optimizer {cfg._name}"
                )
        FairseqOptimizer.__init__(self, cfg)
        self._optimizer: torch.optim.Optimizer = self.kind(
            params, fused=True, **self.optimizer_config
        )

    @property
    def supports_flat_params(self) -> bool:
        """Whether --fp16 may hold all parameters in one: Adam treats each number alike."""
        return True


@register_optimizer(L2_NAME, dataclass=FairseqAdamConfig)
class L2Adam(FusedAdam):
    """``--optimizer adam_l2``: the weight decay is a part of the gradient, as L2 regularisation
    is, and so is divided by its second moment too (Kingma & Ba 2015; what Loshchilov & Hutter 2019
    compare AdamW to). Without weight decay, the same as ``adam_fused``."""

    kind = torch.optim.Adam
