"""The ledger ``results/runs.jsonl``: one row a scored run, with its provenance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from filelock import FileLock

from .commands import RunError
from .process import write_atomically

LEDGER = "runs.jsonl"


def read_rows(results: Path) -> list[dict[str, Any]]:
    """Rows of the ledger, oldest first; none if there is no ledger yet.

    Raises:
        RunError: naming the line that is no JSON.
    """
    ledger = results / LEDGER
    if not ledger.exists():
        return []
    rows = []
    for number, line in enumerate(ledger.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise RunError(
                f"{ledger}, line {number}: not JSON ({error}): mend it by hand"
            ) from None
    return rows


def put_row(results: Path, row: dict[str, Any]) -> None:
    """Append a row, or replace the one of the same run and decoding."""
    results.mkdir(parents=True, exist_ok=True)
    with FileLock(results / f".{LEDGER}.lock"):
        rows = read_rows(results)
        places = [i for i, r in enumerate(rows) if key(r) == key(row)] or [len(rows)]
        rows[places[0] : places[0] + 1] = [row]
        lines = [json.dumps(r, ensure_ascii=False, sort_keys=True) + "\n" for r in rows]
        write_atomically(results / LEDGER, "".join(lines))


def key(row: dict[str, Any]) -> tuple[str, str]:
    return row["run"], json.dumps(row["decode"], sort_keys=True)
