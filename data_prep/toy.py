"""An artificial language pair, generated from a seed, hard in the ways low-resource pairs are.

The source (code ``qaa``) is verb-final, marks case on nouns and tense and number on verbs, has no
articles, and puts adjectives, genitives and demonstratives before the noun. The target (``qab``)
is verb-medial with articles and prepositions; adjectives follow the noun and agree in gender and
number. Words are drawn from Zipfian lexicons; names form an open class whose translation is a
regular change of letters, so that only subwords can get unseen ones right. Some nouns and verbs
are ambiguous: their translation depends on another word of the clause. Since source adjectives
and genitives carry no agreement, which noun they belong to is said by word order alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import accumulate

SOURCE_LANG, TARGET_LANG = "qaa", "qab"
SIZES = {"train": 4000, "dev": 300, "test": 300}
CASES = {"nom": "", "acc": "n", "gen": "s", "loc": "te", "com": "mu"}
PREPOSITIONS = {"loc": "ej", "com": "xil"}
TRANSLITERATION = str.maketrans({"k": "c", "v": "b", "z": "x", "u": "o", "f": "ph"})


@dataclass(frozen=True)
class Word:
    """A lemma: source form, target form, and a second target form if it is ambiguous."""

    source: str
    target: str
    other: str | None = None
    feminine: bool = False


@dataclass
class Lexicon:
    """Lemmas of one class with Zipfian weights (Mandelbrot's shift of 2.7)."""

    words: list[Word]
    cumulative: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.cumulative = list(accumulate(1 / (rank + 2.7) for rank in range(len(self.words))))

    def draw(self, rng: random.Random) -> Word:
        return rng.choices(self.words, cum_weights=self.cumulative)[0]


@dataclass
class Phrase:
    """Words of both sides, and whether the head noun is plural."""

    source: list[str]
    target: list[str]
    plural: bool = False


class ToyLanguage:
    """Grammar and lexicon of the pair; sentences are drawn with the given generator."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.taken: set[str] = set()
        self.nouns = self.lexicon(200, ambiguous=0.1)
        self.verbs = self.lexicon(80, ambiguous=0.1)
        self.adjectives = self.lexicon(60)
        self.adverbs = self.lexicon(20)
        self.names = Lexicon([self.name() for _ in range(300)])

    def stem(self, onsets: str, vowels: str, syllables: int) -> str:
        while True:
            parts = [self.rng.choice(onsets) + self.rng.choice(vowels) for _ in range(syllables)]
            form = "".join(parts) + self.rng.choice(onsets)
            if form not in self.taken:
                self.taken.add(form)
                return form

    def lexicon(self, size: int, ambiguous: float = 0.0) -> Lexicon:
        words = []
        for rank in range(size):
            syllables = 1 if rank < size // 5 else 2
            source = self.stem("bdfgklmnprstvz", "aeiou", syllables)
            target, other = (self.stem("bcdghjlmnpqrtwxy", "aeioy", syllables) for _ in range(2))
            is_ambiguous = self.rng.random() < ambiguous
            feminine = self.rng.random() < 0.5
            words.append(Word(source, target, other if is_ambiguous else None, feminine))
        return Lexicon(words)

    def name(self) -> Word:
        stem = self.stem("bdfgklmnprstvz", "aeiou", self.rng.choice((2, 2, 3))).capitalize()
        lowered = stem.lower().translate(TRANSLITERATION)
        return Word(stem, lowered.capitalize(), feminine=self.rng.random() < 0.5)

    def noun_phrase(self, case: str, sense: bool, depth: int = 0) -> Phrase:
        """``sense`` picks the translation of an ambiguous noun."""
        rng = self.rng
        if rng.random() < 0.15:
            name = self.names.draw(rng)
            return Phrase([name.source + CASES[case]], [name.target])
        noun, plural, definite = self.nouns.draw(rng), rng.random() < 0.3, rng.random() < 0.5
        number_of_adjectives = rng.choices((0, 1, 2), weights=(5, 4, 1))[0]
        adjectives = [self.adjectives.draw(rng) for _ in range(number_of_adjectives)]
        genitive = Phrase([], [])
        if depth == 0 and rng.random() < 0.25:
            genitive = self.noun_phrase("gen", sense, depth + 1)
        source = [
            *(["ti"] if definite else []),
            *genitive.source,
            *(adjective.source for adjective in adjectives),
            noun.source + ("ar" if plural else "") + CASES[case],
        ]
        ending = ("a" if noun.feminine else "o") + ("s" if plural else "")
        target = [
            ("l" if definite else "un") + ending,
            (noun.other if noun.other and sense else noun.target) + ending,
            *(adjective.target + ending for adjective in reversed(adjectives)),
            *(["de", *genitive.target] if genitive.target else []),
        ]
        return Phrase(source, target, plural)

    def clause(self) -> Phrase:
        rng = self.rng
        verb, past, negated = self.verbs.draw(rng), rng.random() < 0.4, rng.random() < 0.15
        sense = verb.feminine  # verbs have no gender: here it is the class that picks senses
        subject = self.noun_phrase("nom", sense)
        direct_object = self.noun_phrase("acc", sense)
        source_verb = verb.source + ("ad" if past else "e") + ("r" if subject.plural else "")
        form = verb.other if verb.other and negated else verb.target
        target_verb = form + ("u" if past else "i") + ("k" if subject.plural else "")
        place = Phrase([], [])
        if rng.random() < 0.35:
            case = rng.choice(tuple(PREPOSITIONS))
            place = self.noun_phrase(case, sense)
            place.target = [PREPOSITIONS[case], *place.target]
        adverb = [self.adverbs.draw(rng)] if rng.random() < 0.25 else []
        return Phrase(
            [
                *(word.source for word in adverb),
                *subject.source,
                *place.source,
                *direct_object.source,
                source_verb + ("ma" if negated else ""),
            ],
            [
                *subject.target,
                *(["ne"] if negated else []),
                target_verb,
                *direct_object.target,
                *place.target,
                *(word.target for word in adverb),
            ],
        )

    def sentence(self) -> tuple[str, str]:
        clause = self.clause()
        source, target = clause.source, clause.target
        if self.rng.random() < 0.2:
            second = self.clause()
            source, target = [*source, "ke", *second.source], [*target, "e", *second.target]
        return " ".join([*source, "."]), " ".join([*target, "."])


def generate(seed: int) -> dict[str, list[tuple[str, str]]]:
    """Train, dev and test pairs; no source sentence stands in two of them."""
    language = ToyLanguage(random.Random(seed))
    seen: set[str] = set()
    bitext = {}
    for split, size in SIZES.items():
        pairs: list[tuple[str, str]] = []
        while len(pairs) < size:
            pair = language.sentence()
            if pair[0] not in seen:
                seen.add(pair[0])
                pairs.append(pair)
        bitext[split] = pairs
    return bitext
