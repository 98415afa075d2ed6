"""Scores of hypotheses, each with the signature that says exactly how it was computed.

==============  ====================================================================================
``bleu_tok``    BLEU of the tokenised text, digit for digit what Moses' multi-bleu.perl prints: the
                kind of Nguyen & Salazar (2019)
``bleu_detok``  the same text through mteval-13a tokenisation, as multi-bleu-detok.perl prints it:
                what the authors of QKNorm scored with, though the text is tokenised
``bleu``        sacreBLEU of properly detokenised text
``chrf``        chrF2 of detokenised text
``ter``         TER of detokenised text (the lower the better)
==============  ====================================================================================
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from .commands import RunError

TOKENISED = ("bleu_tok", "bleu_detok")
PLAIN = ("bleu", "chrf", "ter")

SUBWORD_MARK = re.compile(r"@@(?=\s|$)|\u2581")
# What Moses' tokeniser escapes: plain and escaped. An ampersand that begins an entity is not plain.
ESCAPES = {
    re.compile(plain): re.compile(escaped)
    for plain, escaped in (
        ("'", "&(?:apos|#39);"),
        ('"', "&quot;"),
        (r"&(?![A-Za-z#][A-Za-z0-9]*;)", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        (r"\[", "&#91;"),
        (r"\]", "&#93;"),
        (r"\|", "&#124;"),
    )
}

SPACES = [code for code in range(0x3001) if chr(code).isspace()]  # to Python
# Which of them are letters to the scripts, each with a stand-in from Unicode's private area.
PRIVATE = {code: 0xE000 + i for i, code in enumerate(SPACES)}
NOT_ASCII = {code: PRIVATE[code] for code in SPACES if chr(code) not in " \t\n\r\f\v"}
NOT_PERL = {code: PRIVATE[code] for code in SPACES if 0x1C <= code < 0x20}


class ScriptBLEU(BLEU):
    """BLEU with the semantics of Moses' scripts: no smoothing, and their idea of white space.

    Args:
        tokenize: ``none`` for multi-bleu.perl, which knows ASCII white space only; ``13a`` for
            multi-bleu-detok.perl, which knows Unicode's.
    """

    def __init__(self, tokenize: str):
        super().__init__(tokenize=tokenize, smooth_method="none", force=True)
        self.split, self.letters = (
            ("ascii", NOT_ASCII) if tokenize == "none" else ("perl", NOT_PERL)
        )

    def _preprocess_segment(self, sent: str) -> str:
        return super()._preprocess_segment(sent.translate(self.letters))


def make_metric(name: str) -> Metric:
    if name in TOKENISED:
        return ScriptBLEU("none" if name == "bleu_tok" else "13a")
    return BLEU(force=True) if name == "bleu" else {"chrf": CHRF, "ter": TER}[name]()


def signature(metric: Metric) -> str:
    """sacreBLEU's, to be called after scoring, with how words are split where that is not its."""
    text = str(metric.get_signature())
    return f"{text}|split:{metric.split}" if isinstance(metric, ScriptBLEU) else text


def scores(
    tokenised: Sequence[str],
    reference: Sequence[str],
    plain: Sequence[str],
    plain_reference: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """Corpus scores of one test set: name to ``score`` (two decimals) and ``signature``.

    Args:
        tokenised, reference: words separated by spaces, as the training text has them.
        plain, plain_reference: the same, detokenised.

    Raises:
        RunError: as :func:`check_text`.
    """
    check_text(tokenised, reference)
    check_text(plain, plain_reference)
    result = {}
    for names, hypotheses, references in (
        (TOKENISED, tokenised, reference),
        (PLAIN, plain, plain_reference),
    ):
        for name in names:
            metric = make_metric(name)
            score = metric.corpus_score(hypotheses, [references]).score
            result[name] = {"score": round(score, 2), "signature": signature(metric)}
    return result


def sentence_stats(hypotheses: Sequence[str], references: Sequence[str]) -> list[list[int]]:
    """What tokenised BLEU is made of: of each sentence hypothesis length, reference length, matches
    of 1- to 4-grams, and their totals in the hypothesis."""
    return ScriptBLEU("none")._extract_corpus_statistics(hypotheses, [references])


def check_text(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse what would give a number that means nothing.

    Raises:
        RunError: if line counts differ; if a reference line is empty; if hypotheses still hold
            subword marks; if entities are escaped on one side only. With the line, from 1.
    """
    check_reference(references, "the reference")
    if len(hypotheses) != len(references):
        raise RunError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    for number, (line, reference) in enumerate(zip(hypotheses, references, strict=True), 1):
        mark = SUBWORD_MARK.search(line)
        if mark and not SUBWORD_MARK.search(reference):
            raise RunError(
                f"hypothesis {number} still holds subword marks ({mark.group().strip()!r}): undo "
                "them first (python -m data_prep undo)"
            )
    check_entities(hypotheses, references)


def check_entities(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse text in which a character, or all of them together, is mostly escaped on one side and
    mostly plain on the other.

    Raises:
        RunError: saying which side is which.
    """
    counts = [escapes(side) for side in (hypotheses, references)]
    for sides in (
        *zip(*counts, strict=True),
        [tuple(map(sum, zip(*c, strict=True))) for c in counts],
    ):
        if all(map(sum, sides)):
            hypothesis, reference = (escaped / (plain + escaped) for plain, escaped in sides)
            if abs(hypothesis - reference) > 0.5:
                names = ("hypotheses", "references")
                which, other = names if hypothesis > reference else names[::-1]
                raise RunError(
                    f"the {which} have escaped entities (as &quot;) where the {other} have plain "
                    "characters, so that they can never match: unescape both, or neither"
                )


def escapes(lines: Sequence[str]) -> list[tuple[int, ...]]:
    """Of each character that Moses escapes, how often it stands there plain, and escaped."""
    text = "\n".join(lines)
    return [(len(p.findall(text)), len(e.findall(text))) for p, e in ESCAPES.items()]


def check_reference(references: Sequence[str], name: str) -> None:
    """Raises: RunError: if there is no line, or an empty one."""
    if not references:
        raise RunError(f"{name} is empty")
    for number, line in enumerate(references, 1):
        if not line.strip():
            raise RunError(
                f"{name}, line {number}, is empty: nothing can match it; take the sentence out of "
                "the test set, on both sides"
            )


def text_digest(lines: Sequence[str]) -> str:
    """sha256 of a text with a newline after each line."""
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()
