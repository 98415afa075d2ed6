"""Tools run as a user runs them, on the toy pair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import ROOT

PLUGIN = str(ROOT / "qknorm_mt")
SMALL_MODEL = (  # for recipe=paper
    *(f"recipe.options.{s}_embed_dim=32" for s in ("encoder", "decoder")),
    *(f"recipe.options.{s}_ffn_embed_dim=64" for s in ("encoder", "decoder")),
    *(f"recipe.options.{s}_layers=1" for s in ("encoder", "decoder")),
    *("recipe.options.max_tokens=1024", "+recipe.options.cpu=true"),
)
SUBWORDS = ("--subwords", "sentencepiece_bpe", "--subword-size")


def run(
    *argv: str, cwd: Path = ROOT, stdin: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m argv`` with one thread; stdout and stderr are captured together."""
    return subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=cwd,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **env},
    )


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared toy pair."""
    root = tmp_path_factory.mktemp("toy")
    argv = ["prepare", "--toy-seed", "1", "--root", str(root), *SUBWORDS, "600"]
    done = run("data_prep", *argv)
    assert done.returncode == 0, done.stdout
    return Path(json.loads(done.stdout.splitlines()[-1])["data"])
