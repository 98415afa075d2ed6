"""Joint sentencepiece BPE: learned on the training text of both languages, and undone."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from .text import PrepError


def learn(sentences: Iterable[str], vocab_size: int) -> bytes:
    """Learn a model from training sentences; returns the bytes of its file.

    No normalisation, so that undoing gives the very text back. Not learned from a file: the model
    would hold that file's path, and equal text in two places would give unequal models.

    Raises:
        PrepError: when the text is too small for ``vocab_size``.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=1.0,
            normalization_rule_name="identity",
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise PrepError(
            f"cannot learn {vocab_size} subword types from the training text "
            f"({str(error).splitlines()[-1].strip()}): change --vocab-size (pair.vocab_size)"
        ) from error
    return model.getvalue()


class Subwords:
    """A learned model: text to pieces and back."""

    def __init__(self, model: Path):
        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(model))

    def encode(self, lines: Iterable[str]) -> list[str]:
        """Pieces separated by spaces."""
        return [" ".join(pieces) for pieces in self.processor.encode(list(lines), out_type=str)]

    def decode(self, lines: Iterable[str]) -> list[str]:
        """Words separated by spaces; an unknown piece shows as U+2047."""
        return [" ".join(self.processor.decode(line.split(" ")).split()) for line in lines]
