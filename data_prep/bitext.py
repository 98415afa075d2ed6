"""The text itself: from a published data set, from files, or generated. Nothing is cleaned here."""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from . import toy
from .download import fetch_source
from .parallel import watch
from .sources import Source
from .stage import Stage, run_stage, sha256_file
from .text import LineReader, Pair, PairWriter, PrepError, bitext_paths, check_bitext, iter_bitext

LANGUAGE = re.compile(r"[A-Za-z0-9]+([-_][A-Za-z0-9]+)*")
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Bitext:
    """What to prepare: exactly one of ``source``, ``prefixes`` and ``toy_seed``.

    Attributes:
        source_lang, target_lang: language codes.
        source: a published data set.
        downloads: folder that its files are, or will be, in.
        mirrors: folders and addresses to look for them before the published addresses.
        prefixes: split to path; the files are ``<prefix>.<language>``.
        replace_stray: put spaces for stray line separators and control characters in such files,
            rather than refuse them. (Those of published data sets are always replaced: users
            cannot mend them.)
        toy_seed: seed of the toy pair, which is generated.
    """

    source_lang: str
    target_lang: str
    source: Source | None = None
    downloads: Path = Path("work/downloads")
    mirrors: Sequence[str] = ()
    prefixes: Mapping[str, Path] = field(default_factory=dict)
    replace_stray: bool = False
    toy_seed: int | None = None

    @property
    def langs(self) -> Pair:
        return self.source_lang, self.target_lang


def check(bitext: Bitext) -> None:
    if bitext.source_lang == bitext.target_lang:
        raise PrepError(f"source and target language are both {bitext.source_lang!r}")
    for lang in bitext.langs:
        if not LANGUAGE.fullmatch(lang):
            raise PrepError(f"language {lang!r} is not allowed: legal are letters, digits, - and _")
    toy_langs = (toy.SOURCE_LANG, toy.TARGET_LANG)
    if bitext.toy_seed is not None and bitext.langs != toy_langs:
        raise PrepError(
            f"the toy pair's languages are {toy.SOURCE_LANG} and {toy.TARGET_LANG}, "
            f"not {bitext.source_lang} and {bitext.target_lang}"
        )


def bitext_stage(bitext: Bitext, root: Path) -> Stage:
    """``<split>.<language>``: checked, and the same whatever it came from.

    The report says of each split how many lines there are, how many pairs had a side missing, and
    in how many lines stray characters were replaced.
    """
    check(bitext)
    options: dict[str, Any] = {"langs": bitext.langs, "toy_seed": bitext.toy_seed}
    inputs: dict[str, str] = {}
    if bitext.source is not None:
        inputs = {file.name: file.sha256 for file in bitext.source.files}
        options |= {"layout": bitext.source.layout, "splits": dict(bitext.source.splits)}
    elif bitext.toy_seed is None:
        options |= {"replace_stray": bitext.replace_stray}
        for split in SPLITS:
            paths = check_bitext(bitext.prefixes[split], bitext.langs)
            inputs |= {
                f"{split}.{lang}": sha256_file(p)
                for lang, p in zip(bitext.langs, paths, strict=True)
            }

    def build(folder: Path) -> dict[str, Any]:
        if bitext.source is not None:
            return extract(bitext, bitext.source, folder)
        if bitext.toy_seed is not None:
            splits = toy.generate(bitext.toy_seed)
            return {s: write(folder, s, bitext.langs, splits[s]) for s in SPLITS}
        prefixes = bitext.prefixes
        return {s: copy(prefixes[s], folder, s, bitext.langs, bitext.replace_stray) for s in SPLITS}

    return run_stage(root, "bitext", 2, options, inputs, build)


def write(
    folder: Path,
    split: str,
    langs: Pair,
    pairs: Iterable[Pair],
    readers: Sequence[LineReader] = (),
) -> dict[str, int]:
    """Write pairs of which both sides are there."""
    missing = 0
    with PairWriter(folder / split, langs) as out:
        for pair in watch(pairs, f"read {split}"):
            if all(map(is_there, pair)):
                out.write(pair)
            else:
                missing += 1
        return {"lines": out.lines, "missing": missing, "replaced": replaced(readers)}


