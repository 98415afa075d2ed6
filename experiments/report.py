"""Table, plot and page of the scored runs, from results/runs.jsonl alone.

python -m experiments.report                       # of this clone's results/
python -m experiments.report --results work/demo/results
python -m experiments.report --readme README.md    # also renew the table in the README
"""

from __future__ import annotations

import argparse
import html
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd

mpl.use("svg")
from matplotlib import pyplot as plt

from .collect import LEDGER, read_rows
from .commands import RunError
from .process import explain, write_atomically

COLOURS = {  # Okabe & Ito: told apart by the colour-blind
    "none": "#999999",
    "l2": "#0072B2",
    "layernorm": "#E69F00",
    "rmsnorm": "#009E73",
    "vit22b": "#D55E00",
    "qwen3": "#CC79A7",
}
NAMES = {
    "none": "baseline",
    "l2": "QKNorm (l2)",
    "layernorm": "QK-LayerNorm",
    "rmsnorm": "QK-RMSNorm",
    "vit22b": "as ViT-22B",
    "qwen3": "as Qwen3",
}
CONDITIONS = {
    "full": "the published sizes and optimiser",
    "cpu": "a small model trained on one CPU core: not comparable with published scores",
    "cpu_bytes": "as cpu, with faster dropout masks, which are other ones",
    "cpu_fast": "as cpu, with faster dropout masks and fuller batches, which are other ones",
    "demo": "the generated toy pair, a few minutes of one CPU core",
}
PREPS = {
    "paper": "text prepared as the authors did",
    "modern": "text prepared by today's habits: entities unescaped, characters normalised, "
    "duplicates and unlikely pairs dropped from train",
}
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """One line a run, sorted by pair, condition, attention and seed."""
    lines = [
        {
            "pair": row["pair"],
            "attention": attention_name(row),
            "condition": row["condition"],
            "prep": row["prep"]["name"],
            "seed": row["seed"],
            "run": row["run"].rsplit("-", 1)[1],
            "beam": f"{row['decode']['beam']}, lenpen {row['decode']['lenpen']}",
            "parameters": f"{row['parameters'] / 1e6:.2f}M",
            "updates": row["training"]["updates"],
            "dev ppl": f"{row['dev_ppl']:.2f}",
            "dev BLEU": f"{row['scores']['dev']['bleu_tok']['score']:.2f}",
            "test BLEU": f"{row['scores']['test']['bleu_tok']['score']:.2f}",
            "test sacreBLEU": f"{row['scores']['test']['bleu']['score']:.2f}",
            "test chrF2": f"{row['scores']['test']['chrf']['score']:.2f}",
            "words/s": row["training"]["words_per_second"],
            "minutes": f"{row['training']['train_seconds'] / 60:.1f}",
        }
        for row in sorted(rows, key=sort_key)
    ]
    return pd.DataFrame(lines)


def attention_name(row: dict[str, Any]) -> str:
    name = NAMES.get(row["attn"], row["attn"])
    rope = row["options"].get("rope", "off")
    return name if rope == "off" else f"{name}, RoPE {rope.replace('_', ' ')}"


def sort_key(row: dict[str, Any]) -> tuple[str, str, int, int]:
    attention = list(NAMES).index(row["attn"]) if row["attn"] in NAMES else len(NAMES)
    return row["pair"], row["condition"], attention, row["seed"]


