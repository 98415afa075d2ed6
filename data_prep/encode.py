"""A file of words to a file of pieces, with what is counted on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from . import subword
from .parallel import map_chunks, watch
from .text import LineWriter, iter_lines


@dataclass
class Encoded:
    """A file's lines as pieces, or a chunk of them, with what is counted on the way.

    Attributes:
        lengths: how many lines have so many pieces.
        pieces: how often each piece occurs.
        lossy: numbers of lines (from 1) that undoing does not give back.
        longest: pieces in the longest line, and its number.
    """

    lines: list[str]
    lengths: Counter[int] = field(default_factory=Counter)
    pieces: Counter[str] = field(default_factory=Counter)
    lossy: list[int] = field(default_factory=list)
    longest: tuple[int, int] = (0, 0)

    def add(self, chunk: Encoded) -> None:
        before = self.lengths.total()
        self.lengths += chunk.lengths
        self.pieces += chunk.pieces
        self.lossy += [before + line for line in chunk.lossy]
        if chunk.longest[0] > self.longest[0]:
            self.longest = (chunk.longest[0], before + chunk.longest[1])


def encode(words: list[str], folder: Path, lang: str) -> Encoded:
    """A chunk of lines as pieces."""
    subwords = subword.load(folder)
    lines = subwords.encode(words, lang)
    chunk = Encoded(lines)
    for number, (line, back) in enumerate(zip(lines, subwords.decode(lines), strict=True), 1):
        pieces = line.split(" ") if line else []
        chunk.lengths[len(pieces)] += 1
        chunk.pieces.update(pieces)
        if back != words[number - 1]:
            chunk.lossy.append(number)
        if len(pieces) > chunk.longest[0]:
            chunk.longest = (len(pieces), number)
    return chunk


def count_words(path: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in iter_lines(path):
        counts.update(line.split(" ") if line else ())
    return counts


def encode_file(source: Path, target: Path, folder: Path, lang: str, workers: int) -> Encoded:
    lines = watch(iter_lines(source), f"encode {source.name}", " lines")
    total = Encoded([])
    with LineWriter(target) as out:
        for chunk in map_chunks(partial(encode, folder=folder, lang=lang), lines, workers):
            total.add(chunk)
            for line in chunk.lines:
                out.write(line)
    return total
