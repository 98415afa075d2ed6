"""Subwords of each kind: learned as by the tools themselves, undone without loss."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from subword_nmt.apply_bpe import BPE, read_vocabulary
from subword_nmt.learn_bpe import learn_bpe

from data_prep.subword import CODES, METHODS, MODEL, SubwordConfig, learn, load, undo
from data_prep.text import PrepError
from data_prep.toy import generate

LANGS = ("qaa", "qab")
TRAIN = generate(1)["train"]
SIDES = {lang: [pair[i] for pair in TRAIN] for i, lang in enumerate(LANGS)}
COUNTS = {
    lang: Counter(word for line in lines for word in line.split()) for lang, lines in SIDES.items()
}


@pytest.fixture(scope="module", params=METHODS)
def learned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    learn(COUNTS, SubwordConfig(request.param, 300), folder)
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(st.characters(exclude_categories=["Z", "C"], exclude_characters="\u2581@")))
def test_any_words_come_back(learned: Path, text: str) -> None:
    line = " ".join([*text[:20], text, "fesa", text])
    line = " ".join(line.split())
    subwords = load(learned)
    for lang in LANGS:
        assert subwords.decode(subwords.encode([line], lang)) == [line]


def test_train_comes_back_and_is_really_cut(learned: Path) -> None:
    subwords = load(learned)
    for lang, lines in SIDES.items():
        pieces = subwords.encode(lines, lang)
        assert subwords.decode(pieces) == lines
        assert sum(map(len, map(str.split, pieces))) > 1.1 * sum(COUNTS[lang].values())


def test_fairseqs_own_undoing_is_the_same(learned: Path) -> None:
    subwords = load(learned)
    name = "subword_nmt" if subwords.method == "subword_nmt" else "sentencepiece"
    pieces = subwords.encode(SIDES["qab"][:500], "qab")
    assert [post_process(line, name) for line in pieces] == SIDES["qab"][:500]
    cut_off = ["<unk> " + " ".join(line.split(" ")[:3]) for line in pieces]
    assert [post_process(line, name) for line in cut_off] == subwords.decode(cut_off)


def test_no_piece_is_one_of_fairseqs_special_symbols(tmp_path: Path) -> None:
    special = ["<s>", "</s>", "<pad>", "<unk>"]
    for method in METHODS:
        folder = tmp_path / method
        folder.mkdir()
        counts = {lang: COUNTS[lang] + Counter(dict.fromkeys(special, 500)) for lang in LANGS}
        learn(counts, SubwordConfig(method, 300), folder)
        (line,) = load(folder).encode([" ".join(special)], "qaa")
        assert not set(special) & set(line.split())
        assert load(folder).decode([line]) == [" ".join(special)]
        dictionary = Dictionary()
        for piece in line.split():
            dictionary.add_symbol(piece)
        dictionary.save(str(folder / "dict.txt"))
        assert Dictionary.load(str(folder / "dict.txt")).symbols == dictionary.symbols


def test_merges_are_subword_nmts_own(tmp_path: Path) -> None:
    learn(COUNTS, SubwordConfig("subword_nmt", 300), tmp_path)
    codes = io.StringIO()
    learn_bpe([line + "\n" for side in SIDES.values() for line in side], codes, 300)
    assert (tmp_path / CODES).read_text() == codes.getvalue()
    assert codes.getvalue().count("\n") == 301  # as many merges as were asked for


@pytest.mark.parametrize("threshold", [1, 50])
def test_pieces_are_subword_nmts_own_with_each_languages_vocabulary(
    tmp_path: Path, threshold: int
) -> None:
    learn(COUNTS, SubwordConfig("subword_nmt", 300, threshold), tmp_path)
    subwords = load(tmp_path)
    for lang, lines in SIDES.items():
        with (tmp_path / CODES).open() as codes:
            plain = BPE(codes)
            pieces = Counter(p for line in lines for p in plain.process_line(line).split())
            listed = [f"{piece} {count}\n" for piece, count in pieces.items()]
            own = BPE(codes, vocab=read_vocabulary(listed, threshold))
        expected = [own.process_line(line) for line in lines]
        assert subwords.encode(lines, lang) == expected
        other = next(other for other in LANGS if other != lang)
        assert subwords.encode(lines, other) != expected


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_is_learned_as_from_the_sentences_of_both_sides(
    tmp_path: Path, kind: str
) -> None:
    rare = {lang: words + Counter({"\u0416": 1}) for lang, words in COUNTS.items()}
    learn(rare, SubwordConfig(f"sentencepiece_{kind}", 300), tmp_path)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SIDES["qaa"], *SIDES["qab"], "\u0416", "\u0416"]),
        model_writer=model,
        model_type=kind,
        vocab_size=300,
        character_coverage=1.0,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ours = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / MODEL))
    pieces = [{p.id_to_piece(i) for i in range(300)} for p in (ours, theirs)]
    assert len(pieces[0] & pieces[1]) > (295 if kind == "bpe" else 250)
    assert "\u0416" in pieces[0]


def test_the_same_words_give_the_same_files(learned: Path, tmp_path: Path) -> None:
    config = json.loads((learned / "subwords.json").read_text())
    shuffled = {lang: Counter(dict(reversed(words.items()))) for lang, words in COUNTS.items()}
    learn(shuffled, SubwordConfig(config["method"], 300), tmp_path)
    for path in learned.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [9, 90_000])
def test_a_size_that_the_text_cannot_give_is_refused(
    tmp_path: Path, method: str, size: int
) -> None:
    if method == "subword_nmt" and size == 9:
        return  # few merges are always there
    with pytest.raises(PrepError, match=rf"cannot learn {size} .*prep.subword_size"):
        learn(COUNTS, SubwordConfig(method, size), tmp_path)


def test_undoing_with_another_method_is_refused(learned: Path, tmp_path: Path) -> None:
    subwords = load(learned)
    for method in METHODS:
        folder = tmp_path / method
        folder.mkdir()
        learn(COUNTS, SubwordConfig(method, 250), folder)
        pieces = load(folder).encode(SIDES["qab"][:20], "qab")
        if (method == "subword_nmt") == (subwords.method == "subword_nmt"):
            assert undo(pieces, learned) == SIDES["qab"][:20]
        else:
            with pytest.raises(PrepError, match=f"has pieces of {subwords.method}, but these"):
                undo(pieces, learned)
    if subwords.method != "subword_nmt":
        with pytest.raises(PrepError, match="nothing shows where a word begins"):
            undo(["the cat sat"], learned)
        assert undo(["the cat sat"], learned, own=True) == ["thecatsat"]
    assert undo([], learned) == []
    assert undo([""], learned) == [""]


def test_a_folder_without_subwords(tmp_path: Path) -> None:
    with pytest.raises(PrepError, match="is no prepared set"):
        load(tmp_path)
    for method in METHODS:
        folder = tmp_path / method
        folder.mkdir()
        learn(COUNTS, SubwordConfig(method, 100), folder)
        (folder / (CODES if method == "subword_nmt" else MODEL)).unlink()
        with pytest.raises(PrepError, match="is no prepared set"):
            load(folder)


def test_text_of_single_letters(tmp_path: Path) -> None:
    counts = {lang: Counter("abc") for lang in LANGS}
    with pytest.raises(PrepError, match="cannot learn 5 merges from the training text, only 0"):
        learn(counts, SubwordConfig("subword_nmt", 5), tmp_path)
