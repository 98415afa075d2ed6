"""The report's tables: each a list of columns and of lines, whose cells know their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from ..stats import Interval, over_seeds
from .differences import Difference, ReadStats, adjusted, difference, names_of
from .groups import (
    BASELINE,
    QKNORM,
    Arm,
    Group,
    Row,
    attention_name,
    condition_of,
    recipe_name,
    sort_key,
)
from .paper import BASELINE as PAPER_BASELINE
from .paper import PAIRS, Figure, Paper
from .paper import QKNORM as PAPER_QKNORM

LEVEL = 0.05
NOTHING = "–"
NOT_VERIFIED = "not verified"


@dataclass(frozen=True)
class Cell:
    """What stands in a place of a table.

    Attributes:
        text: as it is shown.
        runs: the runs it comes from, by :func:`collect.ledger_name`.
        source: of a published figure.
    """

    text: str
    runs: tuple[str, ...] = ()
    source: str = ""


@dataclass
class Table:
    """A table; ``lines`` hold a cell for each column."""

    name: str
    title: str
    columns: list[str]
    lines: list[list[Cell]] = field(default_factory=list)

    def frame(self) -> pd.DataFrame:
        texts = [[cell.text for cell in line] for line in self.lines]
        return pd.DataFrame(texts, columns=self.columns)


def linked(words: str, runs: tuple[str, ...]) -> Cell:
    """A number with its runs; words without one have nothing to link."""
    return Cell(words, runs if any(c.isdigit() for c in words) else ())


def text(value: object) -> Cell:
    return Cell(str(value))


def published(figure: Figure | None) -> Cell:
    if figure is None:
        return Cell(NOTHING)
    if figure.score is None:
        return Cell(NOT_VERIFIED, source=figure.source)
    return Cell(f"{figure.score:.2f}", source=f"{figure.source}; {figure.verified}")


def interval(ends: Interval | None) -> str:
    return f"[{ends[0]:+.2f}, {ends[1]:+.2f}]" if ends else "one seed"


def p_value(p: float | None) -> str:
    if p is None:
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def mean_of(arm: Arm | None, metric: str = "bleu_tok", split: str = "test") -> Cell:
    """Mean over seeds, with their standard deviation if there are several."""
    if arm is None:
        return Cell(NOTHING)
    found = over_seeds(arm.scores(metric, split))
    spread = "" if found.deviation is None else f" ± {found.deviation:.2f}"
    return Cell(f"{found.mean:.2f}{spread}", names_of(arm.rows.values()))


def main_table(groups: Sequence[Group], paper: Paper, read: ReadStats) -> Table:
    """Ours beside the paper's: baseline and QKNorm of every pair, recipe and condition."""
    table = Table(
        "main",
        "QKNorm against its baseline, and against the paper",
        [
            *("pair", "recipe", "condition", "prep", "seeds", "baseline", "QKNorm", "difference"),
            *("test set: 95%", "p (Holm)", "seeds: 95%", "p of seeds (Holm)"),
            *("paper baseline", "paper QKNorm", "paper difference", "QKNorm - paper"),
        ],
    )
    arms = [(group.arms.get(BASELINE), group.arms.get(QKNORM)) for group in groups]
    shown = [i for i, pair in enumerate(arms) if any(pair)]
    groups, arms = [groups[i] for i in shown], [arms[i] for i in shown]
    found = [difference(*pair, read) for pair in arms]
    p_values = adjusted(found, groups)
    for pair in (*PAIRS, *sorted({group.pair for group in groups} - set(PAIRS))):
        places = [i for i, group in enumerate(groups) if group.pair == pair]
        for i in places:
            ours = ours_cells(groups[i], arms[i], found[i], p_values[i])
            table.lines.append([*ours, *paper_cells(paper, groups[i], arms[i][1])])
        if not places:
            empty = Group(pair, NOTHING, NOTHING, NOTHING)
            ours = ours_cells(empty, (None, None), None, (None, None))
            table.lines.append([*ours, *paper_cells(paper, empty, None)])
    table.lines += mean_lines(groups, found, paper)
    return table


