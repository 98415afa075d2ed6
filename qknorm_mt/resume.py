"""Going on with a training: with the same model and text, and with nothing of another training."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.models import BaseFairseqModel

from .config import changed_options


def check_resumed(save_dir: str, restore_file: str, model: BaseFairseqModel, cfg: Any) -> None:
    """Refuse to go on from the checkpoint of another model.

    fairseq loads it later, and has one sentence for whatever does not fit.

    Args:
        save_dir, restore_file: fairseq's options of these names.
        model: the model as built.
        cfg: its options.

    Raises:
        ValueError: saying what differs.
    """
    path = Path(restore_file)
    if restore_file == "checkpoint_last.pt":  # fairseq's default lies in save_dir
        path = Path(save_dir) / path
    if not path.exists():
        return
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError):
        return  # not one of ours
    changed = changed_options((state.get("cfg") or {}).get("model") or {}, cfg)
    if changed:
        raise ValueError(
            f"{path} was trained with another architecture: {changed}; resume with the same "
            "options, or save to another folder"
        )
    model.load_state_dict(state["model"], model_cfg=cfg)


def digest_of(folders: Iterable[str], splits: Iterable[str]) -> str:
    """What tells binarised sets apart."""
    splits = tuple(splits)
    digest = hashlib.sha256()
    for folder in folders:
        for split in splits:
            for path in sorted(Path(folder).glob(f"{split}.*")):
                digest.update(path.name.encode())
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def forget_earlier_runs() -> None:
    """Clear the best scores that fairseq keeps on its functions.

    They outlive a training, so the next one in the same process would be measured by them.
    """
    vars(checkpoint_utils.save_checkpoint).clear()
    cli = sys.modules.get("fairseq_cli.train")
    if cli is not None:
        vars(cli.should_stop_early).clear()
