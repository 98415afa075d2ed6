"""The mean of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.average import AVERAGE, average, last_checkpoints
from experiments.commands import RunError


def checkpoint(updates: int, value: float) -> dict:
    model = {"w": torch.full((2,), value), "vocabulary": torch.tensor([7, 8])}
    return {"model": model, "optimizer_history": [{"num_updates": updates}]}


def test_parameters_are_averaged_and_the_newest_gives_the_rest() -> None:
    mean = average([checkpoint(10, 1e8), checkpoint(20, 9.0), checkpoint(30, -1e8)])
    assert mean["model"]["w"].tolist() == [3.0, 3.0]  # in fp32 the 9 would be lost
    assert mean["model"]["w"].dtype == torch.float32
    assert mean["model"]["vocabulary"].tolist() == [7, 8]
    assert mean["optimizer_history"] == [{"num_updates": 30}]


def test_the_last_are_told_by_their_updates_not_by_their_names(tmp_path: Path) -> None:
    for name, updates in (("9", 9), ("10", 10), ("_2_100", 100), ("_best", 9), ("_last", 100)):
        torch.save(checkpoint(updates, 0.0), tmp_path / f"checkpoint{name}.pt")
    torch.save(checkpoint(100, 0.0), tmp_path / AVERAGE)
    found = last_checkpoints(tmp_path, 2)
    assert [state["optimizer_history"][-1]["num_updates"] for state in found] == [10, 100]
    for count in (0, 4):
        with pytest.raises(RunError, match="holds 3 numbered checkpoints"):
            last_checkpoints(tmp_path, count)
