"""Surveys of checkpoints (:mod:`qknorm_mt.survey`), made once and found again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .commands import PLUGIN, RunError, digest_of
from .plan import Run, load
from .process import read_module

FILES = ("heads.json", "types.npz")


@dataclass(frozen=True)
class Survey:
    """What a survey found.

    Attributes:
        name: of the run, or of the checkpoint's file.
        attn: the run's kind of attention; None of a checkpoint from elsewhere.
        heads: ``heads.json``.
        types: ``types.npz``.
    """

    name: str
    attn: str | None
    seed: int | None
    heads: Mapping[str, Any]
    types: Mapping[str, np.ndarray]


def survey_run(
    run: Run, split: str = "dev", sentences: int | None = None, checkpoint: Path | None = None
) -> Survey:
    """The survey of a run, at its best checkpoint or another one, over a split of its data."""
    checkpoint = checkpoint or run.checkpoint
    folder = survey(checkpoint, Path(run.data["data"]), split, sentences, run.folder / "surveys")
    return read_survey(folder, run.name, run.cfg["attn"]["name"], run.cfg["seed"])


def survey_file(
    checkpoint: Path, data: Path | None, split: str, sentences: int | None, folder: Path
) -> Survey:
    """The survey of a checkpoint from elsewhere, kept under ``folder``.

    Raises:
        RunError: if it is not said what binarised data it belongs to.
    """
    if data is None:
        raise RunError(
            f"{checkpoint} is a checkpoint, not a run's folder: give the binarised folder it was "
            "trained on as --data DIR"
        )
    found = survey(checkpoint, data, split, sentences, folder)
    return read_survey(found, str(checkpoint), None, None)


def survey(checkpoint: Path, data: Path, split: str, sentences: int | None, folder: Path) -> Path:
    """The folder of a survey, which is made if it is not there.

    Raises:
        RunError: if it fails, or the checkpoint or data are not there.
    """
    if not checkpoint.is_file():
        raise RunError(f"{checkpoint} is not there: give the run's command again, or another one")
    if not data.is_dir():
        raise RunError(f"{data}, the data of {checkpoint}, is gone: prepare it again")
    code = [path.read_text(encoding="utf-8") for path in sorted(PLUGIN.glob("*.py"))]
    identity = [file_digest(checkpoint), split, sentences, str(data), digest_of(code)]
    made = folder / f"{split}-{digest_of(identity)[:12]}"
    if not all((made / name).exists() for name in FILES):
        argv = [str(data), "--path", str(checkpoint), "--out", str(made)]
        argv += ["--subset", "valid" if split == "dev" else split]
        argv += ["--sentences", str(sentences)] if sentences else []
        read_module("qknorm_mt.survey", argv)
    return made


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_survey(folder: Path, name: str, attn: str | None, seed: int | None) -> Survey:
    heads = json.loads((folder / "heads.json").read_text(encoding="utf-8"))
    with np.load(folder / "types.npz", allow_pickle=False) as arrays:
        return Survey(name, attn, seed, heads, dict(arrays))


def surveys_of(
    given: Sequence[Path], data: Path | None, split: str, sentences: int | None, folder: Path
) -> list[Survey]:
    """Surveys of runs' folders and of checkpoints, which may stand side by side.

    Raises:
        RunError: if one is given twice, if they are of different dictionaries or sentences, or if
            ``data`` is given though no checkpoint needs it.
    """
    twice = [path for i, path in enumerate(given) if path.resolve() in map(Path.resolve, given[:i])]
    if twice:
        raise RunError(f"{twice[0]} is given twice")
    if data is not None and not any(path.is_file() for path in given):
        raise RunError("--data is of checkpoints given as files: runs know their own data")
    found = [
        survey_file(path, data, split, sentences, folder / "surveys")
        if path.is_file()
        else survey_run(load(path), split, sentences)
        for path in given
    ]
    check_alike(found)
    return found


def check_alike(surveys: Sequence[Survey]) -> None:
    """Refuse to set figures of different dictionaries or sentences side by side.

    Raises:
        RunError: naming two surveys and what differs.
    """
    for first, second in pairwise(surveys):
        for side in ("source", "target"):
            ours, theirs = (s.types[f"{side}/symbols"] for s in (first, second))
            if not np.array_equal(ours, theirs):
                raise RunError(
                    f"{first.name} and {second.name} have different {side} dictionaries, so their "
                    "figures are not of the same tokens: give runs of the same prepared data"
                )
        if first.heads["text"] != second.heads["text"]:
            raise RunError(
                f"{first.name} and {second.name} were surveyed over different sentences: give runs "
                "of the same prepared data, and the same --split and --sentences"
            )
