"""The chain: bitext -> clean -> subword -> binarised, each a stage that is done once."""

from __future__ import annotations

import errno
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import toy
from .clean import CleanConfig, clean, tokenise
from .stage import Stage, log, run_stage, sha256_file
from .subword import Subwords, learn
from .text import PrepError, read_bitext, read_lines, write_lines

SPLITS = ("train", "dev", "test")
LENGTH_PERCENTILE = 97.5
SUBWORD_MODEL = "subword.model"


@dataclass(frozen=True)
class Bitext:
    """What to prepare.

    Attributes:
        source_lang, target_lang: language codes, the endings of the files.
        prefixes: split to path; the files are ``<prefix>.<language>``. Empty for the toy pair,
            which is generated.
        toy_seed: seed of the toy pair.
    """

    source_lang: str
    target_lang: str
    prefixes: Mapping[str, Path]
    toy_seed: int | None = None

    @property
    def langs(self) -> tuple[str, str]:
        return self.source_lang, self.target_lang


def prepare(bitext: Bitext, config: CleanConfig, vocab_size: int, root: Path) -> Stage:
    """Run what is missing of the chain under ``root`` and return its last stage.

    That stage's folder is what fairseq trains on. It also holds the subword model and the
    references, and its manifest reports ``length_percentile`` (L) and ``g_init``.

    Raises:
        PrepError: if the input is at fault, with file and line.
    """
    check(bitext, config, vocab_size)
    raw = bitext_stage(bitext, root)
    cleaned = clean_stage(bitext, config, raw, root)
    pieces = subword_stage(bitext, vocab_size, cleaned, root)
    return binarise_stage(bitext, raw if config.raw else None, cleaned, pieces, root)


def check(bitext: Bitext, config: CleanConfig, vocab_size: int) -> None:
    """Refuse options that would silently make something else than was meant."""
    if bitext.source_lang == bitext.target_lang:
        raise PrepError(f"source and target language are both {bitext.source_lang!r}")
    if bitext.toy_seed is not None and bitext.langs != (toy.SOURCE_LANG, toy.TARGET_LANG):
        raise PrepError(
            f"the toy pair's languages are {toy.SOURCE_LANG} and {toy.TARGET_LANG}, "
            f"not {bitext.source_lang} and {bitext.target_lang}"
        )
    for name, value in {"vocab_size": vocab_size, **asdict(config)}.items():
        if not isinstance(value, bool) and value < 1:
            raise PrepError(f"{name}={value} is not allowed: legal is at least 1")


def read_split(stage: Stage, split: str, bitext: Bitext) -> list[tuple[str, str]]:
    return read_bitext(stage.path / split, *bitext.langs)


def write_split(
    folder: Path, split: str, bitext: Bitext, pairs: list[tuple[str, str]]
) -> dict[str, int]:
    for side, lang in enumerate(bitext.langs):
        write_lines(folder / f"{split}.{lang}", [pair[side] for pair in pairs])
    return {"lines": len(pairs)}


def bitext_stage(bitext: Bitext, root: Path) -> Stage:
    """Check the user's files and copy them, or generate the toy pair."""

    def build(folder: Path) -> dict[str, Any]:
        if bitext.toy_seed is not None:
            splits = toy.generate(bitext.toy_seed)
        else:
            splits = {s: read_bitext(bitext.prefixes[s], *bitext.langs) for s in SPLITS}
        return {split: write_split(folder, split, bitext, splits[split]) for split in SPLITS}

    inputs = {}
    if bitext.toy_seed is None:
        for split in SPLITS:
            read_bitext(bitext.prefixes[split], *bitext.langs)  # complain before digesting
            for lang in bitext.langs:
                path = bitext.prefixes[split].with_name(f"{bitext.prefixes[split].name}.{lang}")
                inputs[f"{split}.{lang}"] = sha256_file(path)
    options = {"langs": bitext.langs, "toy_seed": bitext.toy_seed}
    return run_stage(root, "bitext", 1, options, inputs, build)


def clean_stage(bitext: Bitext, config: CleanConfig, raw: Stage, root: Path) -> Stage:
    """Tokenise every split; drop training pairs only: dev and test keep their every line."""

    def build(folder: Path) -> dict[str, Any]:
        report: dict[str, Any] = {}
        for split in SPLITS:
            pairs = tokenise(read_split(raw, split, bitext), bitext.langs, config.raw)
            dropped: dict[str, int] = {}
            if split == "train":
                pairs, dropped = clean(pairs, config)
                if not pairs:
                    raise PrepError(f"cleaning dropped every training pair: {dropped}")
                log(f"clean: {len(pairs)} training pairs stay, dropped: {dropped}")
            report[split] = {**write_split(folder, split, bitext, pairs), "dropped": dropped}
        return report

    return run_stage(root, "clean", 1, asdict(config), {"bitext": raw.digest}, build)


