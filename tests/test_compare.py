"""Buckets and n-grams as compare-mt has them; which systems are compared, and how it is shown."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import buckets, compare, sections
from experiments.collect import COLUMNS
from experiments.commands import RunError, digest_of
from experiments.lines import read_lines, to_text
from experiments.score import make_metric, sentence_stats, text_digest

# compare-mt 0.2.10 on ted_sk_en, system1.en and system2.en against test.en:
#   --compare_word_accuracies bucket_type=freq,freq_corpus_file=standin_sk_en/train.en,
#       bucket_cutoffs=1:2:3:4:5:10:100:1000,acc_type=prec+rec+fmeas
#   --compare_sentence_buckets bucket_type=length,statistic_type=score,score_measure=bleu,
#       bucket_cutoffs=10:20:30:40:50:60
#   --compare_ngrams compare_type=match,alpha=1.0   --decimals 6
RECALL = (
    (0.466757, 0.636322, 0.406977, 0.411324, 0.496945, 0.609025, 0.657117, 0.502822, 0.573645),
    (0.397440, 0.591264, 0.376321, 0.422148, 0.466395, 0.567000, 0.639819, 0.496049, 0.619585),
)
PRECISION = (
    (0.450235, 0.578354, 0.459427, 0.566514, 0.528139, 0.635286, 0.686647, 0.558027, 0.647855),
    (0.402732, 0.542845, 0.442786, 0.542827, 0.513453, 0.627765, 0.690118, 0.563301, 0.646076),
)
F1 = (
    (0.458347, 0.605954, 0.431614, 0.476604, 0.512067, 0.621878, 0.671558, 0.528988, 0.608496),
    (0.400068, 0.566021, 0.406857, 0.474941, 0.488794, 0.595837, 0.664018, 0.527540, 0.632553),
)
LENGTH_BLEU = (
    (23.361284, 22.061827, 22.430077, 20.485722, 21.355022, 22.418587, 25.940870),
    (26.323574, 24.845816, 24.013687, 22.052268, 22.232519, 22.838030, 24.190187),
)
# Beyond these, several n-grams share a ratio, and compare-mt's order is accidental.
NGRAMS = (
    [("phantom", 34, 1), ("Amy", 9, 0), (", who", 8, 0), ("my mother", 7, 0)],
    [("going to show", 6, 0), ("going to show you", 6, 0)],
)

Texts = tuple[list[str], list[list[str]]]


@pytest.fixture(scope="module")
def published(data_dir: Path) -> Texts:
    """Reference, and two systems."""
    folder = data_dir / "ted_sk_en"
    return read_lines(folder / "test.en"), [read_lines(folder / f"system{i}.en") for i in (1, 2)]


def test_words_by_frequency_are_what_compare_mt_finds(published: Texts, data_dir: Path) -> None:
    reference, systems = published
    counts = buckets.word_counts(read_lines(data_dir / "standin_sk_en" / "train.en"))
    for system, *golden in zip(systems, PRECISION, RECALL, F1, strict=True):
        found = buckets.word_accuracy(system, reference, counts)
        ours = [[getattr(b, name) for b in found] for name in ("precision", "recall", "f1")]
        np.testing.assert_allclose(ours, golden, atol=6e-7)


def test_bleu_by_length_is_what_compare_mt_finds(published: Texts) -> None:
    """Its totals of a sentence too short for an n-gram are 1, not 0, which costs a little BLEU."""
    reference, systems = published
    for system, golden in zip(systems, LENGTH_BLEU, strict=True):
        stats = np.array(sentence_stats(system, reference))
        theirs = np.concatenate([stats[:, :6], np.maximum(stats[:, 6:], 1)], axis=1)
        assert [b.bleu for b in buckets.bleu_by_length(theirs)] == pytest.approx(golden, abs=6e-7)
        ours = [b.bleu for b in buckets.bleu_by_length(stats)]
        assert ours[2:] == pytest.approx(golden[2:], abs=6e-7)
        assert 0 < ours[0] - golden[0] < 0.2


def test_ngrams_are_what_compare_mt_finds(published: Texts) -> None:
    reference, systems = published
    found = buckets.ngram_differences(*systems, reference, top=10)
    for ours, golden in zip(found, NGRAMS, strict=True):
        assert [(i.ngram, i.more, i.less) for i in ours[: len(golden)]] == golden
        assert ours[len(golden)].ratio < ours[len(golden) - 1].ratio
    assert found[0][0].ratio == pytest.approx(0.945946, abs=6e-7)


def test_words_are_counted_by_sentence_and_clipped() -> None:
    """``a`` twice against one in the first, one against two in the second: two are right."""
    found = buckets.word_accuracy(
        ["a a b", "a c", ""], ["a d", "a a", "b"], {"a": 12, "b": 1}, starts=(1, 2, 10)
    )
    rows = [(b.bucket, b.reference, b.hypothesis, b.matched) for b in found]
    assert rows == [("0", 1, 1, 0), ("1", 1, 1, 0), ("2-9", 0, 0, 0), ("10+", 3, 3, 2)]
    assert found[3].precision == found[3].recall == found[3].f1 == pytest.approx(2 / 3)
    assert (found[2].precision, found[2].recall, found[2].f1) == (None, None, None)


@pytest.mark.parametrize(
    ("count", "bucket"),
    [
        *((0, "0"), (1, "1"), (2, "2"), (3, "3"), (4, "4"), (5, "5-9"), (9, "5-9")),
        *((10, "10-99"), (99, "10-99"), (100, "100-999"), (999, "100-999"), (1000, "1000+")),
    ],
)
def test_a_count_falls_into_its_bucket(count: int, bucket: str) -> None:
    (found,) = (b for b in buckets.word_accuracy(["w"], ["w"], {"w": count}) if b.reference)
    assert found.bucket == bucket


def test_words_end_at_ascii_white_space_as_for_multi_bleu() -> None:
    assert buckets.words(" a\u00a0b \t c\u2003d\x1fe\r") == ["a\u00a0b", "c\u2003d\x1fe"]
    assert buckets.words("") == []
    stats = sentence_stats(["a\u00a0b c"], ["a\u00a0b c"])
    assert stats[0][0] == len(buckets.words("a\u00a0b c"))


def test_lengths_are_the_references() -> None:
    """9 words, 10 words, and 60; each bucket's score is that of its sentences alone."""
    lines = [" ".join(f"w{i}" for i in range(n)) for n in (9, 10, 60)]
    hypotheses = [lines[0], lines[1].replace("w4", "x"), lines[2] + " and more"]
    found = buckets.bleu_by_length(sentence_stats(hypotheses, lines))
    assert [b.bucket for b in found] == [
        *("<10", "10-19", "20-29", "30-39", "40-49", "50-59", "60+")
    ]
    assert [b.sentences for b in found] == [1, 1, 0, 0, 0, 0, 1]
    for place, line in ((0, 0), (1, 1), (6, 2)):
        alone = make_metric("bleu_tok").corpus_score([hypotheses[line]], [[lines[line]]]).score
        assert found[place].bleu == pytest.approx(alone)
    assert found[2].bleu is None


