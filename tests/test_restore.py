"""A prepared set's preprocessing, for sentences of a person."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from data_prep import restore, subword
from data_prep.__main__ import main
from data_prep.stage import MANIFEST
from data_prep.text import PrepError

WORDS = Counter({"the": 9, "sea": 5, '"': 4, "&quot;": 4, "&apos;s": 2, ".": 8, "it": 6, "'s": 3})


def prepared(folder: Path, method: str, normalise: bool) -> Path:
    size = {"subword_nmt": 12, "sentencepiece_bpe": 40}[method]
    subword.learn({"en": WORDS, "gl": WORDS}, subword.SubwordConfig(method, size), folder)
    report = {"source_lang": "en", "target_lang": "en", "normalise": normalise}
    (folder / MANIFEST).write_text(json.dumps({"report": report}))
    return folder


@pytest.mark.parametrize("method", ["subword_nmt", "sentencepiece_bpe"])
@pytest.mark.parametrize("normalise", [False, True])
def test_what_was_encoded_is_restored(tmp_path: Path, method: str, normalise: bool) -> None:
    data = prepared(tmp_path, method, normalise)
    encode = restore.encoder(data, tokenised=False)
    undo, words = restore.restorer(data, tokenised=False), restore.restorer(data, tokenised=True)
    assert undo(encode('It\'s "the sea".')) == 'It\'s "the sea".'
    quote, s = ('"', "'s") if normalise else ("&quot;", "&apos;s")
    assert words(encode('It\'s "the sea".')) == f"It {s} {quote} the sea {quote} ."
    assert words(encode("\u201csea\u201d")) == ('" sea "' if normalise else "\u201c sea \u201d")
    assert encode("") == encode("   ") == words("") == undo("") == ""


def test_tokenised_text_is_cut_at_its_spaces_alone(tmp_path: Path) -> None:
    data = prepared(tmp_path, "subword_nmt", normalise=False)
    encode = restore.encoder(data, tokenised=True)
    assert restore.restorer(data, tokenised=True)(encode("the sea.")) == "the sea."
    # Characters that fairseq, or Python, would take for the end of a line or of a word.
    assert encode("the\u2028sea\rthe\x0bsea") == encode("the sea the sea")


def test_no_prepared_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PrepError, match="is no prepared set of this version"):
        restore.encoder(tmp_path, tokenised=False)
    assert main(["encode", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: ")
