"""What ``prep=modern`` does to a line before tokenisation, language by language.

=============  =====================================================================================
all            NFC; entities unescaped; invisible characters (zero-width, bidirectional marks,
               soft hyphen, controls) dropped; typographic quotes to ASCII ones; white space to
               single spaces
Arabic         tatweel and diacritics (harakat, Quranic marks) dropped; letters, digits and the
               Arabic comma and question mark stay
Hebrew         points and cantillation dropped; gershayim and geresh to ASCII quotes, which inside
               a word (an acronym) do not split it
Vietnamese     NFC only: tone marks stay where the writer put them
=============  =====================================================================================

Nothing is transliterated or lower-cased, and punctuation keeps its order, so that a reference that
was normalised is still what the translator wrote.
"""

from __future__ import annotations

import html
import unicodedata
from functools import cache
from html.entities import html5

import regex

# With its semicolon, so that "AT&T" and "&copy that" stay what they are.
ENTITY = regex.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
INVISIBLE = regex.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"
)
QUOTES = str.maketrans(
    dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033", '"')
    | dict.fromkeys("\u2018\u2019\u201a\u201b\u2039\u203a\u2032\u00b4", "'")
)
ARABIC_MARKS = regex.compile(
    "[\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed]"
)
HEBREW_POINTS = regex.compile("[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]")
HEBREW_QUOTES = str.maketrans({"\u05f4": '"', "\u05f3": "'"})
# What Moses tokenisation must leave alone.
HEBREW_ACRONYM = r"[\u05d0-\u05ea]+(?:[\"'][\u05d0-\u05ea]+)+"

ARABIC, HEBREW, LATIN = r"\p{Arabic}", r"\p{Hebrew}", r"\p{Latin}"
# Scripts of languages that are not written in Latin letters (those of the TED talks among them).
SCRIPTS = {
    ARABIC: "ar ara arb fa fas per ur urd ku ckb ps",
    r"\p{Armenian}": "hy hye",
    r"\p{Bengali}": "bn",
    r"\p{Cyrillic}": "be bel bg bul kk ky mk mn ru rus tg uk ukr",
    r"\p{Cyrillic}\p{Latin}": "sr",
    r"\p{Devanagari}": "hi hin mr ne",
    r"\p{Ethiopic}": "am ti",
    r"\p{Georgian}": "ka kat",
    r"\p{Greek}": "el ell gre",
    r"\p{Gujarati}": "gu",
    r"\p{Han}": "zh zho chi cmn",
    r"\p{Han}\p{Hiragana}\p{Katakana}ー": "ja jpn",
    r"\p{Hangul}\p{Han}": "ko kor",
    HEBREW: "he heb iw yi",
    r"\p{Kannada}": "kn",
    r"\p{Khmer}": "km",
    r"\p{Lao}": "lo",
    r"\p{Malayalam}": "ml",
    r"\p{Myanmar}": "my",
    r"\p{Sinhala}": "si",
    r"\p{Tamil}": "ta",
    r"\p{Telugu}": "te",
    r"\p{Thai}": "th tha",
}
SCRIPT_OF = {lang: script for script, langs in SCRIPTS.items() for lang in langs.split()}
LETTER = regex.compile(r"\p{L}")


def unescape(line: str) -> str:
    """Character and entity references to characters, once; white space they stand for included."""
    return ENTITY.sub(character, line) if "&" in line else line


def character(entity: regex.Match[str]) -> str:
    text = entity.group()
    return html.unescape(text) if text[1] == "#" else html5.get(text[1:], text)


def normalise(line: str, lang: str) -> str:
    """A line by its language's policy (see the module's table); spaces are not squeezed yet."""
    line = unicodedata.normalize("NFC", INVISIBLE.sub("", line)).translate(QUOTES)
    if script_of(lang) == ARABIC:
        line = ARABIC_MARKS.sub("", line)
    elif script_of(lang) == HEBREW:
        line = HEBREW_POINTS.sub("", line).translate(HEBREW_QUOTES)
    return line


def script_share(line: str, lang: str) -> float:
    """Share of a line's letters that are of its language's script; 1 if it has no letters."""
    letters = LETTER.findall(line)
    if not letters:
        return 1.0
    return len(own_letters(lang).findall("".join(letters))) / len(letters)


@cache
def own_letters(lang: str) -> regex.Pattern[str]:
    return regex.compile(f"[{script_of(lang)}]")


def script_of(lang: str) -> str:
    """By the code's first part: ``zh-cn`` and ``ar_EG`` are written like ``zh`` and ``ar``."""
    return SCRIPT_OF.get(lang.lower().replace("_", "-").split("-")[0], LATIN)
