"""One HTML page with the attention weights of a sentence: a heatmap for each layer and head.

The page holds the weights as numbers, and a script of its own draws them: small maps of a cell a
pixel, and a table with the pieces at its edges for the one that is opened. It loads nothing.
"""

from __future__ import annotations

import html
import json
import math
import unicodedata
from typing import Any

Matrix = list[list[float]]  # (query, key), each row a distribution

# A section's weights, its heading, and what stands along its rows and columns.
SECTIONS = (
    ("encoder", "Encoder self-attention", "source", "source"),
    ("decoder_self", "Decoder self-attention", "target", "target"),
    ("decoder_cross", "Cross-attention", "target", "source"),
)
# matplotlib's viridis, from 0 to 1: even steps look even, to the colour-blind too.
VIRIDIS = (
    *("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89"),
    *("#35b779", "#6ece58", "#b5de2b", "#fde725"),
)
UNIT = 10_000  # the page holds whole numbers: a weight of 1 is this much

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1b1b; --line: #0003; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #161616; --ink: #e8e8e8; --line: #fff4; }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; }
body, dialog { padding: 0 1rem; background: var(--paper); color: var(--ink); }
.layer { display: grid; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: .8rem; }
.layer { margin-bottom: 1.2rem; }
.layer button { font: inherit; font-size: .8rem; text-align: start; color: inherit; }
.layer button { background: none; border: 1px solid var(--line); border-radius: .3rem; }
.layer button { padding: .4rem; cursor: zoom-in; display: block; }
.layer b, .layer small { display: block; }
canvas { width: 100%; height: auto; image-rendering: pixelated; display: block; }
.scale { display: flex; gap: .5rem; align-items: center; max-width: 20rem; }
.scale i { flex: 1; height: 1rem; background: linear-gradient(to right, GRADIENT); }
:focus-visible { outline: 3px solid #d55e00; outline-offset: 1px; }
dialog { max-width: 96vw; max-height: 94vh; border: 1px solid var(--line); border-radius: .5rem; }
dialog header { display: flex; gap: 1rem; align-items: center; justify-content: space-between; }
dialog h2 { font-size: 1.1rem; margin: .6rem 0; }
dialog header button { font: inherit; padding: .3rem .8rem; }
#cell { display: block; min-height: 3em; }
.wide { overflow: auto; max-height: 68vh; margin-bottom: 1rem; }
table { border-collapse: separate; border-spacing: 1px; font-size: .85rem; }
th { font-weight: normal; background: var(--paper); position: sticky; white-space: nowrap; }
thead th { top: 0; writing-mode: vertical-rl; text-align: end; padding: .2rem 0; z-index: 1; }
thead th:first-child { writing-mode: horizontal-tb; left: 0; z-index: 2; vertical-align: bottom; }
tbody th { left: 0; text-align: end; padding: 0 .3rem; }
th bdi { display: inline-block; max-inline-size: 9rem; overflow: hidden; }
th bdi { text-overflow: ellipsis; vertical-align: bottom; }
td { width: 1.4rem; min-width: 1.4rem; height: 1.4rem; padding: 0; }
"""

# Text reaches the document as textContent alone, so that no piece is read as markup.
SCRIPT = """
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const stops = data.colours.map(c => [1, 3, 5].map(i => parseInt(c.slice(i, i + 2), 16)));

function colour(weight) {
  const place = weight / data.unit * (stops.length - 1);
  const i = Math.min(Math.floor(place), stops.length - 2);
  return stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (place - i)));
}

