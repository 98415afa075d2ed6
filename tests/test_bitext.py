"""Where the text is from: tables and pairs in archives, plain files, the user's own files."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import tarfile
from pathlib import Path

import pytest

from data_prep.bitext import SPLITS, Bitext, bitext_stage
from data_prep.sources import RemoteFile, Source
from data_prep.text import PrepError

TABLES = {"train": "all_talks_train.tsv", "dev": "all_talks_dev.tsv", "test": "all_talks_test.tsv"}
HEADER = "talk_name\ten\tgl\tpt-br\n"
ROWS = (
    "talk a\tone\tun\tum\n"
    "talk a\ttwo\t__NULL__\tdois\n"
    "talk a\t_ _ NULL _ _\ttres\t\n"
    "talk a\t__ null __\tcatro\tquatro\n"
    "talk b\tfive\t \u00a0\tcinco\n"
    "talk b\tsi\u2028x\rx\tse\x85is\tseis\x00\n"
    "talk b\t__NULL__\t__NULL__\t__NULL__\n"
    "talk b\tNULL __\tsete &apos; \tsete\n"
)
GL = ["un", "se is", "sete &apos; "]
EN = ["one", "si x x", "NULL __"]


def archive(folder: Path, members: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    path = folder / "data.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for info in more:
            tar.addfile(info)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def source(layout: str, splits: dict[str, str], *paths: Path) -> Source:
    files = tuple(
        RemoteFile(p.name, p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest(), ())
        for p in paths
    )
    return Source("set", "a set", "yes", "for research only", layout, splits, files)


def extract(
    folder: Path, langs: tuple[str, str], *made: object, mirror: Path | None = None
) -> tuple[Path, dict]:
    layout, splits, *paths = made
    bitext = Bitext(
        *langs,
        source=source(layout, splits, *paths),  # type: ignore[arg-type]
        downloads=folder / "downloads",
        mirrors=[str(mirror or folder)],
    )
    stage = bitext_stage(bitext, folder / "root")
    return stage.path, stage.manifest["report"]


def lines(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\n")[:-1]


def tables(folder: Path, **changed: str) -> Path:
    members = {"README": b"hello"}
    for split, name in TABLES.items():
        members[f"./{name}"] = (HEADER + changed.get(split, ROWS)).encode()
    return archive(folder, members)


def test_two_columns_of_the_tables_without_missing_sides(tmp_path: Path) -> None:
    path, report = extract(tmp_path, ("gl", "en"), "tsv", TABLES, tables(tmp_path))
    for split in SPLITS:
        assert lines(path / f"{split}.gl") == GL
        assert lines(path / f"{split}.en") == EN
        assert report[split] == {"lines": 3, "missing": 5, "replaced": 2}
    assert report["terms"] == "for research only"
    assert {p.name for p in path.iterdir()} == {
        "manifest.json",
        *(f"{split}.{lang}" for split in SPLITS for lang in ("gl", "en")),
    }


def test_any_two_languages_in_either_direction(tmp_path: Path) -> None:
    path, report = extract(tmp_path, ("en", "pt-br"), "tsv", TABLES, tables(tmp_path))
    assert lines(path / "dev.en")[:3] == ["one", "two", "five"]
    assert lines(path / "dev.pt-br")[:3] == ["um", "dois", "cinco"]
    assert report["dev"]["missing"] == 3


@pytest.mark.parametrize(
    ("langs", "rows", "message"),
    [
        (("gl", "xx"), ROWS, r"no language 'xx'; it has \['en', 'gl', 'pt-br'\]"),
        (("talk_name", "en"), ROWS, "no language 'talk_name'"),
        (("gl", "en"), "t\tone\tun\tum\nt\ttwo\n", r"_dev.tsv, line 3: 2 columns, not 4"),
    ],
)
def test_what_is_wrong_in_a_table(
    tmp_path: Path, langs: tuple[str, str], rows: str, message: str
) -> None:
    with pytest.raises(PrepError, match=message):
        extract(tmp_path, langs, "tsv", TABLES, tables(tmp_path, dev=rows))
    assert not list((tmp_path / "root").glob("*.partial"))


def test_another_member_or_archive_is_another_stage(tmp_path: Path) -> None:
    first, _ = extract(tmp_path, ("gl", "en"), "tsv", TABLES, tables(tmp_path))
    swapped = {**TABLES, "dev": TABLES["test"], "test": TABLES["dev"]}
    path = tables(tmp_path)
    assert extract(tmp_path, ("gl", "en"), "tsv", swapped, path)[0] != first
    (tmp_path / "downloads" / "set" / "data.tar.gz").unlink()
    path = tables(tmp_path, dev="t\tone\tun\tum\n")
    second, report = extract(tmp_path, ("gl", "en"), "tsv", TABLES, path)
    assert second != first
    assert report["dev"]["lines"] == 1


def test_a_member_is_known_by_its_whole_name(tmp_path: Path) -> None:
    members = {f"x/{name}": (HEADER + ROWS).encode() for name in TABLES.values()}
    decoys = {f"x/not_{name}": b"no table" for name in TABLES.values()}
    path, _ = extract(tmp_path, ("gl", "en"), "tsv", TABLES, archive(tmp_path, decoys | members))
    assert lines(path / "train.gl") == GL


def test_a_missing_member_and_a_damaged_archive(tmp_path: Path) -> None:
    splits = {**TABLES, "dev": "other.tsv"}
    with pytest.raises(PrepError, match=r"data.tar.gz: has no other.tsv"):
        extract(tmp_path, ("gl", "en"), "tsv", splits, tables(tmp_path))
    rng = random.Random(0)
    row = "t\t{}\t{}\t\n"
    text = HEADER + "".join(row.format(rng.random(), rng.random()) for _ in range(3000))
    packed = gzip.compress(tarfile_of(text.encode()))
    broken = packed[:20] + b"\xff" * 50 + packed[70:]
    for i, data in enumerate((gzip.compress(b"no tar" * 500)[:-10], packed[:30_000], broken)):
        (tmp_path / "data.tar.gz").write_bytes(data)
        with pytest.raises(PrepError, match=r"data.tar.gz: cannot be read"):
            extract(
                *(tmp_path / str(i), ("gl", "en"), "tsv", TABLES, tmp_path / "data.tar.gz"),
                mirror=tmp_path,
            )


def tarfile_of(data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        info = tarfile.TarInfo(TABLES["train"])
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def test_pairs_of_an_archive_and_nothing_outside(tmp_path: Path) -> None:
    members = {
        f"datasets/{pair}/{lang}.{split}": f"{pair} {lang} {split}\n__NULL__\n".encode()
        for split in ("train", "dev", "test")
        for pair in ("gl_to_en", "pt_to_en")
        for lang in pair.split("_to_")
    }
    members["../outside.txt"] = b"no"
    members["/gl_to_en/absolute.txt"] = b"no"
    link = tarfile.TarInfo("evil/gl_to_en/gl.train")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    path = archive(tmp_path, members, link)
    before = {p for p in tmp_path.parent.rglob("*") if "root" not in p.parts}
    splits = {split: split for split in SPLITS}
    made, report = extract(tmp_path, ("gl", "en"), "pairs", splits, path)
    assert lines(made / "train.gl") == ["gl_to_en gl train"]
    assert lines(made / "test.en") == ["gl_to_en en test"]
    assert report["train"] == {"lines": 1, "missing": 1, "replaced": 0}
    after = {p for p in tmp_path.parent.rglob("*") if "root" not in p.parts}
    assert all("downloads" in p.parts for p in after - before)
    with pytest.raises(PrepError, match=r"has no sk_to_en/.*; it has .*gl_to_en.*pt_to_en"):
        extract(tmp_path, ("sk", "en"), "pairs", splits, path)


def test_plain_files_of_a_data_set(tmp_path: Path) -> None:
    paths = []
    for name in ("train", "tst2012", "tst2013"):
        for lang in ("en", "vi"):
            paths.append(tmp_path / f"{name}.{lang}")
            paths[-1].write_text(f"{name} {lang}\n\nlast\n")
    splits = {"train": "train", "dev": "tst2012", "test": "tst2013"}
    path, report = extract(tmp_path, ("en", "vi"), "files", splits, *paths)
    assert lines(path / "dev.vi") == ["tst2012 vi", "last"]
    assert report["train"]["missing"] == 1
    with pytest.raises(PrepError, match="language 'de' is not in this bitext"):
        extract(tmp_path, ("en", "de"), "files", splits, *paths)


def test_a_finished_stage_needs_no_download(tmp_path: Path) -> None:
    path = tables(tmp_path)
    made = ("tsv", TABLES, path)
    first, _ = extract(tmp_path, ("gl", "en"), *made)
    kept = source(*made)  # type: ignore[arg-type]
    path.unlink()
    (tmp_path / "downloads" / "set" / "data.tar.gz").unlink()
    stage = bitext_stage(Bitext("gl", "en", source=kept), tmp_path / "root")
    assert stage.path == first


def test_own_files_keep_their_every_line(tmp_path: Path) -> None:
    for split in SPLITS:
        (tmp_path / f"{split}.gl").write_bytes(b"a\n\n__NULL__\nb\x0cc\n")
        (tmp_path / f"{split}.en").write_bytes(b"x\ny\nz\nw\n")
    prefixes = {split: tmp_path / split for split in SPLITS}
    with pytest.raises(PrepError, match=r"train.gl, line 4: form feed"):
        bitext_stage(Bitext("gl", "en", prefixes=prefixes), tmp_path / "root")
    bitext = Bitext("gl", "en", prefixes=prefixes, replace_stray=True)
    stage = bitext_stage(bitext, tmp_path / "root")
    assert lines(stage.path / "train.gl") == ["a", "", "__NULL__", "b c"]
    assert stage.manifest["report"]["train"] == {"lines": 4, "missing": 0, "replaced": 1}
    for changed in ("train.gl", "test.en"):
        (tmp_path / changed).write_bytes(b"a\nb\nc\nd\n")
        assert bitext_stage(bitext, tmp_path / "root").path != stage.path
        stage = bitext_stage(bitext, tmp_path / "root")


@pytest.mark.parametrize("lang", ["a/b", "", "../x", "g l"])
def test_odd_language_codes_are_refused(tmp_path: Path, lang: str) -> None:
    with pytest.raises(PrepError, match="is not allowed: legal are letters, digits"):
        bitext_stage(Bitext(lang, "en", toy_seed=1), tmp_path)
