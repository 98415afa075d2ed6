"""Tables, figures and page of the scored runs, beside the published figures.

    python -m experiments.report                       # of this clone's results/
    python -m experiments.report --results work/demo/results
    python -m experiments.report --readme README.md    # also renew the table in the README

Reads runs.jsonl, the sentence statistics beside the stored hypotheses, what was measured of claims
(claims/*.json), and paper.yaml; needs no data set, no GPU, no training. Writes tables/ (Markdown,
CSV, LaTeX), figures/ (SVG), report.html.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..command_line import catch, parser_of
from .build import make_report


@catch
def main(argv: list[str] | None = None) -> int:
    parser = parser_of("report", __doc__)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder to report (%(default)s)"
    )
    parser.add_argument("--readme", type=Path, help="file whose results table to renew")
    args = parser.parse_args(argv)
    paths = make_report(args.results, args.readme)
    print(paths[0].read_text(encoding="utf-8"))
    print("\n".join(map(str, paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
