"""From a composed config to the argv of each tool: pure functions, nothing is run here."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PLUGIN = Path(__file__).resolve().parents[1] / "qknorm_mt"
SPLITS = ("train", "dev", "test")
LONGEST = 16_384  # subword pieces of a sentence that a person may have translated
# What fairseq calls the undoing of each kind of subwords.
REMOVE_BPE = {
    "subword_nmt": "subword_nmt",
    "sentencepiece_bpe": "sentencepiece",
    "sentencepiece_unigram": "sentencepiece",
}
# The same task, able to probe.
PROBED = {"translation": "translation_probed"}
PROBES = "probes.jsonl"

# fairseq takes every GPU it sees, so that an update would grow with the machine.
ONE_WORKER = ("--distributed-world-size", "1")
# fairseq's default of 8 drops the last sentences of every data set whose size is no multiple of 8
# (facebookresearch/fairseq#5036): from training, from dev loss, and from the hypotheses.
EVERY_SENTENCE = ("--required-batch-size-multiple", "1")


class RunError(Exception):
    """A run cannot go on; the message says why and what to do."""


def prepare_argv(cfg: Mapping[str, Any]) -> list[str]:
    """Arguments of ``python -m data_prep`` for the pair.

    Raises:
        RunError: if it is not said where the pair's text is, or ``data.local`` is no folder.
    """
    pair, prep = cfg["pair"], cfg["prep"]
    work = Path(cfg["paths"]["work"])
    argv = ["prepare", "-s", pair["source_lang"], "-t", pair["target_lang"]]
    argv += ["--root", str(work / "data" / pair["name"])]
    argv += to_flags({n: v for n, v in prep.items() if n not in ("name", "raw")})
    if not isinstance(prep["raw"], bool | list):
        raise RunError(
            f"prep.raw={prep['raw']} is not allowed: legal is true, false, or a list of splits, "
            "as [train]"
        )
    if prep["raw"]:
        argv += ["--raw", *(prep["raw"] if isinstance(prep["raw"], list) else SPLITS)]
    if isinstance(pair["settings"]["length"], int):
        argv += ["--published-length", str(pair["settings"]["length"])]
    return argv + text_argv(cfg["data"], pair, work)


def text_argv(data: Mapping[str, Any], pair: Mapping[str, Any], work: Path) -> list[str]:
    """Where the text is from: generated, a folder of files, or a published data set."""
    if pair["toy_seed"] is not None:
        return ["--toy-seed", str(pair["toy_seed"])]
    if data["local"] is not None:
        if not Path(data["local"]).is_dir():
            raise RunError(f"data.local={data['local']}: no such folder")
        prefixes = {split: str(Path(data["local"]) / pair["files"][split]) for split in SPLITS}
        return to_flags(prefixes)
    if data["source"] is None:
        raise RunError(
            f"pair={pair['name']} has no published data set: give the folder of its files as "
            f"data.local=DIR; expected inside it: {', '.join(expected_files(pair))}"
        )
    return to_flags(
        {
            "source": data["source"],
            "downloads": str(work / "downloads"),
            "mirror": data["mirror"],
        }
    )


def expected_files(pair: Mapping[str, Any]) -> list[str]:
    langs = (pair["source_lang"], pair["target_lang"])
    return [f"{pair['files'][split]}.{lang}" for split in SPLITS for lang in langs]


def train_options(cfg: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """``fairseq-train`` options, by name, of the recipe with the attention in it.

    Args:
        data: what ``data_prep`` reports of the prepared set: its L, its subwords.
    """
    attn = dict(cfg["attn"]["options"])
    if "qk_norm_init_length" in attn:
        attn["qk_norm_init_length"] = init_length(attn["qk_norm_init_length"], data)
    rope = cfg["rope"]["options"]
    options = {**cfg["recipe"]["options"], **attn, **rope, "seed": cfg["seed"]}
    if options.get("eval_bleu"):  # dev is decoded in training as it is afterwards
        search = {n: v for n, v in cfg["decode"].items() if n != "max_tokens"}
        options["beam_search"] = search.pop("beam_search", None)
        options["eval_bleu_args"] = json.dumps(search)
        options["eval_bleu_remove_bpe"] = REMOVE_BPE[data["subwords"]["method"]]
    return options


def init_length(given: Any, data: Mapping[str, Any]) -> Any:
    """The length that g starts from: a number as it is, ``data`` is L of the prepared set,
    ``p<percent>`` another percentile of its training lengths.

    Raises:
        RunError: naming the percentiles there are.
    """
    if given == "data":
        return data["length_percentile"]
    if isinstance(given, str):
        try:
            return data["percentiles"][given.removeprefix("p")]
        except KeyError:
            legal = ", ".join(f"p{percent}" for percent in data["percentiles"])
            raise RunError(
                f"recipe.init_length={given} is not allowed: legal is a number, data, {legal}"
            ) from None
    return given


def train_argv(
    options: Mapping[str, Any],
    data: str,
    checkpoints: str,
    langs: tuple[str, str],
    keep: int = 1,
    probe: Mapping[str, int] | None = None,
) -> list[str]:
    """Arguments of ``fairseq-train``, with checkpoints to resume from, the last ``keep`` kept.

    Args:
        probe: ``every`` so many updates (0: never), of so many ``sentences``.
    """
    reference = str(Path(data) / f"reference.dev.{langs[1]}")
    probing: dict[str, Any] = {}
    if probe and probe["every"]:
        task = task_of(options)
        options = {**options, "task": PROBED.get(task, task)}
        probing = {f"probe_{name}": value for name, value in probe.items()}
        probing["probe_file"] = str(Path(checkpoints).with_name(PROBES))
    return [
        *(data, "--user-dir", str(PLUGIN), "--source-lang", langs[0], "--target-lang", langs[1]),
        *(*to_flags(options), *to_flags(probing), *ONE_WORKER, *EVERY_SENTENCE),
        *("--save-dir", checkpoints, *saving(options, keep), "--max-tokens-valid", "4096"),
        *(("--dev-reference", reference) if options.get("eval_bleu") else ()),
        *("--num-workers", "0"),
        *("--log-format", "json", "--log-interval", "20"),
        *("--tensorboard-logdir", str(Path(checkpoints).with_name("tensorboard"))),
    ]


def saving(options: Mapping[str, Any], keep: int) -> list[str]:
    """When to validate and save: at the end of each epoch, or every save_interval_updates."""
    updates = options.get("save_interval_updates")
    if updates is None:
        return ["--keep-last-epochs", str(keep)] if keep > 1 else ["--no-epoch-checkpoints"]
    # Not at the end of an epoch too; where the two coincide fairseq does not validate by itself.
    never = ("--save-interval", "100000", "--validate-interval", "100000")
    interval = ("--validate-interval-updates", str(updates), "--keep-interval-updates", str(keep))
    return ["--no-epoch-checkpoints", *interval, *never]


def generate_argv(
    decode: Mapping[str, Any],
    data: str,
    checkpoint: str,
    split: str,
    langs: tuple[str, str],
    results: str,
    task: str,
    cpu: bool,
) -> list[str]:
    """Arguments of ``fairseq-generate`` for one split; fairseq's name of dev is ``valid``."""
    return [
        *(data, "--user-dir", str(PLUGIN), "--source-lang", langs[0], "--target-lang", langs[1]),
        *("--path", checkpoint, "--gen-subset", "valid" if split == "dev" else split),
        *("--task", task),
        *(*to_flags(decode), *EVERY_SENTENCE),
        *("--results-path", results, "--num-workers", "0", *(["--cpu"] if cpu else [])),
    ]


