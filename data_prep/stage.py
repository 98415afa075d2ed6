"""Stages: folders named by a digest of what made them, finished or not there at all.

A stage reads folders of earlier stages and fills one of its own. The folder's name holds a digest
of the stage's version, its options and the contents it reads, so a finished stage is found again
at once and a changed option redoes exactly what depends on it. It is filled under a temporary
name, flushed to disk, given a manifest and only then renamed: a kill at any moment leaves nothing
that a later run would believe.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Stage:
    """A finished stage.

    Attributes:
        path: its folder.
        manifest: what made it, what it holds (bytes and sha256 of each file) and its report.
        made: whether it was made just now, not found.
    """

    path: Path
    manifest: Mapping[str, Any]
    made: bool = field(default=False, compare=False)

    @property
    def digest(self) -> str:
        """Digest of the contents: equal contents, equal digest, whatever made them."""
        return digest_of({name: f["sha256"] for name, f in self.manifest["files"].items()})


def digest_of(value: object) -> str:
    """sha256 (hex) of a JSON-able value, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_stage(
    root: Path,
    name: str,
    version: int,
    config: Mapping[str, Any],
    inputs: Mapping[str, str],
    build: Callable[[Path], Mapping[str, Any]],
) -> Stage:
    """Find the stage finished under ``root``, or make it.

    Args:
        root: folder of the pair's stages.
        name: the stage's name.
        version: of the stage's code; raise it when the same input should give another output.
        config: options that change the output.
        inputs: name to content digest of everything the stage reads.
        build: fills the folder it is given and returns a report for the manifest.
    """
    made_by = {"stage": name, "version": version, "config": dict(config), "inputs": dict(inputs)}
    target = root / f"{name}-{digest_of(made_by)[:12]}"
    root.mkdir(parents=True, exist_ok=True)
    with lock(Path(f"{target}.lock"), name):
        found = read_manifest(target, made_by)
        log(f"{name}: {'found' if found else 'making'} {target}")
        manifest = found or make(target, made_by, build)
    return Stage(target, manifest, made=found is None)


@contextmanager
def lock(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file, saying so if another process has it; a killed holder frees it."""
    held = FileLock(path)
    try:
        held.acquire(timeout=0)
    except Timeout:
        log(f"{what}: another process is at it: waiting")
        held.acquire()
    try:
        yield
    finally:
        held.release()


def read_manifest(folder: Path, made_by: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest, if ``folder`` holds exactly what it says; None otherwise."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        intact = (
            digest_of({key: manifest[key] for key in made_by}) == digest_of(made_by)
            and there == {*manifest["files"], MANIFEST}
            and all(describe(folder / name) == file for name, file in manifest["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if intact else None


def make(
    target: Path, made_by: Mapping[str, Any], build: Callable[[Path], Mapping[str, Any]]
) -> dict[str, Any]:
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        report = build(partial)
        files = sorted(p for p in partial.rglob("*") if p.is_file())
        described = {str(p.relative_to(partial)): describe(p) for p in files}
        manifest = {**made_by, "files": described, "report": dict(report)}
        text = json.dumps(manifest, indent=1, ensure_ascii=False, sort_keys=True)
        (partial / MANIFEST).write_text(text + "\n", encoding="utf-8")
        for path in (*files, partial / MANIFEST):
            flush(path)
        shutil.rmtree(target, ignore_errors=True)  # only ever a damaged one
        partial.rename(target)
        flush(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return dict(json.loads(text))  # as a later run will read it


def describe(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def log(message: str) -> None:
    """Progress goes to stderr: stdout is for results."""
    print(message, file=sys.stderr, flush=True)
