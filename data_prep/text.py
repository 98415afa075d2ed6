"""Reading and writing of line-aligned text, strictly: UTF-8, and a line ends at ``\\n`` only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from types import TracebackType

Pair = tuple[str, str]

# Characters at which some tool or other (Python's splitlines among them) breaks a line, or that
# betray binary data. One inside a sentence shifts every later line against its translation.
STRAY = re.compile("[\x00\x0b\x0c\r\x1c-\x1f\x85\u2028\u2029\ufeff]")
NAMES = {
    "\x00": "NUL",
    "\x0b": "vertical tab",
    "\x0c": "form feed",
    "\r": "carriage return",
    "\x85": "next line U+0085",
    "\u2028": "line separator U+2028",
    "\u2029": "paragraph separator U+2029",
    "\ufeff": "byte order mark U+FEFF",
}


class PrepError(Exception):
    """Something is wrong with the user's input; the message says what, where and what to do."""


class LineReader:
    """Checks lines of one text, in order; counts those in which it replaced stray characters.

    Args:
        name: of the text, for messages.
        replace: put a space for each stray separator or control character (nothing for a byte
            order mark) rather than refuse it.
    """

    def __init__(self, name: str, replace: bool = False):
        self.name = name
        self.replace = replace
        self.lines = 0
        self.replaced = 0

    def read(self, data: bytes) -> str:
        """One line, without its end.

        Raises:
            PrepError: naming text and line, if it is not UTF-8 or holds a stray character.
        """
        return self.mend(self.decode(data))

    def decode(self, data: bytes) -> str:
        self.lines += 1
        data = data.removesuffix(b"\n")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PrepError(
                f"{self.name}, line {self.lines}: not UTF-8 (byte 0x{data[error.start]:02x}); "
                "is this a text file?"
            ) from error

    def mend(self, line: str) -> str:
        stray = STRAY.search(line)
        if not stray:
            return line
        if self.replace:
            self.replaced += 1
            return STRAY.sub(" ", line.replace("\ufeff", ""))
        name = NAMES.get(stray.group(), f"control character U+{ord(stray.group()):04X}")
        raise PrepError(
            f"{self.name}, line {self.lines}: {name} inside the text; lines must end in a plain "
            "newline and hold no other line separator: mend it, or have such characters replaced "
            "by spaces (--stray space, prep.stray=space)"
        )


def iter_lines(path: Path, reader: LineReader | None = None) -> Iterator[str]:
    """Lines of a UTF-8 file, without their ends, one at a time.

    Raises:
        PrepError: naming file and line, if the file is missing, empty, not UTF-8, or holds a stray
            line separator or control character.
    """
    reader = reader or LineReader(str(path))
    try:
        with path.open("rb") as file:
            for line in file:
                yield reader.read(line)
    except FileNotFoundError:
        raise PrepError(f"{path}: no such file") from None
    except IsADirectoryError as error:
        raise PrepError(f"{path}: cannot be read: {error.strerror}") from error
    if not reader.lines:
        raise PrepError(f"{path}: the file is empty")


class LineWriter:
    """Writes one line each. Atomicity is the stage's business (see :mod:`data_prep.stage`)."""

    def __init__(self, path: Path):
        self.file = path.open("w", encoding="utf-8", newline="\n")
        self.lines = 0

    def write(self, line: str) -> None:
        self.file.write(line + "\n")
        self.lines += 1

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()


class PairWriter(ExitStack):
    """Writes sentence pairs to ``prefix.<source language>`` and ``prefix.<target language>``."""

    def __init__(self, prefix: Path, langs: Pair):
        super().__init__()
        self.sides = [self.enter_context(LineWriter(path)) for path in bitext_paths(prefix, langs)]

    @property
    def lines(self) -> int:
        return self.sides[0].lines

    def write(self, pair: Pair) -> None:
        for side, line in zip(self.sides, pair, strict=True):
            side.write(line)


def bitext_paths(prefix: Path, langs: Pair) -> list[Path]:
    return [prefix.with_name(f"{prefix.name}.{lang}") for lang in langs]


def iter_bitext(prefix: Path, langs: Pair, readers: Iterable[LineReader] = ()) -> Iterator[Pair]:
    """Sentence pairs of ``prefix.<source language>`` and ``prefix.<target language>``.

    Raises:
        PrepError: as :func:`iter_lines`, for a language the prefix does not have, and for unequal
            line counts.
    """
    paths = check_bitext(prefix, langs)
    used = list(readers) or [LineReader(str(path)) for path in paths]
    sides = [iter_lines(path, reader) for path, reader in zip(paths, used, strict=True)]
    for source, target in zip_longest(*sides):
        if source is None or target is None:
            first = min(reader.lines for reader in used) + 1
            for side in sides:  # to the end of the longer one
                for _ in side:
                    pass
            raise PrepError(
                f"{paths[0]} has {used[0].lines} lines but {paths[1]} has {used[1].lines}: a "
                "bitext needs one translation a line; the first line without a partner is "
                f"{first}"
            )
        yield source, target


def check_bitext(prefix: Path, langs: Pair) -> list[Path]:
    """The two files of a bitext.

    Raises:
        PrepError: if one is not there, with what is there instead.
    """
    if not prefix.name:
        raise PrepError(f"{prefix} is a folder: give the files' prefix, as in DIR/train")
    paths = bitext_paths(prefix, langs)
    for path, lang in zip(paths, langs, strict=True):
        if not path.is_file():
            raise PrepError(missing_file(path, prefix, lang))
    return paths


def missing_file(path: Path, prefix: Path, lang: str) -> str:
    """Why there is no file for one language of a bitext, with what is there instead."""
    if not prefix.parent.is_dir():
        return f"{path}: no such file: the folder {prefix.parent} does not exist"
    if path.is_dir():
        return f"{path} is a folder, not a file"
    found = sorted(p.name[len(prefix.name) + 1 :] for p in prefix.parent.glob(f"{prefix.name}.*"))
    if found:
        return f"{path}: no such file: language {lang!r} is not in this bitext, which has {found}"
    return f"{path}: no such file, nor any other named {prefix.name}.* in that folder"
