"""A comparison of two systems, A and B, part by part: for a terminal, and as one HTML page."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pandas import DataFrame

Figure = float | None

# Okabe and Ito's: told apart by the colour-blind, and on light and dark paper.
COLOURS = ("#999999", "#0072B2")


@dataclass(frozen=True)
class Chart:
    """Two bars for each bucket: name, A's and B's figure, from 0 to about ``limit``."""

    title: str
    bars: list[tuple[str, Figure, Figure]]
    limit: float


@dataclass(frozen=True)
class Example:
    """A sentence, in the words of the reference and of both systems."""

    title: str
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Section:
    """A part of the report, for the terminal and the page alike; any of it may be empty."""

    title: str
    notes: Sequence[str] = ()
    header: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    chart: Chart | None = None
    examples: Sequence[Example] = ()


def text(names: Sequence[str], found: Sequence[Section]) -> str:
    """For a terminal."""
    systems = [f"{label}: {name}" for label, name in zip("AB", names, strict=True)]
    parts = (line for section in found for line in ("", *section_text(section)))
    return "\n".join((*systems, *parts))


def section_text(section: Section) -> Iterable[str]:
    yield from (section.title, "-" * len(section.title))
    if section.rows:
        frame = DataFrame(section.rows, columns=list(section.header))
        # Numbers to the right, but an n-gram or a name may well look like one.
        align = ["left" if is_text(name) else "right" for name in section.header]
        yield frame.to_markdown(
            index=False, tablefmt="simple", disable_numparse=True, colalign=align
        )
    yield from section.notes
    for example in section.examples:
        yield example.title
        yield from (f"  {label:9}  {sentence}" for label, sentence in example.lines)


def is_text(header: str) -> bool:
    return header in ("system", "n-gram")


STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1b1b; --line: #0003; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #161616; --ink: #e8e8e8; --line: #fff4; }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; }
body { padding: 0 1rem; background: var(--paper); color: var(--ink); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: end; }
th { font-weight: 600; vertical-align: bottom; overflow-wrap: normal; }
td { white-space: nowrap; }
.text { text-align: start; white-space: normal; }
svg { width: 100%; max-width: 42rem; height: auto; display: block; }
svg text { fill: currentColor; font-size: 13px; }
svg line { stroke: var(--line); }
.key { display: inline-block; width: .8em; height: .8em; margin-inline: .8em .3em; }
article { border: 1px solid var(--line); border-radius: .4rem; padding: .5rem .8rem; }
article { margin: .7rem 0; }
h3 { font-size: .9rem; margin: 0 0 .3rem; }
dl { margin: 0; display: grid; grid-template-columns: max-content 1fr; gap: .2rem .8rem; }
dt { font-size: .85rem; opacity: .8; }
dd { margin: 0; }
"""
KEY = "".join(
    f'<span class="key" style="background:{colour}"></span>{label}'
    for label, colour in zip("AB", COLOURS, strict=True)
)


def page(names: Sequence[str], found: Sequence[Section]) -> str:
    """One self-contained HTML page: it loads nothing, runs nothing, and holds the sentences."""
    a, b = (html.escape(name) for name in names)
    body = "\n".join(section_html(section) for section in found)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{a} and {b}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{STYLE}</style></head><body>
<h1>Two systems side by side</h1>
<p>A: <bdi>{a}</bdi></p>
<p>B: <bdi>{b}</bdi></p>
{body}
</body></html>
"""


def section_html(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    if section.chart:
        parts.append(f"<p>{html.escape(section.chart.title)}:{KEY}</p>{bars_svg(section.chart)}")
    if section.rows:
        parts.append(table_html(section))
    parts += [f"<p>{html.escape(note)}</p>" for note in section.notes]
    parts += [example_html(example) for example in section.examples]
    return f"<section>{''.join(parts)}</section>"


def table_html(section: Section) -> str:
    kinds = [' class="text" dir="auto"' if is_text(name) else "" for name in section.header]

    def row(tag: str, cells: Iterable[str]) -> str:
        pairs = zip(kinds, cells, strict=True)
        return "<tr>" + "".join(f"<{tag}{k}>{html.escape(c)}</{tag}>" for k, c in pairs) + "</tr>"

    body = "\n".join(row("td", cells) for cells in section.rows)
    head = row("th", section.header)
    return f'<div class="wide"><table><thead>{head}</thead>\n<tbody>{body}</tbody></table></div>'


def example_html(example: Example) -> str:
    lines = "".join(
        f'<dt>{label}</dt><dd dir="auto">{html.escape(sentence)}</dd>'
        for label, sentence in example.lines
    )
    return f"<article><h3>{html.escape(example.title)}</h3><dl>{lines}</dl></article>"


# Of a chart, in SVG's units: about pixels on a wide screen.
WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 640, 240, 44, 26, 10
FLOOR = HEIGHT - BELOW


def bars_svg(chart: Chart) -> str:
    """Grouped bars. What each is worth stands in the table below, or shows when pointed at."""
    top, step = axis(chart)
    scale, slot = (FLOOR - ABOVE) / top, (WIDTH - LEFT) / len(chart.bars)
    parts = []
    for tick in range(round(top / step) + 1):
        y = FLOOR - tick * step * scale
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick * step:g}</text>'
        )
    for i, (name, *values) in enumerate(chart.bars):
        x = LEFT + slot * i
        middle = f'x="{x + slot / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle"'
        parts.append(f"<text {middle}>{html.escape(name)}</text>")
        for j, value in enumerate(values):
            if value is not None:
                place = f'x="{x + slot * (0.14 + 0.37 * j):.1f}" width="{slot * 0.35:.1f}"'
                height = f'y="{FLOOR - value * scale:.1f}" height="{value * scale:.1f}"'
                said = f"{'AB'[j]}, {html.escape(name)}: {value:.3g}"
                parts.append(
                    f'<rect {place} {height} fill="{COLOURS[j]}"><title>{said}</title></rect>'
                )
    label = html.escape(f"{chart.title} of A and B by bucket")
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg {box} role="img" aria-label="{label}">{"".join(parts)}</svg>'


def axis(chart: Chart) -> tuple[float, float]:
    """Where the axis ends, and its step: the smallest round one that makes five steps do."""
    largest = max((x for _, *both in chart.bars for x in both if x is not None), default=0.0)
    steps = [chart.limit * share for share in (0.01, 0.02, 0.05, 0.1, 0.2)]
    step = next((step for step in steps if largest <= 5.001 * step), steps[-1])
    return max(1, math.ceil(largest / step - 0.01)) * step, step