def ours_cells(
    group: Group,
    arms: tuple[Arm | None, Arm | None],
    found: Difference | None,
    p: tuple[float | None, float | None],
) -> list[Cell]:
    baseline, system = arms
    cells = [text(group.pair), text(group.recipe), text(group.condition), text(group.prep)]
    cells += [text(seeds_of(arms)), mean_of(baseline), mean_of(system)]
    if found is None:
        return cells + [Cell(NOTHING)] * 5
    mark = "*" if p[0] is not None and p[0] < LEVEL else ""
    mark += "†" if p[1] is not None and p[1] < LEVEL else ""
    return [
        *cells,
        Cell(f"{found.mean:+.2f}{mark}", found.runs),
        linked(interval(found.test.interval), found.runs),
        linked(p_value(p[0]), found.runs),
        linked(interval(found.seeds.interval), found.runs),
        linked(p_value(p[1]), found.runs),
    ]


def seeds_of(arms: Sequence[Arm | None]) -> str:
    """How many seeds, of each arm if they are not the same."""
    seeds = [set(arm.rows) if arm else set() for arm in arms]
    if seeds[0] == seeds[1]:
        return str(len(seeds[0]))
    counts = f"{len(seeds[0])} and {len(seeds[1])}"
    return f"{counts}, {len(seeds[0] & seeds[1])} common" if all(seeds) else counts


def comparable(group: Group) -> bool:
    """Whether scores may be set against published ones: the published recipe as it is, on the
    published text, prepared as published."""
    return (group.condition, group.prep) == ("full", "paper")


def paper_cells(paper: Paper, group: Group, system: Arm | None) -> list[Cell]:
    figures = [paper.figures[name].get(group.pair) for name in (PAPER_BASELINE, PAPER_QKNORM)]
    scores = [figure.score if figure else None for figure in figures]
    cells = [published(figure) for figure in figures]
    if None in scores:
        cells.append(Cell(NOTHING if None in figures else NOT_VERIFIED))
    else:
        cells.append(Cell(f"{scores[1] - scores[0]:+.2f}", source=figures[1].source))  # type: ignore
    if system is None or scores[1] is None:
        return [*cells, Cell(NOTHING)]
    if not comparable(group):
        return [*cells, Cell("not comparable")]
    ours = over_seeds(system.scores()).mean
    return [*cells, Cell(f"{ours - scores[1]:+.2f}", names_of(system.rows.values()))]


def mean_lines(
    groups: Sequence[Group], found: Sequence[Difference | None], paper: Paper
) -> list[list[Cell]]:
    """The mean over the five pairs for each recipe and condition that has them all; the claim."""
    by_label: dict[tuple[str, str, str], dict[str, Difference]] = {}
    for group, one in zip(groups, found, strict=True):
        if one is not None and group.pair in PAIRS:
            by_label.setdefault(group.label[1:], {})[group.pair] = one
    claim = paper.mean_difference
    lines = []
    whole = {label: pairs for label, pairs in by_label.items() if len(pairs) == len(PAIRS)}
    for label, pairs in (whole or {(NOTHING,) * 3: {}}).items():
        cells = [text("mean of five"), *map(text, label)] + [Cell(NOTHING)] * 12
        if pairs:
            mean = sum(one.mean for one in pairs.values()) / len(PAIRS)
            cells[7] = Cell(
                f"{mean:+.2f}", tuple(run for one in pairs.values() for run in one.runs)
            )
        cells[14] = Cell(f"{claim.score:+.3f}", source=f"{claim.source}; {claim.verified}")
        lines.append(cells)
    return lines


def system_of(row: Row) -> str:
    """The earlier paper's name of a system (Nguyen & Salazar 2019, table 3)."""
    options = row["options"]
    parts = ["PreNorm" if options.get("norm_position", "pre") == "pre" else "PostNorm"]
    parts += ["FixNorm"] if options.get("fix_norm") else []
    parts += ["ScaleNorm" if options.get("norm", "layer") == "scale" else "LayerNorm"]
    return " + ".join(parts)