def is_there(sentence: str) -> bool:
    """Whether there is a translation: neither blank nor ``__NULL__`` in any spelling."""
    letters = "".join(sentence.split())
    return bool(letters) and letters.casefold() != "__null__"


def copy(prefix: Path, folder: Path, split: str, langs: Pair, replace: bool) -> dict[str, int]:
    """Copy a user's own files. Blank lines stay too, so that lines keep their numbers."""
    readers = [LineReader(str(path), replace) for path in bitext_paths(prefix, langs)]
    with PairWriter(folder / split, langs) as out:
        for pair in iter_bitext(prefix, langs, readers):
            out.write(pair)
        return {"lines": out.lines, "missing": 0, "replaced": replaced(readers)}


def replaced(readers: Sequence[LineReader]) -> int:
    """Lines in which stray characters were replaced."""
    return sum(reader.replaced for reader in readers)


def extract(bitext: Bitext, source: Source, folder: Path) -> dict[str, Any]:
    """Take the pair out of a published data set, downloading that if needed."""
    files = fetch_source(source, bitext.downloads, bitext.mirrors)
    first = next(iter(files.values()))
    report: dict[str, Any] = {"source": source.name, "terms": source.terms}
    if source.layout == "tsv":
        splits = {name: split for split, name in source.splits.items()}
        with readable(first):
            for name, table in members(first, splits):
                reader = LineReader(f"{first}:{name}", replace=True)
                pairs = columns(table, reader, bitext.langs)
                report[splits[name]] = write(folder, splits[name], bitext.langs, pairs, [reader])
        return report
    with tempfile.TemporaryDirectory(dir=folder) as unpacked:
        sides = first.parent if source.layout == "files" else Path(unpacked)
        if source.layout == "pairs":
            with readable(first):
                unpack_pair(first, source, bitext.langs, sides)
        for split in SPLITS:
            prefix = sides / source.splits[split]
            readers = [LineReader(str(p), replace=True) for p in bitext_paths(prefix, bitext.langs)]
            pairs = iter_bitext(prefix, bitext.langs, readers)
            report[split] = write(folder, split, bitext.langs, pairs, readers)
    return report


@contextlib.contextmanager
def readable(archive: Path) -> Iterator[None]:
    """Say of which archive it is that something cannot be read."""
    try:
        yield
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise PrepError(f"{archive}: cannot be read: {error}") from error


def unpack_pair(archive: Path, source: Source, langs: Pair, folder: Path) -> None:
    """The sides of one pair, ``<source>_to_<target>/<language>.<split>``."""
    names = {
        f"{langs[0]}_to_{langs[1]}/{lang}.{name}": f"{name}.{lang}"
        for lang in langs
        for name in source.splits.values()
    }
    for name, file in members(archive, names):
        with (folder / names[name]).open("wb") as out:
            shutil.copyfileobj(file, out)


def members(archive: Path, names: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """The wanted members of a tar archive, by the ends of their paths, in a stream.

    Nothing is unpacked. Links and the like are no members that anyone wants.

    Raises:
        PrepError: if the archive lacks one.
    """
    left, folders = set(names), set()
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            folders.add(Path(member.name).parent.name)
            found = [n for n in left if member.name == n or member.name.endswith("/" + n)]
            file = tar.extractfile(member) if found and member.isfile() else None
            if file:
                left.discard(found[0])
                yield found[0], file
            if not left:
                return
    there = ", ".join(sorted(folders - {""})) or "no folders"
    raise PrepError(f"{archive}: has no {', '.join(sorted(left))}; it has {there}")


def columns(table: IO[bytes], reader: LineReader, langs: Pair) -> Iterator[Pair]:
    """Two columns of a table whose first line has the languages.

    Raises:
        PrepError: for a language that it does not have, or a line of another width.
    """
    header = reader.decode(table.readline()).rstrip("\r").split("\t")
    for lang in langs:
        if lang not in header[1:]:
            raise PrepError(f"{reader.name}: no language {lang!r}; it has {sorted(header[1:])}")
    source, target = (header.index(lang) for lang in langs)
    for line in table:
        cells = reader.decode(line).split("\t")
        if len(cells) != len(header):
            raise PrepError(
                f"{reader.name}, line {reader.lines}: {len(cells)} columns, not {len(header)}"
            )
        yield reader.mend(cells[source]), reader.mend(cells[target])
