"""One run, from text to a row in results/runs.jsonl.

    python -m experiments.run                                   # toy pair, QKNorm, a few minutes
    python -m experiments.run attn=none                         # its baseline
    python -m experiments.run pair=gl-en recipe=cpu           # downloads the TED talks
    python -m experiments.run pair=gl-en recipe=cpu data.local=DIR runtime.core=1 seed=2
    python -m experiments.run --cfg job                         # show the settings, run nothing

Prepares what is missing, prints the exact ``fairseq-train`` command, trains in a process of its
own, decodes dev and test, scores them and writes the row. A finished run is not run again; an
interrupted one goes on from its last checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from .commands import RunError
from .evaluate import score
from .plan import Run, open_run, save
from .process import exclusive, explain
from .train import Progress, train


def execute(run: Run, progress: Progress | None = None, say: Callable[..., None] = print) -> dict:
    """Do what is missing of a run; return its row."""
    say(f"run: {run.name}")
    waiting = "another process has this run: waiting for it"
    with exclusive(run.folder / "lock", lambda: say(waiting), run.stop) as lock:
        save(run)
        summary = train(run, lock, progress, say)
        return score(run, summary, say)


def bar_progress(run: Run) -> Progress:
    """A progress bar that appears with the first figures; a resumed one starts where it was."""
    bar: tqdm | None = None

    def progress(updates: int, figures: Mapping[str, Any]) -> None:
        nonlocal bar
        if bar is None:
            bar = tqdm(total=run.updates, initial=updates, unit="upd", desc="train", mininterval=1)
        bar.set_postfix(figures, refresh=False)
        bar.update(updates - bar.n)

    return progress


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config: DictConfig) -> float:
    cfg = OmegaConf.to_container(config, resolve=True)
    assert isinstance(cfg, dict)
    try:
        run = open_run({str(key): value for key, value in cfg.items()})
        row = execute(run, bar_progress(run), say=tqdm.write)
    except RunError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {explain(error)}")
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)
    return float(row["scores"]["dev"]["bleu_tok"]["score"])


if __name__ == "__main__":
    main()
