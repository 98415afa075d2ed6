"""Classes of token types, told by their spelling and by how often they stand in train."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

CLASSES = ("</s>", "<s>", "punctuation", "function word", "rare", "continuation", "other")
FUNCTION_WORDS = 50  # the most frequent types that begin a word and are letters alone
RARE = 10  # times in train, at most
BEGIN = "\u2581"  # sentencepiece's mark of a word's first piece
MORE = "@@"  # subword-nmt's of every piece but a word's last


def classes_of(symbols: Sequence[str], counts: np.ndarray) -> np.ndarray:
    """The class of each type, a number of :data:`CLASSES`; -1 for padding and unknown words.

    In this order of precedence: special symbols; punctuation (of Unicode's P and S categories
    alone); rare types; function words; continuations (with sentencepiece a piece that does not
    begin a word, with subword-nmt one that does not end it); all others.

    Args:
        symbols: of a dictionary.
        counts: ``(types,)``, how often each stands in train, on the side that is looked at.
    """
    pieces = any(symbol.startswith(BEGIN) for symbol in symbols)
    names = [spelling(symbol, pieces) for symbol in symbols]
    words = [i for i, name in enumerate(names) if name == "other" and is_word(symbols[i])]
    frequent = sorted(words, key=lambda i: (-counts[i], i))[:FUNCTION_WORDS]
    for i, name in enumerate(names):
        if name in ("other", "continuation") and counts[i] <= RARE:
            names[i] = "rare"
    for i in frequent:
        if names[i] == "other":
            names[i] = "function word"
    return np.array([CLASSES.index(name) if name in CLASSES else -1 for name in names])


def spelling(symbol: str, pieces: bool) -> str:
    """What can be told without counts; ``pieces``: of sentencepiece."""
    if symbol in ("<pad>", "<unk>") or symbol.startswith("madeupword"):
        return "none"
    if symbol in ("</s>", "<s>"):
        return symbol
    text = symbol.removeprefix(BEGIN).removesuffix(MORE)
    if text and all(unicodedata.category(letter)[0] in "PS" for letter in text):
        return "punctuation"
    continues = not symbol.startswith(BEGIN) if pieces else symbol.endswith(MORE)
    return "continuation" if continues else "other"


def is_word(symbol: str) -> bool:
    return symbol.removeprefix(BEGIN).isalpha()
