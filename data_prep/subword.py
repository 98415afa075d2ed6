"""Joint subwords: learned on the training text of both languages, applied, and undone."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import sentencepiece
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from .text import PrepError

SETTINGS = "subwords.json"
MODEL = "subword.model"
CODES = "subword.codes"
# fairseq's own: a piece of this form would be read as the special symbol.
SPECIAL = frozenset(("<s>", "</s>", "<pad>", "<unk>"))
METHODS = ("subword_nmt", "sentencepiece_bpe", "sentencepiece_unigram")


@dataclass(frozen=True)
class SubwordConfig:
    """How subwords are made.

    Attributes:
        method: one of ``METHODS``.
        size: merges of subword_nmt, types of sentencepiece.
        vocabulary_threshold: of subword_nmt: a merge whose result is rarer than this in the
            training text of a language is undone there (Sennrich et al. 2017). As published, 1:
            what the language never has.
    """

    method: str
    size: int
    vocabulary_threshold: int = 1


class Subwords(ABC):
    """Learned subwords. Pieces are separated by spaces; a marker shows which belong together."""

    method: str

    @abstractmethod
    def encode(self, lines: Iterable[str], lang: str) -> list[str]:
        """Words to pieces."""

    @abstractmethod
    def decode(self, lines: Iterable[str]) -> list[str]:
        """Pieces to words."""

    @staticmethod
    @abstractmethod
    def has_marker(piece: str) -> bool:
        """Whether a piece looks like one of this method that shows what belongs together."""


class SentencePiece(Subwords):
    """A sentencepiece model, of either kind.

    Undone as fairseq does it, so that dev BLEU in training is that of decoding afterwards, also
    where a hypothesis has unknown pieces.
    """

    def __init__(self, folder: Path, config: SubwordConfig, langs: Sequence[str]):
        self.method = config.method
        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / MODEL))

    def encode(self, lines: Iterable[str], lang: str) -> list[str]:
        return [" ".join(pieces) for pieces in self.processor.encode(list(lines), out_type=str)]

    def decode(self, lines: Iterable[str]) -> list[str]:
        return [line.replace(" ", "").replace("\u2581", " ").strip() for line in lines]

    @staticmethod
    def has_marker(piece: str) -> bool:
        return piece.startswith("\u2581")


class SubwordNmt(Subwords):
    """subword-nmt's BPE, each language with its own vocabulary."""

    def __init__(self, folder: Path, config: SubwordConfig, langs: Sequence[str]):
        self.method = config.method
        self.pieces = {
            lang: cache(word_to_pieces(folder, lang, config.vocabulary_threshold)) for lang in langs
        }

    def encode(self, lines: Iterable[str], lang: str) -> list[str]:
        pieces = self.pieces[lang]
        return [" ".join(map(pieces, line.split(" "))) if line else "" for line in lines]

    def decode(self, lines: Iterable[str]) -> list[str]:
        return [line.replace("@@ ", "").removesuffix("@@") for line in lines]

    @staticmethod
    def has_marker(piece: str) -> bool:
        return piece.endswith("@@")


def word_to_pieces(folder: Path, lang: str, threshold: int) -> Callable[[str], str]:
    """What cuts a word of a language; text is cut word by word, so that words can be cached."""
    vocabulary = {
        piece
        for line in (folder / vocabulary_name(lang)).read_text(encoding="utf-8").split("\n")[:-1]
        for piece, count in [line.split(" ")]
        if int(count) >= threshold
    }
    with (folder / CODES).open(encoding="utf-8") as codes:
        bpe = BPE(codes, vocab=vocabulary)

    def pieces(word: str) -> str:
        cut = bpe.segment_tokens([word])
        if SPECIAL.intersection(cut):
            cut = [letter + "@@" for letter in word[:-1]] + [word[-1]]
        return " ".join(cut)

    return pieces


def vocabulary_name(lang: str) -> str:
    return f"subword.vocab.{lang}"


def learn(counts: Mapping[str, Counter[str]], config: SubwordConfig, folder: Path) -> None:
    """Learn from the words of the training text, by language, and write what was learned.

    The same text gives the same files, wherever they are.

    Raises:
        PrepError: when the text is too small for ``config.size``.
    """
    joint = sum((counts[lang] for lang in counts), Counter())
    words = sorted(joint.items(), key=lambda item: (-item[1], item[0]))
    settings = {**asdict(config), "langs": list(counts)}
    (folder / SETTINGS).write_text(json.dumps(settings) + "\n", encoding="utf-8")
    if config.method == "subword_nmt":
        learn_merges(words, config.size, folder / CODES)
        write_vocabularies(counts, folder)
    else:
        model_type = config.method.removeprefix("sentencepiece_")
        (folder / MODEL).write_bytes(learn_sentencepiece(words, config.size, model_type))


