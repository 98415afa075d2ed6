"""Several workers under ``torchrun``: the same training as one process with their batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ..conftest import ROOT
from .conftest import run
from .test_recipe import argv, figures

# fairseq-train as a script: only the first worker saves, and the weights of all are compared here.
WORKER = """
import os, signal
from fairseq_cli import train
import torch

RANK = int(os.environ.get("RANK", 0))
DIES_AFTER = int(os.environ.get("DIES_AFTER", -1))
trainers = []

class Trainer(train.Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        trainers.append(self)

    def train_step(self, *args, **kwargs):
        if RANK == 1 and self.get_num_updates() == DIES_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_step(*args, **kwargs)

train.Trainer = Trainer
train.cli_main()
(trainer,) = trainers
state = {
    "model": trainer.get_model().state_dict(),
    "schedule": trainer.lr_scheduler.state_dict(),
    "rate": trainer.get_lr(),
}
torch.save(state, f"worker{RANK}.pt")
"""
SAVED, DIES_AFTER = 30, 33
# No dropout: every worker draws its batch's masks from the update's seed, one process goes on
# with what its first batch left.
TRAINING = [
    *("--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0"),
    *("--word-dropout", "0", "--max-tokens", "512", "--max-update", "60", "--log-interval", "1"),
    *("--eval-bleu-args", '{"beam": 1, "max_len_a": 1, "max_len_b": 3}'),
    # Five batches of dev: one worker's last is none.
    *("--save-interval-updates", str(SAVED), "--max-tokens-valid", "1700"),
]
# What only a CPU needs: fairseq works ranks out from the number of GPUs, which is 0 here, and
# its default way to exchange gradients, pytorch_ddp, asks for a GPU's number.
ON_CPU = [
    *("--distributed-init-method", "env://", "--distributed-world-size", "2"),
    *("--distributed-rank", "-1", "--distributed-no-spawn"),
    *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
]
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
# A figure of the log has three decimals, and the last may be rounded the other way.
LAST_DECIMAL = 0.0011


def compared(log: str) -> dict[tuple[str, str], dict[str, float]]:
    """A log's figures by kind and update, but for how large a step of validation is: it is taken
    by all workers together."""
    steps = ("valid_wpb", "valid_bsz")
    return {
        key: {name: float(value) for name, value in said.items() if name not in steps}
        for key, said in figures(log).items()
    }


@pytest.mark.slow
def test_two_workers_train_as_one_process_of_twice_the_accumulation(
    toy: Path, tmp_path: Path
) -> None:
    """Losses, dev loss and BLEU, decays and weights, although a worker dies within an epoch."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()

    alone = subprocess.run(
        [sys.executable, str(script), *argv(toy, one, *TRAINING, "--update-freq", "2")[1:]],
        cwd=one,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )
    assert alone.returncode == 0, alone.stdout
    together = argv(toy, two, *TRAINING, *ON_CPU, "--load-checkpoint-on-all-dp-ranks")[1:]
    call = [*TORCHRUN, str(script), *together, "--update-freq", "1"]
    killed = run(*call, cwd=two, PYTHONPATH=str(ROOT), DIES_AFTER=str(DIES_AFTER))
    assert killed.returncode != 0 and "exitcode  : -9" in killed.stdout, killed.stdout
    resumed = run(*call, cwd=two, PYTHONPATH=str(ROOT))
    assert resumed.returncode == 0, resumed.stdout
    assert f"(epoch 2 @ {SAVED} updates)" in resumed.stdout

    expected = compared(alone.stdout)
    pieces = [compared(killed.stdout), compared(resumed.stdout)]
    for piece in pieces:
        for key, said in piece.items():
            assert said == pytest.approx(expected[key], abs=LAST_DECIMAL), key
    updates = [[int(n) for kind, n in piece if kind == "train_inner"] for piece in pieces]
    assert updates[0][0] == 1 and updates[0][-1] in (DIES_AFTER - 1, DIES_AFTER)
    assert updates[1] == [*range(SAVED + 1, 61)]
    assert {key for piece in pieces for key in piece} == {*expected}

    (state,) = (torch.load(path, weights_only=True) for path in one.glob("worker?.pt"))
    workers = [torch.load(path, weights_only=True) for path in sorted(two.glob("worker?.pt"))]
    assert len(workers) == 2
    torch.testing.assert_close(workers[0], workers[1], rtol=0, atol=0)
    torch.testing.assert_close(workers[0], state, rtol=1e-4, atol=1e-6)
    # The comparison is worth something: BLEU moved, so did the rate, and one worker ran out of dev.
    assert float(figures(alone.stdout)["valid", "60"]["valid_bsz"]) == 300 / 5
    assert len({*state["schedule"]["bleus"]}) == 3 and state["schedule"]["decays"]
