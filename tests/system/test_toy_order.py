"""The toy pair in the demo's time: over 60 BLEU, but not without word order (slow)."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from data_prep.toy import SOURCE_LANG, TARGET_LANG, generate

from .conftest import run


def train_and_score(folder: Path, shuffle_source: bool) -> float:
    """Test BLEU of the demo's QKNorm model on the toy pair, given as files."""
    rng = random.Random(0)
    for split, pairs in generate(1).items():
        for side, lang in enumerate((SOURCE_LANG, TARGET_LANG)):
            lines = [pair[side].split() for pair in pairs]
            if shuffle_source and lang == SOURCE_LANG:
                lines = [rng.sample(words, len(words)) for words in lines]
            text = "".join(" ".join(words) + "\n" for words in lines)
            (folder / f"{split}.{lang}").write_text(text)
    done = run(
        "experiments.run",
        *(f"paths.work={folder}/work", f"paths.results={folder}/results"),
        *("pair.toy_seed=null", "pair.files={train: train, dev: dev, test: test}"),
        f"data.local={folder}",
    )
    assert done.returncode == 0, done.stdout
    row = json.loads((folder / "results" / "runs.jsonl").read_text())
    return row["scores"]["test"]["bleu_tok"]["score"]


@pytest.mark.slow
def test_word_order_is_needed(tmp_path: Path) -> None:
    scores = {}
    for shuffled in (False, True):
        folder = tmp_path / f"shuffled-{shuffled}"
        folder.mkdir()
        scores[shuffled] = train_and_score(folder, shuffled)
    print(scores)
    assert scores[False] > 60
    assert scores[True] < 60