def learn_sentencepiece(words: list[tuple[str, int]], size: int, model_type: str) -> bytes:
    """The bytes of a model's file. No normalisation, so that undoing gives the very text back."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in words),
            input_format="tsv",
            model_writer=model,
            model_type=model_type,
            vocab_size=size,
            character_coverage=1.0,
            normalization_rule_name="identity",
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise PrepError(
            f"cannot learn {size} subword types from the training text "
            f"({str(error).splitlines()[-1].strip()}): change --subword-size (prep.subword_size)"
        ) from error
    return model.getvalue()


def learn_merges(words: list[tuple[str, int]], size: int, path: Path) -> None:
    with contextlib.ExitStack() as stack:
        codes = stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
        stack.enter_context(contextlib.suppress(ValueError))  # of text that has no pair of letters
        stack.enter_context(quiet_unless_watched())
        learn_bpe([f"{word} {count}" for word, count in words], codes, size, is_dict=True)
    learned = path.read_text(encoding="utf-8").count("\n") - 1
    if learned < size:
        raise PrepError(
            f"cannot learn {size} merges from the training text, only {learned}: "
            "change --subword-size (prep.subword_size)"
        )


@contextlib.contextmanager
def quiet_unless_watched() -> Iterator[None]:
    """subword-nmt draws a progress bar, for people."""
    with contextlib.ExitStack() as stack:
        if not sys.stderr.isatty():
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield


def write_vocabularies(counts: Mapping[str, Counter[str]], folder: Path) -> None:
    """The pieces of each language's training text, with their counts, commonest first."""
    with (folder / CODES).open(encoding="utf-8") as codes:
        bpe = BPE(codes)
    for lang, words in counts.items():
        pieces: Counter[str] = Counter()
        for word, count in words.items():
            for piece in bpe.segment_tokens([word]):
                pieces[piece] += count
        rows = sorted(pieces.items(), key=lambda item: (-item[1], item[0]))
        text = "".join(f"{piece} {count}\n" for piece, count in rows)
        (folder / vocabulary_name(lang)).write_text(text, encoding="utf-8")


KINDS: tuple[type[SentencePiece | SubwordNmt], ...] = (SentencePiece, SubwordNmt)


@cache
def load(folder: Path) -> Subwords:
    """The subwords that were learned into a folder.

    Raises:
        PrepError: if there are none.
    """
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        langs = settings.pop("langs")
        config = SubwordConfig(**settings)
        kind = SubwordNmt if config.method == "subword_nmt" else SentencePiece
        return kind(folder, config, langs)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise PrepError(f"{folder} is no prepared set: {error}") from error


def files(folder: Path) -> list[Path]:
    """What :func:`load` needs of a folder."""
    return [folder / SETTINGS, *sorted(folder.glob("subword.*"))]


def undo(lines: Sequence[str], folder: Path, own: bool = False) -> list[str]:
    """Pieces of a prepared set back to words.

    Args:
        own: they are that set's for certain, however they look: a model that has learned nothing
            may begin no word.

    Raises:
        PrepError: if they look like those of another method than that set's.
    """
    subwords = load(folder)
    if not own:
        check_method(lines, subwords, folder)
    return subwords.decode(lines)


def check_method(lines: Sequence[str], subwords: Subwords, folder: Path) -> None:
    pieces = [piece for line in lines for piece in line.split(" ")]
    own = sum(map(subwords.has_marker, pieces))
    for other in KINDS:
        if sum(map(other.has_marker, pieces)) > own:
            example = next(filter(other.has_marker, pieces))
            raise PrepError(
                f"{folder} has pieces of {subwords.method}, but these look like those of another "
                f"method ({example!r}): undo them with the set that made them"
            )
    if isinstance(subwords, SentencePiece) and not own and any(" " in line for line in lines):
        raise PrepError(
            f"{folder} has pieces of {subwords.method}, but in these nothing shows where a word "
            "begins: undo them with the set that made them"
        )
