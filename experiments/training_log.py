"""What fairseq's JSON log says: progress, the dev curve, speed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from typing import Any

KINDS = ("train_inner", "train", "valid")


def parse_line(line: str) -> tuple[str, dict[str, Any]] | None:
    """Kind and figures of a log line ``date | INFO | kind | {...}``; None for any other line."""
    parts = line.split(" | ", 3)
    if len(parts) != 4 or parts[2] not in KINDS:
        return None
    try:
        figures = json.loads(parts[3])
    except ValueError:  # cut short by a kill
        return None
    return parts[2], figures


def is_finished(lines: Iterable[str]) -> bool:
    """Whether the training came to its own end."""
    return any(" | fairseq_cli.train | done training in " in line for line in lines)


def summarise(lines: Iterable[str]) -> dict[str, Any]:
    """Curve on dev and speed of a whole training, resumed ones included.

    Returns:
        ``dev``: list of ``{updates, loss, ppl}``, with ``bleu`` where training decodes dev, in
        order (an update done twice counts once);
        ``words_per_second``: median over log intervals, target words, padding not counted;
        ``updates``, ``epochs``, ``train_seconds`` at the end.
    """
    dev: dict[int, dict[str, float]] = {}
    speeds: list[float] = []
    last: dict[str, Any] = {}
    for parsed in map(parse_line, lines):
        if parsed is None:
            continue
        kind, figures = parsed
        if kind == "valid":
            updates = int(figures["valid_num_updates"])
            loss, ppl = float(figures["valid_loss"]), float(figures["valid_ppl"])
            dev[updates] = {"updates": updates, "loss": loss, "ppl": ppl}
            if "valid_bleu" in figures:
                dev[updates]["bleu"] = float(figures["valid_bleu"])
        elif kind == "train_inner":
            speeds.append(float(figures["wps"]))
            last = figures
    return {
        "dev": [dev[updates] for updates in sorted(dev)],
        "words_per_second": round(statistics.median(speeds)) if speeds else None,
        "updates": max(dev, default=0),
        "epochs": int(last.get("epoch", 0)),
        "train_seconds": float(last.get("wall", 0)),
    }
