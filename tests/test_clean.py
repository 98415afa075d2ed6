"""Cleaning turns lines into words, drops pairs as pairs, and says how many by which rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.clean import RULES, SAMPLE, CleanConfig, Tally, clean, detokenise, to_words

LANGS = ("gl", "en")
WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=9).map(" ".join)


def cleaned(pairs: list, config: CleanConfig, **more: Any) -> tuple[list, dict[str, int]]:
    tally = Tally()
    kept = list(clean(pairs, LANGS, config, tally=tally, **more))
    assert set(tally.dropped) == set(RULES)
    return kept, {rule: count for rule, count in tally.dropped.items() if count}


def words(line: str, lang: str, raw: bool = True, **options: Any) -> str:
    ((source, target),) = to_words([(line, line)], (lang, lang), raw, CleanConfig(**options))
    assert source == target
    return source


def test_as_published_only_empty_and_over_long_pairs_go() -> None:
    pairs = [
        ("a b c", "x y z"),
        ("", "x"),
        ("a", " \u00a0"),
        ("a b c", "x y z"),
        ("a " * 200 + "a", "x " * 199 + "x"),
        ("b " * 199 + "b", "x " * 199 + "x"),
        ("a b c d e f g h", "x"),
        ("\u0431\u0432", "\u0431"),
    ]
    kept, dropped = cleaned(pairs, CleanConfig())
    assert kept == [pairs[0], pairs[3], *pairs[5:]]
    assert dropped == {"empty": 2, "too_long": 1}


def test_each_rule_is_counted() -> None:
    pairs = [
        ("a b c", "x y z"),
        ("a b c", "x y z"),
        ("a b c d e f", "x y"),
        ("a b c d e f", "x y z"),
        ("a b c d e", "x"),  # too short for the ratio to mean anything
        ("a b c", "x y"),
        ("\u0431\u0432\u0433 a", "x y"),
        ("ab \u0431\u0432", "x y"),
        ("12 -- 3 !", "?"),  # no letters: no script
        ("held out", "anew"),
        ("anew", "also held out"),
    ]
    config = CleanConfig(max_ratio=2.0, min_script=0.5, drop_overlap=True, drop_duplicates=True)
    held_out = ({"held out"}, {"also held out", "held out"})
    kept, dropped = cleaned(pairs, config, held_out=held_out)
    assert kept == [pairs[0], *pairs[3:6], *pairs[7:9]]
    assert dropped == {"length_ratio": 1, "script": 1, "overlap": 2, "duplicate": 1}


def test_what_dev_and_test_share_with_train_is_told_also_where_it_stays() -> None:
    tally = Tally()
    pairs = [("a", "x"), ("b", "y"), ("c", "z")]
    assert list(clean(pairs, LANGS, CleanConfig(), ({"a", "q"}, {"y"}), tally)) == pairs
    assert tally.shared == ({"a"}, {"y"})
    tally = Tally()
    config = CleanConfig(drop_overlap=True)
    assert list(clean(pairs, LANGS, config, ({"a", "q"}, {"y"}), tally)) == pairs[2:]
    assert tally.shared == (set(), set())


@given(st.lists(st.tuples(WORDS, WORDS)))
def test_nothing_is_lost_uncounted(pairs: list[tuple[str, str]]) -> None:
    config = CleanConfig(max_tokens=6, max_ratio=2.0, drop_duplicates=True)
    kept, dropped = cleaned(pairs, config)
    assert len(kept) + sum(dropped.values()) == len(pairs)
    assert cleaned(kept, config) == (kept, {})


def test_the_result_does_not_depend_on_the_number_of_workers() -> None:
    pairs = [(f"word{i % 30011} a", f"x{i % 30011}") for i in range(41_000)]
    config = CleanConfig(drop_duplicates=True)
    one = cleaned(pairs, config, workers=1)
    assert cleaned(pairs, config, workers=2) == one
    assert one[1] == {"duplicate": 41_000 - 30_011}


def test_samples_show_what_each_rule_dropped_with_its_line() -> None:
    tally = Tally()
    pairs = [("", f"x{i}") for i in range(1000)] + [("a", "x")]
    list(clean(pairs, LANGS, CleanConfig(), tally=tally))
    rows = [row.split("\t") for row in tally.rows()]
    assert len(rows) == SAMPLE
    assert all(row == ["empty", row[1], "", f"x{int(row[1]) - 1}"] for row in rows)
    assert 300 < sum(int(row[1]) for row in rows) / SAMPLE < 700  # neither the first nor the last
    assert [int(row[1]) for row in rows] == sorted(int(row[1]) for row in rows)
    again = Tally()
    list(clean(pairs, LANGS, CleanConfig(), tally=again))
    assert list(again.rows()) == list(tally.rows())


def test_tokenised_text_only_has_its_spaces_squeezed() -> None:
    assert words(" a  b\tc ", "gl", raw=False) == "a b c"
    assert words("10\u00a0000 &apos;s\u3000y\u200b", "gl", raw=False) == "10 000 &apos;s y\u200b"


def test_raw_text_is_tokenised_as_moses_does_and_back() -> None:
    raw = ['Isn\'t it "odd", he said?', "A & B"]
    first, second = (words(line, "en") for line in raw)
    assert first == "Isn &apos;t it &quot; odd &quot; , he said ?"
    assert second == "A &amp; B"
    assert detokenise([first, second, ""], "en") == [*raw, ""]


def test_normalised_text_is_tokenised_without_entities() -> None:
    assert words("Isn\u2019t it \u201codd\u201d?", "en", normalise=True) == 'Isn \'t it " odd " ?'
    tokenised = "Isn &apos;t it &quot; odd &quot; ?"
    assert words(tokenised, "en", raw=False, normalise=True) == 'Isn \'t it " odd " ?'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('דו"ח של צה"ל', 'דו"ח של צה"ל'),
        ("דו״ח על ג׳ירפה", "דו\"ח על ג'ירפה"),
        ('הוא אמר "שלום" לצה"ל.', 'הוא אמר " שלום " לצה"ל .'),
    ],
)
def test_hebrew_acronyms_stay_whole(line: str, expected: str) -> None:
    assert words(line, "he", normalise=True) == expected
    assert words('צה"ל', "he") == "צה &quot; ל"  # as plain Moses has it


def test_a_line_with_very_many_acronyms_is_no_trap() -> None:
    line = ' צה"ל' * 1500
    assert words(line, "he", normalise=True) == line.strip()
    address = "https://" + "x" * 4000
    assert words(f'צה"ל {address}', "he", normalise=True).replace(" ", "") == f'צה"ל{address}'
