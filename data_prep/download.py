"""Downloads that end with the published file or not at all.

A file is taken from the first place that has it: the downloads folder, the user's own mirrors, the
published addresses. It is believed by its size and checksum alone, for an address may answer 200
with something else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import requests

from .sources import RemoteFile, Source
from .stage import flush, lock, log, sha256_file
from .text import PrepError
from .transfer import Failed, Patience, Unavailable, Wrong, download, finish, partial_of, reason


def fetch_source(
    source: Source, downloads: Path, mirrors: Sequence[str], patience: Patience | None = None
) -> dict[str, Path]:
    """The files of a data set, by name, downloading what is not there yet.

    Files lie in ``downloads/<source>/``, with a manifest that keeps the terms of use, which are
    shown once, and where each file came from.

    Raises:
        PrepError: if a file cannot be had, saying which to get by hand and where to put it.
    """
    folder = downloads / source.name
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / ".lock", source.name):
        manifest = read_manifest(folder)
        missing = [file for file in source.files if not is_file(folder / file.name, file)]
        if "terms" not in manifest:
            log(f"{source.name}: {source.about}\nterms of use: {source.terms}")
            manifest["terms"] = {"text": source.terms, "shown": now()}
            write_manifest(folder, manifest)
        for i, file in enumerate(missing):
            try:
                origin = fetch(file, folder, mirrors, source.name, patience or Patience())
            except Unavailable as error:
                raise PrepError(by_hand(missing[i:], folder, str(error))) from error
            facts = {"bytes": file.size, "sha256": file.sha256, "from": origin, "time": now()}
            manifest.setdefault("files", {})[file.name] = facts
            write_manifest(folder, manifest)
    return {file.name: folder / file.name for file in source.files}


def is_file(path: Path, file: RemoteFile) -> bool:
    """Whether ``path`` is the published file, by size and checksum."""
    return path.is_file() and path.stat().st_size == file.size and sha256_file(path) == file.sha256


def fetch(
    file: RemoteFile, folder: Path, mirrors: Sequence[str], source: str, patience: Patience
) -> str:
    """Put a file into ``folder``; returns the place that it came from.

    Raises:
        Unavailable: if no place has it, with what each has instead.
    """
    target = folder / file.name
    if target.is_dir():
        raise PrepError(f"{target} is a folder: the file {file.name} has to go there")
    if target.exists():
        aside = target.with_name(target.name + ".wrong")
        log(f"{target}: not the published file (size or checksum): kept as {aside.name}")
        target.replace(aside)
    tried = []
    for place in places(file, mirrors, source):
        log(f"{file.name}: trying {place}")
        try:
            if "://" in place:
                download(file, place, target, patience)
            else:
                copy(file, Path(place), target)
            return place
        except (Failed, requests.RequestException, ValueError) as error:
            tried.append(f"  {place}: {reason(error)}")
            log(tried[-1].strip())
    raise Unavailable("\n".join(tried))


def places(file: RemoteFile, mirrors: Sequence[str], source: str) -> Iterator[str]:
    """Where a file may be: in the user's mirrors, with or without the source's name; published."""
    for mirror in mirrors:
        for inside in (f"{source}/{file.name}", file.name):
            yield f"{mirror.rstrip('/')}/{inside}"
    yield from file.urls


def copy(file: RemoteFile, origin: Path, target: Path) -> None:
    try:
        if not origin.is_file():
            raise Unavailable("no such file")
        if not is_file(origin, file):
            raise Wrong(f"not the published file: {origin.stat().st_size} bytes, or its checksum")
    except OSError as error:
        raise Unavailable(f"cannot be read: {error.strerror}") from error
    partial = partial_of(target)
    shutil.copyfile(origin, partial)
    finish(file, partial, target)


def by_hand(missing: Sequence[RemoteFile], folder: Path, tried: str) -> str:
    wanted = [f"  {file.name}  {file.size} bytes  sha256 {file.sha256}" for file in missing]
    return "\n".join(
        (
            f"{missing[0].name} could not be downloaded:",
            tried,
            "Get by hand, from anyone who has it:",
            *wanted,
            f"and put it into {folder}, or into a folder that you name with --mirror, data.mirror",
            "or QKNORM_MT_MIRROR. Check it with",
            f"  sha256sum {folder}/{missing[0].name}",
            "Then run the same command again.",
        )
    )


def read_manifest(folder: Path) -> dict:
    try:
        return dict(json.loads((folder / "manifest.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def write_manifest(folder: Path, manifest: dict) -> None:
    partial = folder / "manifest.json.partial"
    partial.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    flush(partial)
    partial.replace(folder / "manifest.json")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