def signatures(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Column to sacreBLEU signature.

    Raises:
        ValueError: if runs scored in different ways would share a column.
    """
    columns = {"BLEU": "bleu_tok", "sacreBLEU": "bleu", "chrF2": "chrf"}
    found = {}
    for column, metric in columns.items():
        used = {row["scores"]["test"][metric]["signature"] for row in rows}
        if len(used) > 1:
            raise ValueError(f"runs in {LEDGER} were scored in different ways: {sorted(used)}")
        found[column] = used.pop()
    return found


def notes(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """What the figures are and are not: a term, text, and something to be shown as code."""
    conditions = sorted({row["condition"] for row in rows})
    preps = sorted({row["prep"]["name"] for row in rows})
    return [
        *((name, CONDITIONS.get(name, "see its recipe"), "") for name in conditions),
        *((name, PREPS.get(name, "see its file in conf/prep"), "") for name in preps),
        *((name, "", signature) for name, signature in signatures(rows).items()),
        (
            "scores",
            "BLEU is of tokenised text, as in the paper; sacreBLEU and chrF2 of detokenised text. "
            "The checkpoint with the best dev loss, or with the best dev BLEU where training "
            "decodes dev (recipe paper), is scored, once",
            "",
        ),
    ]


def markdown(rows: list[dict[str, Any]]) -> str:
    """The columns that fit a page, and the notes."""
    columns = table(rows).drop(columns=["beam", "parameters", "words/s"])
    items = [
        f"- *{term}*: {text}{f'`{code}`' if code else ''}." for term, text, code in notes(rows)
    ]
    return (
        columns.to_markdown(index=False, disable_numparse=True) + "\n\n" + "\n".join(items) + "\n"
    )


def plot_curves(rows: list[dict[str, Any]], path: Path) -> None:
    """Dev perplexity against updates, one panel a pair and condition."""
    panels = sorted({(row["pair"], row["condition"]) for row in rows})
    plt.rcParams.update({"svg.hashsalt": "qknorm-mt", "svg.fonttype": "none", "font.size": 10})
    figure, axes = plt.subplots(
        1, len(panels), figsize=(5 * len(panels), 3.6), squeeze=False, layout="constrained"
    )
    for axis, (pair, condition) in zip(axes[0], panels, strict=True):
        for row in sorted(rows, key=sort_key):
            if (row["pair"], row["condition"]) != (pair, condition):
                continue
            points = row["training"]["dev"]
            axis.plot(
                [p["updates"] for p in points],
                [p["ppl"] for p in points],
                label=f"{attention_name(row)}, seed {row['seed']}",
                color=COLOURS.get(row["attn"]),
                marker=".",
            )
        axis.set(xlabel="updates", ylabel="dev perplexity (per subword)", yscale="log")
        for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            formatter("{x:g}")
        axis.set_title(f"{pair} ({condition})")
        axis.grid(alpha=0.3, which="both")
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>qknorm-mt results</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; }}
body {{ margin: 2rem auto; padding: 0 1rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #8886; }}
th:nth-child(-n+3), td:nth-child(-n+3) {{ text-align: left; white-space: nowrap; }}
svg {{ max-width: 100%; height: auto; background: white; }}
pre {{ overflow-x: auto; }}
</style></head><body>
<h1>qknorm-mt results</h1>
<div class="wide">{table}</div>
<ul>{notes}</ul>
<h2>Learning curves</h2>
<div class="wide">{figure}</div>
<h2>Provenance</h2>
{details}
</body></html>
"""


def page(rows: list[dict[str, Any]], figure: str) -> str:
    """One self-contained HTML page."""
    details = "\n".join(
        f"<details><summary>{html.escape(row['run'])}</summary><pre>"
        f"{html.escape(describe(row))}</pre></details>"
        for row in sorted(rows, key=sort_key)
    )
    items = "".join(
        f"<li><b>{html.escape(term)}</b>: {html.escape(text)}"
        f"{f'<code>{html.escape(code)}</code>' if code else ''}</li>"
        for term, text, code in notes(rows)
    )
    svg = figure[figure.index("<svg") :]
    body = table(rows).to_html(index=False, border=0)
    return PAGE.format(table=body, notes=items, figure=svg, details=details)


def describe(row: dict[str, Any]) -> str:
    training = row["training"]
    starts = [
        f"{segment['started']} at commit {segment['commit']}"
        + (" with uncommitted changes" if segment["dirty"] else "")
        for segment in training["segments"]
    ]
    facts = {
        "started": "; resumed ".join(starts),
        "hardware": training["hardware"],
        "versions": ", ".join(f"{k} {v}" for k, v in training["versions"].items()),
        "data digest": row["data"]["digest"],
        "data lines": row["data"]["lines"],
        "L, g at the start": f"{row['data']['length_percentile']}, {row['data']['g_init']:.4f}",
        "g at the end": row["g"] or "none",
        "options": row["options"],
        "decoding": row["decode"],
        "hypotheses": row["hypotheses"],
    }
    return "\n".join(f"{name}: {value}" for name, value in facts.items())


def renew_readme(readme: Path, text: str) -> None:
    """Replace what stands between the two markers.

    Raises:
        ValueError: if the file has no such markers.
    """
    old = readme.read_text(encoding="utf-8")
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{readme} has no lines {BEGIN} and {END}, in this order")
    write_atomically(readme, f"{head}{BEGIN}\n{text}{END}{tail}")


def make_report(results: Path, readme: Path | None = None) -> dict[str, Path]:
    """Write table, plot and page under ``results``; return their paths.

    Raises:
        ValueError: if there is nothing to report.
    """
    rows = read_rows(results)
    if not rows:
        raise ValueError(f"no runs in {results / LEDGER}: `python -m experiments.run` makes one")
    paths = {
        "table": results / "tables" / "main.md",
        "csv": results / "tables" / "main.csv",
        "plot": results / "figures" / "dev_perplexity.svg",
        "page": results / "report.html",
    }
    write_atomically(paths["table"], markdown(rows))
    write_atomically(paths["csv"], table(rows).to_csv(index=False, lineterminator="\n"))
    plot_curves(rows, paths["plot"])
    write_atomically(paths["page"], page(rows, paths["plot"].read_text(encoding="utf-8")))
    if readme:
        renew_readme(readme, markdown(rows))
    return paths


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder to report")
    parser.add_argument("--readme", type=Path, help="file whose results table to renew")
    args = parser.parse_args(argv)
    try:
        paths = make_report(args.results, args.readme)
    except (RunError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return 1
    print(paths["table"].read_text(encoding="utf-8"))
    print("\n".join(f"{name}: {path}" for name, path in paths.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
