"""All five pairs, from real text to a score (`make test-slow` for all of them)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import SMALL_MODEL, run

SMALL = [
    *(*SMALL_MODEL, "recipe.max_updates=20"),
    *("decode.beam=1", "decode.max_len_a=0", "decode.max_len_b=5"),
]
FILES = {  # gl-en is as the pair's own file says
    "ar-en": ("standin_ar_en/train", "standin_ar_en/dev", "standin_ar_en/test", "true"),
    "en-he": ("standin_en_he/train", "standin_en_he/dev", "standin_en_he/test", "true"),
    "sk-en": ("standin_sk_en/train", "standin_sk_en/dev", "standin_sk_en/test", "true"),
    "en-vi": ("standin_en_vi/train", None, None, "[train]"),
    "gl-en": (None, None, None, "false"),
}


FAST = ("gl-en",)  # the published text; the others, and today's habits, are slow's
CASES = [
    pytest.param(
        pair,
        prep,
        id=f"{pair}-{prep}",
        marks=() if prep == "paper" and pair in FAST else pytest.mark.slow,
    )
    for prep in ("paper", "modern")
    for pair in FILES
]


@pytest.mark.parametrize(("pair", "prep"), CASES)
def test_every_pair_to_a_score(data_dir: Path, tmp_path: Path, pair: str, prep: str) -> None:
    *prefixes, raw = FILES[pair]
    files = [
        f"pair.files.{split}={prefix}"
        for split, prefix in zip(("train", "dev", "test"), prefixes, strict=True)
        if prefix
    ]
    done = run(
        *("experiments.run", f"pair={pair}", "recipe=paper", f"prep={prep}", *SMALL),
        *(f"data.local={data_dir}", *files, f"pair.raw={raw}"),
        *(f"paths.work={tmp_path}/work", f"paths.results={tmp_path}/results"),
    )
    assert done.returncode == 0, done.stdout
    row = json.loads((tmp_path / "results" / "runs.jsonl").read_text())
    assert row["training"]["updates"] == 20
    assert row["prep"]["name"] == prep
    target = pair.split("-")[1]
    for split in ("dev", "test"):
        hypotheses = tmp_path / "results" / row["hypotheses"][split]
        assert hypotheses.read_text().count("\n") == row["data"]["lines"][split]
    report = json.loads(next(tmp_path.glob("work/data/*/report-*/report.json")).read_text())
    assert report["published_length"] in (72, 75, 79)
    assert max(file["lossy_lines"] for file in report["files"].values()) == 0
    assert target in row["hypotheses"]["test"]
