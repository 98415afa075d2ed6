"""The published figures, ``results/paper.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..commands import RunError

PAPER = "paper.yaml"
PAIRS = ("gl-en", "sk-en", "en-vi", "en-he", "ar-en")  # in the order of the papers' tables
BASELINE, QKNORM = "baseline", "QKNorm"  # henry2020's two systems


@dataclass(frozen=True)
class Figure:
    """A published score.

    Attributes:
        score: BLEU; None if it was not verified.
        source: citation and place.
        verified: how it was checked; None if it was not.
    """

    score: float | None
    source: str
    verified: str | None


@dataclass(frozen=True)
class Paper:
    """Published figures.

    Attributes:
        figures: by system, then pair.
        mean_difference: claimed of QKNorm over its baseline, on average over :data:`PAIRS`.
        sources: citation and address.
    """

    figures: dict[str, dict[str, Figure]]
    mean_difference: Figure
    sources: list[tuple[str, str]]

    def score(self, system: str, pair: str) -> float | None:
        figure = self.figures.get(system, {}).get(pair)
        return figure.score if figure else None


def read_paper(path: Path) -> Paper:
    """Read and check the file.

    Raises:
        RunError: naming the entry, for a score that nobody verified, an unknown source or pair.
    """
    try:
        text = yaml.safe_load(path.read_text(encoding="utf-8"))
        sources = {name: (s["title"], s["url"]) for name, s in text["sources"].items()}
        figures = {
            system["name"]: {
                pair: figure(path, sources, system, score)
                for pair, score in system["scores"].items()
            }
            for system in text["systems"]
        }
        mean = figure(path, sources, text["mean_difference"], text["mean_difference"]["score"])
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is broken: {error!r}") from None
    for system, scores in figures.items():
        if set(scores) != set(PAIRS):
            raise RunError(f"{path}, {system}: legal pairs are exactly {', '.join(PAIRS)}")
    return Paper(figures, mean, list(sources.values()))


def figure(path: Path, sources: dict[str, Any], entry: dict[str, Any], score: Any) -> Figure:
    if entry["source"] not in sources:
        raise RunError(f"{path}: source {entry['source']!r} is none of {', '.join(sources)}")
    if score is not None and not (isinstance(score, int | float) and entry["verified"]):
        raise RunError(f"{path}: {score!r} is not allowed: legal is a number that was verified")
    where = f"{sources[entry['source']][0]}: {entry['where']}"
    return Figure(score, where, None if score is None else entry["verified"])
