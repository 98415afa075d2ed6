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
TASKS = ("translation", "translation_qknorm", "translation_probed")
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
    model, task = options_of(state)
    name = model.get("_name") or model.get("arch")
    if not isinstance(name, str):
        raise CheckpointError(f"{checkpoint}: not of a {what} model: it names none")
    if ARCH_MODEL_REGISTRY.get(name) not in kinds:
        raise CheckpointError(f"{checkpoint}: not of a {what} model but of {name}")
    refuse_code(checkpoint, model, task)
    return dict(state)


def options_of(state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A checkpoint's options of the model and of the task; one mapping for both in old ones.

    Where it has both kinds, the old one is what fairseq goes by.
    """
    match state:
        case {"args": argparse.Namespace() as both}:
            return vars(both), vars(both)
        case {"cfg": {"model": model, "task": task}}:
            return as_dict(model), as_dict(task)
    return {}, {}


def as_dict(options: Any) -> dict[str, Any]:
    if isinstance(options, argparse.Namespace):
        return vars(options)
    return options if isinstance(options, dict) else {}


def refuse_code(checkpoint: Path, model: dict[str, Any], task: dict[str, Any]) -> None:
    """Refuse options that fairseq evaluates as Python when it makes a model of them, and tasks
    other than translation, which might.

    Raises:
        CheckpointError: naming the option.
    """
    if model.get("adaptive_softmax_cutoff") is not None:
        raise CheckpointError(
            f"{checkpoint}: its option adaptive_softmax_cutoff is refused: fairseq evaluates it as "
            "Python code"
        )
    name = task.get("_name") or task.get("task")
    if name not in TASKS:
        raise CheckpointError(f"{checkpoint}: of task {name}: legal is {', '.join(TASKS)}")
