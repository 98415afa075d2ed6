"""Hypotheses of a checkpoint: one a line, in the order of the input, as words."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .commands import RunError, generate_argv
from .process import read_module, run_module

HYPOTHESIS = re.compile(r"H-(\d+)\t[^\t]*\t(.*)")


def decode(
    decode_options: Mapping[str, Any],
    data: str,
    checkpoint: Path,
    split: str,
    langs: tuple[str, str],
    lines: int,
    log: Path,
    task: str,
    cpu: bool,
    **process_options: Any,
) -> list[str]:
    """Translate one split with ``fairseq-generate`` and undo its subwords.

    Raises:
        RunError: if a sentence has no hypothesis.
    """
    with tempfile.TemporaryDirectory(dir=log.parent) as folder:
        argv = generate_argv(decode_options, data, str(checkpoint), split, langs, folder, task, cpu)
        run_module("fairseq_cli.generate", argv, log, **process_options)
        (output,) = Path(folder).glob("generate-*.txt")
        pieces = in_order(output.read_text(encoding="utf-8"), lines)
    text = "".join(line + "\n" for line in pieces)
    return read_module("data_prep", ["undo", data], stdin=text).split("\n")[:-1]


def in_order(output: str, lines: int) -> list[str]:
    """Best hypotheses in the order of the input, from what ``fairseq-generate`` wrote.

    Raises:
        RunError: naming the sentences that have none.
    """
    found: dict[int, str] = {}
    for line in output.split("\n"):
        match = HYPOTHESIS.fullmatch(line)
        if match:
            found.setdefault(int(match[1]), match[2])
    missing = sorted(set(range(lines)) - set(found))
    if missing or len(found) != lines:
        raise RunError(f"no hypothesis for sentences {missing[:5]} of {lines}")
    return [found[i] for i in range(lines)]
