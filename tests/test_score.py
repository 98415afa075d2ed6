"""Scores against the Perl scripts' digits and the published ones; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.commands import RunError
from experiments.lines import read_lines
from experiments.score import (
    PLAIN,
    TOKENISED,
    ScriptBLEU,
    check_text,
    make_metric,
    scores,
    sentence_stats,
)
from qknorm_mt.bleu import bleu_of, corpus_stats

CASES = json.loads((Path(__file__).parent / "golden" / "bleu.json").read_text(encoding="utf-8"))


def printed(metric: ScriptBLEU, hypotheses: list[str], references: list[str]) -> str:
    """A score as the scripts print it."""
    score = metric.corpus_score(hypotheses, [references])
    return (
        f"BLEU = {score.score:.2f}, {score.prec_str} (BP={score.bp:.3f}, ratio={score.ratio:.3f}, "
        f"hyp_len={score.sys_len}, ref_len={score.ref_len})"
    )


@pytest.mark.parametrize("script", ["multi_bleu", "multi_bleu_detok"])
@pytest.mark.parametrize("name", CASES)
def test_the_scripts_digits(name: str, script: str) -> None:
    case = CASES[name]
    metric = ScriptBLEU("none" if script == "multi_bleu" else "13a")
    assert printed(metric, case["hypotheses"], case["references"]) == case[script]


def test_published_outputs_score_what_was_published(data_dir: Path) -> None:
    reference = read_lines(data_dir / "iwslt15_en_vi" / "tst2013.vi")
    found = {}
    for system in ("baseline", "qknorm"):
        hypotheses = read_lines(data_dir / "published_outputs_en_vi" / f"{system}.vi")
        check_text(hypotheses, reference)
        for name in TOKENISED:
            score = make_metric(name).corpus_score(hypotheses, [reference]).score
            found[system, name] = round(score, 2)
    assert found == {
        ("baseline", "bleu_tok"): 32.49,
        ("baseline", "bleu_detok"): 32.48,
        ("qknorm", "bleu_tok"): 33.24,
        ("qknorm", "bleu_detok"): 33.24,
    }


@given(st.lists(st.tuples(*[st.text("ab \t\r\u00a0\u2028\x85\x1f", max_size=12)] * 2), min_size=1))
def test_dev_bleu_in_training_is_the_same_metric(pairs: list[tuple[str, str]]) -> None:
    hypotheses, references = map(list, zip(*pairs, strict=True))
    score = ScriptBLEU("none").corpus_score(hypotheses, [references])
    assert round(score.score, 2) == bleu_of(corpus_stats(hypotheses, references))
    sums = [sum(column) for column in zip(*sentence_stats(hypotheses, references), strict=True)]
    assert sums == [score.sys_len, score.ref_len, *score.counts, *score.totals]


def test_every_score_has_a_signature_that_tells_it_from_the_others() -> None:
    text, plain = ["what a day , today !"], ["what a day, today!"]
    found = scores(text, text, plain, plain)
    assert list(found) == [*TOKENISED, *PLAIN]
    assert [found[name]["score"] for name in found] == [100, 100, 100, 100, 0]
    signatures = [found[name]["signature"] for name in found]
    assert len(set(signatures)) == len(signatures)
    assert all("version:2.6.0" in signature for signature in signatures)
    assert (
        found["chrf"]["signature"] == "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"
    )
    assert found["bleu_tok"]["signature"].endswith("tok:none|smooth:none|version:2.6.0|split:ascii")
    assert found["bleu_detok"]["signature"].endswith("tok:13a|smooth:none|version:2.6.0|split:perl")


ESCAPED, UNESCAPED = "he said &quot; it &apos;s late &quot;", 'he said " it \'s late "'


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a", "b"], ["a"], "2 hypotheses for 1 references"),
        ([], [], "the reference is empty"),
        (["a", "b"], ["a", " "], "the reference, line 2, is empty"),
        (["a", "un@@ done"], ["a", "undone"], r"hypothesis 2 still holds subword marks \('@@'\)"),
        (["▁un done"], ["undone"], "hypothesis 1 still holds subword marks"),
        (["cut@@"], ["cut"], "hypothesis 1 still holds"),
        (["x@@\u00a0y"], ["xy"], "hypothesis 1 still holds"),
        (["it 's he 's &quot; we 're"], ["it 's he 's \" we 're"], "hypotheses have escaped"),
        ([ESCAPED], [UNESCAPED], "the hypotheses have escaped entities"),
        ([UNESCAPED], [ESCAPED], "the references have escaped entities"),
    ],
)
def test_what_would_mean_nothing_is_refused(
    hypotheses: list[str], references: list[str], message: str
) -> None:
    with pytest.raises(RunError, match=message):
        check_text(hypotheses, references)
    with pytest.raises(RunError, match=message):
        scores(hypotheses, references, hypotheses, references)


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        ([ESCAPED], [ESCAPED]),
        ([UNESCAPED], [UNESCAPED]),
        (["no quotes at all"], [ESCAPED]),
        ([UNESCAPED] * 3 + [ESCAPED], [UNESCAPED] * 4),  # an entity that was in the text itself
        (["a @@ b", "mail@@home"], ["a @@ b", "mail@@home"]),
        (["", "b"], ["a", "b"]),  # a system may say nothing
    ],
)
def test_what_means_something_is_not(hypotheses: list[str], references: list[str]) -> None:
    check_text(hypotheses, references)
