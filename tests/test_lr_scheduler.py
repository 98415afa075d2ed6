"""The schedule on dev BLEU, traced by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from omegaconf import OmegaConf

from qknorm_mt.lr_scheduler import DevBleuSchedule, DevBleuScheduleConfig

PEAK = 512**-0.5 * 8000**-0.5


def make(**options: Any) -> DevBleuSchedule:
    given = {
        "lr": [PEAK],
        "stop_min_lr": -1.0,
        "best_checkpoint_metric": "bleu",
        "maximize_best_checkpoint_metric": True,
        **options,
    }
    cfg = OmegaConf.structured(DevBleuScheduleConfig)
    for name, value in given.items():
        cfg[name] = value
    adam = OmegaConf.structured(FairseqAdamConfig)
    adam.lr, adam.tpu, adam.fp16_adam_stats = [1.0], False, False
    return DevBleuSchedule(cfg, FairseqAdam(adam, [torch.nn.Parameter(torch.zeros(1))]))


def follow(schedule: DevBleuSchedule, bleus: list[float], epoch_length: int = 100) -> list[int]:
    """Decays after each epoch."""
    decays = []
    for epoch, bleu in enumerate(bleus, start=1):
        schedule.step_update(epoch * epoch_length)
        schedule.step(epoch, bleu)
        decays.append(schedule.state.decays)
    return decays


@pytest.mark.parametrize(
    ("update", "rate"),
    [
        (1, 512**-0.5 * 1 * 8000**-1.5),
        (4000, 512**-0.5 * 4000 * 8000**-1.5),
        (7999, 512**-0.5 * 7999 * 8000**-1.5),
        (8000, PEAK),
        (100000, PEAK),
    ],
)
def test_warm_up_then_flat(update: int, rate: float) -> None:
    schedule = make()
    assert schedule.step_update(update - 1) == pytest.approx(rate, rel=1e-12)
    assert schedule.optimizer.get_lr() == pytest.approx(rate, rel=1e-12)


def test_inverse_square_root() -> None:
    schedule = make(after_warmup="inverse_sqrt", lr_decay=1.0)
    for update in (1, 7999):
        assert schedule.step_update(update - 1) == pytest.approx(PEAK * update / 8000)
    for update in (8000, 8001, 32000):
        assert schedule.step_update(update - 1) == pytest.approx((512 * update) ** -0.5)
    schedule.step_update(32000)
    follow(schedule, [3, 3, 3, 1], epoch_length=16000)  # dev BLEU falls: no matter
    assert schedule.step_update(63999) == pytest.approx((512 * 64000) ** -0.5)


def test_no_warm_up() -> None:
    schedule = make(lr=[3e-4], warmup_updates=0)
    assert schedule.optimizer.get_lr() == 3e-4
    assert follow(schedule, [5, 5, 5, 4]) == [0, 0, 0, 1]
    assert schedule.optimizer.get_lr() == pytest.approx(0.8 * 3e-4)


@pytest.mark.parametrize(
    ("bleus", "decays"),
    [
        pytest.param([1, 2, 3, 4, 5], [0, 0, 0, 0, 0], id="rising"),
        pytest.param([5, 4, 3], [0, 0, 0], id="too-early"),
        pytest.param([5, 4, 3, 2], [0, 0, 0, 1], id="fourth-epoch"),
        pytest.param([5, 4, 3, 3], [0, 0, 0, 0], id="tie-with-the-lowest"),
        pytest.param([5, 4, 3, 3.5], [0, 0, 0, 0], id="above-the-lowest"),
        pytest.param([5, 4, 3, 2, 1], [0, 0, 0, 1, 2], id="again-at-once"),
        pytest.param([9, 1, 5, 6, 4, 3], [0, 0, 0, 0, 0, 1], id="the-low-one-must-be-out-of-three"),
        pytest.param([5, 5, 5, 4, 4, 4, 3.99], [0, 0, 0, 1, 1, 1, 2], id="plateaus"),
        pytest.param([0, 0, 0, 0, 0], [0, 0, 0, 0, 0], id="all-zero"),
    ],
)
def test_decay_when_dev_bleu_falls(bleus: list[float], decays: list[int]) -> None:
    schedule = make(warmup_updates=1)
    assert follow(schedule, bleus) == decays
    assert schedule.optimizer.get_lr() == pytest.approx(PEAK * 0.8 ** decays[-1])


@pytest.mark.parametrize("patience", [1, 2])
def test_patience(patience: int) -> None:
    expected = {1: [0, 1, 1, 2], 2: [0, 0, 0, 1]}
    schedule = make(warmup_updates=1, decay_patience=patience)
    assert follow(schedule, [5, 4, 4.5, 3]) == expected[patience]


def test_no_decay_before_it_is_warm_but_its_epochs_count() -> None:
    """Epochs of 100 updates, warm at 400: BLEU falls at 300 (cold), 400 (warm) and 500."""
    schedule = make(warmup_updates=400, decay_patience=2)
    assert follow(schedule, [9, 8, 7, 6, 5]) == [0, 0, 0, 1, 2]
    schedule = make(warmup_updates=401, decay_patience=2)
    assert follow(schedule, [9, 8, 7, 6, 5]) == [0, 0, 0, 0, 1]


def test_stop_once_the_rate_is_under_the_stop_rate() -> None:
    schedule = make(lr=[1e-4], warmup_updates=1, decay_patience=1, stop_lr=6.4e-5 - 1e-12)
    follow(schedule, [9, 8, 7])
    assert schedule.stopped == ""  # 6.4e-5, not under it
    schedule.step(4, 6.0)
    assert "under --stop-lr" in schedule.stopped
    # what ends the training is fairseq's own comparison with --stop-min-lr
    assert schedule.step_update(400) == schedule.optimizer.get_lr() == -1.0


@pytest.mark.parametrize(("updates", "stops"), [(50, False), (100, False), (101, True)])
def test_a_cold_schedule_never_stops_on_its_rate(updates: int, stops: bool) -> None:
    schedule = make(warmup_updates=100, stop_lr=1.0)
    schedule.step_update(updates)
    schedule.step(1, 1.0)
    assert bool(schedule.stopped) == stops


@pytest.mark.parametrize(
    ("bleus", "stops"),
    [
        ([1, 2, 3], [False, False, False]),
        ([3, 2, 2.5], [False, False, True]),
        ([3, 2, 3, 2], [False, False, True, True]),  # a tie is no new best
        ([3, 2, 3.1, 2, 2], [False, False, False, False, True]),
    ],
)
def test_early_stop(bleus: list[float], stops: list[bool]) -> None:
    schedule = make(early_stop=2)
    seen = []
    for epoch, bleu in enumerate(bleus, start=1):
        schedule.step(epoch, bleu)
        seen.append(bool(schedule.stopped))
    assert seen == stops


def test_an_epoch_counts_once() -> None:
    schedule = make(warmup_updates=1, decay_patience=1)
    follow(schedule, [5, 4])
    schedule.step(2, 4)
    schedule.step(2, 3)
    assert (schedule.state.bleus, schedule.state.decays) == ([5, 4], 1)


def test_an_epoch_without_validation_changes_nothing() -> None:
    schedule = make(warmup_updates=1, decay_patience=1)
    follow(schedule, [5])
    schedule.step(2, None)
    assert schedule.state.bleus == [5]


def test_state_survives_and_is_not_shared() -> None:
    bleus = [5, 4, 3, 2, 3, 2, 1]
    one = make(warmup_updates=1)
    follow(one, bleus)
    for cut in range(len(bleus)):
        first, second = make(warmup_updates=1), make(warmup_updates=1)
        follow(first, bleus[:cut])
        saved = first.state_dict()
        second.load_state_dict(saved)
        for epoch in range(cut + 1, len(bleus) + 1):
            second.step_update(100 * epoch)
            second.step(epoch, bleus[epoch - 1])
        assert second.state_dict() == one.state_dict()
        assert second.optimizer.get_lr() == one.optimizer.get_lr()
        assert len(saved["bleus"]) == cut


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": [0.1, 0.2]}, "lr=.* is not allowed: legal is one rate over 0"),
        ({"warmup_updates": -1}, "warmup_updates=-1"),
        ({"after_warmup": "inverse_sqrt", "warmup_updates": 0}, "warmup_updates=0"),
        ({"lr_decay": 1.5}, "lr_decay=1.5"),
        ({"decay_patience": 0}, "decay_patience=0"),
        ({"early_stop": -1}, "early_stop=-1"),
        ({"stop_min_lr": 1e-5}, r"stop_min_lr=1e-05 .*--stop-lr"),
        ({"best_checkpoint_metric": "loss"}, "best_checkpoint_metric='loss'"),
        ({"maximize_best_checkpoint_metric": False}, "--maximize-best-checkpoint-metric"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_illegal_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)
