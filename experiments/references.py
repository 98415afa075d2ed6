"""The references of a prepared set, and scores of hypotheses against them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .commands import RunError, digest_of
from .lines import read_lines, to_lines, to_text
from .process import read_module
from .score import scores, text_digest

SPLITS = ("dev", "test")


def references(data: Path, split: str, lang: str) -> tuple[list[str], list[str]]:
    """Tokenised and plain reference; the plain one is the user's own text if that came raw.

    Args:
        data: the prepared set's folder.
    """
    tokenised = read_lines(data / f"reference.{split}.{lang}")
    plain = data / f"plain.{split}.{lang}"
    return tokenised, read_lines(plain) if plain.exists() else detokenised(tokenised, lang)


def find_prepared(work: Path, row: Mapping[str, Any], split: str = "test") -> Path | None:
    """The prepared set under ``work`` that has the very reference a row was scored against; if
    there are several, the row's own."""
    root, name = work / "data" / row["pair"], f"reference.{split}.{target_lang(row)}"
    found = {
        content_digest(manifest): root / manifest["folder"]
        for manifest in manifests(root, "binarised")
        if (root / manifest["folder"] / name).exists()
        and text_digest(read_lines(root / manifest["folder"] / name)) == row["references"][split]
    }
    return found.get(row["data"]["digest"], next(iter(found.values()), None))


def manifests(root: Path, stage: str) -> Iterable[dict[str, Any]]:
    """Of a pair's finished stages of one kind: what they hold, and the name of their folder."""
    for path in sorted(root.glob(f"{stage}-*/manifest.json")):
        try:
            yield {**json.loads(path.read_text(encoding="utf-8")), "folder": path.parent.name}
        except ValueError as error:
            raise RunError(f"{path}: not JSON ({error})") from None


def clean_folder(root: Path, digest: str) -> Path | None:
    """The cleaned text of a pair that a prepared set, by its digest, was made of.

    Prepared sets with the same test set may be of different training texts, so that it is found by
    the digest of the run's own data.
    """
    for prepared in manifests(root, "binarised"):
        if content_digest(prepared) == digest:
            for cleaned in manifests(root, "clean"):
                if content_digest(cleaned) == prepared["inputs"].get("clean"):
                    return root / str(cleaned["folder"])
    return None


def content_digest(manifest: Mapping[str, Any]) -> str:
    """As data_prep's stages have it: equal contents, equal digest."""
    return digest_of({name: file["sha256"] for name, file in manifest["files"].items()})


def target_lang(row: Mapping[str, Any]) -> str:
    return row["data"]["subwords"]["langs"][1]


def score_lines(
    hypotheses: list[str], references: tuple[list[str], list[str]], lang: str
) -> dict[str, Any]:
    """``scores`` of tokenised hypotheses, and the digest of the ``reference`` that they are of."""
    reference, plain_reference = references
    return {
        "scores": scores(hypotheses, reference, detokenised(hypotheses, lang), plain_reference),
        "reference": text_digest(reference),
    }


def detokenised(lines: list[str], lang: str) -> list[str]:
    return to_lines(read_module("data_prep", ["detokenise", lang], stdin=to_text(lines)))
