"""The report as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from ..collect import ledger_name
from ..commands import digest_of
from .groups import Row, sort_key
from .notes import Note
from .tables import Table

TEMPLATE = Path(__file__).with_name("page.html")


def page(
    rows: Sequence[Row],
    tables: Sequence[Table],
    notes: Mapping[str, Sequence[Note]],
    figures: Sequence[tuple[str, str, str]],
    measured: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (),
) -> str:
    """The page.

    Args:
        notes: by the name of the table under which they stand.
        figures: name, title, SVG.
        measured: of each measurement of a claim its name and where it comes from.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    ordered = sorted(rows, key=sort_key)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        tables=tables,
        table_notes={table.name: notes.get(table.name, ()) for table in tables},
        figures=figures,
        measured=measured,
        anchors={ledger_name(row): f"run-{digest_of(ledger_name(row))[:12]}" for row in ordered},
        details=[(ledger_name(row), list(facts(row))) for row in ordered],
    )


def facts(row: Row) -> Iterator[tuple[str, Any]]:
    """Where a run's figures come from."""
    training, data = row["training"], row["data"]
    starts = [
        f"{segment['started']} at commit {segment['commit']}"
        + (" with uncommitted changes" if segment["dirty"] else "")
        for segment in training["segments"]
    ]
    yield "started", "; resumed ".join(starts)
    yield "hardware", training["hardware"]
    yield "versions", ", ".join(f"{k} {v}" for k, v in training["versions"].items())
    yield "training", f"{training['updates']} updates, {training['train_seconds'] / 60:.1f} minutes"
    yield "decoding", f"{row['decode']}, {row['decode_seconds']} seconds"
    for split, scores in row["scores"].items():
        for name, score in scores.items():
            yield f"{split} {name}", f"{score['score']:.2f} ({score['signature']})"
    yield "text", row["text"]
    yield "data digest", data["digest"]
    yield "references", ", ".join(f"{k} {v}" for k, v in row["references"].items())
    yield "lines", ", ".join(f"{k} {v}" for k, v in data["lines"].items())
    yield "L, g at the start", f"{data['length_percentile']}, {data['g_init']:.4f}"
    yield "g at the end", ", ".join(f"{k} {v}" for k, v in row["g"].items()) or "none"
    yield "changed", ", ".join(f"{k}={v}" for k, v in row["changed"].items()) or "nothing"
    yield "options", ", ".join(f"{k}={v}" for k, v in row["options"].items())
    yield "hypotheses", ", ".join(row["hypotheses"].values())
