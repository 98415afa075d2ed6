"""One run, from text to a row in results/runs.jsonl; with ``-m``, many.

    python -m experiments.run                                   # toy pair, QKNorm, a few minutes
    python -m experiments.run attn=none                         # its baseline
    python -m experiments.run pair=gl-en recipe=cpu           # downloads the TED talks
    python -m experiments.run pair=gl-en recipe=cpu data.local=DIR runtime.core=1 seed=2
    python -m experiments.run --cfg job                         # show the settings, run nothing
    python -m experiments.run -m attn=none,l2 seed=1,2,3        # six runs, one after the other
    python -m experiments.run -m +experiment=norms hydra/launcher=joblib    # one on each CPU core

Prepares what is missing, prints the exact ``fairseq-train`` command, trains in a process of its
own, decodes dev and test, scores them and writes the row (with ``decode=off`` none of the three);
the last line it prints is JSON with the run's name, folder and BLEU. A finished run is not run
again; an interrupted one goes on from its last checkpoint. docs/sweeps.md says more of ``-m``;
`python -m experiments.status` shows how far runs are.
"""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from . import sweep
from .command_line import INTERRUPTED
from .commands import RunError, decodes
from .evaluate import score
from .hparams import write_hparams
from .job import run_job
from .locks import Cores, exclusive, free_cores, given_core
from .plan import FAILED, Run, open_run, save
from .process import explain, write_atomically
from .train import Progress, train


def execute(run: Run, progress: Progress | None = None, say: Callable[..., None] = print) -> dict:
    """Do what is missing of a run.

    Returns:
        Name, folder, and BLEU on dev and test; with ``decode=off``, perplexity on dev instead.
    """
    say(f"run: {run.name}")
    waiting = "another process has this run: waiting for it"
    with (
        exclusive(run.folder / "lock", lambda: say(waiting), run.stop) as lock,
        cores_of(run, lambda: say("every CPU core has a run: waiting for one")) as run.cores,
    ):
        save(run)
        (run.folder / FAILED).unlink(missing_ok=True)
        try:
            write_hparams(run)
            summary = train(run, lock, progress, say)
            found: dict[str, Any] = {"run": run.name, "folder": str(run.folder)}
            if not decodes(run.cfg):
                return {**found, "dev_ppl": summary["dev"][-1]["ppl"]}
            row = score(run, summary, say)
            write_hparams(run, row)
            bleu = {split: scores["bleu_tok"]["score"] for split, scores in row["scores"].items()}
            return found | bleu
        except Exception as error:
            if not run.stop.is_set():
                write_atomically(run.folder / FAILED, sentence(error) + "\n")
            raise


def cores_of(run: Run, on_wait: Callable[[], None]) -> AbstractContextManager[Cores]:
    """The CPU cores that ``runtime.core`` asks for."""
    core, threads = run.cfg["runtime"]["core"], run.cfg["runtime"]["threads"]
    if core == "free":
        return free_cores(threads, on_wait, run.stop)
    return nullcontext(Cores()) if core is None else given_core(core)


def line_progress(say: Callable[[str], None]) -> Progress:
    """A line at each validation, where there is no terminal to draw a bar on."""
    last: Any = None

    def progress(updates: int, figures: Mapping[str, Any]) -> None:
        nonlocal last
        if figures.get("dev_ppl") != last:
            last = figures["dev_ppl"]
            say(f"{updates} updates  " + "  ".join(f"{k} {v}" for k, v in figures.items()))

    return progress


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
    """Returns BLEU on dev, for sweepers that look for good settings; NaN where there is none."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return run_job(HydraConfig.get(), config)
    cfg = OmegaConf.to_container(config, resolve=True)
    assert isinstance(cfg, dict)
    try:
        run = open_run({str(key): value for key, value in cfg.items()})
        bar = sys.stderr.isatty()
        result = execute(run, bar_progress(run) if bar else line_progress(print), say=tqdm.write)
    except (RunError, OSError) as error:
        sys.exit(f"error: {sentence(error)}")
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(INTERRUPTED)
    print(json.dumps(result))
    return float(result.get("dev", math.nan))


def sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        return explain(error)
    return str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"


def interrupt(number: int, frame: object) -> None:
    """SIGTERM is Ctrl-C; a second one does not cut short what the first set off."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def command() -> int:
    """A run or a sweep; the exit code."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupt)
    sweep.use_own_launchers()
    try:
        main()
        code = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        code = INTERRUPTED
    return sweep.end(code)


if __name__ == "__main__":
    sys.exit(command())
