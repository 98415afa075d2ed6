"""The mean of a run's last checkpoints, as one checkpoint more.

python -m experiments.run ... runtime.keep_checkpoints=5   # else only the last one is kept
python -m experiments.average RUN --last 5                 # checkpoints/checkpoint_average.pt
python -m experiments.decode RUN --checkpoint checkpoint_average.pt
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import torch

from .command_line import catch, parser_of
from .commands import RunError
from .plan import load
from .process import write_bytes_atomically

AVERAGE = "checkpoint_average.pt"
COPIES = ("checkpoint_best.pt", "checkpoint_last.pt", AVERAGE)  # not checkpoints of their own


def updates_of(state: dict[str, Any]) -> int:
    return int(state["optimizer_history"][-1]["num_updates"])


def last_checkpoints(folder: Path, count: int) -> list[dict[str, Any]]:
    """The newest ``count`` by the updates that they say they have, oldest first.

    Raises:
        RunError: if there are fewer.
    """
    paths = [path for path in sorted(folder.glob("checkpoint*.pt")) if path.name not in COPIES]
    if not 1 <= count <= len(paths):
        raise RunError(
            f"--last {count} is not allowed: {folder} holds {len(paths)} numbered checkpoints; "
            "runtime.keep_checkpoints=N keeps the last N of a training"
        )
    # Plain data: the unpickler may be kept from running code.
    states = [torch.load(path, map_location="cpu", weights_only=True) for path in paths]
    return sorted(states, key=updates_of)[-count:]


def average(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The newest checkpoint with the mean of all parameters.

    Whole numbers, as the vocabulary's fingerprint, are the same in all and stay.
    """
    models = [state["model"] for state in states]
    mean = {
        name: sum(model[name].double() for model in models).div(len(models)).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in models[-1].items()
    }
    return {**states[-1], "model": mean}


@catch
def main(argv: list[str] | None = None) -> int:
    parser = parser_of("average", __doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a trained run's folder")
    parser.add_argument("--last", type=int, default=5, help="how many (%(default)s)")
    args = parser.parse_args(argv)
    folder = load(args.run).checkpoint.parent
    states = last_checkpoints(folder, args.last)
    buffer = io.BytesIO()
    torch.save(average(states), buffer)
    write_bytes_atomically(folder / AVERAGE, buffer.getvalue())
    print(
        f"{folder / AVERAGE}: the mean at updates {', '.join(str(updates_of(s)) for s in states)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
