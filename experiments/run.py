"""One run, from text to a row in results/runs.jsonl.

    python -m experiments.run                                   # toy pair, QKNorm, a few minutes
    python -m experiments.run attn=none                         # its baseline
    python -m experiments.run pair=gl-en recipe=cpu data.mirror=DIR
    python -m experiments.run pair=gl-en recipe=cpu data.mirror=DIR runtime.core=1 seed=2
    python -m experiments.run --cfg job                         # show the settings, run nothing

Prepares what is missing, prints the exact ``fairseq-train`` command, trains in a process of its
own, decodes dev and test, scores them and writes the row. A finished run is not run again; an
interrupted one goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from . import collect, commands, provenance
from .commands import RunError
from .decode import decode
from .process import (
    check_libraries,
    exclusive,
    explain,
    read_module,
    run_module,
    write_atomically,
)
from .score import scores
from .training_log import is_finished, parse_line, summarise

Progress = Callable[[int, Mapping[str, Any]], None]


@dataclass
class Run:
    """A run's settings and places.

    Attributes:
        cfg: the composed config, as plain containers.
        data: what ``data_prep`` reports of the prepared set.
        options: ``fairseq-train`` options.
        folder: the run's own folder.
        stop: set it to end the run's processes; the run can be gone on with later.
    """

    cfg: dict[str, Any]
    data: dict[str, Any]
    options: dict[str, Any]
    folder: Path
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return "/".join(self.folder.parts[-3:])

    @property
    def langs(self) -> tuple[str, str]:
        return self.cfg["pair"]["source_lang"], self.cfg["pair"]["target_lang"]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoints" / "checkpoint_best.pt"

    @property
    def updates(self) -> int:
        """Updates to train for."""
        return int(self.options["max_update"])

    @property
    def cpu(self) -> bool:
        return bool(self.options.get("cpu"))


def open_run(cfg: dict[str, Any]) -> Run:
    """Prepare the pair's data if needed, and name the run."""
    check_libraries()
    data = json.loads(read_module("data_prep", commands.prepare_argv(cfg)))
    options = commands.train_options(cfg, data["length_percentile"])
    commands.check_options(options, data["longest"])
    name = commands.run_name(cfg, options, data["digest"])
    return Run(cfg, data, options, Path(cfg["paths"]["work"]) / "runs" / name)


def execute(run: Run, progress: Progress | None = None, say: Callable[..., None] = print) -> dict:
    """Do what is missing of a run; return its row."""
    say(f"run: {run.name}")
    waiting = "another process has this run: waiting for it"
    with exclusive(run.folder / "lock", lambda: say(waiting), run.stop) as lock:
        summary = train(run, lock, progress, say)
        return score(run, summary, say)


def train(
    run: Run, lock: int, progress: Progress | None, say: Callable[..., None]
) -> dict[str, Any]:
    """Train to the end, from the last checkpoint if there is one; return the log's summary."""
    done = run.folder / "trained.json"
    argv = commands.train_argv(
        run.options, run.data["data"], str(run.folder / "checkpoints"), run.langs
    )
    say(f"training command:\n\n  {commands.pasteable('fairseq-train', argv)}\n")
    if done.exists():
        say(f"trained already: {done}")
        return json.loads(done.read_text(encoding="utf-8"))
    log = run.folder / "train.log"
    segments = run.folder / "segments.json"
    # A runner may be killed and leave its training to end by itself.
    if not (log.exists() and is_finished(read_log(log))):
        repair_checkpoints(run.folder / "checkpoints")
        begin_segment(segments)
        runtime = run.cfg["runtime"]
        run_module(
            "fairseq_cli.train",
            argv,
            log,
            runtime["threads"],
            runtime["core"],
            lock,
            on_line=Follower(progress),
            stop=run.stop,
        )
    summary = {
        "segments": json.loads(segments.read_text(encoding="utf-8")),
        **summarise(read_log(log)),
        "hardware": provenance.hardware(run.cpu, run.cfg["runtime"]["threads"]),
        "versions": provenance.versions(),
    }
    write_atomically(done, json.dumps(summary, indent=1) + "\n")
    return summary


