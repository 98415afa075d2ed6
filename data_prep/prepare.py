"""The chain: bitext -> clean -> subword -> binarised -> report, each a stage that is done once."""

from __future__ import annotations

import errno
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from . import subword
from .bitext import SPLITS, Bitext, bitext_stage
from .clean import CleanConfig, Tally, clean, to_words
from .encode import count_words, encode_file
from .lengths import LENGTH_PERCENTILE, percentile, training_lengths
from .parallel import map_chunks, watch
from .report import report_stage
from .stage import Stage, log, run_stage
from .subword import METHODS, SubwordConfig
from .text import LineWriter, Pair, PairWriter, PrepError, iter_bitext, iter_lines

LOSSY_SHOWN = 20


def prepare(
    bitext: Bitext,
    cleaning: CleanConfig,
    subwords: SubwordConfig,
    root: Path,
    workers: int,
    published_length: float | None = None,
) -> tuple[Stage, Stage]:
    """Run what is missing of the chain under ``root``; returns its last two stages.

    The first one's folder is what fairseq trains on. It also holds the subwords and the
    references, and its manifest reports ``length_percentile`` (L) and ``g_init``. The second one
    is the report for people, which sets ``published_length`` beside L.

    Raises:
        PrepError: if the input is at fault, with file and line.
    """
    check(cleaning, subwords, workers, published_length)
    raw = bitext_stage(bitext, root)
    cleaned = clean_stage(bitext.langs, cleaning, raw, root, workers)
    pieces = subword_stage(bitext.langs, subwords, cleaned, root, workers)
    data = binarise_stage(bitext.langs, cleaning, raw, cleaned, pieces, root, workers)
    return data, report_stage((raw, cleaned, pieces, data), published_length, root)


def check(
    cleaning: CleanConfig,
    subwords: SubwordConfig,
    workers: int,
    published_length: float | None,
) -> None:
    """Refuse options that would silently make something else than was meant."""
    if subwords.method not in METHODS:
        raise PrepError(f"subwords={subwords.method!r} is not allowed: legal is one of {METHODS}")
    options = {**asdict(cleaning), **asdict(subwords), "workers": workers}
    options["published_length"] = published_length
    share = options.pop("min_script")
    if share is not None and not 0 < share <= 1:
        raise PrepError(f"min_script={share} is not allowed: legal is over 0, up to 1")
    for name, value in options.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and not 1 <= value < math.inf:
            raise PrepError(f"{name}={value} is not allowed: legal is at least 1")


def clean_stage(langs: Pair, config: CleanConfig, raw: Stage, root: Path, workers: int) -> Stage:
    """Every split as words; drops training pairs only: dev and test keep their every line."""

    def build(folder: Path) -> dict[str, Any]:
        held_out: tuple[set[str], set[str]] = (set(), set())
        counts: dict[str, Any] = {}
        for split in ("dev", "test"):
            convert = partial(to_words, langs=langs, raw=split in config.raw, config=config)
            pairs = watch(iter_bitext(raw.path / split, langs), f"clean {split}")
            with PairWriter(folder / split, langs) as out:
                for chunk in map_chunks(convert, pairs, workers):
                    for pair in chunk:
                        out.write(pair)
                        for side, known in zip(pair, held_out, strict=True):
                            known.add(side)
            counts[split] = {"lines": out.lines}
        tally = Tally()
        pairs = watch(iter_bitext(raw.path / "train", langs), "clean train")
        with PairWriter(folder / "train", langs) as out:
            for pair in clean(pairs, langs, config, held_out, tally, workers):
                out.write(pair)
        dropped = dict(tally.dropped)
        if not out.lines:
            raise PrepError(f"cleaning dropped every training pair: {dropped}")
        log(f"clean: {out.lines} training pairs stay, dropped: {dropped}")
        with LineWriter(folder / "dropped.tsv") as sample:
            for row in tally.rows():
                sample.write(row)
        counts["train"] = {"lines": out.lines, "dropped": dropped}
        return counts | {"overlap": overlap(folder, langs, tally)}

    options = {**asdict(config), "langs": langs}
    return run_stage(root, "clean", 2, options, {"bitext": raw.digest}, build)


def overlap(folder: Path, langs: Pair, tally: Tally) -> dict[str, int]:
    """Lines of each dev and test file that also stand in the training file of their language."""
    return {
        f"{split}.{lang}": sum(line in shared for line in iter_lines(folder / f"{split}.{lang}"))
        for split in ("dev", "test")
        for lang, shared in zip(langs, tally.shared, strict=True)
    }


