"""docs/recipe.md against the composed configs, and against the tests it names."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import pytest

from .conftest import ROOT
from .test_commands import composed

PAIRS = ("ar-en", "en-he", "en-vi", "gl-en", "sk-en")
TEXT = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.split("\n")
    if re.match(r"\|.*\| `[a-z_.]+` \|", line)
]
PER_PAIR = [row for row in ROWS if len(row) == 3 + len(PAIRS)]
GENERAL = [row for row in ROWS if len(row) == 5]


def lookup(cfg: Any, path: str) -> str:
    for name in path.strip("`").split("."):
        cfg = cfg[name]
    return str(cfg).lower() if isinstance(cfg, bool) else str(cfg)


@pytest.mark.parametrize("pair", PAIRS)
def test_every_published_value_is_composed(pair: str) -> None:
    assert len(PER_PAIR) + len(GENERAL) == len(ROWS) == 57
    cfg = composed(f"pair={pair}", "attn=l2", "recipe=paper")
    for _, _, path, *values in PER_PAIR:
        assert lookup(cfg, path) == values[PAIRS.index(pair)], path
    for _, _, path, value, _ in GENERAL:
        assert lookup(cfg, path) == value, path


def test_no_option_of_the_recipe_is_left_out() -> None:
    cfg = composed("pair=en-vi", "attn=l2", "recipe=paper")
    named = {row[2].strip("`") for row in ROWS}
    options = {f"recipe.options.{name}" for name in cfg["recipe"]["options"]}
    options |= {f"attn.options.{name}" for name in cfg["attn"]["options"]}
    options |= {f"decode.{name}" for name in cfg["decode"]}
    ours = {
        "recipe.options.task",  # where the options live
        "recipe.options.arch",
        "recipe.options.batch_order",  # among the deviations
        "recipe.options.max_update",  # no limit
        "recipe.options.maximize_best_checkpoint_metric",
        "decode.max_tokens",  # memory
    }
    assert options - named == ours
    assert ours | options >= {n for n in named if not n.startswith("prep.")}


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_[a-z_0-9]+)`", TEXT))
    files = chain((ROOT / "tests").glob("*.py"), (ROOT / "tests" / "system").glob("*.py"))
    defined = {name for f in files for name in re.findall(r"def (test_\w+)", f.read_text())}
    assert named and named <= defined


def test_g_starts_where_the_paper_says() -> None:
    from qknorm_mt.qk_norm import g_init_from_length

    starts = {72: 12.3197, 75: 12.4383, 79: 12.5892}
    for pair in PAIRS:
        cfg = composed(f"pair={pair}", "attn=l2", "recipe=paper")
        length = cfg["attn"]["options"]["qk_norm_init_length"]
        assert g_init_from_length(length) == pytest.approx(starts[length], abs=5e-5)


@pytest.mark.parametrize(
    ("recipe", "differs"),
    [
        ("paper_no_warmup", {"lr": 0.0003, "warmup_updates": 0}),
        ("paper_inverse_sqrt", {"after_warmup": "inverse_sqrt", "lr_decay": 1.0}),
    ],
)
def test_the_other_schedules_change_the_schedule_alone(recipe: str, differs: dict) -> None:
    paper, other = (
        composed("pair=sk-en", f"recipe={r}")["recipe"]["options"] for r in ("paper", recipe)
    )
    assert {n: v for n, v in other.items() if v != paper[n]} == differs
