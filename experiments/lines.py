"""Text as lines, which end at a plain newline and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .commands import RunError


def read_lines(path: Path) -> list[str]:
    """Lines of a UTF-8 file.

    Raises:
        RunError: naming the file, if it is not there or not UTF-8.
    """
    try:
        return to_lines(path.read_bytes().decode("utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise RunError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: not UTF-8 ({error})") from None


def to_lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def to_text(lines: Iterable[str]) -> str:
    return "".join(line + "\n" for line in lines)
