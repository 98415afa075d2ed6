"""Rows of the ledger, put together with those they may be compared with.

A *group* is what has everything in common but attention and seed: pair, text, recipe, options,
decoding. An *arm* of it is one kind of attention, with a row a seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..commands import RunError, digest_of

Row = Mapping[str, Any]

NAMES = {
    "none": "baseline",
    "l2": "QKNorm (l2)",
    "layernorm": "QK-LayerNorm",
    "rmsnorm": "QK-RMSNorm",
    "vit22b": "as ViT-22B",
    "qwen3": "as Qwen3",
}
BASELINE, QKNORM = NAMES["none"], NAMES["l2"]


@dataclass(eq=False)
class Arm:
    """One kind of attention in a group; ``rows`` by seed."""

    name: str
    rows: dict[int, Row] = field(default_factory=dict)

    def scores(self, metric: str = "bleu_tok", split: str = "test") -> list[float]:
        return [row["scores"][split][metric]["score"] for row in self.rows.values()]


@dataclass
class Group:
    """Rows that differ in attention and seed alone."""

    pair: str
    recipe: str
    condition: str
    prep: str
    arms: dict[str, Arm] = field(default_factory=dict)

    @property
    def label(self) -> tuple[str, str, str, str]:
        return self.pair, self.recipe, self.condition, self.prep


def condition_of(row: Row) -> str:
    """``full``, ``cpu`` ...; whether settings of the recipe were overridden; and whether the text
    is a stand-in: not the published data set, as far as can be known."""
    condition: str = row["condition"]
    condition += ", changed" if changes(row, of_attention=False) else ""
    return f"{condition}, stand-in" if row["text"] == "local" else condition


def is_attention(name: str, options: Mapping[str, Any]) -> bool:
    """Whether an option of fairseq-train belongs to the attention."""
    if name == "positions":
        return "rope" in options
    return name.startswith(("qk_", "rope", "g_")) or name == "no_qkv_bias"


def attention_name(row: Row) -> str:
    """As tables have it, with every option that was set otherwise than its preset has it."""
    name: str = NAMES.get(row["attn"]) or row["attn"]
    rope = row["options"].get("rope", "off")
    if rope != "off":
        name += f", RoPE {rope.replace('_', ' ')}"
    return name + changes(row, of_attention=True)


def recipe_name(row: Row) -> str:
    """As tables have it, with every setting that was overridden."""
    name: str = row["recipe"]
    return name + changes(row, of_attention=False)


def changes(row: Row, of_attention: bool) -> str:
    return "".join(
        f", {name}={value}"
        for name, value in row["changed"].items()
        if is_attention(name, row["options"]) == of_attention
    )


def sort_key(row: Row) -> tuple[Any, ...]:
    attention = list(NAMES).index(row["attn"]) if row["attn"] in NAMES else len(NAMES)
    return row["pair"], row["condition"], row["recipe"], attention, row["seed"], row["run"]


def grouped(rows: Iterable[Row]) -> list[Group]:
    """Groups in the order of tables.

    Raises:
        RunError: if rows of one pair and preparation were scored against different test sets.
    """
    rows = sorted(rows, key=sort_key)
    check_test_sets(rows)
    groups: dict[str, Group] = {}
    arms: dict[tuple[str, str], Arm] = {}
    for row in rows:
        options = row["options"]
        own = {n: v for n, v in options.items() if is_attention(n, options)}
        shared = {n: v for n, v in options.items() if n not in own and n != "seed"}
        identity = [row[k] for k in ("pair", "recipe", "condition", "text", "decode")]
        group = digest_of([*identity, row["prep"]["name"], row["data"]["digest"], shared])
        if group not in groups:
            condition = condition_of(row)
            groups[group] = Group(row["pair"], recipe_name(row), condition, row["prep"]["name"])
        arm = (group, digest_of(own))
        if arm not in arms:
            arms[arm] = Arm(attention_name(row))
            name = told_apart(arms[arm].name, groups[group].arms, arm[1])
            arms[arm].name = name
            groups[group].arms[name] = arms[arm]
        arms[arm].rows[row["seed"]] = row
    tell_apart(groups)
    return list(groups.values())


def told_apart(name: str, taken: Mapping[str, Any], digest: str) -> str:
    return f"{name} #{digest[:6]}" if name in taken else name


def tell_apart(groups: Mapping[str, Group]) -> None:
    """Mark groups that would look the same in a table, as of another training text, by a digest."""
    same: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for digest, group in groups.items():
        same[group.label].append(digest)
    for digests in same.values():
        for digest in digests if len(digests) > 1 else ():
            groups[digest].recipe += f" #{digest[:6]}"


def check_test_sets(rows: Sequence[Row]) -> None:
    """Refuse a table whose scores are of different test sets.

    Raises:
        RunError: naming two runs.
    """
    first: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        text = (row["pair"], row["prep"]["name"], row["text"])
        known = first.setdefault(text, row)
        if row["references"]["test"] != known["references"]["test"]:
            raise RunError(
                f"{row['run']} and {known['run']} were scored against different test sets "
                f"(reference sha256 {row['references']['test'][:12]} and "
                f"{known['references']['test'][:12]}), so they cannot share a table: remove one "
                "of them from runs.jsonl"
            )