def test_ngrams_are_clipped_and_sorted_by_the_smoothed_ratio() -> None:
    reference = ["a b a", "c d", "e"]
    first, second = ["a a a", "c", "e"], ["b", "c d", "e"]
    better, worse = buckets.ngram_differences(first, second, reference, top=10)
    assert [(i.ngram, i.more, i.less, i.ratio) for i in better] == [("a", 2, 0, 3 / 4)]
    assert [(i.ngram, i.more, i.less) for i in worse] == [
        *(("b", 1, 0), ("c d", 1, 0), ("d", 1, 0))  # equal ratios: by the alphabet
    ]
    assert worse[0].ratio == pytest.approx(2 / 3)
    assert buckets.ngram_differences(second, first, reference, top=1) == (worse[:1], better[:1])
    longest = buckets.matched_ngrams(["a b c d e"], ["a b c d e"])
    assert sorted(map(len, longest)) == [1] * 5 + [2] * 4 + [3] * 3 + [4] * 2


def test_sentences_by_change_and_then_by_line() -> None:
    first, second = [10.0, 50.0, 20.0, 30.0, 7.0], [20.0, 10.0, 30.0, 30.0, 90.0]
    gained, lost = buckets.sentence_changes(first, second, top=2)
    assert [(c.line, c.change) for c in gained] == [(5, 83.0), (1, 10.0)]
    assert [(c.line, c.change) for c in lost] == [(2, -40.0)]


