"""A prepared set's own preprocessing, for sentences of a person: applied, and undone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import subword
from .clean import detokenise, line_to_words
from .stage import MANIFEST
from .text import STRAY, PrepError


def encoder(data: Path, tokenised: bool) -> Callable[[str], str]:
    """What turns a source sentence into pieces as the training text of ``data`` has them.

    Args:
        tokenised: sentences are words separated by spaces already; else they get Moses
            tokenisation, also where the training text came tokenised.

    Raises:
        PrepError: if ``data`` is no prepared set.
    """
    settings = settings_of(data)
    lang = settings["source_lang"]
    subwords = subword.load(data)
    to_words = line_to_words(lang, not tokenised, settings["normalise"])

    def encode(line: str) -> str:
        return subwords.encode([to_words(STRAY.sub(" ", line))], lang)[0]

    return encode


def restorer(data: Path, tokenised: bool) -> Callable[[str], str]:
    """What turns target pieces into a sentence: plain text, or words if ``tokenised``."""
    lang = settings_of(data)["target_lang"]
    subwords = subword.load(data)

    def restore(line: str) -> str:
        words = subwords.decode([line])
        return words[0] if tokenised else detokenise(words, lang)[0]

    return restore


def settings_of(data: Path) -> dict[str, Any]:
    """What a prepared set's manifest reports.

    Raises:
        PrepError: if there is none.
    """
    try:
        report = json.loads((data / MANIFEST).read_text(encoding="utf-8"))["report"]
        return {name: report[name] for name in ("source_lang", "target_lang", "normalise")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PrepError(f"{data} is no prepared set of this version: {error}") from error
