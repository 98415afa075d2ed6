"""Everything that is generated from the ledger, written to its place."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..collect import LEDGER, read_rows, read_stats
from ..commands import RunError
from ..process import write_atomically
from . import claims, figures, notes, tables
from .groups import grouped
from .page import page
from .paper import PAPER, read_paper

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def write_table(folder: Path, table: tables.Table, under: list[notes.Note]) -> list[Path]:
    """As Markdown with its notes, CSV and LaTeX (booktabs)."""
    frame = table.frame()
    texts = {
        "md": markdown(table, under),
        "csv": frame.to_csv(index=False, lineterminator="\n"),
        "tex": latex(table),
    }
    paths = [folder / f"{table.name}.{kind}" for kind in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomically(path, text)
    return paths


def markdown(table: tables.Table, under: list[notes.Note]) -> str:
    lines = table.frame().to_markdown(index=False, disable_numparse=True)
    return f"{lines}\n\n{notes.markdown(under)}"


def latex(table: tables.Table) -> str:
    text = table.frame().to_latex(index=False, escape=True, caption=table.title)
    signs = (("±", r"$\pm$"), ("†", r"$\dagger$"), ("–", "--"), ("<", "$<$"), ("‖", r"$\|$"))
    for sign, command in signs:
        text = text.replace(sign, command)
    return text


def write_figures(folder: Path, groups: list) -> list[tuple[str, str, str]]:
    """Name, title and SVG of each figure that there is something to draw for."""
    made = []
    for name, (title, draw, height) in figures.FIGURES.items():
        svg = figures.make(groups, draw, height)
        if svg is None:
            (folder / f"{name}.svg").unlink(missing_ok=True)  # of rows that are gone
        else:
            write_atomically(folder / f"{name}.svg", svg)
            made.append((name, title, svg))
    return made


def renew_readme(readme: Path, text: str) -> None:
    """Replace what stands between the two markers.

    Raises:
        RunError: if the file has no such markers.
    """
    old = readme.read_text(encoding="utf-8")
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise RunError(f"{readme} has no lines {BEGIN} and {END}, in this order")
    write_atomically(readme, f"{head}{BEGIN}\n{text}{END}{tail}")


def make_report(results: Path, readme: Path | None = None) -> list[Path]:
    """Write everything under ``results``; return its paths.

    Raises:
        RunError: if there is nothing to report, or rows do not go together.
    """
    rows = read_rows(results)
    if not rows:
        raise RunError(f"no runs in {results / LEDGER}: `python -m experiments.run` makes one")
    own = results / PAPER
    paper = read_paper(own if own.exists() else ROOT / "results" / PAPER)
    groups = grouped(rows)
    read = partial(read_stats, results)
    under: dict[str, list[notes.Note]] = {
        "main": [*notes.conditions(rows), *notes.uncertainty(), *notes.sources(paper)],
        "baselines": [],
        "variants": [
            ("p", "as in the table of QKNorm against its baseline, but not adjusted by Holm", "")
        ],
        "runs": notes.scoring(rows),
    }
    made = [
        tables.main_table(groups, paper, read),
        tables.baselines_table(groups, paper),
        tables.variants_table(groups, read),
        tables.runs_table(rows),
    ]
    found = claims.read_claims(results)
    made += claims.tables(found)
    under |= claims.NOTES
    paths = [p for t in made for p in write_table(results / "tables", t, under[t.name])]
    drawn = write_figures(results / "figures", groups)
    for name, title, svg in claims.figures(found):
        write_atomically(results / "figures" / f"{name}.svg", svg)
        drawn.append((name, title, svg))
    paths += [results / "figures" / f"{name}.svg" for name, _, _ in drawn]
    paths.append(results / "report.html")
    write_atomically(paths[-1], page(rows, made, under, drawn, list(claims.details(found))))
    if readme:
        renew_readme(readme, markdown(made[0], under["main"]))
    return paths
