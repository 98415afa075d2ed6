"""How every figure looks: SVG, colours of the variants, text that is the page's own colour."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from io import StringIO
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

COLOURS = {  # Okabe & Ito: told apart by the colour-blind
    "none": "#999999",
    "l2": "#0072B2",
    "layernorm": "#E69F00",
    "rmsnorm": "#009E73",
    "vit22b": "#D55E00",
    "qwen3": "#CC79A7",
}
OTHER = "#56B4E9"
MARKERS = {"none": "o", "l2": "s", "layernorm": "^", "rmsnorm": "D"}  # told apart in grey too
STYLES = ("-", "--", ":", "-.")  # of seeds
INK = "#010203"  # stands for the page's own colour of text, light or dark


def number(value: float, decimals: int) -> str:
    """As it is shown: what rounds to nothing has no sign."""
    shown = f"{value:.{decimals}f}"
    return shown.removeprefix("-") if float(shown) == 0 else shown


def style(seed: int) -> str:
    return STYLES[(seed - 1) % len(STYLES)]


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Within the context, matplotlib's settings are those of all figures."""
    settings: dict[str, Any] = {
        "svg.hashsalt": "qknorm-mt",
        "svg.fonttype": "none",
        "font.size": 10,
        "legend.framealpha": 0.0,
    }
    inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    with mpl.rc_context(settings | dict.fromkeys(inks, INK)):  # type: ignore[arg-type]
        yield


def to_svg(figure: Figure) -> str:
    """The figure as SVG, the same bytes each time; closes it."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    plt.close(figure)
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")