def baselines_table(groups: Sequence[Group], paper: Paper) -> Table:
    """The systems of the earlier paper and QKNorm, pair by pair: ours and published."""
    table = Table(
        "baselines",
        "The earlier paper's systems and QKNorm",
        [
            *("system", "recipe", "condition", "prep"),
            *(f"{pair} {of}" for pair in PAIRS for of in ("ours", "paper")),
        ],
    )
    systems = [name for name in paper.figures if name not in (PAPER_BASELINE, PAPER_QKNORM)]
    for name in (*systems, PAPER_QKNORM):
        arms: dict[tuple[str, str, str], dict[str, Arm]] = {}
        for group in groups:
            for arm_name, arm in group.arms.items():
                own = PAPER_QKNORM if arm_name == QKNORM else None
                if arm_name == BASELINE:
                    own = system_of(next(iter(arm.rows.values())))
                if own == name:
                    arms.setdefault(group.label[1:], {})[group.pair] = arm
        for label, by_pair in (arms or {(NOTHING,) * 3: {}}).items():
            line = [text(name), *map(text, label)]
            for pair in PAIRS:
                line += [mean_of(by_pair.get(pair)), published(paper.figures[name].get(pair))]
            table.lines.append(line)
    return table


def variants_table(groups: Sequence[Group], read: ReadStats) -> Table:
    """Every kind of attention against the baseline of its group."""
    table = Table(
        "variants",
        "Kinds of attention",
        [
            *("pair", "recipe", "condition", "prep", "attention", "seeds", "dev ppl", "dev BLEU"),
            *("test BLEU", "difference", "test set: 95%", "p", "seeds: 95%", "p of seeds"),
        ],
    )
    for group in groups:
        for name, arm in group.arms.items():
            rows = list(arm.rows.values())
            perplexity = over_seeds([row["dev_ppl"] for row in rows]).mean
            line = [text(value) for value in (*group.label, name, len(rows))]
            line += [
                Cell(f"{perplexity:.2f}", names_of(rows)),
                mean_of(arm, split="dev"),
                mean_of(arm),
            ]
            found = None if name == BASELINE else difference(group.arms.get(BASELINE), arm, read)
            if found is None:
                line += [Cell(NOTHING)] * 5
            else:
                line += [
                    linked(f"{found.mean:+.2f}", found.runs),
                    linked(interval(found.test.interval), found.runs),
                    linked(p_value(found.test.p_randomisation), found.runs),
                    linked(interval(found.seeds.interval), found.runs),
                    linked(p_value(found.p_seeds), found.runs),
                ]
            table.lines.append(line)
    return table


METRICS = {
    "BLEU": "bleu_tok",
    "detok BLEU": "bleu_detok",
    "sacreBLEU": "bleu",
    "chrF2": "chrf",
    "TER": "ter",
}


def runs_table(rows: Sequence[Row]) -> Table:
    """One line a run: every score, speed and cost."""
    table = Table(
        "runs",
        "Runs",
        [
            *("pair", "attention", "recipe", "condition", "prep", "seed", "run", "beam"),
            *("parameters", "updates", "dev ppl", "dev BLEU", *(f"test {m}" for m in METRICS)),
            *("words/s", "minutes"),
        ],
    )
    for row in sorted(rows, key=sort_key):
        test, training, decode = row["scores"]["test"], row["training"], row["decode"]
        values = [
            *(row["pair"], attention_name(row), recipe_name(row), condition_of(row)),
            *(row["prep"]["name"], row["seed"], row["run"].rsplit("-", 1)[1]),
            *(f"{decode['beam']}, lenpen {decode['lenpen']}", f"{row['parameters'] / 1e6:.2f}M"),
            *(training["updates"], f"{row['dev_ppl']:.2f}"),
            f"{row['scores']['dev']['bleu_tok']['score']:.2f}",
            *(f"{test[metric]['score']:.2f}" for metric in METRICS.values()),
            *(training["words_per_second"], f"{training['train_seconds'] / 60:.1f}"),
        ]
        table.lines.append([Cell(str(value), names_of([row])) for value in values])
    return table
