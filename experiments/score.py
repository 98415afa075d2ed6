"""Scores of hypotheses, each with the signature that says exactly how it was computed."""

from __future__ import annotations

from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from .commands import RunError


def scores(
    tokenised: list[str], reference: list[str], plain: list[str], plain_reference: list[str]
) -> dict[str, dict[str, Any]]:
    """Corpus scores of one test set.

    Args:
        tokenised, reference: words separated by spaces, as the training text has them.
        plain, plain_reference: the same, detokenised.

    Returns:
        ``bleu_tok`` (tokenised BLEU, as in the paper), ``bleu`` (sacreBLEU of plain text) and
        ``chrf``, each with ``score`` and ``signature``.
    """
    if len(tokenised) != len(reference):
        raise RunError(f"{len(tokenised)} hypotheses for {len(reference)} references")
    metrics = {
        "bleu_tok": (BLEU(tokenize="none", force=True), tokenised, reference),
        "bleu": (BLEU(), plain, plain_reference),
        "chrf": (CHRF(), plain, plain_reference),
    }
    result = {}
    for name, (metric, hypotheses, references) in metrics.items():
        score = metric.corpus_score(hypotheses, [references])
        signature = str(metric.get_signature())
        result[name] = {"score": round(score.score, 2), "signature": signature}
    return result