def subword_stage(
    langs: Pair, config: SubwordConfig, cleaned: Stage, root: Path, workers: int
) -> Stage:
    """Learn subwords on the training pairs alone; encode every split."""

    def build(folder: Path) -> dict[str, Any]:
        words = {lang: count_words(cleaned.path / f"train.{lang}") for lang in langs}
        subword.learn(words, config, folder)
        known: Counter[str] = Counter()
        files: dict[str, Any] = {}
        for name in (f"{split}.{lang}" for split in SPLITS for lang in langs):
            split, lang = name.split(".", 1)
            own = words[lang] if split == "train" else count_words(cleaned.path / name)
            total = encode_file(cleaned.path / name, folder / name, folder, lang, workers)
            if split == "train":
                known += total.pieces
            files[name] = {
                "words": own.total(),
                "word_types": len(own),
                "unseen_word_types": sum(word not in words[lang] for word in own),
                "tokens": total.pieces.total(),
                "types": len(total.pieces),
                "unknown_tokens": sum(n for piece, n in total.pieces.items() if piece not in known),
                "lengths": {str(n): total.lengths[n] for n in sorted(total.lengths)},
                "longest": dict(zip(("tokens", "line"), total.longest, strict=True)),
                "lossy_lines": len(total.lossy),
                "lossy": total.lossy[:LOSSY_SHOWN],
            }
        return {"files": files}

    options = {**asdict(config), "langs": langs}
    return run_stage(root, "subword", 2, options, {"clean": cleaned.digest}, build)


def binarise_stage(
    langs: Pair,
    cleaning: CleanConfig,
    raw: Stage,
    cleaned: Stage,
    pieces: Stage,
    root: Path,
    workers: int,
) -> Stage:
    """fairseq's binary form with a joined dictionary, the subwords, references, and L.

    ``reference.<split>.<language>`` is tokenised as the hypotheses will be. Where the text of a
    split came untokenised, ``plain.<split>.<language>`` is the reference as it came.
    """
    plain = [split for split in ("dev", "test") if split in cleaning.raw]

    def build(folder: Path) -> dict[str, Any]:
        binarise(langs, pieces.path, folder, workers)
        for path in subword.files(pieces.path):
            shutil.copy(path, folder)
        for split in ("dev", "test"):
            name = f"{split}.{langs[1]}"
            shutil.copy(cleaned.path / name, folder / f"reference.{name}")
            if split in plain:
                shutil.copy(raw.path / name, folder / f"plain.{name}")
        files, counts = pieces.manifest["report"]["files"], cleaned.manifest["report"]
        length = percentile(training_lengths(files), LENGTH_PERCENTILE)
        return {
            **{k: v for k, v in raw.manifest["report"].items() if k in ("source", "terms")},
            "source_lang": langs[0],
            "target_lang": langs[1],
            "normalise": cleaning.normalise,
            "subwords": pieces.manifest["config"],
            "lines": {split: counts[split]["lines"] for split in SPLITS},
            "dropped": counts["train"]["dropped"],
            "tokens": {name: file["tokens"] for name, file in files.items()},
            "longest": {name: file["longest"] for name, file in files.items()},
            "length_percentile": length,
            "g_init": math.log2(length * length - length) if length >= 2 else None,
        }

    inputs = {"subword": pieces.digest, "clean": cleaned.digest}
    if plain:
        inputs["bitext"] = raw.digest
    return run_stage(root, "binarised", 6, {"langs": langs, "plain": plain}, inputs, build)


def binarise(langs: Pair, pieces: Path, folder: Path, workers: int) -> None:
    argv = [
        *("--source-lang", langs[0], "--target-lang", langs[1], "--joined-dictionary"),
        *("--trainpref", str(pieces / "train"), "--validpref", str(pieces / "dev")),
        *("--testpref", str(pieces / "test"), "--destdir", str(folder), "--workers", str(workers)),
    ]
    run_quietly("fairseq_cli.preprocess", argv)
    (folder / "preprocess.log").unlink()  # names the folder, so it would change the digest


def run_quietly(module: str, argv: list[str]) -> None:
    """Run a tool, which ends with this process; show what it said only if it fails."""
    command = [sys.executable, "-m", "data_prep.guarded", str(os.getpid()), module, *argv]
    with subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            said, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        if "No space left on device" in said:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), module)
        tail = "\n".join(said.splitlines()[-15:])
        raise PrepError(f"{module} failed with exit code {process.returncode}:\n{tail}")
