"""The report's figures of runs: panels one below the other, to be read on a phone too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from ..figure import COLOURS, OTHER, drawing, style, to_svg
from .groups import Group, Row

MODULES = {
    "encoder": ("encoder.layers.", "self_attn", "o"),
    "decoder": ("decoder.layers.", "self_attn", "s"),
    "cross": ("decoder.layers.", "encoder_attn", "^"),
}

Draw = Callable[[Axes, Group], bool]


def colour(row: Row) -> str:
    return COLOURS.get(row["attn"], OTHER)


def rows_of(group: Group) -> list[tuple[str, Row]]:
    return [(name, row) for name, arm in group.arms.items() for row in arm.rows.values()]


def draw_curves(axis: Axes, group: Group, figure: str, label: str) -> bool:
    """A figure on dev against updates; whether there was any."""
    any_there = False
    for name, row in rows_of(group):
        points = [point for point in row["training"]["dev"] if figure in point]
        if points:
            any_there = True
            axis.plot(
                [point["updates"] for point in points],
                [point[figure] for point in points],
                label=f"{name}, seed {row['seed']}",
                color=colour(row),
                linestyle=style(row["seed"]),
                marker=".",
            )
    axis.set(xlabel="updates", ylabel=label)
    return any_there


def draw_perplexity(axis: Axes, group: Group) -> bool:
    there = draw_curves(axis, group, "ppl", "dev perplexity (per subword)")
    axis.set_yscale("log")
    for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        formatter("{x:g}")
    return there


def draw_bleu(axis: Axes, group: Group) -> bool:
    return draw_curves(axis, group, "bleu", "dev BLEU (tokenised)")


def draw_g(axis: Axes, group: Group) -> bool:
    """g of every module at the end, by layer; the mean over heads where each has its own."""
    any_there = False
    for name, row in rows_of(group):
        for module, (start, end, marker) in MODULES.items():
            found = {int(n.split(".")[2]): g for n, g in row["g"].items() if is_of(n, start, end)}
            if found:
                any_there = True
                layers = sorted(found)
                axis.plot(
                    [layer + 1 for layer in layers],
                    [mean(found[layer]) for layer in layers],
                    label=f"{name}, seed {row['seed']}: {module}",
                    color=colour(row),
                    linestyle=style(row["seed"]),
                    marker=marker,
                    alpha=0.85,
                )
    if any_there:
        axis.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
        axis.set(xlabel="layer", ylabel="g at the best checkpoint")
    return any_there


def is_of(name: str, start: str, end: str) -> bool:
    return name.startswith(start) and name.endswith(end)


def mean(g: float | list[float]) -> float:
    return sum(g) / len(g) if isinstance(g, list) else g


def draw_speed(axis: Axes, group: Group) -> bool:
    """Median words a second of each run, with its hardware; not of one session, so no ratio."""
    rows = [(name, row) for name, row in rows_of(group) if row["training"]["words_per_second"]]
    names = list(dict.fromkeys(name for name, _ in rows))
    for name, row in rows:
        axis.plot(
            row["training"]["words_per_second"], names.index(name), "o", color=colour(row), ms=8
        )
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlim(0, 1.1 * max((row["training"]["words_per_second"] for _, row in rows), default=1))
    hardware = sorted({row["training"]["hardware"] for _, row in rows})
    axis.set(xlabel="target words a second (median of a run)\n" + "\n".join(hardware))
    return bool(rows)


# By file name: a title and what draws a group's panel.
FIGURES: dict[str, tuple[str, Draw, float]] = {
    "dev_perplexity": ("Learning curves: dev perplexity", draw_perplexity, 3.4),
    "dev_bleu": ("Learning curves: dev BLEU", draw_bleu, 3.4),
    "g": ("g by layer", draw_g, 3.8),
    "speed": ("Training speed", draw_speed, 2.0),
}


def make(groups: Sequence[Group], draw: Draw, height: float) -> str | None:
    """A figure as SVG, with a panel for each group that has anything to draw; None without any."""
    with drawing():
        there = [group for group in groups if panel(None, draw, group)]
        if not there:
            return None
        figure, axes = plt.subplots(
            len(there), 1, figsize=(5, height * len(there)), squeeze=False, layout="constrained"
        )
        for axis, group in zip(axes[:, 0], there, strict=True):
            panel(axis, draw, group)
        return to_svg(figure)


def panel(axis: Axes | None, draw: Draw, group: Group) -> bool:
    """Draw a group; without an axis, only tell whether it has anything to draw."""
    if axis is None:
        figure, trial = plt.subplots()
        there = draw(trial, group)
        plt.close(figure)
        return there
    draw(axis, group)
    axis.set_title(f"{group.pair} ({group.recipe})")
    axis.grid(alpha=0.3, which="both")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8)
    return True
