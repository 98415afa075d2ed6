"""A trained run's hypotheses, their scores, and the row that says where they come from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import collect, commands, provenance
from .decode import best_of, decode
from .lines import read_lines, to_text
from .plan import Run
from .process import write_atomically
from .references import SPLITS, references, score_lines


def score(run: Run, summary: dict[str, Any], say: Callable[..., None]) -> dict[str, Any]:
    """Decode and score dev and test, store the hypotheses, write the row."""
    folder = decode_folder(run)
    stored = folder / "row.json"
    results = Path(run.cfg["paths"]["results"])
    row = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    if set(collect.COLUMNS) <= set(row):  # older versions had fewer
        say(f"scored already: {stored}")
    else:
        folder.mkdir(exist_ok=True)
        row = make_row(run, summary, folder, say)
        write_atomically(stored, json.dumps(row, indent=1, ensure_ascii=False) + "\n")
    for split in SPLITS:
        lines = read_lines(folder / f"{split}.{run.langs[1]}")
        reference = read_lines(Path(run.data["data"]) / f"reference.{split}.{run.langs[1]}")
        collect.put_hypotheses(results, row, split, lines, reference)
    collect.put_row(results, row)
    for split in SPLITS:
        figures = "  ".join(f"{k} {v['score']:.2f}" for k, v in row["scores"][split].items())
        say(f"{split}: {figures}")
    return row


def decode_folder(run: Run) -> Path:
    """Where what the run's decoding gave is kept."""
    return run.folder / f"decode-{commands.digest_of(run.cfg['decode'])[:12]}"


def make_row(
    run: Run, summary: dict[str, Any], folder: Path, say: Callable[..., None]
) -> dict[str, Any]:
    target = run.langs[1]
    started = time.monotonic()
    hypotheses = {}
    for split in SPLITS:
        say(f"decoding {split}")
        hypotheses[split] = best_of(
            decode(run, split, [run.checkpoint], run.cfg["decode"], folder / f"{split}.log")
        )
        write_atomically(folder / f"{split}.{target}", to_text(hypotheses[split]))
    seconds = round(time.monotonic() - started, 1)
    say("scoring")
    data = Path(run.data["data"])
    scored = {
        split: score_lines(hypotheses[split], references(data, split, target), target)
        for split in SPLITS
    }
    stored = f"hyps/{run.name}/{folder.name}"
    best = best_point(summary["dev"])
    return {
        "run": run.name,
        "pair": run.cfg["pair"]["name"],
        "attn": run.cfg["attn"]["name"],
        "recipe": run.cfg["recipe"]["name"],
        "condition": run.cfg["recipe"]["condition"],
        "changed": run.changed,
        "seed": run.cfg["seed"],
        "options": run.options,
        "decode": run.cfg["decode"],
        "data": {
            key: run.data[key]
            for key in ("digest", "lines", "tokens", "subwords", "length_percentile", "g_init")
        },
        "text": text_of(run),
        "prep": {key: run.cfg["prep"][key] for key in ("name", "raw")},
        "training": summary,
        "dev_ppl": best["ppl"],
        "best_update": best["updates"],
        **provenance.parameters(run.checkpoint),
        "decode_seconds": seconds,
        "scores": {split: found["scores"] for split, found in scored.items()},
        "references": {split: found["reference"] for split, found in scored.items()},
        "hypotheses": {split: f"{stored}/{split}.{target}" for split in SPLITS},
    }


def text_of(run: Run) -> str:
    """Where the text is from: the published data set, by name; the generator; or local files, of
    which nobody can know whether they are the published ones."""
    if run.cfg["pair"]["toy_seed"] is not None:
        return "generated"
    return run.data.get("source", "local")


def best_point(dev: list[dict[str, Any]]) -> dict[str, Any]:
    """The point of the dev curve whose checkpoint fairseq keeps as the best: by BLEU if there is.

    Of equals it keeps the later one.
    """
    if "bleu" in dev[0]:
        return max(dev, key=lambda point: (point["bleu"], point["updates"]))
    return min(dev, key=lambda point: (point["loss"], -point["updates"]))
