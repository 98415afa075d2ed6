"""A trained run's hypotheses, their scores, and the row that says where they come from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import collect, commands, provenance
from .decode import decode
from .plan import Run
from .process import read_module, write_atomically
from .score import scores


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
            commands.task_of(run.options),
            run.cpu,
            threads=runtime["threads"],
            core=runtime["core"],
            stop=run.stop,
        )
        text = "".join(line + "\n" for line in hypotheses)
        reference, plain_reference = references(run, split)
        plain = detokenised(text, target)
        split_scores[split] = scores(hypotheses, reference, plain, plain_reference)
        write_atomically(folder / f"{split}.{target}", text)
    best = best_point(summary["dev"])
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
            for key in ("digest", "lines", "tokens", "subwords", "length_percentile", "g_init")
        },
        "prep": {key: run.cfg["prep"][key] for key in ("name", "raw")},
        "training": summary,
        "dev_ppl": best["ppl"],
        "best_update": best["updates"],
        **provenance.parameters(run.checkpoint),
        "decode_seconds": round(time.monotonic() - started, 1),
        "scores": split_scores,
        "hypotheses": {s: f"hyps/{run.name}/{folder.name}/{s}.{target}" for s in ("dev", "test")},
    }


def best_point(dev: list[dict[str, Any]]) -> dict[str, Any]:
    """The point of the dev curve whose checkpoint fairseq keeps as the best: by BLEU if there is.

    Of equals it keeps the later one.
    """
    if "bleu" in dev[0]:
        return max(dev, key=lambda point: (point["bleu"], point["updates"]))
    return min(dev, key=lambda point: (point["loss"], -point["updates"]))


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
