"""The references of a prepared set, and scores of hypotheses against them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .lines import read_lines, to_lines, to_text
from .process import read_module
from .score import scores, text_digest


def references(data: Path, split: str, lang: str) -> tuple[list[str], list[str]]:
    """Tokenised and plain reference; the plain one is the user's own text if that came raw.

    Args:
        data: the prepared set's folder.
    """
    tokenised = read_lines(data / f"reference.{split}.{lang}")
    plain = data / f"plain.{split}.{lang}"
    return tokenised, read_lines(plain) if plain.exists() else detokenised(tokenised, lang)


def find_prepared(work: Path, row: Mapping[str, Any], split: str = "test") -> Path | None:
    """The prepared set under ``work`` that has the very reference a row was scored against."""
    name = f"reference.{split}.{target_lang(row)}"
    for reference in sorted((work / "data" / row["pair"]).glob(f"binarised-*/{name}")):
        if text_digest(read_lines(reference)) == row["references"][split]:
            return reference.parent
    return None


def target_lang(row: Mapping[str, Any]) -> str:
    return row["data"]["subwords"]["langs"][1]


def score_lines(
    hypotheses: list[str], references: tuple[list[str], list[str]], lang: str
) -> dict[str, Any]:
    """``scores`` of tokenised hypotheses, and the digest of the ``reference`` that they are of."""
    reference, plain_reference = references
    return {
        "scores": scores(hypotheses, reference, detokenised(hypotheses, lang), plain_reference),
        "reference": text_digest(reference),
    }


def detokenised(lines: list[str], lang: str) -> list[str]:
    return to_lines(read_module("data_prep", ["detokenise", lang], stdin=to_text(lines)))
