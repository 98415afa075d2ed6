"""How often each type stands in a binarised data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import data_utils


def count_types(
    data: Path,
    languages: tuple[str, str],
    language: str,
    dictionary: Any,
    subset: str = "train",
    dataset_impl: Any = None,
) -> np.ndarray | None:
    """By id, of one language's side of a set; None if ``data`` has no such set."""
    for order in (languages, languages[::-1]):  # fairseq reads either
        prefix = data / f"{subset}.{'-'.join(order)}.{language}"
        sentences = data_utils.load_indexed_dataset(str(prefix), dictionary, dataset_impl)
        if sentences is not None:
            counts = np.zeros(len(dictionary), dtype=np.int64)
            for i in range(len(sentences)):
                np.add.at(counts, sentences[i].numpy(), 1)
            return counts
    return None
