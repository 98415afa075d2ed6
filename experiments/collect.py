"""The ledger ``results/runs.jsonl``: one row a scored run, with its provenance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from filelock import FileLock

from .process import write_atomically

LEDGER = "runs.jsonl"


def read_rows(results: Path) -> list[dict[str, Any]]:
    """Rows of the ledger, oldest first; none if there is no ledger yet."""
    ledger = results / LEDGER
    if not ledger.exists():
        return []
    return [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]


def put_row(results: Path, row: dict[str, Any]) -> None:
    """Append a row, or replace the one of the same run and decoding."""
    results.mkdir(parents=True, exist_ok=True)
    with FileLock(results / f".{LEDGER}.lock"):
        rows = [r for r in read_rows(results) if key(r) != key(row)] + [row]
        lines = [json.dumps(r, ensure_ascii=False, sort_keys=True) + "\n" for r in rows]
        write_atomically(results / LEDGER, "".join(lines))


def key(row: dict[str, Any]) -> tuple[str, str]:
    return row["run"], json.dumps(row["decode"], sort_keys=True)
