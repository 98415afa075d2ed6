"""Dev BLEU against the lines that multi-bleu.perl printed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qknorm_mt.bleu import bleu_of, corpus_stats

CASES = json.loads((Path(__file__).parent / "golden" / "bleu.json").read_text(encoding="utf-8"))


def printed(line: str) -> float:
    return float(line.split("BLEU = ")[1].split(",")[0])


@pytest.mark.parametrize("name", CASES)
def test_bleu_is_the_scripts(name: str) -> None:
    case = CASES[name]
    stats = corpus_stats(case["hypotheses"], case["references"])
    assert bleu_of(stats) == printed(case["multi_bleu"])


def test_batches_add_up_to_the_corpus() -> None:
    hypotheses = [line for case in CASES.values() for line in case["hypotheses"]]
    references = [line for case in CASES.values() for line in case["references"]]
    whole = corpus_stats(hypotheses, references)
    parts = [
        corpus_stats(hypotheses[i : i + 3], references[i : i + 3])
        for i in range(0, len(hypotheses), 3)
    ]
    assert np.sum(parts, axis=0).tolist() == whole
    assert 0 < bleu_of(whole) < 100
