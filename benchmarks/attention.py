"""What query-key normalisation costs, and how fast training and decoding are beside stock fairseq.

    python -m benchmarks.attention                          # on the toy pair, about ten minutes
    python -m benchmarks.attention --data work/data/gl-en/binarised-DIGEST -s gl -t en \\
        --checkpoint RUN/checkpoints/checkpoint_best.pt     # text and model of your own
    python -m benchmarks.attention --only module --rounds 5

One pinned core. Every figure is of one run in which the arms take turns (A B C A B C ...): the
median over the rounds of CPU time, and the median of each round's ratio to the first arm. Words are
target tokens without padding. Sizes are those of `recipe=cpu` (width 128) and of width 256.

module    one self-attention, forward and backward, on a batch of 500 tokens
training  the whole model: fairseq's trainer on its batches, with fairseq's transformer and ours
decoding  fairseq's beam search (4) over the test set; both find the same hypotheses
profile   where training spends its time, and what matrix products alone would allow
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq import tasks, utils
from fairseq.data.iterators import GroupedIterator
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.modules import MultiheadAttention as StockAttention
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from tabulate import tabulate
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

import qknorm_mt  # noqa: F401  (registers the models)
from experiments.commands import to_flags
from qknorm_mt.attention import MultiheadAttention
from qknorm_mt.qk_norm import QKNorm
from qknorm_mt.rope import RotaryEmbedding

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = (128, 256)
HEADS = 4
SECTIONS = ("module", "training", "decoding", "profile")
FAST = {"cpu_dropout": "bytes", "pack_output": True, "optimizer": "adam_fused"}
FULLER = {"task": "translation_qknorm", "required_batch_size_multiple": 1}
Arm = Callable[[], float]  # does a round's work; returns its speed


def take_turns(arms: dict[str, Arm], rounds: int, title: str) -> list[dict[str, Any]]:
    """Median speed of each arm, and median of its ratios to the first, round by round."""
    for arm in arms.values():
        arm()  # warm up
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in tqdm(range(rounds), desc=title, leave=False):
        for name, arm in arms.items():
            speeds[name].append(arm())
    first = next(iter(speeds.values()))
    rows = []
    for name, own in speeds.items():
        ratios = sorted(a / b for a, b in zip(own, first, strict=True))
        quarter = len(ratios) // 4
        spread = f"{ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f}"
        rows.append(
            {"arm": name, "speed": median(own), "ratio": median(ratios), "middle half": spread}
        )
    return rows


# Module -----------------------------------------------------------------------------------------


def module_arms(width: int) -> dict[str, Arm]:
    """Batches a second of one self-attention, forward and backward."""
    time_, batch, head_dim = 25, 20, width // HEADS
    x = torch.randn(time_, batch, width, requires_grad=True)
    padding = torch.arange(time_)[None] >= torch.randint(20, time_ + 1, (batch, 1))

    def arm(module: torch.nn.Module) -> Arm:
        def run(repeats: int = 10) -> float:
            start = time.process_time()
            for _ in range(repeats):
                output, _ = module(x, x, x, key_padding_mask=padding, need_weights=False)
                output.sum().backward()
            return repeats / (time.process_time() - start)

        return run

    def ours(kind: str, **settings: Any) -> Arm:
        norm = QKNorm(kind, head_dim, g_init=12.3, **settings)
        return arm(MultiheadAttention(width, HEADS, norm, 0.1, True, cpu_dropout="bytes"))

    rope = RotaryEmbedding(head_dim)
    return {
        "none": ours("none"),
        "stock fairseq": arm(StockAttention(width, HEADS, dropout=0.1, self_attention=True)),
        "l2": ours("l2"),
        "l2, g per head": ours("l2", heads=HEADS),
        "layernorm": ours("layernorm"),
        "layernorm, gain (vit22b)": ours("layernorm", affine="gain"),
        "rmsnorm": ours("rmsnorm"),
        "rmsnorm, gain (qwen3)": ours("rmsnorm", affine="gain"),
        "qwen3, RoPE after": ours("rmsnorm", affine="gain", rope=rope),
    }


# Training ---------------------------------------------------------------------------------------


def recipe(width: int, attention: str | None, **changes: Any) -> dict[str, Any]:
    """fairseq's options of `recipe=cpu` at ``width``; of stock fairseq if ``attention`` is None."""
    config = OmegaConf.load(ROOT / "conf" / "recipe" / "cpu.yaml")
    config.options.total_num_update = config.options.max_update = config.max_updates
    options = OmegaConf.to_container(config.options)
    assert isinstance(options, dict)
    del options["save_interval_updates"]
    for side in ("encoder", "decoder"):
        options |= {f"{side}_embed_dim": width, f"{side}_ffn_embed_dim": 4 * width}
    if attention is None:
        normalise = {f"{side}_normalize_before": True for side in ("encoder", "decoder")}
        return {**options, "arch": "transformer", **normalise, **changes}
    norm = {"qk_norm": attention, "qk_norm_init_length": 72 if attention == "l2" else None}
    return {**options, "arch": "transformer_qknorm", **norm, **changes}


