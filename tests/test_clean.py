"""Cleaning drops pairs as pairs, and says how many by which rule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from data_prep.clean import CleanConfig, clean, detokenise, tokenise

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=9).map(" ".join)


def test_each_rule_is_counted() -> None:
    pairs = [
        ("a b c", "x y z"),
        ("", "x"),
        ("a", ""),
        ("a b c", "x y z"),
        ("a " * 200 + "a", "x " * 199 + "x"),
        ("b " * 199 + "b", "x " * 199 + "x"),
        ("a b c d e f", "x y"),
        ("a b c d e f", "x y z"),
        ("a b c d e", "x"),  # too short for the ratio to mean anything
        ("a b c", "x y"),
    ]
    kept, dropped = clean(pairs, CleanConfig(max_tokens=200, max_ratio=2.0, ratio_from=6))
    assert kept == [
        ("a b c", "x y z"),
        ("b " * 199 + "b", "x " * 199 + "x"),
        ("a b c d e f", "x y z"),
        ("a b c d e", "x"),
        ("a b c", "x y"),
    ]
    assert dropped == {"empty": 2, "too_long": 1, "length_ratio": 1, "duplicate": 1}


def test_duplicates_may_stay() -> None:
    kept, dropped = clean([("a", "b")] * 3, CleanConfig(drop_duplicates=False))
    assert len(kept) == 3
    assert dropped["duplicate"] == 0


@given(st.lists(st.tuples(WORDS, WORDS)))
def test_nothing_is_lost_uncounted(pairs: list[tuple[str, str]]) -> None:
    kept, dropped = clean(pairs, CleanConfig(max_tokens=6))
    assert len(kept) + sum(dropped.values()) == len(pairs)
    again, nothing = clean(kept, CleanConfig(max_tokens=6))
    assert again == kept
    assert not any(nothing.values())


def test_tokenised_text_only_has_its_spaces_squeezed() -> None:
    pairs = [(" a  b\tc ", "10\u00a0000 &apos;s\u3000y\u200b")]
    assert tokenise(pairs, ("gl", "en"), raw=False) == [("a b c", "10 000 &apos;s y\u200b")]


def test_raw_text_is_tokenised_as_moses_does_and_back() -> None:
    raw = ['Isn\'t it "odd", he said?', "A & B"]
    ((first, _), (second, _)) = tokenise(zip(raw, raw, strict=True), ("en", "en"), raw=True)
    assert first == "Isn &apos;t it &quot; odd &quot; , he said ?"
    assert second == "A &amp; B"
    assert detokenise([first, second, ""], "en") == [*raw, ""]