def read_log(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").split("\n")


def begin_segment(path: Path) -> None:
    """Note code and time of a start: a resumed training may have seen several commits."""
    segments = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    now = datetime.now(UTC).isoformat("T", "seconds")
    segments.append({"started": now, **provenance.code()})
    write_atomically(path, json.dumps(segments) + "\n")


def repair_checkpoints(folder: Path) -> None:
    """Replace a last or best checkpoint that a kill cut short.

    fairseq writes each checkpoint whole under its number, then copies it, not atomically, to the
    names best and last: one that is no whole archive was being copied from the newest number.
    """
    numbered = [p for p in folder.glob("checkpoint_*_*.pt") if zipfile.is_zipfile(p)]
    for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
        path = folder / name
        if path.exists() and not zipfile.is_zipfile(path) and numbered:
            newest = max(numbered, key=lambda p: int(p.stem.rsplit("_", 1)[1]))
            partial = path.with_suffix(".partial")
            shutil.copyfile(newest, partial)
            partial.replace(path)


class Follower:
    """Tells ``progress`` of the updates done, and the newest figures, as log lines come in."""

    def __init__(self, progress: Progress | None):
        self.progress = progress
        self.figures: dict[str, Any] = {}

    def __call__(self, line: str) -> None:
        parsed = parse_line(line)
        if parsed is None or self.progress is None:
            return
        kind, figures = parsed
        if kind == "train_inner":
            self.figures |= {"ppl": figures["ppl"], "words/s": figures["wps"]}
            self.progress(int(figures["num_updates"]), self.figures)
        elif kind == "valid":
            self.figures["dev_ppl"] = figures["valid_ppl"]
            self.progress(int(figures["valid_num_updates"]), self.figures)


def score(run: Run, summary: dict[str, Any], say: Callable[..., None]) -> dict[str, Any]:
    """Decode and score dev and test, store the hypotheses, write the row."""
    options = run.cfg["decode"]
    folder = run.folder / f"decode-{commands.digest_of(options)[:12]}"
    stored = folder / "row.json"
    results = Path(run.cfg["paths"]["results"])
    if stored.exists():
        say(f"scored already: {stored}")
        row = json.loads(stored.read_text(encoding="utf-8"))
    else:
        folder.mkdir(exist_ok=True)
        row = make_row(run, summary, folder, say)
        write_atomically(stored, json.dumps(row, indent=1, ensure_ascii=False) + "\n")
    for split in ("dev", "test"):
        text = (folder / f"{split}.{run.langs[1]}").read_text(encoding="utf-8")
        write_atomically(results / row["hypotheses"][split], text)
    collect.put_row(results, row)
    for split in ("dev", "test"):
        figures = "  ".join(f"{k} {v['score']:.2f}" for k, v in row["scores"][split].items())
        say(f"{split}: {figures}")
    return row


def make_row(
    run: Run, summary: dict[str, Any], folder: Path, say: Callable[..., None]
) -> dict[str, Any]:
    runtime, target = run.cfg["runtime"], run.langs[1]
    started = time.monotonic()
    split_scores: dict[str, Any] = {}
    for split in ("dev", "test"):
        say(f"decoding {split}")
        hypotheses = decode(
            run.cfg["decode"],
            run.data["data"],
            run.checkpoint,
            split,
            run.langs,
            run.data["lines"][split],
            folder / f"{split}.log",
            run.cpu,
            threads=runtime["threads"],
            core=runtime["core"],
            stop=run.stop,
        )
        text = "".join(line + "\n" for line in hypotheses)
        reference_file = Path(run.data["data"]) / f"reference.{split}.{target}"
        reference = reference_file.read_text(encoding="utf-8")
        plain, plain_reference = (
            read_module("data_prep", ["detokenise", target], stdin=side).split("\n")[:-1]
            for side in (text, reference)
        )
        split_scores[split] = scores(hypotheses, reference.split("\n")[:-1], plain, plain_reference)
        write_atomically(folder / f"{split}.{target}", text)
    # Of equal losses fairseq keeps the later checkpoint.
    best = min(summary["dev"], key=lambda point: (point["loss"], -point["updates"]))
    return {
        "run": run.name,
        "pair": run.cfg["pair"]["name"],
        "attn": run.cfg["attn"]["name"],
        "recipe": run.cfg["recipe"]["name"],
        "condition": run.cfg["recipe"]["condition"],
        "seed": run.cfg["seed"],
        "options": run.options,
        "decode": run.cfg["decode"],
        "data": {
            key: run.data[key]
            for key in ("digest", "lines", "tokens", "length_percentile", "g_init")
        },
        "training": summary,
        "dev_ppl": best["ppl"],
        "best_update": best["updates"],
        **provenance.parameters(run.checkpoint),
        "decode_seconds": round(time.monotonic() - started, 1),
        "scores": split_scores,
        "hypotheses": {s: f"hyps/{run.name}/{folder.name}/{s}.{target}" for s in ("dev", "test")},
    }


def references(run: Run, split: str) -> tuple[list[str], list[str]]:
    """Tokenised and plain reference; the plain one is the user's own text if that came raw."""
    data, name = Path(run.data["data"]), f"{split}.{run.langs[1]}"
    tokenised = (data / f"reference.{name}").read_text(encoding="utf-8")
    plain = data / f"plain.{name}"
    if plain.exists():
        return to_lines(tokenised), to_lines(plain.read_text(encoding="utf-8"))
    return to_lines(tokenised), detokenised(tokenised, run.langs[1])


def detokenised(text: str, lang: str) -> list[str]:
    return to_lines(read_module("data_prep", ["detokenise", lang], stdin=text))


def to_lines(text: str) -> list[str]:
    return text.split("\n")[:-1]


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
