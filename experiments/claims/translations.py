"""What words and vectors look like in the translations and the spaces of two kinds of attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..buckets import word_counts
from ..commands import RunError
from ..decode import best_of, decode
from ..evaluate import decode_folder
from ..lines import read_lines, to_text
from ..process import write_atomically
from ..references import clean_folder
from ..survey import check_alike, survey_run
from . import geometry, words
from .arms import CONDITIONS, Arm, facts_of


def measure_words(arms: Sequence[Arm]) -> dict[str, Any]:
    """Word accuracy by training frequency, and words copied, on test; for each condition."""
    run = arms[0].run
    source, target = run.langs
    root = Path(run.data["data"]).parent
    text = clean_folder(root, run.data["digest"])
    if text is None:
        raise RunError(
            f"the cleaned text that {run.name} was trained on is gone from {root}: give its "
            "command again, which prepares it"
        )
    counts = word_counts(read_lines(text / f"train.{target}"))
    known = word_counts(read_lines(text / f"train.{source}"))
    sources = read_lines(text / f"test.{source}")
    references = read_lines(Path(run.data["data"]) / f"reference.test.{target}")
    found: dict[str, Any] = {**facts_of(arms), "arms": [arm.facts() for arm in arms]}
    for condition in CONDITIONS:
        none, other = (
            [hypotheses_of(arm) for arm in arms if (arm.condition, baseline(arm)) == (condition, b)]
            for b in (True, False)
        )
        found[condition] = {
            "buckets": words.compare_words(none, other, references, counts),
            "copies": words.compare_copies(none, other, sources, references, known),
        }
    return found


def baseline(arm: Arm) -> bool:
    return arm.attn == "none"


def hypotheses_of(arm: Arm) -> list[str]:
    """Of test; decoded if they are not there yet."""
    run, folder = arm.run, decode_folder(arm.run)
    if arm.checkpoint != run.checkpoint:
        folder = folder.with_name(f"{folder.name}-{arm.checkpoint.stem}")
    stored = folder / f"test.{run.langs[1]}"
    if not stored.exists():
        folder.mkdir(exist_ok=True)
        log = folder / "test.log"
        beams = decode(run, "test", [arm.checkpoint], run.cfg["decode"], log)
        write_atomically(stored, to_text(best_of(beams)))
    return read_lines(stored)


def measure_geometry(arms: Sequence[Arm]) -> dict[str, Any]:
    """Geometry of embeddings and keys over dev, and how far neighbours agree between arms."""
    surveys = {
        f"{arm.condition}: {arm.attn} {arm.seed}": survey_run(arm.run, checkpoint=arm.checkpoint)
        for arm in arms
    }
    check_alike([*surveys.values()])
    spaces = [
        {**arm.facts(), "spaces": geometry.measure(survey.types)}
        for arm, survey in zip(arms, surveys.values(), strict=True)
    ]
    ends = {
        f"{arm.attn} {arm.seed}": surveys[f"{arm.condition}: {arm.attn} {arm.seed}"].types
        for arm in arms
        if arm.condition == CONDITIONS[0]
    }
    return {**facts_of(arms), "arms": spaces, "overlaps": geometry.overlaps(ends)}