def configure(args: argparse.Namespace, options: dict[str, Any]) -> Any:
    argv = [str(args.data), "-s", args.source_lang, "-t", args.target_lang, *to_flags(options)]
    parser = fairseq_options.get_training_parser()
    silent = ["--log-format", "none", "--num-workers", "0", "--seed", "1"]
    return convert_namespace_to_omegaconf(
        fairseq_options.parse_args_and_arch(parser, [*argv, *silent])
    )


class Training:
    """fairseq's trainer, a few updates at a time."""

    def __init__(self, args: argparse.Namespace, options: dict[str, Any]):
        cfg = configure(args, options)
        utils.set_torch_seed(1)
        task = tasks.setup_task(cfg.task)
        task.load_dataset("train")
        model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
        self.trainer = Trainer(cfg, task, model, criterion)
        self.epochs = self.trainer.get_train_iterator(1)
        self.trainer.begin_epoch(1)
        self.batches = chain.from_iterable(
            GroupedIterator(self.epochs.next_epoch_itr(shuffle=True), 1) for _ in iter(int, 1)
        )

    def __call__(self, updates: int = 10) -> float:
        """Target words a second over the next batches."""
        words, start = 0, time.process_time()
        for _ in range(updates):
            samples = next(self.batches)
            words += sum(sample["ntokens"] for sample in samples)
            with metrics.aggregate("train_inner"):
                self.trainer.train_step(samples)
        return words / (time.process_time() - start)


def training_arms(args: argparse.Namespace, width: int) -> dict[str, Arm]:
    def arm(attention: str | None, **changes: Any) -> Training:
        return Training(args, recipe(width, attention, **changes))

    return {
        "stock fairseq": arm(None),
        "none": arm("none"),
        "l2": arm("l2"),
        "none, cpu_bytes": arm("none", **FAST),
        "none, cpu_fast": arm("none", **FAST, **FULLER),
        "l2, cpu_fast": arm("l2", **FAST, **FULLER),
        "rmsnorm, cpu_fast": arm("rmsnorm", **FAST, **FULLER),
    }


# Decoding ---------------------------------------------------------------------------------------


class Decoding:
    """fairseq's beam search over the test set, a batch a round."""

    def __init__(self, args: argparse.Namespace, options: dict[str, Any], weights: Any = None):
        cfg = configure(args, options)
        utils.set_torch_seed(1)
        self.task = tasks.setup_task(cfg.task)
        self.task.load_dataset("test")
        self.model = self.task.build_model(cfg.model).eval()
        if weights is not None:
            own = self.model.state_dict()
            self.model.load_state_dict({n: t for n, t in weights.items() if n in own})
        search = {"beam": 4, "max_len_a": 1, "max_len_b": 50 if args.checkpoint else 0}
        self.generator = self.task.build_generator([self.model], argparse.Namespace(**search))
        self.round = 0
        self.batches = list(
            self.task.get_batch_iterator(
                self.task.dataset("test"), max_tokens=4096, required_batch_size_multiple=1
            ).next_epoch_itr(shuffle=False)
        )
        random.Random(1).shuffle(self.batches)  # short and long sentences

    def __call__(self) -> float:
        """Sentences a second of the next batch."""
        batch = self.batches[self.round % len(self.batches)]
        self.round += 1
        start = time.process_time()
        self.found = self.task.inference_step(self.generator, [self.model], batch)
        return len(self.found) / (time.process_time() - start)


