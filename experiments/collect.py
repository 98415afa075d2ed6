"""The ledger ``results/runs.jsonl``: one row a scored run, with its provenance.

Beside each test set's hypotheses, ``<file>.bleu.tsv`` holds what their tokenised BLEU is made of,
sentence by sentence, so that systems can be compared where the references, which may not be passed
on, are not.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .commands import RunError
from .lines import read_lines, to_text
from .locks import exclusive
from .process import write_atomically
from .score import sentence_stats
from .stats import bleu_of

LEDGER = "runs.jsonl"
MEND = "`python -m experiments.rescore --write` makes it anew"
COLUMNS = (
    *("run", "pair", "attn", "recipe", "condition", "changed", "seed", "options", "decode"),
    *("data", "text", "prep", "training", "dev_ppl", "best_update", "parameters", "g"),
    *("decode_seconds", "scores", "references", "hypotheses"),
)
STATS_HEADER = (
    *("hyp_len", "ref_len"),
    *(f"match_{n}" for n in range(1, 5)),
    *(f"total_{n}" for n in range(1, 5)),
)


def read_rows(results: Path) -> list[dict[str, Any]]:
    """Rows of the ledger, oldest first; none if there is no ledger yet.

    Raises:
        RunError: naming the line that is no JSON, or no row of this version.
    """
    ledger = results / LEDGER
    if not ledger.exists():
        return []
    rows = []
    for number, line in enumerate(ledger.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RunError(
                f"{ledger}, line {number}: not JSON ({error}): mend it by hand"
            ) from None
        lacking = [name for name in COLUMNS if not isinstance(row, dict) or name not in row]
        if lacking:
            raise RunError(
                f"{ledger}, line {number}: no row of this version (it lacks {', '.join(lacking)}): "
                "give the run's command again, which renews its row, or take the line out"
            )
        rows.append(row)
    return rows


def put_row(results: Path, row: dict[str, Any]) -> None:
    """Append a row, or replace the one of the same run and decoding."""
    results.mkdir(parents=True, exist_ok=True)
    with exclusive(results / f".{LEDGER}.lock", lambda: None, threading.Event()):
        rows = read_rows(results)
        places = [i for i, r in enumerate(rows) if key(r) == key(row)] or [len(rows)]
        rows[places[0] : places[0] + 1] = [row]
        lines = [json.dumps(r, ensure_ascii=False, sort_keys=True) + "\n" for r in rows]
        write_atomically(results / LEDGER, "".join(lines))


def put_hypotheses(
    results: Path, row: dict[str, Any], split: str, hypotheses: list[str], reference: list[str]
) -> None:
    """Store a split's hypotheses, and of test its sentences' BLEU statistics."""
    path = results / row["hypotheses"][split]
    write_atomically(path, to_text(hypotheses))
    if split == "test":
        write_atomically(stats_path(path), stats_table(hypotheses, reference))


def stats_table(hypotheses: list[str], reference: list[str]) -> str:
    """What the file of sentence statistics holds."""
    table = [STATS_HEADER, *sentence_stats(hypotheses, reference)]
    return to_text("\t".join(map(str, line)) for line in table)


def read_stats(results: Path, row: Mapping[str, Any]) -> np.ndarray:
    """``(sentences, 10)``, as :func:`score.sentence_stats`, of the test set.

    Raises:
        RunError: if the file is missing or broken.
    """
    path = stats_path(results / row["hypotheses"]["test"])
    try:
        header, *lines = read_lines(path) or [""]
    except RunError as error:
        raise RunError(f"{error}: {MEND}") from None
    try:
        stats = np.array([line.split("\t") for line in lines], dtype=np.int64)
    except ValueError:
        stats = np.empty((0, 0), dtype=np.int64)
    expected = (row["data"]["lines"]["test"], len(STATS_HEADER))
    if header != "\t".join(STATS_HEADER) or stats.shape != expected:
        raise RunError(f"{path} is broken: {MEND}")
    score = row["scores"]["test"]["bleu_tok"]["score"]
    if round(bleu_of(stats), 2) != score:
        raise RunError(f"{path} does not belong to the row's BLEU of {score}: {MEND}")
    return stats


def stats_path(hypotheses: Path) -> Path:
    return hypotheses.with_name(hypotheses.name + ".bleu.tsv")


def ledger_name(row: Mapping[str, Any]) -> str:
    """A run and its decoding: unique in the ledger."""
    return f"{row['run']}/{Path(row['hypotheses']['test']).parent.name}"


def key(row: dict[str, Any]) -> tuple[str, str]:
    return row["run"], json.dumps(row["decode"], sort_keys=True)
