"""Strict reading: what would shift lines against each other is refused, by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.text import LineReader, PrepError, iter_bitext, iter_lines


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"one\ntw\xffo\n", r"a.gl, line 2: not UTF-8 \(byte 0xff\)"),
        (b"one\r\ntwo\r\n", "a.gl, line 1: carriage return"),
        ("one\ntwo\x85three\n".encode(), r"a.gl, line 2: next line U\+0085"),
        ("one\ntwo\u2028three\n".encode(), r"a.gl, line 2: line separator U\+2028"),
        ("one\n\ntwo\u2029three\n".encode(), r"a.gl, line 3: paragraph separator U\+2029"),
        (b"one\ntwo\x0cthree\n", "a.gl, line 2: form feed"),
        (b"one\ntwo\x0bthree\n", "a.gl, line 2: vertical tab"),
        (b"\x7fELF\x00\x01\n", "a.gl, line 1: NUL"),
        *(
            (b"one\ntwo" + bytes([code]) + b"three\n", rf"line 2: control character U\+{code:04X}")
            for code in range(0x1C, 0x20)
        ),
        ("\ufeffone\n".encode(), r"a.gl, line 1: byte order mark"),
    ],
    ids=lambda x: None if isinstance(x, str) else repr(x)[:30],
)
def test_stray_characters_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.gl"
    path.write_bytes(data)
    with pytest.raises(PrepError, match=message):
        list(iter_lines(path))


def test_stray_characters_can_be_replaced_and_never_change_the_number_of_lines(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.gl"
    path.write_bytes("\ufeffone\r\na\x85b\u2028c\u2029d\n\ne\x0cf\x00g\x1eh\x0bi\n".encode())
    reader = LineReader("a.gl", replace=True)
    assert list(iter_lines(path, reader)) == ["one ", "a b c d", "", "e f g h i"]
    assert reader.replaced == 3


def test_lines_are_cut_at_newlines_only(tmp_path: Path) -> None:
    path = tmp_path / "a.gl"
    path.write_bytes("one\u00a0word\u3000\n\ntwo\tthree".encode())
    assert list(iter_lines(path)) == ["one\u00a0word\u3000", "", "two\tthree"]


@pytest.mark.parametrize(("gl", "en"), [(3, 2), (2, 3)])
def test_unequal_line_counts_name_both_files(tmp_path: Path, gl: int, en: int) -> None:
    (tmp_path / "train.gl").write_text("a\n" * gl)
    (tmp_path / "train.en").write_text("a\n" * en)
    message = rf"train.gl has {gl} lines but .*train.en has {en}: .*partner is 3"
    with pytest.raises(PrepError, match=message):
        list(iter_bitext(tmp_path / "train", ("gl", "en")))


def test_a_language_that_is_not_in_the_pair(tmp_path: Path) -> None:
    for lang in ("gl", "en"):
        (tmp_path / f"train.{lang}").write_text("a\n")
    with pytest.raises(PrepError, match=r"'pt' is not in this bitext, which has \['en', 'gl'\]"):
        list(iter_bitext(tmp_path / "train", ("pt", "en")))


def test_missing_folder_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PrepError, match=r"the folder .*nowhere does not exist"):
        list(iter_bitext(tmp_path / "nowhere" / "train", ("gl", "en")))
    with pytest.raises(PrepError, match=r"nor any other named train\.\*"):
        list(iter_bitext(tmp_path / "train", ("gl", "en")))
