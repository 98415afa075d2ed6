"""The chain from text to binarised set, through its command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary, LanguagePairDataset, data_utils

from qknorm_mt.batches import ByLongerSide, fill

from .conftest import ROOT

WORDS = {"gl": "un dous tres catro cinco", "en": "one two three four five"}
PIECES = {
    "sentencepiece_bpe": ["--subwords", "sentencepiece_bpe", "--subword-size", "60"],
    "sentencepiece_unigram": ["--subwords", "sentencepiece_unigram", "--subword-size", "24"],
    "subword_nmt": ["--subwords", "subword_nmt", "--subword-size", "20"],
}
TINY = PIECES["sentencepiece_bpe"]


def data_prep(*argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "data_prep", *argv],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def write_bitext(folder: Path, train: int = 40) -> list[str]:
    """A small bitext of digits and letters; returns the arguments that name it."""
    argv = ["-s", "gl", "-t", "en"]
    for split, size in {"train": train, "dev": 5, "test": 4}.items():
        for lang, words in WORDS.items():
            rng = np.random.default_rng(len(split))
            lines = [" ".join(rng.choice(words.split(), 1 + i % 7)) for i in range(size)]
            (folder / f"{split}.{lang}").write_text("".join(line + "\n" for line in lines))
        argv += [f"--{split}", str(folder / split)]
    return argv


@pytest.fixture(scope="module", params=PIECES)
def prepared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict, Path, list[str]]:
    folder = tmp_path_factory.mktemp("bitext")
    pieces = PIECES[request.param]
    argv = ["prepare", *write_bitext(folder), *pieces, "--root", str(folder / "root")]
    done = data_prep(*argv)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder, argv


def test_the_set_is_what_fairseq_trains_on(prepared: tuple) -> None:
    result, folder, _ = prepared
    data = Path(result["data"])
    dictionary = Dictionary.load(str(data / "dict.gl.txt"))
    assert (data / "dict.en.txt").read_bytes() == (data / "dict.gl.txt").read_bytes()
    assert len(set(dictionary.symbols)) == len(dictionary.symbols)
    for lang in ("gl", "en"):
        sentences = data_utils.load_indexed_dataset(str(data / f"test.gl-en.{lang}"), dictionary)
        pieces = "".join(dictionary.string(sentences[i]) + "\n" for i in range(len(sentences)))
        undone = data_prep("undo", str(data), stdin=pieces)
        assert undone.stdout == (folder / f"test.{lang}").read_text()
    assert (data / "reference.dev.en").read_text() == (folder / "dev.en").read_text()


def test_length_percentile_is_over_both_sides_of_train(prepared: tuple) -> None:
    result, _, _ = prepared
    subword = next((Path(result["data"]).parent).glob("subword-*[0-9a-f]"))
    lengths = [
        len(line.split())
        for lang in ("gl", "en")
        for line in (subword / f"train.{lang}").read_text().splitlines()
    ]
    assert result["length_percentile"] == np.percentile(lengths, 97.5)
    length = result["length_percentile"]
    assert result["g_init"] == pytest.approx(np.log2(length**2 - length))


def test_a_rerun_changes_nothing_and_an_option_only_what_depends_on_it(prepared: tuple) -> None:
    result, folder, argv = prepared
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.suffix != ".lock"}
    again = data_prep(*argv)
    assert json.loads(again.stdout) == result
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.suffix != ".lock"} == before
    assert "clean: making" in data_prep(*argv, "--max-tokens", "3").stderr
    other = data_prep(*argv, "--subword-size", "19")
    assert "bitext: found" in other.stderr
    assert "clean: found" in other.stderr
    assert "subword: making" in other.stderr
    assert json.loads(other.stdout)["digest"] != result["digest"]


def test_subwords_are_learned_on_train_alone(prepared: tuple, tmp_path: Path) -> None:
    result, folder, argv = prepared
    shutil.copytree(folder, tmp_path / "copy")
    for name in ("dev.gl", "test.en"):
        path = tmp_path / "copy" / name
        path.write_text("novo novo novo\n" * path.read_text().count("\n"))
    moved = [a.replace(str(folder), str(tmp_path / "copy")) for a in argv]
    again = json.loads(data_prep(*moved).stdout)
    assert again["digest"] != result["digest"]
    before, after = (Path(r["data"]) for r in (result, again))
    for path in (*before.glob("subword*"), *before.glob("dict.*"), *before.glob("train.*")):
        assert (after / path.name).read_bytes() == path.read_bytes()


def test_the_same_input_elsewhere_gives_the_same_digest(prepared: tuple, tmp_path: Path) -> None:
    result, folder, argv = prepared
    shutil.copytree(folder, tmp_path / "copy")
    moved = [a.replace(str(folder), str(tmp_path / "copy")) for a in argv]
    shutil.rmtree(tmp_path / "copy" / "root")
    again = json.loads(data_prep(*moved).stdout)
    assert again["digest"] == result["digest"]
    assert again["data"] != result["data"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "dev.en").write_text("one\n"), r"dev.gl has 5 lines but .*dev.en has 1"),
        (lambda f: (f / "train.gl").write_bytes(b"\x80\n"), "train.gl, line 1: not UTF-8"),
        (lambda f: (f / "test.en").write_text(""), "test.en: the file is empty"),
        (lambda f: (f / "test.en").unlink(), "language 'en' is not in this bitext"),
        (lambda f: (f / "root").write_text(""), r"root: (File exists|Not a directory)"),
    ],
    ids=["unequal", "binary", "empty", "missing", "root"],
)
def test_bad_input_is_one_clear_error(tmp_path: Path, damage, message: str) -> None:
    argv = write_bitext(tmp_path)
    damage(tmp_path)
    done = data_prep("prepare", *argv, *TINY, "--root", str(tmp_path / "root"))
    assert done.returncode == 1
    assert re.search(f"^error: .*{message}", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("root/*-*[0-9a-f]"))
    assert not list(tmp_path.glob("root/*.partial"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--subword-size", "9"], "error: cannot learn 9 subword types"),
        (["--subword-size", "-3"], "error: size=-3 is not allowed: legal is at least 1"),
        (["--min-script", "1.5"], "error: min_script=1.5 is not allowed: legal is over 0, up to 1"),
        (["--max-ratio", "nan"], "error: max_ratio=nan is not allowed"),
        (["--workers", "0"], "error: workers=0 is not allowed"),
        (["--published-length", "nan"], "error: published_length=nan is not allowed"),
        (["--toy-seed", "1"], "by exactly one of --source, --toy-seed, and all of --train, --dev"),
        (["--source", "ted"], "by exactly one of --source"),
        (["--raw", "valid"], "invalid choice: 'valid' (choose from 'train', 'dev', 'test')"),
        (["--max-ratio", "0.5"], "error: max_ratio=0.5 is not allowed"),
        (["--max-tokens", "1", "--ratio-from", "1", "-t", "gl"], "are both 'gl'"),
        (["--max-token", "5"], "unrecognized arguments: --max-token 5"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_bad_options_leave_nothing_half_written(
    tmp_path: Path, argv: list[str], message: str
) -> None:
    root = tmp_path / "root"
    done = data_prep("prepare", *write_bitext(tmp_path), *TINY, *argv, "--root", str(root))
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert not list(root.glob("*.partial"))


def test_a_full_disk_is_one_clear_error_and_earlier_stages_stay(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small tmpfs")
    try:
        argv = write_bitext(tmp_path, train=9000)
        done = data_prep("prepare", *argv, *TINY, "--root", str(disk))
        assert done.returncode == 1
        assert "error: no space left on the disk" in done.stderr
        assert "Traceback" not in done.stderr
        assert not list(disk.glob("*.partial"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_raw_text_keeps_its_own_reference(tmp_path: Path) -> None:
    argv = write_bitext(tmp_path)
    (tmp_path / "dev.en").write_text("One, two.\n" * 5)
    done = data_prep("prepare", *argv, *TINY, "--root", str(tmp_path / "root"), "--raw", "dev")
    data = Path(json.loads(done.stdout)["data"])
    assert (data / "plain.dev.en").read_text() == "One, two.\n" * 5
    assert (data / "reference.dev.en").read_text() == "One , two .\n" * 5
    assert not list(data.glob("plain.test.*"))


def test_stray_characters_are_replaced_when_asked(tmp_path: Path) -> None:
    argv = write_bitext(tmp_path)
    with (tmp_path / "train.gl").open("a") as gl, (tmp_path / "train.en").open("a") as en:
        gl.write("un\x0cdous\n")
        en.write("one\n")
    argv = ["prepare", *argv, *TINY, "--root", str(tmp_path / "root")]
    assert "error: " in data_prep(*argv).stderr
    done = data_prep(*argv, "--stray", "space")
    assert json.loads(done.stdout)["lines"]["train"] == 41
    assert re.search(r"\| train +\| +41 \| +41 \| +1 \|", done.stderr)


def test_the_report(tmp_path: Path) -> None:
    argv = write_bitext(tmp_path)
    with (tmp_path / "train.gl").open("a") as gl, (tmp_path / "train.en").open("a") as en:
        for i in range(3):
            gl.write("\n")
            en.write(f"one {i}\n")
    (tmp_path / "dev.gl").write_text("un dous\nnovo tres\nseis \u2581 un\nun\nun\n")
    done = data_prep(
        *("prepare", *argv, *TINY, "--root", str(tmp_path / "root")),
        *("--published-length", "72"),
    )
    assert done.returncode == 0, done.stderr
    folder = Path(json.loads(done.stdout)["report"])
    report = json.loads((folder / "report.json").read_text())
    assert report["lines"]["train"] | {"in": 43, "empty": 3, "out": 40} == report["lines"]["train"]
    dev = report["files"]["dev.gl"]
    assert (dev["words"], dev["word_types"], dev["unseen_word_types"]) == (9, 6, 3)
    assert dev["unseen_share"] == 0.5
    assert dev["unknown_tokens"] >= 2
    assert dev["lines_in_train"] == 2
    assert (dev["lossy_lines"], dev["lossy"]) == (1, [3])
    lengths = report["files"]["train.en"]["percentiles"]
    assert lengths["50"] <= lengths["90"] <= lengths["97.5"] <= lengths["99"]
    said = (folder / "report.md").read_text()
    assert said in done.stderr
    assert re.search(r"\| train +\| +43 \| +3 \| +40 \|", said)
    assert "Not given back: dev.gl, lines 3." in said
    assert f"{report['length_percentile']:g} (published: 72); g starts at" in said
    svg = (folder / "lengths.svg").read_text()
    assert "length (subword tokens)" in svg
    (dropped,) = (tmp_path / "root").glob("clean-*/dropped.tsv")
    assert dropped.read_text() == "".join(f"empty\t{41 + i}\t\tone {i}\n" for i in range(3))


def test_published_sources_are_listed(tmp_path: Path) -> None:
    done = data_prep("sources")
    assert done.returncode == 0
    for part in ("iwslt15.en-vi", "ted_talks.tar.gz: 352222045 bytes", "CC BY-NC-ND"):
        assert part in done.stdout
    done = data_prep("download", "ted", "--downloads", str(tmp_path))
    assert done.returncode == 1
    assert "error: source 'ted' is not known: legal is one of ['iwslt15.en-vi'" in done.stderr


def test_filters_explain_bad_input(tmp_path: Path) -> None:
    done = data_prep("prepare", "--train", "/", "--dev", "/", "--test", "/", *TINY, "--root", "x")
    assert "error: / is a folder: give the files' prefix" in done.stderr
    bad = subprocess.run(
        [sys.executable, "-m", "data_prep", "detokenise", "en"],
        cwd=ROOT,
        input=b"\xff\n",
        capture_output=True,
        check=False,
    )
    assert bad.returncode == 1
    assert b"error: standard input is not UTF-8" in bad.stderr


def test_the_toy_pair_has_its_own_languages(tmp_path: Path) -> None:
    done = data_prep("prepare", "--toy-seed", "1", "-s", "gl", *TINY, "--root", str(tmp_path))
    assert done.returncode == 1
    assert "error: the toy pair's languages are qaa and qab, not gl and qab" in done.stderr


def test_undo_of_something_else_is_refused(tmp_path: Path) -> None:
    done = data_prep("undo", str(tmp_path), stdin="a\n")
    assert done.returncode == 1
    assert "is no prepared set" in done.stderr


def test_real_bitext_passes_every_check(data_dir: Path, tmp_path: Path) -> None:
    argv = ["-s", "gl", "-t", "en", "--subword-size", "3000", "--root", str(tmp_path)]
    for split in ("train", "dev", "test"):
        argv += [f"--{split}", str(data_dir / "ted_gl_en" / split)]
    done = data_prep("prepare", *argv, "--subwords", "subword_nmt")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["lines"] == {"train": 11233, "dev": 742, "test": 1112}
    report = json.loads((Path(result["report"]) / "report.json").read_text())
    assert sum(file["lossy_lines"] for file in report["files"].values()) == 0
    # Of the English lines, as the data's description counts them.
    assert report["files"]["dev.en"]["lines_in_train"] == 9
    assert report["files"]["test.en"]["lines_in_train"] == 15
    modern = ["--normalise", "--max-ratio", "2", "--min-script", "0.5", "--drop-duplicates"]
    done = data_prep("prepare", *argv, "--subwords", "sentencepiece_bpe", *modern)
    result = json.loads(done.stdout)
    assert "bitext: found" in done.stderr
    assert result["lines"] == {"train": 10317, "dev": 742, "test": 1112}
    assert sum(result["dropped"].values()) == 11233 - 10317
    stock, ours = fills(Path(result["data"]))
    assert stock < 0.82 and ours > 0.91


def fills(folder: Path) -> tuple[float, float]:
    """How full batches of 4,096 positions are, in fairseq's order and by the longer side."""
    dictionary = Dictionary.load(str(folder / "dict.gl.txt"))
    sides = []
    for lang in ("gl", "en"):
        side = data_utils.load_indexed_dataset(str(folder / f"train.gl-en.{lang}"), dictionary)
        sides += [side, side.sizes, dictionary]
    bitext = LanguagePairDataset(*sides)
    result = []
    for dataset in (bitext, ByLongerSide(bitext)):
        batches = dataset.batch_by_size(dataset.ordered_indices(), max_tokens=4096)
        result.append(fill(batches, bitext.src_sizes, bitext.tgt_sizes))
    return result[0], result[1]