def interactive_argv(
    decode: Mapping[str, Any],
    train: Mapping[str, Any],
    data: str,
    checkpoints: Sequence[Path],
    langs: tuple[str, str],
    together: int,
) -> list[str]:
    """Arguments of ``fairseq-interactive``: sentences of a person, which may be of any length.

    Args:
        train: the run's ``fairseq-train`` options.
        together: lines put into batches together.
    """
    longest = {f"max_{side}_positions": LONGEST for side in ("source", "target")}
    return [
        *(data, "--user-dir", str(PLUGIN), "--source-lang", langs[0], "--target-lang", langs[1]),
        *("--path", ":".join(map(str, checkpoints)), "--task", task_of(train)),
        *to_flags({**decode, **longest, "max_tokens": LONGEST}),
        *("--model-overrides", str(longest), "--buffer-size", str(together)),
        *EVERY_SENTENCE,
        *(["--cpu"] if train.get("cpu") else []),
    ]


def to_flags(options: Mapping[str, Any]) -> list[str]:
    """``{dropout: 0.1, cpu: true, patience: null}`` to ``--dropout 0.1 --cpu``."""
    argv: list[str] = []
    for name, value in options.items():
        if value is True:
            argv.append(flag(name))
        elif value is not None and value is not False:
            argv += [flag(name), str(value)]
    return argv


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_settings(cfg: Mapping[str, Any]) -> None:
    """Refuse, before anything is done, what would fail later or silently do otherwise.

    Raises:
        RunError: naming the setting.
    """
    options = cfg["recipe"]["options"]
    positive = {
        "probe.sentences": cfg["probe"]["sentences"],
        "runtime.threads": cfg["runtime"]["threads"],
        "runtime.keep_checkpoints": cfg["runtime"]["keep_checkpoints"],
    }
    endless = not (options.get("max_epoch") and options.get("updates_per_epoch"))
    if endless or options.get("max_update") is not None:
        positive["recipe.max_updates"] = options.get("max_update")
    if options.get("updates_per_epoch") is not None:
        positive["recipe.options.updates_per_epoch"] = options["updates_per_epoch"]
    else:
        positive["recipe.options.save_interval_updates"] = options.get("save_interval_updates")
    if decodes(cfg):
        positive["decode.beam"] = cfg["decode"]["beam"]
    elif options.get("eval_bleu"):
        raise RunError("decode=off is not allowed with a recipe that decodes dev in training")
    every = cfg["probe"]["every"]
    if not isinstance(every, int) or every < 0:
        raise RunError(f"probe.every={every} is not allowed: legal is a whole number, 0 for none")
    for name, value in positive.items():
        if not isinstance(value, int) or value < 1:
            raise RunError(f"{name}={value} is not allowed: legal is a whole number, at least 1")
    for sign in ",:":
        if sign in str(cfg["paths"]["work"]):
            raise RunError(
                f"paths.work={cfg['paths']['work']} is not allowed: for its {sign!r} fairseq would "
                "read it as several paths"
            )
    core = cfg["runtime"]["core"]
    if core not in (None, "free") and (not isinstance(core, int) or core < 0):
        raise RunError(
            f"runtime.core={core} is not allowed: legal is null, the number of a CPU core, or free"
        )
    if options.get("updates_per_epoch") and options.get("save_interval_updates"):
        raise RunError(
            "recipe.options.save_interval_updates is not allowed with updates_per_epoch: dev is "
            "scored, and the run saved, at the end of each epoch"
        )
    if "beam_search" in options:
        raise RunError("recipe.options.beam_search is not allowed: give it as decode.beam_search")
    ours = task_of(options) == "translation_qknorm"
    if decodes(cfg) and ours != ("beam_search" in cfg["decode"]):
        raise RunError(
            f"recipe.options.task={task_of(options)} is decoded with "
            f"decode={'paper' if ours else 'beam'}: the other beam search is not its own"
        )


