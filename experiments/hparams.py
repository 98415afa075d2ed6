"""A run's settings and results for TensorBoard's HPARAMS page, beside fairseq's curves."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from .plan import Run


def write_hparams(run: Run, row: Mapping[str, Any] | None = None) -> None:
    """Write the settings of a run to its ``tensorboard/hparams``, in place of what was there; of a
    scored one, with its row, also perplexity and BLEU."""
    settings = {
        **{group: run.cfg[group]["name"] for group in ("pair", "recipe", "attn", "rope", "prep")},
        **{name: value for name, value in run.options.items() if value is not None},
    }
    results = {}
    if row is not None:
        results = {f"{split}/bleu": s["bleu_tok"]["score"] for split, s in row["scores"].items()}
        results["dev/ppl"] = row["dev_ppl"]
    folder = run.folder / "tensorboard" / "hparams"
    shutil.rmtree(folder, ignore_errors=True)
    with SummaryWriter(str(folder)) as writer:
        for summary in hparams(settings, results):
            writer.file_writer.add_summary(summary)
        for name, value in results.items():
            writer.add_scalar(name, value)
