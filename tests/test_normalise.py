"""The policy for each language, character by character."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.clean import CleanConfig, to_words
from data_prep.normalise import normalise, script_share, unescape


@pytest.mark.parametrize(
    ("lang", "line", "expected"),
    [
        ("ar", "كَمْ سَيَطولُ", "كم سيطول"),  # harakat
        ("ar", "جميـــل", "جميل"),  # tatweel
        ("ar", "\u200fنعم\u061c ، لا\u202c", "نعم ، لا"),  # directional marks
        ("ar", "أإآ ة ى ٣ ؟", "أإآ ة ى ٣ ؟"),  # letters and digits stay
        ("he", "שָׁלוֹם", "שלום"),  # niqqud
        ("he", "בית־ספר", "בית־ספר"),  # maqaf stays
        ("he", "צה״ל ג׳", "צה\"ל ג'"),  # gershayim and geresh
        ("en", "צה״ל", "צה״ל"),  # another language's policy
        ("vi", "tiê\u0301ng", "ti\u1ebfng"),  # NFC
        ("vi", "ho\u00e0 h\u00f2a", "ho\u00e0 h\u00f2a"),  # tone marks stay where they are
        ("gl", "\u00abOla\u00bb \u201cn\u0303\u201d", '"Ola" "\u00f1"'),
        ("sk", "\u201eAhoj\u201c \u2018c\u030c\u2019", "\"Ahoj\" '\u010d'"),
        ("ar_EG", "كَمْ", "كم"),
        ("fa", "\u0627\u0670\u06d6", "\u0627"),
        ("iw", "שָׁ", "ש"),
        ("en", "e\u200b\u0301 a\u00ad\u0301", "\u00e9 \u00e1"),  # NFC comes after dropping
        ("en", "\ufb01 \u00bd \uff12 x\u00b2", "\ufb01 \u00bd \uff12 x\u00b2"),  # not NFKC
        ("fa", "می\u200cخواهم", "می\u200cخواهم"),  # joiners stay
        ("en", "a\u2060b\u2064c\u202ed\u2066e\x07f", "abcdef"),
        ("en", "co\u00adop\u200b\ufeff", "coop"),
    ],
)
def test_policy(lang: str, line: str, expected: str) -> None:
    assert normalise(line, lang) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("&apos;s &quot; &amp; &lt;b&gt; &#91; &#x41;", "'s \" & <b> [ A"),
        ("AT&T &copy that & &bogus; &;", "AT&T &copy that & &bogus; &;"),
        ("&amp;quot;", "&quot;"),  # once
        ("&hellip;&CounterClockwiseContourIntegral;", "\u2026\u2233"),
        ("&copyfoo; &notit; &_; &\u00e9;", "&copyfoo; &notit; &_; &\u00e9;"),
    ],
)
def test_entities(line: str, expected: str) -> None:
    assert unescape(line) == expected


@given(st.text(), st.sampled_from(["ar", "he", "vi", "gl", "sk", "en"]))
def test_no_line_is_ever_broken_and_twice_is_once(line: str, lang: str) -> None:
    config = CleanConfig(normalise=True)
    entities = "&#10;&#13;&#x85;&#x2028;&NewLine;"
    (pair,) = to_words([(line + entities, line)], (lang, lang), False, config)
    for side in pair:
        assert side.splitlines() in ([side], [])
        assert " ".join(side.split()) == side
        assert unicodedata.is_normalized("NFC", side)
    assert normalise(pair[1], lang) == pair[1]


@pytest.mark.parametrize(
    ("lang", "line", "share"),
    [
        ("ar", "مرحبا abc", 5 / 8),
        ("he", "abc", 0.0),
        ("he", "123 !", 1.0),
        ("sk", "čaj", 1.0),
        ("vi", "tiếng Việt", 1.0),
        ("ja", "日本のテスト", 1.0),
        ("sr", "abв", 1.0),
        ("uk", "привіт", 1.0),
        ("AR-sa", "مرحبا", 1.0),
        ("zh_cn", "日本", 1.0),
    ],
)
def test_share_of_the_languages_own_script(lang: str, line: str, share: float) -> None:
    assert script_share(line, lang) == pytest.approx(share)
