"""Reading and writing of line-aligned text, strictly: UTF-8, and a line ends at ``\\n`` only."""

from __future__ import annotations

import re
from pathlib import Path

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


def read_lines(path: Path) -> list[str]:
    """Lines of a UTF-8 file, without their ends.

    Raises:
        PrepError: naming file and line, if the file is missing, empty, not UTF-8, or holds a stray
            line separator or control character.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise PrepError(f"{path}: no such file") from None
    except OSError as error:
        raise PrepError(f"{path}: cannot be read: {error.strerror}") from error
    if not data:
        raise PrepError(f"{path}: the file is empty")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PrepError(
            f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); is this a text file?"
        ) from error
    stray = STRAY.search(text)
    if stray:
        line = text.count("\n", 0, stray.start()) + 1
        name = NAMES.get(stray.group(), f"control character U+{ord(stray.group()):04X}")
        raise PrepError(
            f"{path}, line {line}: {name} inside the text; lines must end in a plain newline and "
            "hold no other line separator: replace it, then run again"
        )
    return text.removesuffix("\n").split("\n")


def write_lines(path: Path, lines: list[str]) -> None:
    """Write one line each. Atomicity is the stage's business (see :mod:`data_prep.stage`)."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def read_bitext(prefix: Path, source_lang: str, target_lang: str) -> list[tuple[str, str]]:
    """Sentence pairs of ``prefix.source_lang`` and ``prefix.target_lang``.

    Raises:
        PrepError: as :func:`read_lines`, for a language the prefix does not have, and for unequal
            line counts.
    """
    if not prefix.name:
        raise PrepError(f"{prefix} is a folder: give the files' prefix, as in DIR/train")
    paths = [prefix.with_name(f"{prefix.name}.{lang}") for lang in (source_lang, target_lang)]
    for path, lang in zip(paths, (source_lang, target_lang), strict=True):
        if not path.is_file():
            raise PrepError(missing_file(path, prefix, lang))
    source, target = (read_lines(path) for path in paths)
    if len(source) != len(target):
        raise PrepError(
            f"{paths[0]} has {len(source)} lines but {paths[1]} has {len(target)}: a bitext needs "
            f"one translation a line; the first line without a partner is "
            f"{min(len(source), len(target)) + 1}"
        )
    return list(zip(source, target, strict=True))


def missing_file(path: Path, prefix: Path, lang: str) -> str:
    """Why there is no file for one language of a bitext, with what is there instead."""
    if not prefix.parent.is_dir():
        return f"{path}: no such file: the folder {prefix.parent} does not exist"
    found = sorted(p.name[len(prefix.name) + 1 :] for p in prefix.parent.glob(f"{prefix.name}.*"))
    if found:
        return f"{path}: no such file: language {lang!r} is not in this bitext, which has {found}"
    return f"{path}: no such file, nor any other named {prefix.name}.* in that folder"
