"""What is claimed of QK normalisation, measured on trained runs; docs/claims.md has the answers.

    python -m experiments.claims stability work/runs/toy/proxy*       # +experiment=lr_sensitivity
    python -m experiments.claims growth work/runs/gl-en/proxy_long*   # +experiment=norm_growth
    python -m experiments.claims attention work/runs/gl-en/cpu_fast-none work/runs/gl-en/cpu_fast-l2
    python -m experiments.claims geometry work/runs/gl-en/cpu_fast-none work/runs/gl-en/cpu_fast-l2
    python -m experiments.claims words work/runs/gl-en/cpu_fast-none work/runs/gl-en/cpu_fast-l2
    python -m experiments.report                                      # tables and figures

A RUN is a run's folder, or a folder of such. The last three compare attn=none with one other kind,
at each run's best checkpoint, and each pair of one seed at equal loss on dev: train the runs with
runtime.keep_checkpoints=15, so that there is a checkpoint to compare at.

Each writes results/claims/<claim>-<pair>[-<other kind>].json, which holds all that tables and
figures are drawn from, with its provenance.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..command_line import catch, parser_of
from ..commands import RunError
from ..plan import SETTINGS
from ..process import write_atomically
from . import attention, growth, stability
from .arms import arms_of
from .translations import measure_geometry, measure_words

CLAIMS: dict[str, Callable[[Sequence[Path]], dict[str, Any]]] = {
    "stability": stability.measure,
    "growth": growth.measure,
    "attention": lambda folders: attention.measure(arms_of(folders)),
    "geometry": lambda folders: measure_geometry(arms_of(folders)),
    "words": lambda folders: measure_words(arms_of(folders)),
}


def runs_in(given: Sequence[Path]) -> list[Path]:
    """The runs' folders that are given, or stand in folders that are given.

    Raises:
        RunError: if one is neither.
    """
    found: list[Path] = []
    for path in given:
        inside = sorted(settings.parent for settings in path.glob(f"*/{SETTINGS}"))
        if not inside and not (path / SETTINGS).exists():
            raise RunError(
                f"{path} is neither a run's folder nor one with runs in it: give "
                "work/runs/<pair>/<variant>, or <seed>-<digest> in it"
            )
        found += inside or [path]
    return found


def name_of(found: dict[str, Any]) -> str:
    """The pair, and what is compared with no normalisation."""
    others = {arm["attn"] for arm in found.get("arms", ())} - {"none"}
    return "-".join([found["pair"], *others])


@catch
def main(argv: list[str] | None = None) -> int:
    parser = parser_of("claims", __doc__)
    parser.add_argument("claim", choices=CLAIMS, help="what to measure")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run or runs")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="write under here (%(default)s)"
    )
    args = parser.parse_args(argv)
    try:
        found = CLAIMS[args.claim](runs_in(args.runs))
    except ValueError as error:  # of text and vectors that do not go together
        raise RunError(str(error)) from None
    path = args.results / "claims" / f"{args.claim}-{name_of(found)}.json"
    write_atomically(path, json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(path)
    print("`python -m experiments.report` draws its tables and figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
