"""Lines to words, and training pairs that teach nothing dropped, as pairs, by counted rules."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import blake2b
from textwrap import wrap

from sacremoses import MosesDetokenizer, MosesTokenizer

from .normalise import HEBREW, HEBREW_ACRONYM, normalise, script_of, script_share, unescape
from .parallel import map_chunks
from .text import Pair

# In the order in which they are tried; a pair counts for the first rule that it breaks.
RULES = ("empty", "too_long", "length_ratio", "script", "overlap", "duplicate")
SAMPLE = 10
PROTECTED_PART = 3000  # characters; fewer than 1,000 acronyms of three


@dataclass(frozen=True)
class CleanConfig:
    """Options of cleaning; as published by default (Nguyen & Salazar 2019's released code).

    Attributes:
        raw: splits whose text is untokenised, and gets Moses tokenisation.
        normalise: unescape entities and normalise characters (:mod:`data_prep.normalise`); then
            tokenisation leaves them unescaped. Otherwise it escapes them, as the TED and IWSLT
            releases have it.
        max_tokens: drop training pairs with a longer side, in words.
        max_ratio: drop training pairs whose lengths in words differ by a larger factor ...
        ratio_from: ... when the longer side has at least so many words.
        min_script: drop training pairs with a side of which a smaller share of letters is in its
            language's script.
        drop_overlap: drop training pairs of which a side also stands in dev or test.
        drop_duplicates: keep the first of equal training pairs.
    """

    raw: tuple[str, ...] = ()
    normalise: bool = False
    max_tokens: int = 200
    max_ratio: float | None = None
    ratio_from: int = 6
    min_script: float | None = None
    drop_overlap: bool = False
    drop_duplicates: bool = False


@cache
def line_to_words(lang: str, raw: bool, normal: bool) -> Callable[[str], str]:
    """What turns a line of a language into words separated by single spaces."""

    def convert(line: str) -> str:
        if normal:
            line = normalise(unescape(line), lang)
        if raw:
            line = tokenise(line)
        return " ".join(line.split())

    moses = MosesTokenizer(lang) if raw else None
    protected = [HEBREW_ACRONYM] if normal and script_of(lang) == HEBREW else None

    def tokenise(line: str) -> str:
        assert moses is not None
        parts = [line]
        if protected and len(line) > PROTECTED_PART:  # Moses protects 1,000 places at most
            parts = wrap(line, PROTECTED_PART, break_long_words=False, break_on_hyphens=False)
        return " ".join(
            moses.tokenize(
                part,
                return_str=True,
                escape=not normal,
                protected_patterns=protected if len(part) <= PROTECTED_PART else None,
            )
            for part in parts
        )

    return convert


def to_words(chunk: list[Pair], langs: Pair, raw: bool, config: CleanConfig) -> list[Pair]:
    """A chunk of pairs as words.

    Every run of white space becomes one space, U+00A0 and its kin included: fairseq cuts its input
    at any Unicode white space, so one inside a word would be lost there.
    """
    source, target = (line_to_words(lang, raw, config.normalise) for lang in langs)
    return [(source(s), target(t)) for s, t in chunk]


def judged(
    chunk: list[Pair], langs: Pair, raw: bool, config: CleanConfig
) -> list[tuple[Pair, str | None]]:
    """A chunk of training pairs as words, each with the rule that it breaks by itself."""
    pairs = to_words(chunk, langs, raw, config)
    return [(pair, broken_rule(pair, langs, config)) for pair in pairs]


def broken_rule(pair: Pair, langs: Pair, config: CleanConfig) -> str | None:
    shorter, longer = sorted(side.count(" ") + 1 if side else 0 for side in pair)
    if shorter == 0:
        return "empty"
    if longer > config.max_tokens:
        return "too_long"
    if config.max_ratio and longer >= config.ratio_from and longer > config.max_ratio * shorter:
        return "length_ratio"
    if config.min_script and any(
        script_share(side, lang) < config.min_script for side, lang in zip(pair, langs, strict=True)
    ):
        return "script"
    return None


@dataclass
class Tally:
    """What cleaning saw.

    Attributes:
        dropped: pairs by rule.
        samples: of each rule, some pairs with their lines.
        shared: dev and test sentences, of either side, that also stand in pairs that stay.
    """

    dropped: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(RULES, 0)))
    samples: dict[str, list[tuple[int, Pair]]] = field(default_factory=dict)
    shared: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def drop(self, rule: str, line: int, pair: Pair) -> None:
        """Count a pair; every pair of a rule is as likely in its sample as any other."""
        self.dropped[rule] += 1
        sample = self.samples.setdefault(rule, [])
        if len(sample) < SAMPLE:
            sample.append((line, pair))
        else:
            place = self.rng.randrange(self.dropped[rule])
            if place < SAMPLE:
                sample[place] = (line, pair)

    def rows(self) -> Iterator[str]:
        """The samples as lines: rule, line of the training files, source, target."""
        for rule in RULES:
            for line, pair in sorted(self.samples.get(rule, ())):
                yield "\t".join((rule, str(line), *pair))


def clean(
    pairs: Iterable[Pair],
    langs: Pair,
    config: CleanConfig,
    held_out: tuple[Collection[str], Collection[str]] = ((), ()),
    tally: Tally | None = None,
    workers: int = 1,
) -> Iterator[Pair]:
    """Training pairs that stay, as words; ``tally`` is told of the others.

    Args:
        held_out: dev and test sentences of either side, as words.
    """
    tally = tally or Tally()
    seen: set[bytes] = set()
    judge = partial(judged, langs=langs, raw="train" in config.raw, config=config)
    chunks = map_chunks(judge, pairs, workers)
    for line, (pair, rule) in enumerate((one for chunk in chunks for one in chunk), start=1):
        in_held_out = [side in known for side, known in zip(pair, held_out, strict=True)]
        if rule is None and config.drop_overlap and any(in_held_out):
            rule = "overlap"
        if rule is None and config.drop_duplicates:
            digest = blake2b("\n".join(pair).encode(), digest_size=16).digest()
            rule = "duplicate" if digest in seen else None
            seen.add(digest)
        if rule:
            tally.drop(rule, line, pair)
        else:
            for side, found, shared in zip(pair, in_held_out, tally.shared, strict=True):
                if found:
                    shared.add(side)
            yield pair


def detokenise(lines: Iterable[str], lang: str) -> list[str]:
    """Undo Moses tokenisation: entities unescaped, punctuation joined again."""
    detokenizer = MosesDetokenizer(lang)
    return [detokenizer.detokenize(line.split(" ")) for line in lines]
