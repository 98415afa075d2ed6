"""How long training sequences are, in subword tokens without the end of sentence: L and others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

LENGTH_PERCENTILE = 97.5  # L of g's start (Henry et al. 2020, section 3)
OTHERS = (50, 75, 90, LENGTH_PERCENTILE, 99)


def training_lengths(files: dict[str, Any]) -> Counter[int]:
    """How many training sequences, source and target, have so many subword tokens."""
    lengths: Counter[int] = Counter()
    for name, file in files.items():
        if name.startswith("train."):
            lengths.update({int(n): count for n, count in file["lengths"].items()})
    return lengths


def percentile(lengths: Counter[int], percent: float) -> float:
    values = sorted(lengths)
    repeated = np.repeat(np.array(values), [lengths[n] for n in values])
    return float(np.percentile(repeated, percent))


def percentiles(files: dict[str, Any]) -> dict[str, float]:
    """Of both sides of train together, by percent."""
    lengths = training_lengths(files)
    return {f"{percent:g}": percentile(lengths, percent) for percent in OTHERS}
