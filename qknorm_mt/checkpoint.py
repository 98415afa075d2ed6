"""Opening a checkpoint to look into it: checked before fairseq makes a model of it.

It is first opened with ``weights_only=True``, so one that is more than plain data is refused before
fairseq's own loader gets to see it. Checkpoints of fairseq before 0.10 hold their options as an
``argparse.Namespace``, which is let through too: it is data.
"""

from __future__ import annotations

import argparse
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer.transformer_legacy import TransformerModel
from omegaconf.errors import ConfigAttributeError

from .model import QKNormTransformerModel

OURS = (QKNormTransformerModel,)
ENCODER_DECODERS = (QKNormTransformerModel, TransformerModel, TransformerModelBase)


class CheckpointError(Exception):
    """A checkpoint is not what it should be; the message says which and why."""


def load(checkpoint: Path, data: Path, kinds: tuple[type, ...] = OURS) -> tuple[Any, Any]:
    """The model, in evaluation mode, and its task with the dictionaries of ``data``.

    Args:
        kinds: classes that the model may be of.

    Raises:
        CheckpointError: if the checkpoint is not of one of these models, as they are now.
        OSError: if the checkpoint or a dictionary is missing.
        ValueError: if ``data`` has another vocabulary.
    """
    check(checkpoint, kinds)
    if not data.is_dir():
        raise CheckpointError(f"{data}: no such folder")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
                [str(checkpoint)], arg_overrides={"data": str(data)}
            )
    except ConfigAttributeError as error:
        raise CheckpointError(
            f"{checkpoint}: of another version of qknorm_mt: no option {error.key}"
        ) from None
    except Exception as error:
        # torch's, of sizes that do not fit; and fairseq's, which has no class of its own.
        if not isinstance(error, RuntimeError) and "infer language pair" not in str(error):
            raise
        raise CheckpointError(
            f"{checkpoint} does not fit {data}: use the folder that it was trained on ({error})"
        ) from None
    return model.eval(), task


def check(checkpoint: Path, kinds: tuple[type, ...] = OURS) -> dict[str, Any]:
    """Refuse what is no checkpoint of such a model, running none of its code; else what it holds.

    Raises:
        CheckpointError: saying what it is instead.
        OSError: if it cannot be read.
    """
    with open(checkpoint, "rb"):  # names the file, where torch's errors do not always
        pass
    what = " or ".join("qknorm_mt" if kind in OURS else "fairseq transformer" for kind in kinds[:2])
    try:
        # Memory-mapped: its structure is read, the tensors are not.
        mapped = zipfile.is_zipfile(checkpoint)  # as torch writes them since 1.6
        with torch.serialization.safe_globals([argparse.Namespace]):
            state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=mapped)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        raise CheckpointError(
            f"{checkpoint}: damaged, or not of a {what} model, whose checkpoints are plain data"
        ) from None
    match state:
        case {"cfg": {"model": {"_name": str(name)}}}:
            pass
        case {"args": argparse.Namespace(arch=str(name))}:
            pass
        case {"cfg": {"model": argparse.Namespace(arch=str(name))}}:
            pass
        case _:
            raise CheckpointError(f"{checkpoint}: not of a {what} model: it names none")
    found = ARCH_MODEL_REGISTRY.get(name)
    if found not in kinds:
        raise CheckpointError(f"{checkpoint}: not of a {what} model but of {name}")
    return dict(state)