def test_sentence_bleu_is_smoothed_and_of_the_orders_there_are() -> None:
    whole, part, none, empty = buckets.sentence_bleus(
        ["a b", "a x c d", "x", ""], ["a b", "a b c d", "a", "a"]
    )
    assert whole == pytest.approx(100)
    # 3 of 4 words, 1 of 3 pairs; then, smoothed, half a match of 2 and a quarter of one of 1.
    assert part == pytest.approx(100 * (3 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** 0.25)
    assert none == empty == 0


# --- the command

REFERENCE = ["the cat sat on the mat .", "a <script>alert(1)</script> & b", "שלום עולם"]
FIRST = ["the cat sat on a mat .", "a <script>alert(2)</script> & b", ""]
SECOND = ["the cat is on the mat .", "a <script>alert(1)</script> & b", "שלום עולם"]

Main = Callable[..., tuple[int, str, str]]


@pytest.fixture
def main(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> Main:
    monkeypatch.setattr("experiments.stats.RESAMPLES", 50)  # elsewhere tested, and slow
    monkeypatch.chdir(tmp_path)

    def call(*argv: str) -> tuple[int, str, str]:
        code = compare.main([*argv])
        said = capsys.readouterr()
        return code, said.out, said.err

    for name, lines in (("ref", REFERENCE), ("a", FIRST), ("b", SECOND), ("train", REFERENCE[:1])):
        (tmp_path / name).write_text(to_text(lines), encoding="utf-8")
    return call


def refused(result: tuple[int, str, str], message: str) -> None:
    code, out, err = result
    assert (code, out) == (1, "")
    assert re.fullmatch(f"error: [^\n]*{message}[^\n]*\n", err), err


def put_stage(folder: Path, files: dict[str, list[str]], **inputs: str) -> str:
    """A stage's folder with a manifest; returns the digest of its contents."""
    folder.mkdir(parents=True)
    for name, lines in files.items():
        (folder / name).write_text(to_text(lines), encoding="utf-8")
    described = {name: {"sha256": text_digest(lines)} for name, lines in files.items()}
    manifest = json.dumps({"files": described, "inputs": inputs})
    (folder / "manifest.json").write_text(manifest, encoding="utf-8")
    return digest_of({name: file["sha256"] for name, file in described.items()})


@pytest.fixture
def runs(tmp_path: Path, main: Main) -> list[dict[str, Any]]:
    """Two runs, ``a`` and ``b`` in work and results; a decoy has another training text."""
    root = tmp_path / "work" / "data" / "gl-en"
    digests = []
    for name, training in (("0", ["decoy"]), ("1", REFERENCE[:1] * 7)):
        clean = put_stage(root / f"clean-{name}", {"train.en": training, "train.gl": ["x"]})
        files = {"reference.test.en": REFERENCE, "dict.en.txt": training}
        digests.append(put_stage(root / f"binarised-{name}", files, clean=clean))
    rows = []
    for attn, hypotheses in (("none", FIRST), ("l2", SECOND)):
        run = f"gl-en/cpu-{attn}/seed1-{'ab'[len(rows)] * 12}"
        path = f"hyps/{run}/decode-1/test.en"
        rows.append(
            {
                "run": run,
                "pair": "gl-en",
                "references": {"test": text_digest(REFERENCE)},
                "hypotheses": {"test": path},
                "data": {"digest": digests[1], "subwords": {"langs": ["gl", "en"]}},
            }
        )
        file = tmp_path / "results" / path
        file.parent.mkdir(parents=True)
        file.write_text(to_text(hypotheses), encoding="utf-8")
    put_ledger(rows)
    return rows


def put_ledger(rows: list[dict[str, Any]]) -> None:
    """In the working directory, which ``main`` has made a temporary one."""
    Path("results/runs.jsonl").write_text(
        to_text(json.dumps(dict.fromkeys(COLUMNS) | row) for row in rows), encoding="utf-8"
    )


def test_two_files(main: Main) -> None:
    code, out, _ = main("a", "b", "--reference", "ref", "--train", "train")
    assert code == 0
    for expected in ("A: a\n", "B: b\n", "A and B differ in 3 of 3 sentences", "counted in train"):
        assert expected in out
    assert out.count("nrefs:1") == 1
    score = make_metric("bleu_tok").corpus_score(SECOND, [REFERENCE]).score
    assert re.search(rf"^B +{score:.2f} +[\d.]+ to [\d.]+$", out, re.M)
    assert "  B          שלום עולם" in out
    assert re.search(
        r"^ +2 +2 +1\.000 +0\.500 +0\.667 +1\.000 +1\.000 +1\.000 +\+0\.333$", out, re.M
    )


def test_without_training_text_there_is_no_table_and_it_says_so(main: Main) -> None:
    code, out, _ = main("a", "b", "--reference", "ref")
    assert code == 0
    assert "no figures by word frequency: --train not given" in out
    assert "times in training" not in out


def test_the_same_hypotheses_are_said_to_be(main: Main) -> None:
    code, out, _ = main("a", "a", "--reference", "ref", "--html", "page.html")
    assert code == 0
    assert "A and B are the same hypotheses" in out
    assert "p = " not in out
    assert out.count("\nnone\n") == 4  # n-grams and sentences, either way


def test_two_runs_by_parts_of_their_names(
    main: Main, runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    code, out, _ = main("cpu-none", "bbbb")
    assert code == 0
    assert f"A: {runs[0]['run']}/decode-1\n" in out
    assert f"B: {runs[1]['run']}/decode-1\n" in out
    assert "counted in work/data/gl-en/clean-1/train.en" in out  # not the decoy's
    mixed = main(runs[0]["run"], "b", "--train", "train")
    assert mixed[0] == 0
    assert "counted in train" in mixed[1]


@pytest.mark.parametrize(
    ("a", "message"),
    [
        ("cpu", r"'cpu' is part of the names of 2 runs: .*a{12}/decode-1, .*b{12}/decode-1"),
        ("cccc", r"'cccc' is neither a file nor a run of results/runs.jsonl: .*a{12}.*b{12}"),
        ("", "an empty name"),
    ],
)
def test_names_that_are_not_one_runs(
    main: Main, runs: list[dict[str, Any]], a: str, message: str
) -> None:
    refused(main(a, "bbbb"), message)


def test_a_run_decoded_twice_is_named_by_its_decoding(
    main: Main, runs: list[dict[str, Any]]
) -> None:
    again = copy.deepcopy(runs[0])
    again["hypotheses"]["test"] = again["hypotheses"]["test"].replace("decode-1", "decode-2")
    put_ledger([*runs, again])
    refused(main(runs[0]["run"], "bbbb"), "2 runs: .*decode-1, .*decode-2")
    assert main("a/decode-1", "bbbb")[0] == 0


def test_runs_of_different_test_sets_or_pairs(main: Main, runs: list[dict[str, Any]]) -> None:
    other = copy.deepcopy(runs[1])
    other["references"]["test"] = "f00d" * 16
    put_ledger([runs[0], other])
    refused(main("aaaa", "bbbb"), "were scored against different test sets: .*f00df00df00d")
    other["pair"] = "sk-en"
    put_ledger([runs[0], other])
    refused(main("aaaa", "bbbb"), "are of different pairs: gl-en and sk-en")


def test_a_reference_that_is_missing_or_another(main: Main, runs: list[dict[str, Any]]) -> None:
    refused(main("a", "b"), "--reference")
    refused(main("a", "b", "--reference", "nowhere"), "nowhere: no such file")
    refused(main("aaaa", "bbbb", "--reference", "a"), "a is not the reference that .*a{12}")
    refused(main("aaaa", "bbbb", "--work", "elsewhere"), "no prepared set under elsewhere")
    code, out, _ = main("aaaa", "bbbb", "--work", "elsewhere", "--reference", "ref")
    assert code == 0
    assert "no training text was found" in out


def test_hypotheses_that_do_not_fit(main: Main, tmp_path: Path) -> None:
    (tmp_path / "short").write_text(to_text(SECOND[:2]), encoding="utf-8")
    refused(main("a", "short", "--reference", "ref"), "short: 2 hypotheses for 3 references")
    (tmp_path / "marked").write_text(to_text([*SECOND[:2], "sub@@ word"]), encoding="utf-8")
    refused(main("marked", "b", "--reference", "ref"), "marked: hypothesis 3 still holds subword")
    refused(main("a", "b", "--reference", "ref", "--top", "0"), "--top 0: at least 1")


def test_the_page_loads_nothing_and_escapes_what_it_shows(main: Main, tmp_path: Path) -> None:
    page = tmp_path / "out" / "page.html"
    argv = ("--reference", "ref", "--train", "train", "--html", str(page))
    code, _, err = main("a", "b", *argv)
    assert (code, err) == (0, f"page: {page}\n")
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; b" in text
    assert not re.search(r"https?:|src=|url\(|@import", text)
    assert '<dd dir="auto">שלום עולם</dd>' in text
    assert text.count("<svg") == 2
    assert "prefers-color-scheme: dark" in text
    assert [p.name for p in page.parent.iterdir()] == ["page.html"]


def test_bars_are_as_high_as_their_figures() -> None:
    chart = sections.Chart("F1", [("<10", 0.25, 0.5), ("10+", None, 0.0)], limit=1)
    svg = sections.bars_svg(chart)
    heights = [float(h) for h in re.findall(r'<rect [^>]*height="([\d.]+)"', svg)]
    lines = [float(y) for y in re.findall(r'<line [^>]*y1="([\d.]+)"', svg)]
    assert sections.axis(chart) == (0.5, 0.1)  # its ends are the outer lines
    whole = lines[0] - lines[-1]
    assert (len(lines), whole) == (6, sections.FLOOR - sections.ABOVE)
    assert heights == pytest.approx([whole / 2, whole, 0])
    assert "&lt;10" in svg


@pytest.mark.parametrize(
    ("largest", "end"), [(0.0, 1), (3.2, 4), (13.6, 15), (51, 60), (100.00000000000004, 100)]
)
def test_the_axis_ends_at_a_round_number(largest: float, end: float) -> None:
    assert sections.axis(sections.Chart("BLEU", [("0", largest, None)], 100))[0] == end


def test_systems_without_rows_need_no_check() -> None:
    compare.check_rows([compare.System("a", []), compare.System("b", [])])
    with pytest.raises(RunError, match="reference"):
        compare.sections((compare.System("a", []),) * 2, compare.Texts([], None, ""), 1)