function make(tag, parent, text) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function draw(canvas, weights, queries, keys) {
  canvas.width = keys;
  canvas.height = queries;
  const context = canvas.getContext("2d"), image = context.createImageData(keys, queries);
  weights.forEach((weight, i) => image.data.set([...colour(weight), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

const large = document.getElementById("large"), cell = document.getElementById("cell");
const table = large.querySelector("table");
let shown;

function enlarge(section, layer, head) {
  const {name, rows, columns} = data.sections[section];
  const queries = data.pieces[rows], keys = data.pieces[columns];
  shown = {weights: data.sections[section].layers[layer][head], rows, queries, keys};
  large.querySelector("h2").textContent = `${name}, layer ${layer + 1}, head ${head + 1}`;
  cell.textContent = "Point at a cell, or go there with the arrow keys.";
  table.replaceChildren();
  const top = make("tr", make("thead", table));
  make("th", top, "query \\\\ key");
  for (const key of keys) make("bdi", make("th", top), key);
  const body = make("tbody", table);
  queries.forEach((query, i) => {
    const row = make("tr", body);
    make("bdi", make("th", row), query);
    keys.forEach((key, j) => {
      const td = make("td", row);
      td.tabIndex = i + j ? -1 : 0;
      td.style.background = `rgb(${colour(shown.weights[i * keys.length + j])})`;
    });
  });
  large.showModal();
}

function tell(td) {
  const i = td.parentNode.rowIndex - 1, j = td.cellIndex - 1;
  const weight = (shown.weights[i * shown.keys.length + j] / data.unit).toFixed(4);
  cell.replaceChildren("query ");
  make("bdi", cell, shown.queries[i]);
  if (shown.rows === "target") {
    cell.append(" (next: ");
    make("bdi", cell, data.pieces.predicted[i]);
    cell.append(")");
  }
  cell.append(", key ");
  make("bdi", cell, shown.keys[j]);
  cell.append(`: ${weight}`);
}

const moves = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
table.addEventListener("keydown", event => {
  const td = event.target.closest("td"), move = moves[event.key];
  if (!td || !move) return;
  event.preventDefault();
  const row = table.rows[td.parentNode.rowIndex + move[0]];
  const next = row && row.cells[td.cellIndex + move[1]];
  if (!next || next.tagName !== "TD") return;
  td.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});
for (const event of ["mouseover", "focusin", "click"]) {
  table.addEventListener(event, e => e.target.closest("td") && tell(e.target.closest("td")));
}

for (const button of document.querySelectorAll(".layer button")) {
  const place = ["section", "layer", "head"].map(name => Number(button.dataset[name]));
  const {layers, rows, columns} = data.sections[place[0]];
  const sides = [data.pieces[rows].length, data.pieces[columns].length];
  draw(button.querySelector("canvas"), layers[place[1]][place[2]], ...sides);
  button.addEventListener("click", () => enlarge(...place));
}
"""

SCALE = '<p class="scale"><span>0</span><i></i><span>1</span></p>'
LARGE = f"""<dialog id="large" aria-labelledby="name"><header><h2 id="name"></h2>
<form method="dialog"><button>Close</button></form></header>
{SCALE}<output id="cell"></output><div class="wide"><table></table></div></dialog>"""


def page(weights: dict[str, Any], title: str) -> str:
    """One self-contained HTML page.

    Args:
        weights: what ``python -m qknorm_mt.weights`` writes: ``source``, ``target`` and
            ``predicted`` are pieces, ``attention`` holds ``[layer][head][query][key]`` for
            ``encoder``, ``decoder_self`` and ``decoder_cross``.
        title: heading of the page.
    """
    heading = html.escape(title)
    maps = "\n".join(
        section(i, name, weights["attention"][kind]) for i, (kind, name, *_) in enumerate(SECTIONS)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{heading}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{STYLE.replace("GRADIENT", ", ".join(VIRIDIS))}</style></head><body>
<h1><bdi>{heading}</bdi></h1>
{sentence("Source", weights["source"])}
{sentence("Target", weights["predicted"])}
<p>A row is a query, a column a key; a row's weights sum to 1. In the decoder, a query is a piece
already written, from which the next one is predicted. Entropy is the mean over a head's queries:
0 where each looks at one piece alone. A map opens large on a click, a tap or Enter.</p>
{SCALE}
<noscript><p>The maps are drawn by a script, which is switched off here.</p></noscript>
{maps}
{LARGE}
<script id="data" type="application/json">{embedded(weights)}</script>
<script>{SCRIPT}</script>
</body></html>
"""


def sentence(name: str, pieces: list[str]) -> str:
    """Each piece isolated: beside right-to-left ones, </s> would be turned round."""
    isolated = " ".join(f"<bdi>{html.escape(piece)}</bdi>" for piece in pieces)
    return f'<p>{name}: <bdi dir="{direction(pieces)}">{isolated}</bdi></p>'


def direction(pieces: list[str]) -> str:
    """What ``dir="auto"`` would find, did it look into isolated text."""
    classes = (unicodedata.bidirectional(letter) for piece in pieces for letter in piece)
    return "rtl" if next((c for c in classes if c in ("L", "R", "AL")), "L") != "L" else "ltr"


def section(index: int, name: str, layers: list[list[Matrix]]) -> str:
    """A heading, and a row of maps for each layer; the script draws them."""
    rows = [
        '<div class="layer">'
        + "".join(figure(index, i, j, head) for j, head in enumerate(heads))
        + "</div>"
        for i, heads in enumerate(layers)
    ]
    return f"<section><h2>{name}</h2>\n" + "\n".join(rows) + "\n</section>"


def figure(index: int, layer: int, head: int, matrix: Matrix) -> str:
    largest = max(weight for row in matrix for weight in row)
    return (
        f'<button type="button" data-section="{index}" data-layer="{layer}" data-head="{head}">'
        f"<b>layer {layer + 1}, head {head + 1}</b>"
        f"<small>entropy {mean_entropy(matrix):.2f} nats</small>"
        f"<small>largest weight {largest:.2f}</small><canvas></canvas></button>"
    )


def mean_entropy(matrix: Matrix) -> float:
    """Mean over queries of -sum(w ln w), in nats."""
    return sum(-w * math.log(w) for row in matrix for w in row if w > 0) / len(matrix)


def embedded(weights: dict[str, Any]) -> str:
    """What the script draws, as JSON that may stand inside a script element."""
    sections = [
        {
            "name": name,
            "rows": rows,
            "columns": columns,
            "layers": [[flat(head) for head in heads] for heads in weights["attention"][kind]],
        }
        for kind, name, rows, columns in SECTIONS
    ]
    data = {
        "unit": UNIT,
        "colours": VIRIDIS,
        "pieces": {name: weights[name] for name in ("source", "target", "predicted")},
        "sections": sections,
    }
    # "</script>" or "<!--" in a piece would end, or hide, the element.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def flat(matrix: Matrix) -> list[int]:
    return [round(weight * UNIT) for row in matrix for weight in row]
