"""Figures of what the claims' measurements found, from results/claims/*.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullFormatter

from ..claims.arms import CONDITIONS
from ..claims.classes import CLASSES
from ..figure import COLOURS, MARKERS, OTHER, drawing, to_svg
from ..probe import heads_table, heatmap
from .claim_tables import KINDS, name_of, place_of, sides_of

Found = Mapping[str, Any]
DECAYS = {("AdamW", 0.0): "-", ("AdamW", 0.1): "--", ("Adam", 0.1): ":"}
LETTERS = {"mass_by_q": "‖q‖", "mass_by_k": "‖k‖", "mass_by_cos": "cos"}


def look(attn: str) -> dict[str, Any]:
    return {"color": COLOURS.get(attn, OTHER), "marker": MARKERS.get(attn, "v")}


def grid(panels: int, height: float, width: float = 5.0) -> tuple[Any, list[Axes]]:
    """A figure whose panels stand one below the other."""
    figure, axes = plt.subplots(
        panels, 1, figsize=(width, height * panels), squeeze=False, layout="constrained"
    )
    return figure, list(axes[:, 0])


def legend(figure: Any, axis: Axes) -> None:
    """Of one panel for all, above them, where it hides no figure."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=7)


def band(axis: Axes, xs: Sequence[float], values: np.ndarray, attn: str, **more: Any) -> None:
    """Mean over seeds, and the least and the largest as a band; ``values``: ``(seeds, xs)``."""
    there = ~np.isnan(values).all(axis=0)
    xs_there, values = np.asarray(xs)[there], values[:, there]
    mean, low, high = (f(values, axis=0) for f in (np.nanmean, np.nanmin, np.nanmax))
    axis.plot(xs_there, mean, **{**look(attn), "markersize": 4, **more})
    axis.fill_between(xs_there, low, high, color=COLOURS.get(attn, OTHER), alpha=0.2, linewidth=0)


def arms(runs: Iterable[Found], *keys: str) -> dict[tuple[Any, ...], list[Found]]:
    """Runs that have these in common, the baseline's first."""
    found: dict[tuple[Any, ...], list[Found]] = {}
    for run in sorted(runs, key=lambda run: place_of(run["attn"])):
        found.setdefault(tuple(run[key] for key in keys), []).append(run)
    return found


def draw_sensitivity(claims: Sequence[Found]) -> str:
    """Loss on dev against the rate, a panel for each pair and recipe."""
    panels = [
        (found["pair"], recipe, runs)
        for found in claims
        for (recipe,), runs in arms(found["runs"], "recipe").items()
    ]
    figure, axes = grid(len(panels), 2.9)
    for axis, (pair, recipe, runs) in zip(axes, panels, strict=True):
        for (attn,), own in arms(runs, "attn").items():
            rates = sorted({run["lr"] for run in own})
            values = [[end(run) for run in own if run["lr"] == rate] for rate in rates]
            band(axis, rates, np.array(values, dtype=float).T, attn, label=name_of(attn))
        start = float(np.mean([run["start"] for run in runs]))
        axis.axhline(start, color="#777777", lw=0.8, ls=":")
        axis.set(xscale="log", title=f"{pair} ({recipe})", ylabel="dev loss (nats a token)")
        axis.grid(alpha=0.3)
    legend(figure, axes[0])
    axes[-1].set_xlabel("learning rate (mean of seeds; band: least to largest;\ndotted: at start)")
    return to_svg(figure)


def end(run: Found) -> float:
    final = run["final"]
    return float(run["start"] if final is None else min(final, run["start"]))


def curves_of(figure_name: str, label: str, log: bool) -> Callable[[Sequence[Found]], str]:
    """What draws a probed figure over a training, a panel for each pair and some rates."""

    def draw(claims: Sequence[Found]) -> str:
        panels = [
            (found["pair"], rate, runs) for found in claims for rate, runs in drawn_rates(found)
        ]
        figure, axes = grid(len(panels), 2.4)
        for axis, (pair, rate, runs) in zip(axes, panels, strict=True):
            for (attn,), own in arms(runs, "attn").items():
                updates, values = aligned(own, figure_name)
                band(axis, updates, values, attn, label=name_of(attn))
            axis.set(title=f"{pair}, learning rate {rate:g}", ylabel=label)
            axis.set_yscale("log" if log else "linear")
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.grid(alpha=0.3)
        legend(figure, axes[0])
        axes[-1].set_xlabel("updates (mean of seeds; band: least to largest)")
        return to_svg(figure)

    return draw