def decoding_arms(args: argparse.Namespace, width: int) -> dict[str, Arm]:
    given = width == WIDTHS[0] and args.checkpoint
    weights = torch.load(args.checkpoint, weights_only=True)["model"] if given else None
    stock = Decoding(args, recipe(width, None), weights)
    none = Decoding(args, recipe(width, "none"), weights or stock.model.state_dict())
    l2 = Decoding(args, recipe(width, "l2"))

    def check() -> float:
        speed = none()
        for ours, theirs in zip(none.found, stock.found, strict=True):
            assert torch.equal(ours[0]["tokens"], theirs[0]["tokens"]), "other hypotheses"
        return speed

    arms: dict[str, Arm] = {"stock fairseq": stock, "none": check}
    return arms if weights else {**arms, "l2": l2}  # another model's beam ends elsewhere


# Profile ----------------------------------------------------------------------------------------


def peak(size: int = 1024) -> float:
    """Floating-point operations a second of large matrix products."""
    a = torch.randn(size, size)
    speeds = []
    for _ in range(20):
        start = time.process_time()
        a @ a
        speeds.append(2 * size**3 / (time.process_time() - start))
    return median(speeds)


def profile_training(args: argparse.Namespace, options: dict[str, Any]) -> tuple[list, float]:
    """The dearest operations of 20 updates, and operations of matrix products a target word."""
    training = Training(args, options)
    training(5)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        training(20)
    events = sorted(recorded.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    rows = [
        {"operation": e.key, "share": f"{e.self_cpu_time_total / total:.1%}", "calls": e.count}
        for e in events[:12]
    ]
    samples = next(training.batches)
    with FlopCounterMode(display=False) as counter:
        training.trainer.train_step(samples)
    return rows, counter.get_total_flops() / sum(s["ntokens"] for s in samples)


def print_profiles(args: argparse.Namespace) -> dict[str, Any]:
    width, result = WIDTHS[0], {}
    with torch.no_grad():
        flops = peak()
    ours = recipe(width, "l2", **FAST, **FULLER)
    arms = {"stock fairseq": recipe(width, None), "l2, cpu_fast": ours}
    for name, options in arms.items():
        rows, per_word = profile_training(args, options)
        limit = flops / per_word
        print(f"\nWhere training goes, {name}, width {width}\n\n{show(rows)}\n")
        print(
            f"Matrix products: {per_word / 1e6:.1f} MFLOP a target word, padding and projections "
            f"included, at {flops / 1e9:.0f} GFLOP/s of large ones: at most {limit:,.0f} words/s"
        )
        result[name] = {"operations": rows, "flop_per_word": per_word, "words_per_second": limit}
    return result


# All --------------------------------------------------------------------------------------------


def show(rows: list[dict[str, Any]]) -> str:
    return tabulate(rows, headers="keys", tablefmt="github", floatfmt=("", ",.0f", ".2f"))


def prepare_toy() -> Path:
    root = ROOT / "work" / "benchmarks" / "toy"
    argv = ["prepare", "--toy-seed", "1", "--root", str(root)]
    argv += ["--subwords", "sentencepiece_bpe", "--subword-size", "600"]
    done = subprocess.run(
        [sys.executable, "-m", "data_prep", *argv], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    return Path(json.loads(done.stdout.splitlines()[-1])["data"])


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help="binarised set (default: the toy pair, made)")
    parser.add_argument("-s", "--source-lang", default="qaa")
    parser.add_argument("-t", "--target-lang", default="qab")
    parser.add_argument("--checkpoint", type=Path, help="of recipe=cpu attn=none, to decode with")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each arm")
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=list(SECTIONS))
    parser.add_argument("--core", type=int, default=0, help="CPU core to stay on")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("--rounds: at least 1")
    for path in (args.data, args.checkpoint):
        if path is not None and not path.exists():
            parser.error(f"{path}: no such file or folder")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {args.core})
    logging.disable(logging.WARNING)
    if args.data is None and set(args.only) != {"module"}:
        args.data = prepare_toy()
    units = {"module": "batches/s", "training": "words/s", "decoding": "sentences/s"}
    result: dict[str, Any] = {}
    for section in [name for name in SECTIONS if name in args.only]:
        if section == "profile":
            result[section] = print_profiles(args)
            continue
        for width in WIDTHS:
            if section == "module":
                arms = module_arms(width)
            else:
                arms = (training_arms if section == "training" else decoding_arms)(args, width)
            rows = take_turns(arms, args.rounds, f"{section} {width}")
            print(f"\n{section.capitalize()}, width {width}, {units[section]}\n\n{show(rows)}")
            result[f"{section} {width}"] = rows
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
