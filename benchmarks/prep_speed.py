"""How long preparation takes, and how much memory, on synthetic text.

    python benchmarks/prep_speed.py                      # 10k, 100k and 1M pairs, both kinds
    python benchmarks/prep_speed.py --pairs 10000 --prep paper --keep work/speed

Times cleaning and subwords (the stages `clean` and `subword`) as `prep=paper` and `prep=modern` set
them, the latter from untokenised text. Memory is the peak of what the process and its workers hold
together (their proportional set sizes). The text is words drawn from a Zipfian vocabulary of
200,000 types a side, with punctuation, 20 words a sentence on average.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import yaml
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from data_prep.bitext import SPLITS, Bitext, bitext_stage  # noqa: E402
from data_prep.clean import CleanConfig  # noqa: E402
from data_prep.parallel import cores  # noqa: E402
from data_prep.prepare import clean_stage, subword_stage  # noqa: E402
from data_prep.subword import SubwordConfig  # noqa: E402

LANGS = ("gl", "en")
TYPES = 200_000
MERGES = 8000


def vocabulary(seed: int) -> np.ndarray:
    """Distinct made-up words of syllables as uneven as those of languages, the short ones first."""
    rng = np.random.default_rng(seed)
    syllables = np.array([a + b for a in "tnrsldcmpvbfghjkzx" for b in "aeiou"])
    chances = 1 / (rng.permutation(len(syllables)) + 2.7)
    words: dict[str, None] = {}
    for size, enough in ((1, 60), (2, 3_000), (3, 40_000), (4, TYPES)):
        while len(words) < enough:
            drawn = rng.choice(syllables, (2000, size), p=chances / chances.sum())
            words.update(dict.fromkeys(map("".join, drawn)))
    return np.array(list(words)[:TYPES], dtype=object)


def write_text(folder: Path, pairs: int, tokenised: bool) -> None:
    comma, stop = (" , ", " .") if tokenised else (", ", ".")
    chances = 1 / (np.arange(TYPES) + 2.7)
    cumulative = np.cumsum(chances / chances.sum())
    for seed, lang in enumerate(LANGS):
        words, rng = vocabulary(seed), np.random.default_rng(seed)
        for split in SPLITS:
            left = pairs if split == "train" else 1000
            with (folder / f"{split}.{lang}").open("w", encoding="utf-8") as file:
                while left:
                    lines = min(left, 10_000)
                    # Both sides have the same lengths, or the filters would have little to do.
                    lengths = np.random.default_rng(left).poisson(17, lines) + 1
                    drawn = words[np.searchsorted(cumulative, rng.random(lengths.sum()))]
                    for sentence in np.split(drawn, np.cumsum(lengths)[:-1]):
                        middle = len(sentence) // 2
                        text = comma.join(
                            " ".join(p) for p in (sentence[:middle], sentence[middle:])
                        )
                        file.write(f"{text}{stop}\n")
                    left -= lines


class Memory(threading.Thread):
    """Peak of the memory of this process and its children, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.5):
            self.peak = max(self.peak, sum(map(held, family(os.getpid()))) / 1024)


def family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(p for child in children for p in family(int(child)))]


def held(pid: int) -> int:
    """Proportional set size in kB: memory shared by processes counts once."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(rollup.split("\nPss:")[1].split()[0])


def configs(prep: str) -> tuple[CleanConfig, SubwordConfig]:
    """What conf/prep sets."""
    settings: dict = {}
    for name in ("paper",) if prep == "paper" else ("paper", "modern"):
        text = (ROOT / "conf" / "prep" / f"{name}.yaml").read_text(encoding="utf-8")
        settings |= yaml.safe_load(text)
    rules = {n: settings[n] for n in CleanConfig.__dataclass_fields__ if n != "raw"}
    raw = SPLITS if prep == "modern" else ()
    subwords = SubwordConfig(settings["subwords"], MERGES, settings["vocabulary_threshold"])
    return CleanConfig(raw=raw, **rules), subwords


def measure(prep: str, pairs: int, folder: Path) -> dict[str, object]:
    cleaning, subwords = configs(prep)
    text = folder / f"{prep}-{pairs}"
    if not text.exists():
        partial = text.with_name(text.name + ".partial")
        partial.mkdir(parents=True, exist_ok=True)
        write_text(partial, pairs, tokenised=not cleaning.raw)
        partial.rename(text)
    bitext = Bitext(*LANGS, prefixes={split: text / split for split in SPLITS})
    with tempfile.TemporaryDirectory(dir=folder) as name:
        root = Path(name)
        raw = bitext_stage(bitext, root)
        memory = Memory()
        memory.start()
        start = time.monotonic()
        cleaned = clean_stage(LANGS, cleaning, raw, root, cores())
        middle = time.monotonic()
        subword_stage(LANGS, subwords, cleaned, root, cores())
        end = time.monotonic()
        memory.done.set()
        memory.join()
    return {
        "prep": prep,
        "pairs": pairs,
        "cleaning (s)": round(middle - start, 1),
        "subwords (s)": round(end - middle, 1),
        "both (s)": round(end - start, 1),
        "pairs/s": round(pairs / (end - start)),
        "peak (MB)": round(memory.peak),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument(
        "--prep", nargs="+", choices=("paper", "modern"), default=["paper", "modern"]
    )
    parser.add_argument("--keep", type=Path, help="folder to keep the synthetic text in")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = args.keep or Path(name)
        rows = [measure(prep, pairs, folder) for prep in args.prep for pairs in args.pairs]
    print(f"{cores()} cores")
    print(tabulate(rows, headers="keys", tablefmt="github"))


if __name__ == "__main__":
    main()