def subword_stage(bitext: Bitext, vocab_size: int, cleaned: Stage, root: Path) -> Stage:
    """Learn subwords on the training pairs alone; encode every split."""

    def build(folder: Path) -> dict[str, Any]:
        sentences = (side for pair in read_split(cleaned, "train", bitext) for side in pair)
        (folder / SUBWORD_MODEL).write_bytes(learn(sentences, vocab_size))
        subwords = Subwords(folder / SUBWORD_MODEL)
        report: dict[str, Any] = {}
        for split in SPLITS:
            for lang in bitext.langs:
                words = read_lines(cleaned.path / f"{split}.{lang}")
                encoded = subwords.encode(words)
                write_lines(folder / f"{split}.{lang}", encoded)
                lossy = sum(a != b for a, b in zip(subwords.decode(encoded), words, strict=True))
                tokens = sum(len(line.split()) for line in encoded)
                report[f"{split}.{lang}"] = {"tokens": tokens, "lossy_lines": lossy}
        return report

    options = {"vocab_size": vocab_size, "langs": bitext.langs}
    return run_stage(root, "subword", 1, options, {"clean": cleaned.digest}, build)


def binarise_stage(
    bitext: Bitext, raw: Stage | None, cleaned: Stage, pieces: Stage, root: Path
) -> Stage:
    """fairseq's binary form with a joined dictionary, references, and L.

    ``reference.<split>.<language>`` is tokenised as the hypotheses will be. Where the text came
    ``raw``, ``plain.<split>.<language>`` is the reference as it came.
    """

    def build(folder: Path) -> dict[str, Any]:
        command = [
            *(sys.executable, "-m", "fairseq_cli.preprocess"),
            *("--source-lang", bitext.source_lang, "--target-lang", bitext.target_lang),
            *("--trainpref", str(pieces.path / "train"), "--validpref", str(pieces.path / "dev")),
            *("--testpref", str(pieces.path / "test"), "--joined-dictionary"),
            *("--destdir", str(folder), "--workers", "1"),
        ]
        run_quietly(command)
        (folder / "preprocess.log").unlink()  # names the folder, so it would change the digest
        shutil.copy(pieces.path / SUBWORD_MODEL, folder / SUBWORD_MODEL)
        for split in ("dev", "test"):
            name = f"{split}.{bitext.target_lang}"
            shutil.copy(cleaned.path / name, folder / f"reference.{name}")
            if raw:
                shutil.copy(raw.path / name, folder / f"plain.{name}")
        lengths = training_lengths(pieces, bitext)
        # Henry et al. 2020, section 3; without the end-of-sentence symbol.
        length = float(np.percentile(lengths, LENGTH_PERCENTILE))
        return {
            "source_lang": bitext.source_lang,
            "target_lang": bitext.target_lang,
            "lines": {split: cleaned.manifest["report"][split]["lines"] for split in SPLITS},
            "dropped": cleaned.manifest["report"]["train"]["dropped"],
            "tokens": {name: count["tokens"] for name, count in pieces.manifest["report"].items()},
            "longest": longest_lines(pieces, bitext),
            "length_percentile": length,
            "g_init": math.log2(length * length - length) if length >= 2 else None,
        }

    inputs = {"subword": pieces.digest, "clean": cleaned.digest}
    if raw:
        inputs["bitext"] = raw.digest
    return run_stage(root, "binarised", 3, {"langs": bitext.langs}, inputs, build)


def longest_lines(pieces: Stage, bitext: Bitext) -> dict[str, dict[str, int]]:
    """Length in subword tokens, and line, of the longest sentence of each file."""
    longest = {}
    for split in SPLITS:
        for lang in bitext.langs:
            lines = read_lines(pieces.path / f"{split}.{lang}")
            tokens, line = max((len(text.split()), -i) for i, text in enumerate(lines, start=1))
            longest[f"{split}.{lang}"] = {"tokens": tokens, "line": -line}
    return longest


def training_lengths(pieces: Stage, bitext: Bitext) -> list[int]:
    """Lengths in subword tokens of all training sequences, source and target."""
    return [len(side.split()) for pair in read_split(pieces, "train", bitext) for side in pair]


def run_quietly(command: list[str]) -> None:
    """Run a tool; show what it said only if it fails."""
    done = subprocess.run(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        if "No space left on device" in done.stdout:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), command[2])
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise PrepError(f"{command[2]} failed with exit code {done.returncode}:\n{tail}")