def drawn_rates(found: Found) -> list[tuple[float, list[Found]]]:
    """Of the first recipe's trainings those with a rate at a third and two thirds of the range,
    and with the highest."""
    recipe = min(run["recipe"] for run in found["runs"])
    runs = [run for run in found["runs"] if run["recipe"] == recipe]
    rates = sorted({run["lr"] for run in runs})
    chosen = sorted({rates[len(rates) // 3], rates[2 * len(rates) // 3], rates[-1]})
    return [(rate, [run for run in runs if run["lr"] == rate]) for rate in chosen]


def aligned(runs: Sequence[Found], name: str) -> tuple[list[int], np.ndarray]:
    """Updates, and ``(seeds, updates)`` with NaN after a training that diverged."""
    updates = max((run["curve"]["updates"] for run in runs), key=len)
    rows = [
        [np.nan if y is None else y for y in run["curve"][name]]
        + [np.nan] * (len(updates) - len(run["curve"][name]))
        for run in runs
    ]
    return updates, np.array(rows, dtype=float)


def draw_growth(claims: Sequence[Found]) -> str:
    """Lengths over a training, by optimizer and weight decay."""
    figures = {"k_raw_norm": "‖k‖ as projected", "embedding_norm": "word vectors"}
    figure, axes = grid(len(claims) * len(figures), 3.0)
    panels = [(found, name) for found in claims for name in figures]
    for axis, (found, name) in zip(axes, panels, strict=True):
        found_arms = arms(found["runs"], "attn", "optimizer", "weight_decay")
        for (attn, optimizer, decay), own in found_arms.items():
            if (optimizer, decay) in DECAYS:  # without decay the two are one optimizer
                label = f"{name_of(attn)}, {optimizer}, decay {decay:g}"
                line = DECAYS[optimizer, decay]
                updates, values = aligned(own, name)
                band(axis, updates, values, attn, label=label, linestyle=line)
        axis.set(ylabel=f"{figures[name]}: mean length", title=found["pair"])
        axis.grid(alpha=0.3)
    legend(figure, axes[0])
    axes[-1].set_xlabel("updates (mean of seeds; band: least to largest)")
    return to_svg(figure)


def draw_factors(claims: Sequence[Found]) -> str:
    """How much of the attention mass each factor explains: mean of heads, range over heads."""
    figure, axes = grid(len(claims), 3.6)
    for axis, found in zip(axes, claims, strict=True):
        rows = [(kind, name) for kind in KINDS for name in LETTERS]
        for (condition, attn), own in sides_of(found["arms"]).items():
            if condition != CONDITIONS[0]:
                continue
            shift = -0.15 if attn == "none" else 0.15
            for y, (kind, name) in enumerate(rows):
                for arm in own:
                    cell = arm["heads"][kind][name]
                    if cell:
                        bar(axis, cell["mean"], cell["low"], cell["high"], y + shift, attn)
            axis.plot([], [], ls="", label=name_of(attn), **look(attn))
        axis.set_yticks(range(len(rows)), [f"{KINDS[k]}: {LETTERS[n]}" for k, n in rows])
        axis.set(title=found["pair"], ylim=(len(rows) - 0.5, -0.5))
        axis.set_xlabel(
            "share of the mass of keys explained\n(mean of heads; bar: least to largest)"
        )
        axis.grid(alpha=0.3)
    legend(figure, axes[0])
    return to_svg(figure)


def bar(axis: Axes, value: float, low: float, high: float, y: float, attn: str) -> None:
    axis.plot([low, high], [y, y], color=COLOURS.get(attn, OTHER), lw=1, alpha=0.7)
    axis.plot([value], [y], ls="", ms=5, **look(attn))


def dots(
    axis: Axes, found: Found, names: Sequence[str], values: Callable[[Found], Sequence[float]]
) -> None:
    """A row for each name, in it a mark for each arm: filled at equal updates, else hollow."""
    for (condition, attn), own in sides_of(found["arms"]).items():
        marks = look(attn) | {"ls": "", "ms": 5}
        shift = -0.12 if attn == "none" else 0.12
        if condition != CONDITIONS[0]:
            marks |= {"markerfacecolor": "none"}
            shift += 0.08
        for arm in own:
            axis.plot(values(arm), [y + shift for y in range(len(names))], **marks)
        axis.plot([], [], label=f"{name_of(attn)}, {condition}", **marks)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(alpha=0.3, which="both")


def heads_of(name: str) -> Callable[[Sequence[Found]], str]:
    """What draws a heatmap of a figure, a panel for each pair and the first seed of each kind of
    attention, at equal updates."""

    def draw(claims: Sequence[Found]) -> str:
        runs = {
            f"{found['pair']}/{name_of(arm['attn'])}/seed {arm['seed']}": arm["modules"]
            for found in claims
            for arm in sorted(found["arms"], key=lambda a: (place_of(a["attn"]), a["seed"]))
            if arm["condition"] == CONDITIONS[0]
            and arm["seed"] == min(each["seed"] for each in found["arms"])
        }
        svg = heatmap(heads_table(runs), name)
        assert svg is not None
        return svg

    return draw


def draw_classes(claims: Sequence[Found]) -> str:
    """Attention by class of token, over its even share; a panel for each kind of attention."""
    panels = [(found, kind) for found in claims for kind in KINDS]
    figure, axes = grid(len(panels), 2.4)
    for axis, (found, kind) in zip(axes, panels, strict=True):
        there = found["arms"][0]["classes"][kind]
        names = [name for name in CLASSES if name in there]

        def ratios(arm: Found, kind: str = kind, names: list[str] = names) -> list[float]:
            return [arm["classes"][kind][name]["ratio"] for name in names]

        dots(axis, found, names, ratios)
        axis.set(title=f"{found['pair']}: {KINDS[kind]}-attention")
    legend(figure, axes[0])
    axes[-1].set_xlabel("attention over the even share (a mark a seed)")
    return to_svg(figure)


def draw_words(claims: Sequence[Found]) -> str:
    """F1 of words by training frequency, with 95% intervals."""
    panels = [(found, condition) for found in claims for condition in CONDITIONS]
    figure, axes = grid(len(panels), 3.0)
    for axis, (found, condition) in zip(axes, panels, strict=True):
        buckets = found[condition]["buckets"]
        other = next(arm["attn"] for arm in found["arms"] if arm["attn"] != "none")
        for side, attn, shift in (("baseline", "none", -0.1), ("system", other, 0.1)):
            there = [(x, b[side]) for x, b in enumerate(buckets) if b[side]["f1"] is not None]
            f1 = np.array([cell["f1"] for _, cell in there])
            low, high = (np.array([cell[name] for _, cell in there]) for name in ("low", "high"))
            axis.errorbar(
                [x + shift for x, _ in there],
                f1,
                [f1 - low, high - f1],
                ls="",
                ms=5,
                label=name_of(attn),
                capsize=2,
                **look(attn),
            )
        axis.set_xticks(range(len(buckets)), [b["bucket"] for b in buckets], fontsize=8)
        axis.set(title=f"{found['pair']}, {condition}", ylabel="F1 of words (%), 95% interval")
        axis.grid(alpha=0.3)
    legend(figure, axes[0])
    axes[-1].set_xlabel("times in the training text")
    return to_svg(figure)


def draw_geometry(claims: Sequence[Found]) -> str:
    """Silhouette and mean cosine of every space."""
    figures = {"mean_cosine": "mean cosine of random pairs", "silhouette": "silhouette by class"}
    panels = [(found, name) for found in claims for name in figures]
    figure, axes = grid(len(panels), 3.6)
    for axis, (found, name) in zip(axes, panels, strict=True):
        spaces = [*found["arms"][0]["spaces"]]

        def values(arm: Found, name: str = name, spaces: list[str] = spaces) -> list[float]:
            return [arm["spaces"][space][name] for space in spaces]

        dots(axis, found, spaces, values)
        axis.set(title=found["pair"], xlabel=f"{figures[name]} (a mark a seed)")
        axis.xaxis.set_major_locator(MaxNLocator(5))
    legend(figure, axes[0])
    return to_svg(figure)


# By the claim's name: file names, titles, and what draws them.
FIGURES: dict[str, list[tuple[str, str, Callable[[Sequence[Found]], str]]]] = {
    "stability": [
        ("claims_sensitivity", "Loss against learning rate", draw_sensitivity),
        (
            "claims_logits",
            "Logit growth: the largest logit of any head",
            curves_of("logit_max", "largest logit", log=True),
        ),
        (
            "claims_entropy",
            "Entropy of attention while training",
            curves_of("entropy_share", "entropy / log(keys)", log=False),
        ),
        (
            "claims_gradients",
            "Gradient of the query projections while training: mean of heads",
            curves_of("q_grad", "gradient norm", log=True),
        ),
    ],
    "growth": [("claims_growth", "Growth of vectors, by optimizer", draw_growth)],
    "attention": [
        ("claims_factors", "What decides which keys get attention", draw_factors),
        ("claims_classes", "Attention by class of token", draw_classes),
        ("claims_heads_logits", "The largest logit of each head", heads_of("logit_max")),
        ("claims_heads_entropy", "Entropy of each head", heads_of("entropy_share")),
        ("claims_heads_sinks", "Sentences with a sink, by head", heads_of("sink")),
    ],
    "words": [("claims_words", "Words by training frequency", draw_words)],
    "geometry": [("claims_geometry", "Geometry of embeddings and keys", draw_geometry)],
}


def make(claims: Mapping[str, Sequence[Found]]) -> list[tuple[str, str, str]]:
    """Name, title and SVG of each figure of the claims that were measured."""
    made = []
    with drawing():
        for claim, figures in FIGURES.items():
            for name, title, draw in figures:
                if claims.get(claim):
                    made.append((name, title, draw(claims[claim])))
    return made
