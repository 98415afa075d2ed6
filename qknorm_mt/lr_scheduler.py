"""The learning-rate schedules of Nguyen & Salazar 2019, one of which Henry et al. 2020 took.

Three schedules, from the options of one scheduler:

=========================== ==================================================================
warm up, flat (the paper's) ``--warmup-updates 8000``, rate ``--lr`` once warm
no warm-up                  ``--warmup-updates 0 --lr 3e-4``
inverse square root         ``--warmup-updates 8000 --after-warmup inverse_sqrt --lr-decay 1``
=========================== ==================================================================

All but the last are decayed when dev BLEU falls: an epoch whose dev BLEU is lower than the lowest
of the ``--decay-patience`` epochs before it multiplies the rate by ``--lr-decay``.
"""

import logging
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, List

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from .config import refuse_option

NAME = "dev_bleu"
AFTER_WARMUP = ("flat", "inverse_sqrt")

logger = logging.getLogger(__name__)


@dataclass
class DevBleuScheduleConfig(FairseqDataclass):
    """Options of ``--lr-scheduler dev_bleu``; the defaults are the paper's."""

    warmup_updates: int = field(
        default=8000,
        metadata={"help": "updates in which the rate rises to --lr in a straight line"},
    )
    after_warmup: ChoiceEnum(AFTER_WARMUP) = field(  # type: ignore[valid-type]
        default="flat", metadata={"help": "stay at --lr, or fall with 1/sqrt(updates)"}
    )
    lr_decay: float = field(
        default=0.8, metadata={"help": "factor of the rate when dev BLEU falls; 1 never decays"}
    )
    decay_patience: int = field(
        default=3,
        metadata={"help": "dev BLEU falls if it is below the lowest of this many epochs before"},
    )
    stop_lr: float = field(
        default=0.0, metadata={"help": "stop once the rate, after warm-up, is under this"}
    )
    early_stop: int = field(
        default=0, metadata={"help": "stop after this many epochs without a new best; 0 never"}
    )
    lr: List[float] = II("optimization.lr")
    stop_min_lr: float = II("optimization.stop_min_lr")
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")
    maximize_best_checkpoint_metric: bool = II("checkpoint.maximize_best_checkpoint_metric")


@dataclass
class State:
    """What a checkpoint keeps of a schedule.

    Attributes:
        epoch: last epoch whose dev BLEU was seen.
        updates: updates done then.
        bleus: dev BLEU of every epoch so far.
        decays: how often the rate was decayed.
    """

    epoch: int = 0
    updates: int = 0
    bleus: list[float] = field(default_factory=list)
    decays: int = 0


@register_lr_scheduler(NAME, dataclass=DevBleuScheduleConfig)
class DevBleuSchedule(FairseqLRScheduler):
    """Warm up, go on flat or as 1/sqrt(updates), decay and stop on dev BLEU.

    Raises:
        ValueError: naming an illegal option, its value and what is legal.
    """

    def __init__(self, cfg: DevBleuScheduleConfig, optimizer: FairseqOptimizer):
        super().__init__(cfg, optimizer)
        validate(cfg)
        self.peak = cfg.lr[0]
        self.state = State()
        self.updates = 0
        self.stopped = ""  # why the schedule ended
        # The task finds the schedule here, to tell it a score earlier than fairseq would.
        optimizer.dev_bleu_schedule = self
        self.step_update(0)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "bleus" not in state_dict:
            raise ValueError(
                "the checkpoint was trained with another learning-rate schedule: resume with the "
                "same, or add --reset-lr-scheduler"
            )
        self.state = State(**{**state_dict, "bleus": [*state_dict["bleus"]]})
        self.check_stop()

    @property
    def warm(self) -> bool:
        return self.updates >= self.cfg.warmup_updates

    def rate(self, update: int) -> float:
        """Learning rate of the ``update``-th update, counted from 1."""
        warmup = self.cfg.warmup_updates
        if update < warmup:
            return self.peak * update / warmup
        rate = self.peak * self.cfg.lr_decay**self.state.decays
        if str(self.cfg.after_warmup) == "inverse_sqrt":
            rate *= (warmup / update) ** 0.5
        return rate

    def step_update(self, num_updates: int) -> float:
        """Set the rate of the next update.

        A schedule that has ended sets the rate at which fairseq stops, its ``--stop-min-lr``.
        """
        self.updates = num_updates
        self.optimizer.set_lr(self.cfg.stop_min_lr if self.stopped else self.rate(num_updates + 1))
        return self.optimizer.get_lr()

    def step(self, epoch: int, val_loss: float | None = None) -> float:
        """fairseq's call at the end of an epoch; ``val_loss`` is its dev BLEU."""
        if val_loss is not None:
            self.observe(epoch, val_loss)
        return self.optimizer.get_lr()

    def observe(self, epoch: int, bleu: float) -> None:
        """Take in the dev BLEU of an epoch; a second time changes nothing."""
        if epoch <= self.state.epoch:
            return
        self.state.epoch, self.state.updates = epoch, self.updates
        self.state.bleus.append(bleu)
        if self.warm and self.fell():
            self.state.decays += 1
        self.check_stop()
        self.step_update(self.updates)

    def check_stop(self) -> None:
        """Whether training ends with the last epoch seen, by the options as they are now."""
        self.stopped = self.why_stop()
        if self.stopped:
            logger.info(f"the schedule ends after epoch {self.state.epoch}: {self.stopped}")

    def fell(self) -> bool:
        """Whether the newest dev BLEU is below the lowest of the ``decay_patience`` before it."""
        patience = self.cfg.decay_patience
        before = self.state.bleus[-1 - patience : -1]
        return len(before) == patience and self.state.bleus[-1] < min(before)

    def why_stop(self) -> str:
        bleus, updates, cfg = self.state.bleus, self.state.updates, self.cfg
        if not bleus:
            return ""
        rate = self.rate(updates + 1)
        if updates > cfg.warmup_updates and rate < cfg.stop_lr:
            return f"learning rate {rate:.3g} is under --stop-lr {cfg.stop_lr:g}"
        since_best = len(bleus) - 1 - bleus.index(max(bleus))
        if cfg.early_stop and since_best >= cfg.early_stop:
            return f"no new best dev BLEU in {since_best} epochs (--early-stop {cfg.early_stop})"
        return ""


def validate(cfg: DevBleuScheduleConfig) -> None:
    refuse = partial(refuse_option, cfg)
    if len(cfg.lr) != 1 or not cfg.lr[0] > 0:
        refuse("lr", "one rate over 0")
    if cfg.warmup_updates < 0:
        refuse("warmup_updates", "at least 0")
    if str(cfg.after_warmup) == "inverse_sqrt" and not cfg.warmup_updates:
        refuse("warmup_updates", "at least 1 with after_warmup=inverse_sqrt")
    if not 0 < cfg.lr_decay <= 1:
        refuse("lr_decay", "over 0 and at most 1")
    if cfg.decay_patience < 1:
        refuse("decay_patience", "at least 1")
    if cfg.early_stop < 0:
        refuse("early_stop", "at least 0")
    if cfg.stop_min_lr > 0:
        refuse("stop_min_lr", "at most 0 (it would end warm-up; --stop-lr is checked after it)")
    if cfg.best_checkpoint_metric != "bleu" or not cfg.maximize_best_checkpoint_metric:
        refuse(
            "best_checkpoint_metric",
            "bleu, with --maximize-best-checkpoint-metric: the schedule decays on dev BLEU",
        )
