"""Where a result comes from: code, libraries, machine, parameters."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

LIBRARIES = (
    *("torch", "ve-fairseq", "hydra-core", "sacrebleu"),
    *("sentencepiece", "subword-nmt", "sacremoses"),
)
ROOT = Path(__file__).resolve().parents[1]


def code() -> dict[str, Any]:
    """Git commit of the clone and whether it has uncommitted changes; None outside a clone."""

    def git(*argv: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(ROOT), *argv], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    changes = git("status", "--porcelain", "--", "*.py", "conf")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware(cpu: bool, threads: int) -> str:
    """The device a run was trained on, in words."""
    if not cpu and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    model = "CPU"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{model}, {threads} thread{'s' if threads > 1 else ''}"


def parameters(checkpoint: Path) -> dict[str, Any]:
    """Number of trained parameters, and g of every attention module, from our own checkpoint."""
    # fairseq stores its config and progress beside the tensors; all of it is plain data, so the
    # unpickler may be kept from running code.
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
    # An embedding shared by encoder, decoder and output stands there under three names.
    embedding = state["encoder.embed_tokens.weight"]
    trained = sum(
        tensor.numel()
        for name, tensor in state.items()
        if tensor.is_floating_point()
        and not name.endswith(".version")
        and (name == "encoder.embed_tokens.weight" or not same(tensor, embedding))
    )
    g = {
        name.removesuffix(".qk_norm.g"): rounded(tensor)
        for name, tensor in state.items()
        if name.endswith(".qk_norm.g")
    }
    return {"parameters": trained, "g": g}


def rounded(g: torch.Tensor) -> float | list[float]:
    """One g of a module, or one of each head."""
    values = [round(value, 4) for value in g.tolist()]
    return values[0] if len(values) == 1 else values


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)