def check_lengths(options: Mapping[str, Any], longest: Mapping[str, Mapping[str, int]]) -> None:
    """Refuse sentences that fairseq would leave out.

    Args:
        options: what :func:`train_options` returned.
        longest: of each file of the prepared set, ``tokens`` and ``line`` of the longest sentence.

    Raises:
        RunError: naming file and line.
    """
    for name, sentence in longest.items():
        limits = {"max_source_positions": options.get("max_source_positions", 1024)}
        if name.startswith("train.") and options.get("max_tokens"):
            limits["max_tokens"] = options["max_tokens"]
        setting, limit = min(limits.items(), key=lambda item: item[1])
        if sentence["tokens"] + 1 > limit:
            raise RunError(
                f"{name}, line {sentence['line']} after cleaning: {sentence['tokens']} subword "
                f"tokens and an end are more than recipe.options.{setting}={limit}: shorten the "
                "sentence, or raise the setting"
            )


def decodes(cfg: Mapping[str, Any]) -> bool:
    """Whether a run is decoded and scored: not with ``decode=off``."""
    return cfg["decode"]["beam"] is not None


def task_of(options: Mapping[str, Any]) -> str:
    """fairseq's task; its own default is ``translation``."""
    return options.get("task", "translation")


def run_name(cfg: Mapping[str, Any], options: Mapping[str, Any], data_digest: str) -> str:
    """``<pair>/<variant>/seed<k>-<digest>``: what the run is, whenever and wherever it runs."""
    identity = {"options": dict(options), "data": data_digest}
    digest = digest_of(identity)[:12]
    variant = f"{cfg['recipe']['name']}-{cfg['attn']['name']}"
    if cfg["rope"]["name"] != "off":
        variant += f"-rope_{cfg['rope']['name']}"
    return f"{cfg['pair']['name']}/{variant}/seed{cfg['seed']}-{digest}"


def digest_of(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def pasteable(tool: str, argv: list[str]) -> str:
    """The command as a user can paste it into a shell."""
    return shlex.join([tool, *argv])


def environment(threads: int) -> dict[str, str]:
    """Environment of a tool: thread counts, so that jobs side by side never fight."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return {**os.environ, **counts, "PYTHONWARNINGS": "ignore"}
