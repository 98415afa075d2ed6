"""Tokenise raw text, and drop the training pairs that teach nothing, as pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sacremoses import MosesDetokenizer, MosesTokenizer
from tqdm import tqdm

Pair = tuple[str, str]


@dataclass(frozen=True)
class CleanConfig:
    """Options of cleaning.

    Attributes:
        raw: the text is untokenised: apply Moses tokenisation (entities escaped, as the TED and
            IWSLT releases have it).
        max_tokens: drop training pairs with a longer side, in words.
        max_ratio: drop training pairs whose lengths in words differ by a larger factor ...
        ratio_from: ... when the longer side has at least so many words.
        drop_duplicates: keep the first of equal training pairs.
    """

    raw: bool = False
    max_tokens: int = 200
    max_ratio: float = 2.0
    ratio_from: int = 6
    drop_duplicates: bool = True


def tokenise(pairs: Iterable[Pair], langs: Pair, raw: bool) -> list[Pair]:
    """Words separated by single spaces, for every pair; Moses tokenisation if ``raw``."""
    source, target = (MosesTokenizer(lang).tokenize if raw else squeeze for lang in langs)
    options = {"return_str": True} if raw else {}
    bar = tqdm(pairs, desc="tokenise", unit=" pairs", disable=None if raw else True)
    return [(source(s, **options), target(t, **options)) for s, t in bar]


def squeeze(line: str) -> str:
    """Every run of white space to one space, U+00A0 and its kin included.

    fairseq cuts its input at any Unicode white space, so one inside a word would be lost there.
    """
    return " ".join(line.split())


def detokenise(lines: Iterable[str], lang: str) -> list[str]:
    """Undo Moses tokenisation: entities unescaped, punctuation joined again."""
    detokenizer = MosesDetokenizer(lang)
    return [detokenizer.detokenize(line.split(" ")) for line in lines]


def clean(pairs: Iterable[Pair], config: CleanConfig) -> tuple[list[Pair], dict[str, int]]:
    """Training pairs that stay, and how many each rule dropped (the first that applies)."""
    kept: list[Pair] = []
    dropped: Counter[str] = Counter(empty=0, too_long=0, length_ratio=0, duplicate=0)
    seen: set[Pair] = set()
    for pair in pairs:
        rule = broken_rule(pair, config) or ("duplicate" if pair in seen else None)
        if rule:
            dropped[rule] += 1
            continue
        kept.append(pair)
        if config.drop_duplicates:
            seen.add(pair)
    return kept, dict(dropped)


def broken_rule(pair: Pair, config: CleanConfig) -> str | None:
    shorter, longer = sorted(len(side.split(" ")) if side else 0 for side in pair)
    if shorter == 0:
        return "empty"
    if longer > config.max_tokens:
        return "too_long"
    if longer >= config.ratio_from and longer > config.max_ratio * shorter:
        return "length_ratio"
    return None
