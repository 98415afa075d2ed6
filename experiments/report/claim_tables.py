"""Tables of what the claims' measurements found, from results/claims/*.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..claims import growth, stability
from ..claims.arms import CONDITIONS
from ..figure import number
from ..stats import OverSeeds
from .groups import NAMES
from .tables import NOTHING, Cell, Table, text

Found = Mapping[str, Any]
KINDS = {"encoder": "encoder self", "decoder": "decoder self", "cross": "cross"}
ATTENTION = {
    "logit_max": ("largest logit", 1),
    "entropy_share": ("entropy / log(keys)", 3),
    "saturated": ("rows with a weight over 0.99", 4),
    "k_raw_norm": ("‖k‖ as projected", 2),
    "logit_by_q": ("logits' variance explained by ‖q‖", 3),
    "logit_by_k": ("logits' variance explained by ‖k‖", 3),
    "logit_by_cos": ("logits' variance explained by cos", 3),
    "mass_by_q": ("attention mass explained by ‖q‖", 3),
    "mass_by_k": ("attention mass explained by ‖k‖", 3),
    "mass_by_cos": ("attention mass explained by cos", 3),
    "rank_k": ("rank correlation of mass and ‖k‖", 2),
    "rank_cos": ("rank correlation of mass and cos", 2),
    "sink": ("sink share", 3),
    "sink_first": ("sink share, first position", 3),
    "sink_last": ("sink share, last position", 3),
    "sink_shorter": ("sinks with a key shorter than the mean", 2),
    "sink_length": ("‖k‖ of a sink / mean ‖k‖", 2),
    "sink_cos": ("cos of queries and a sink's key", 2),
    "other_cos": ("cos of queries and the other keys", 2),
}
GEOMETRY = {
    "mean_cosine": "mean cosine",
    "isotropy": "isotropy",
    "centred_isotropy": "isotropy, less the mean",
    "effective_dimension": "effective dimension",
    "hubness": "hubness, less the mean",
    "silhouette": "silhouette, less the mean",
}


def name_of(attn: str) -> str:
    return NAMES.get(attn, attn)


def place_of(attn: str) -> int:
    """Where a kind of attention stands in tables and legends: the baseline first."""
    return [*NAMES, attn].index(attn)


def spread(figure: OverSeeds | None, decimals: int = 2, sign: bool = False) -> str:
    """A mean with its 95% t-interval over seeds."""
    if figure is None:
        return NOTHING
    form = f"{{:{'+' if sign else ''}.{decimals}f}}"
    ends = figure.interval
    shown = f" [{form.format(ends[0])}, {form.format(ends[1])}]" if ends else " (one seed)"
    return form.format(figure.mean) + shown


def stability_table(claims: Sequence[Found]) -> Table:
    columns = ["pair", "recipe", "attention", "seeds", "LR sensitivity", "minus baseline"]
    columns += ["best rate", "loss there", "breaks at", "diverged"]
    table = Table("claims_stability", "Claim, stability: learning rates over decades", columns)
    for found in claims:
        lines = stability.summary(found)
        for line in sorted(lines, key=lambda x: (x["recipe"], place_of(x["attn"]))):
            lost, of = line["diverged"]
            cells = [
                *(found["pair"], line["recipe"], name_of(line["attn"]), line["seeds"]),
                *(spread(line["sensitivity"]), spread(line["difference"], sign=True)),
                *(f"{line['best_lr']:g}", f"{line['best']:.2f}"),
                NOTHING if line["broken"] is None else f"{line['broken']:g}",
                f"{lost} of {of}",
            ]
            table.lines.append([text(cell) for cell in cells])
    return table


def growth_table(claims: Sequence[Found]) -> Table:
    columns = ["pair", "attention", "optimizer", "weight decay", "seeds"]
    columns += ["‖k‖ as projected", "spectral norm of W_q", "embeddings", "all weights"]
    title = "Claim, loudness: how many times longer at the end of training"
    table = Table("claims_growth", title, columns)
    for found in claims:
        lines = growth.summary(dict(found))
        for line in sorted(lines, key=lambda x: place_of(x["attn"])):
            ratios = ("k_raw_norm", "q_spectral", "embedding_norm", "weight_norm")
            cells = [
                *(found["pair"], name_of(line["attn"]), line["optimizer"]),
                *(f"{line['weight_decay']:g}", line["seeds"]),
                *("{:.2f} [{:.2f}, {:.2f}]".format(*line[name]) for name in ratios),
            ]
            table.lines.append([text(cell) for cell in cells])
    return table


def sides_of(arms: Iterable[Found]) -> dict[tuple[str, str], list[Found]]:
    """Arms by condition and attention, in the same order whatever theirs, the baseline first."""
    sides: dict[tuple[str, str], list[Found]] = {}
    for arm in sorted(arms, key=lambda a: (*side_key(a["condition"], a["attn"]), a["seed"])):
        sides.setdefault((arm["condition"], arm["attn"]), []).append(arm)
    return sides


def side_key(condition: str, attn: str) -> tuple[int, int]:
    return CONDITIONS.index(condition), place_of(attn)


def all_sides(claims: Iterable[Found]) -> list[tuple[str, str]]:
    """Condition and attention of every column that the arms of several measurements need."""
    found = {side for claim in claims for side in sides_of(claim["arms"])}
    return sorted(found, key=lambda side: side_key(*side))


def inside(found: Any, keys: Sequence[str]) -> Any:
    """What stands under these keys, one in another; None if one of them is null."""
    for key in keys:
        found = found and found[key]
    return found


def seeds_cells(
    own: Mapping[tuple[str, str], Sequence[Found]],
    sides: Iterable[tuple[str, str]],
    decimals: int,
    *keys: str,
) -> Iterator[Cell]:
    """A cell for each side: one figure a seed, which stands in an arm under these keys."""
    for side in sides:
        values = [inside(arm, keys) for arm in own.get(side, ())]
        shown = (NOTHING if v is None else number(v, decimals) for v in values)
        yield text(", ".join(shown) or NOTHING)


def attention_table(claims: Sequence[Found]) -> Table:
    columns = ["pair", "attention", "figure (mean of heads)"]
    table = Table("claims_attention", "Claim, loudness: length, direction, sinks", columns)
    sides = all_sides(claims)
    table.columns += side_names(sides)
    for found in claims:
        own = sides_of(found["arms"])
        for kind, kind_name in KINDS.items():
            for name, (title, decimals) in ATTENTION.items():
                line = [text(found["pair"]), text(kind_name), text(title)]
                line += seeds_cells(own, sides, decimals, "heads", kind, name, "mean")
                table.lines.append(line)
    return table


def side_names(sides: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{name_of(attn)}, {condition}" for condition, attn in sides]


def classes_table(claims: Sequence[Found]) -> Table:
    columns = ["pair", "attention", "class of key", "even share (%)"]
    title = "Claim, loudness: attention by class of token, over the share even attention would give"
    table = Table("claims_classes", title, columns)
    sides = all_sides(claims)
    table.columns += side_names(sides)
    for found in claims:
        own = sides_of(found["arms"])
        for kind, kind_name in KINDS.items():
            for name, even in found["arms"][0]["classes"][kind].items():
                line = [text(found["pair"]), text(kind_name), text(name)]
                line.append(text(f"{even['uniform']:.1f}"))
                line += seeds_cells(own, sides, 2, "classes", kind, name, "ratio")
                table.lines.append(line)
    return table


def frequency_table(claims: Sequence[Found]) -> Table:
    columns = ["pair", "length of", "types"]
    title = "Claim, loudness: rank correlation of a type's frequency and its vector's length"
    table = Table("claims_frequency", title, columns)
    sides = all_sides(claims)
    table.columns += side_names(sides)
    for found in claims:
        own = sides_of(found["arms"])
        for i, first in enumerate(found["arms"][0]["frequency"]):
            line = [text(found["pair"]), text(first["space"]), text(first["types"])]
            for side in sides:
                ranks = [arm["frequency"][i] for arm in own.get(side, ())]
                form = "{rank:+.2f} [{low:+.2f}, {high:+.2f}]".format_map
                line.append(text(", ".join(map(form, ranks)) or NOTHING))
            table.lines.append(line)
    return table


def words_table(claims: Sequence[Found]) -> Table:
    columns = ["pair", "condition", "words, by count in train", "in reference"]
    columns += ["baseline", "other", "difference"]
    title = "Claim, rare words: F1 of words by training frequency; copied words"
    table = Table("claims_words", title, columns)
    for found in claims:
        for condition in CONDITIONS:
            part = found[condition]
            lines = [(b["bucket"], b["reference"], b, "f1") for b in part["buckets"]]
            copies = part["copies"]
            lines.append(("copied (unseen, in source too)", copies["words"], copies, "rate"))
            for bucket, words, figures, key in lines:
                cells = [found["pair"], condition, bucket, words]
                cells += [ends(figures[side], key, "") for side in ("baseline", "system")]
                cells += [ends(figures["difference"], key, "+")]
                table.lines.append([text(cell) for cell in cells])
    return table


def ends(figure: Mapping[str, float | None], key: str, sign: str) -> str:
    value, low, high = (figure[name] for name in (key, "low", "high"))
    if value is None or low is None or high is None:
        return NOTHING
    return f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def geometry_table(claims: Sequence[Found]) -> Table:
    columns = ["pair", "space", "figure"]
    table = Table("claims_geometry", "Claim, geometry: embeddings and keys", columns)
    sides = all_sides(claims)
    table.columns += side_names(sides)
    for found in claims:
        own = sides_of(found["arms"])
        for space in found["arms"][0]["spaces"]:
            for name, title in GEOMETRY.items():
                line = [text(found["pair"]), text(space), text(title)]
                line += seeds_cells(own, sides, 3, "spaces", space, name)
                table.lines.append(line)
    return table


OVERLAPS = (
    *("baseline, two seeds", "other, two seeds"),
    *("baseline and other, one seed", "baseline and other, two seeds"),
)


def overlap_of(first: str, second: str) -> str:
    """Which column two runs, each ``<attention> <seed>``, belong to."""
    kinds, seeds = zip(first.split(), second.split(), strict=True)
    if kinds[0] == kinds[1]:
        return OVERLAPS[0] if kinds[0] == "none" else OVERLAPS[1]
    return OVERLAPS[2] if seeds[0] == seeds[1] else OVERLAPS[3]


def overlap_table(claims: Sequence[Found]) -> Table:
    columns = ["pair", "space", *OVERLAPS]
    title = "Claim, geometry: share of the 10 nearest neighbours in common"
    table = Table("claims_overlap", title, columns)
    for found in claims:
        spaces = list(dict.fromkeys(line["space"] for line in found["overlaps"]))
        for space in spaces:
            lines = [line for line in found["overlaps"] if line["space"] == space]
            groups: dict[str, list[float]] = {name: [] for name in OVERLAPS}
            for line in lines:
                groups[overlap_of(line["first"], line["second"])].append(line["overlap"])
            means = [f"{fmean(values):.2f}" if values else NOTHING for values in groups.values()]
            table.lines.append([text(cell) for cell in (found["pair"], space, *means)])
    return table


TABLES = {
    "stability": (stability_table,),
    "growth": (growth_table,),
    "attention": (attention_table, classes_table, frequency_table),
    "words": (words_table,),
    "geometry": (geometry_table, overlap_table),
}
