"""What attention does in trained models, by layer and head, several runs side by side.

    python -m experiments.probe work/runs/gl-en/cpu-none/seed1-74aefb9d59bb
    python -m experiments.probe work/runs/toy/demo-none/* work/runs/toy/demo-l2/* --out probes
    python -m experiments.probe RUN RUN --split test --sentences 200
    python -m experiments.probe checkpoint_best.pt --data data-bin/iwslt14.tokenized.de-en
    python -m experiments.probe RUN model.pt --data DATA         # ours beside one from elsewhere

A RUN is a run's folder (its best checkpoint is looked at) or a checkpoint of a qknorm_mt model or
of a plain fairseq transformer; for the latter --data names the binarised folder it was trained on.
Runs that stand side by side must have the same dictionaries and sentences.

Prints a table of each module's figures, the mean over its heads, and writes into --out: that table
(modules.md), every head's figures (heads.csv), a heatmap a figure (SVG: layers and heads, a panel a
run, one scale), and, where runs were trained with probe.every, their curves (curves.svg).
docs/claims.md says what the figures mean.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import pyplot as plt

from .claims.curves import curve_of, probes_of
from .command_line import catch, parser_of
from .commands import RunError
from .figure import COLOURS, OTHER, drawing, number, style, to_svg
from .plan import Run, read
from .process import write_atomically
from .survey import surveys_of

# By name in heads.json: what it is called, and how many decimals it is shown with.
FIGURES = {
    "logit_max": ("largest logit", 1),
    "logit_p999": ("logit, 99.9th percentile", 1),
    "entropy": ("entropy (nats)", 2),
    "entropy_share": ("entropy / log(keys)", 2),
    "saturated": ("rows with a weight over 0.99", 3),
    "q_norm": ("‖q‖", 2),
    "k_norm": ("‖k‖", 2),
    "q_raw_norm": ("‖q‖ as projected", 2),
    "k_raw_norm": ("‖k‖ as projected", 2),
    "g": ("g", 2),
    "logit_by_q": ("share of logits' variance by ‖q‖", 2),
    "logit_by_k": ("share of logits' variance by ‖k‖", 2),
    "logit_by_cos": ("share of logits' variance by cos", 2),
    "mass_by_q": ("share of attention mass by ‖q‖", 2),
    "mass_by_k": ("share of attention mass by ‖k‖", 2),
    "mass_by_cos": ("share of attention mass by cos", 2),
    "sink": ("sentences with a sink", 2),
    "sink_length": ("‖k‖ of a sink / mean ‖k‖", 2),
}
DRAWN = ("logit_max", "entropy_share", "saturated", "k_raw_norm", "mass_by_k", "sink")
CURVES = {
    "logit_max": "largest logit of any head",
    "entropy_share": "entropy / log(keys), mean of heads",
    "k_raw_norm": "‖k‖ as projected, mean of heads",
    "grad_norm": "gradient norm (dev batch)",
    "loss": "loss (dev batch, nats a token)",
}


def heads_table(runs: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> pd.DataFrame:
    """A line for every head of every module of every run; None where a figure is not there.

    Args:
        runs: of each run its modules, as in ``heads.json``.
    """
    lines = []
    for run, modules in runs.items():
        for module, figures in modules.items():
            heads = len(figures["logit_max"])
            for head in range(heads):
                line: dict[str, Any] = {
                    "run": run,
                    "module": module,
                    "kind": figures["kind"],
                    "layer": figures["layer"],
                    "head": head + 1,
                }
                for name in FIGURES:
                    values = figures.get(name) or [None]
                    line[name] = values[head if len(values) == heads else 0]
                lines.append(line)
    return pd.DataFrame(lines)


def modules_table(table: pd.DataFrame) -> str:
    """Figures by module, the mean over heads, a column a run: Markdown."""
    runs = list(dict.fromkeys(table["run"]))
    lines = []
    for module, heads in table.groupby("module", sort=False):
        for name, (title, decimals) in FIGURES.items():
            means = heads.astype({name: float}).groupby("run")[name].mean()
            cells = [means.get(run) for run in runs]
            shown = ["–" if pd.isna(x) else number(x, decimals) for x in cells]
            if set(shown) != {"–"}:
                lines.append({"module": module, "mean over heads": title, **zip_runs(runs, shown)})
    return str(pd.DataFrame(lines).to_markdown(index=False, disable_numparse=True)) + "\n"


def zip_runs(runs: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    return dict(zip(runs, cells, strict=True))


def heatmap(table: pd.DataFrame, name: str) -> str | None:
    """A figure of every head, a panel a run, as SVG; None if no head has it."""
    title, decimals = FIGURES[name]
    values = table[name].astype(float)
    if values.isna().all():
        return None
    runs = list(dict.fromkeys(table["run"]))
    panels = [
        table[table["run"] == run]
        .astype({name: float})
        .pivot_table(index="module", columns="head", values=name, sort=False, dropna=False)
        for run in runs
    ]
    modules = list(dict.fromkeys(module for panel in panels for module in panel.index))
    panels = [panel.reindex(modules) for panel in panels]
    rows, columns = len(modules), max(panel.shape[1] for panel in panels)
    with drawing():
        figure, axes = plt.subplots(
            1,
            len(runs),
            figsize=(2.4 + len(runs) * (0.6 * columns + 0.4), 1.2 + 0.32 * rows),
            squeeze=False,
            layout="constrained",
            sharey=True,
        )
        for axis, run, panel in zip(axes[0], runs, panels, strict=True):
            axis.pcolormesh(panel.to_numpy(), cmap="cividis", vmin=values.min(), vmax=values.max())
            write_cells(axis, panel, decimals, values.min(), values.max())
            axis.set_xticks([c + 0.5 for c in range(panel.shape[1])], panel.columns)
            axis.set_yticks([r + 0.5 for r in range(panel.shape[0])], panel.index)
            axis.set(xlabel="head", title="\n".join(run.split("/")))
            axis.title.set_fontsize(7)
        axes[0, 0].invert_yaxis()
        figure.suptitle(title)  # no colour bar: cells say their numbers
        return to_svg(figure)


def write_cells(axis: Any, panel: pd.DataFrame, decimals: int, low: float, high: float) -> None:
    """The number in each cell, dark on light and light on dark."""
    for r, (_, row) in enumerate(panel.iterrows()):
        for c, value in enumerate(row):
            if not pd.isna(value):
                light = high > low and (value - low) / (high - low) > 0.5
                colour = "#000000" if light else "#ffffff"
                place = {"ha": "center", "va": "center", "size": 7, "color": colour}
                axis.text(c + 0.5, r + 0.5, number(value, decimals), **place)


def curves(runs: Sequence[Run]) -> str:
    """Probes of the trainings of several runs, as SVG."""
    with drawing():
        figure, axes = plt.subplots(
            len(CURVES), 1, figsize=(5.5, 2.4 * len(CURVES)), layout="constrained", sharex=True
        )
        for run in runs:
            curve = curve_of(probes_of(run))
            for axis, name in zip(axes, CURVES, strict=True):
                axis.plot(
                    curve["updates"],
                    [float("nan") if y is None else y for y in curve[name]],
                    color=COLOURS.get(run.cfg["attn"]["name"], OTHER),
                    linestyle=style(run.cfg["seed"]),
                    marker=".",
                    label=run.name,
                )
        for axis, label in zip(axes, CURVES.values(), strict=True):
            axis.set_ylabel("\n".join(label.split(", ")), fontsize=8)
            axis.grid(alpha=0.3)
        axes[0].legend(fontsize=6)
        axes[-1].set_xlabel("updates")
        return to_svg(figure)


def probed_of(given: Sequence[Path]) -> list[Run]:
    """The runs among what is given that were probed while training; says why others have none."""
    found = []
    for run in [read(path) for path in given if path.is_dir()]:
        try:
            probes_of(run)
            found.append(run)
        except RunError as error:
            print(f"no curve over updates: {error}")
    return found


@catch
def main(argv: list[str] | None = None) -> int:
    parser = parser_of("probe", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder or checkpoint")
    parser.add_argument("--data", type=Path, help="binarised folder of checkpoints given as files")
    parser.add_argument("--split", default="dev", choices=("train", "dev", "test"))
    parser.add_argument("--sentences", type=int, metavar="N", help="how many of the split (all)")
    parser.add_argument(
        "--out", type=Path, default=Path("probes"), help="folder to write to (%(default)s)"
    )
    args = parser.parse_args(argv)
    if args.sentences is not None and args.sentences < 1:
        raise RunError(f"--sentences {args.sentences} is not allowed: legal is at least 1")
    for path in args.runs:
        if not path.exists():
            raise RunError(f"{path}: no such run's folder or checkpoint")
    surveys = surveys_of(args.runs, args.data, args.split, args.sentences, args.out)
    table = heads_table({survey.name: survey.heads["modules"] for survey in surveys})
    text = modules_table(table)
    write_atomically(args.out / "heads.csv", table.to_csv(index=False, lineterminator="\n"))
    write_atomically(args.out / "modules.md", text)
    drawn = {name: heatmap(table, name) for name in DRAWN}
    print(text)
    probed = probed_of(args.runs)
    drawn["curves"] = curves(probed) if probed else None
    for name, svg in drawn.items():
        if svg is not None:
            write_atomically(args.out / f"{name}.svg", svg)
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
