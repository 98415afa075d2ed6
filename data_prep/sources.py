"""The published data sets of ``sources.yaml``: their addresses, checksums, terms and contents."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from .text import PrepError

PUBLISHED = Path(__file__).with_name("sources.yaml")
MIRROR_VARIABLE = "QKNORM_MT_MIRROR"
PLAIN = re.compile(r"\w[\w.-]*")  # no way out of the downloads folder
LAYOUTS = ("files", "tsv", "pairs")


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be downloaded.

    Attributes:
        name: its name, here and at the end of each address.
        size: in bytes.
        sha256: hex digest of its contents.
        urls: addresses, in the order in which they are tried.
    """

    name: str
    size: int
    sha256: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A published data set.

    Attributes:
        name: what users call it.
        about, tokenised, terms: in words.
        layout: ``files``: ``<split>.<language>``; ``tsv``: a tar archive with one table a split,
            one column a language; ``pairs``: a tar archive with a folder ``<source>_to_<target>``
            a pair and files ``<language>.<split>`` in it.
        splits: train, dev and test to their names in the data set.
        files: what has to be downloaded.
    """

    name: str
    about: str
    tokenised: str
    terms: str
    layout: str
    splits: Mapping[str, str]
    files: tuple[RemoteFile, ...]


def load_sources(path: Path = PUBLISHED) -> dict[str, Source]:
    """The data sets of a file like ``sources.yaml``.

    Raises:
        PrepError: naming the file and what is wrong in it.
    """
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {name: parse(name, entry) for name, entry in entries.items()}
    except OSError as error:
        raise PrepError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise PrepError(f"{path}: not a list of data sets like {PUBLISHED}: {error!r}") from error


def parse(name: str, entry: dict[str, Any]) -> Source:
    def refuse(field: str, value: object, legal: str) -> NoReturn:
        raise ValueError(f"{name}: {field}: {value!r}; legal is {legal}")

    if entry["layout"] not in LAYOUTS:
        refuse("layout", entry["layout"], f"one of {LAYOUTS}")
    if set(entry["splits"]) != {"train", "dev", "test"}:
        refuse("splits", entry["splits"], "a name for each of train, dev and test")
    if not isinstance(entry["base"], list):
        refuse("base", entry["base"], "a list of addresses")
    if not entry["files"] or (len(entry["files"]) > 1 and entry["layout"] != "files"):
        refuse("files", list(entry["files"]), "one archive, or with layout: files at least one")
    for file, facts in entry["files"].items():
        if not PLAIN.fullmatch(name) or not PLAIN.fullmatch(file):
            refuse("files", file, "names of letters, digits, '.', '_' and '-'")
        if not isinstance(facts["bytes"], int):
            refuse(f"{file}: bytes", facts["bytes"], "a number")
        if not re.fullmatch("[0-9a-f]{64}", str(facts["sha256"])):
            refuse(f"{file}: sha256", facts["sha256"], "64 hex digits in lower case")
    files = tuple(
        RemoteFile(
            file, facts["bytes"], facts["sha256"], tuple(base + file for base in entry["base"])
        )
        for file, facts in entry["files"].items()
    )
    words = {key: entry[key] for key in ("about", "tokenised", "terms", "layout", "splits")}
    return Source(name=name, files=files, **words)


def find_source(name: str, path: Path = PUBLISHED) -> Source:
    sources = load_sources(path)
    if name not in sources:
        raise PrepError(f"source {name!r} is not known: legal is one of {sorted(sources)}")
    return sources[name]


def mirrors(given: Sequence[str] = ()) -> list[str]:
    """The user's own mirrors: as given, then those of ``$QKNORM_MT_MIRROR``, space-separated."""
    return [*given, *os.environ.get(MIRROR_VARIABLE, "").split()]


def describe(source: Source) -> str:
    """What a user needs to get a data set by hand."""
    lines = [f"{source.name}: {source.about}", f"  text: {source.tokenised}"]
    lines.append(f"  terms: {source.terms}")
    for file in source.files:
        lines.append(f"  {file.name}: {file.size} bytes, sha256 {file.sha256}")
        lines += [f"    {url}" for url in file.urls]
    return "\n".join(lines)
