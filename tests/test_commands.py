"""Config to argv, without running anything; and what tools' outputs are turned into."""

from __future__ import annotations

import dataclasses
import json
import re
from itertools import pairwise

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from experiments import commands
from experiments.changes import changed
from experiments.commands import RunError
from experiments.decode import best_of, in_order, n_best
from experiments.sweep import jobs_of, use_own_launchers
from experiments.training_log import parse_line, summarise
from qknorm_mt.config import QKNormTransformerConfig, validate

from .conftest import ROOT

CONF = ROOT / "conf"
DATA = {
    "length_percentile": 41.0,
    "percentiles": {"50": 15.0, "75": 22.0, "90": 31.0, "97.5": 41.0, "99": 46.0},
    "subwords": {"method": "subword_nmt"},
}
GROUPS = {p.name: sorted(f.stem for f in p.glob("*.yaml")) for p in CONF.iterdir() if p.is_dir()}


def config_of(*overrides: str, hydra: bool = False, sweep: bool = False) -> DictConfig:
    """The config; with Hydra's own part; as the start of a sweep has it."""
    # The fixtures import fairseq, which registers a schema for any config named "config"; the
    # runner never imports fairseq.
    ConfigStore.instance().repo.pop("config.yaml", None)
    use_own_launchers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        if sweep:
            loaded = GlobalHydra.instance().hydra
            assert loaded is not None
            return loaded.compose_config("config", list(overrides), RunMode.MULTIRUN)
        return compose("config", list(overrides), return_hydra_config=hydra)


def composed(*overrides: str) -> dict:
    return OmegaConf.to_container(config_of(*overrides), resolve=True)  # type: ignore[return-value]


@pytest.mark.parametrize("pair", GROUPS["pair"])
@pytest.mark.parametrize("recipe", GROUPS["recipe"])
def test_every_pair_and_recipe_go_together(pair: str, recipe: str) -> None:
    options = commands.train_options(composed(f"pair={pair}", f"recipe={recipe}"), DATA)
    assert options["qk_norm"] == "l2"
    argv = commands.train_argv(options, "DATA", "CHECKPOINTS", ("aa", "bb"))
    assert all(isinstance(word, str) for word in argv)
    assert not any("$" in word for word in argv)


HEADS = ("encoder_attention_heads", "decoder_attention_heads")
PRESETS: dict[str, dict] = {
    "none": {"qk_norm": "none"},
    "l2": {"qk_norm": "l2", "qk_norm_init_length": 41.0},
    "layernorm": {"qk_norm": "layernorm"},
    "rmsnorm": {"qk_norm": "rmsnorm"},
    **{
        name: {"qk_norm": name.partition("_")[0], **options}
        for name, options in {
            "l2_fixed": {"qk_temperature": "fixed", "allow_flat_attention": True},
            "l2_bare": {"qk_temperature": "none", "allow_flat_attention": True},
            "layernorm_bare": {"qk_temperature": "none"},
            "layernorm_learned": {"qk_temperature": "learned", "qk_norm_init_length": 41.0},
            "rmsnorm_bare": {"qk_temperature": "none"},
            "rmsnorm_learned": {"qk_temperature": "learned", "qk_norm_init_length": 41.0},
        }.items()
    },
    "vit22b": {"qk_norm": "layernorm", "qk_norm_affine": "gain"},
    "qwen3": {"qk_norm": "rmsnorm", "qk_norm_affine": "gain", "no_qkv_bias": True},
}


@pytest.mark.parametrize("rope", GROUPS["rope"])
@pytest.mark.parametrize("attn", GROUPS["attn"])
def test_every_attention_is_legal_and_sets_its_choices_alone(attn: str, rope: str) -> None:
    cfg = composed(f"attn={attn}", f"rope={rope}", "recipe=paper", "recipe.init_length=data")
    options = commands.train_options(cfg, DATA)
    before = commands.train_options(composed("attn=none", "recipe=paper"), DATA)
    changed = {n: v for n, v in options.items() if n not in before or before[n] != v}
    expected = dict(PRESETS[attn])
    if attn == "none":
        del expected["qk_norm"]
    if rope != "off":
        expected |= {"rope": rope, "rope_base": 10000.0, "positions": "none"}
    assert changed == expected
    check_model(options)
    name = commands.run_name(cfg, options, "digest")
    assert f"paper-{attn}{'' if rope == 'off' else f'-rope_{rope}'}/seed1-" in name


@pytest.mark.parametrize(
    "override", ["seeed=2", "pair.nmae=x", "recipe.options.drop_out=0.1", "attn=l3"]
)
def test_unknown_settings_are_refused(override: str) -> None:
    with pytest.raises(ConfigCompositionException):
        composed(override)


def check_model(options: dict) -> None:
    """The plugin takes the options."""
    known = {field.name for field in dataclasses.fields(QKNormTransformerConfig)}
    validate(QKNormTransformerConfig(**{n: v for n, v in options.items() if n in known}))


EXPECTED = re.compile(r"# Expected: (\d+) runs\. One GPU: .+\. Two CPU cores.*: .+\.")


@pytest.mark.parametrize("name", GROUPS["experiment"])
def test_experiments_say_their_command_and_cost_and_expand(name: str) -> None:
    header, command, *rest = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert header == "# @package _global_"  # Hydra reads it in the first line only
    assert command.startswith(f"# python -m experiments.run -m +experiment={name} ")
    (count,) = [int(match[1]) for match in map(EXPECTED.fullmatch, rest) if match]
    config_of(*command.split()[5:], hydra=True)  # whatever stands there composes too
    jobs = jobs_of(config_of(f"+experiment={name}", hydra=True))
    assert len(jobs) == count
    seeds = sorted({word for job in jobs for word in job if word.startswith("seed=")}) or [""]
    found = set()
    for job in jobs:
        if seeds[0] and seeds[0] not in job:
            continue
        cfg = composed(*job)
        commands.check_settings(cfg)
        options = commands.train_options(cfg, DATA)
        check_model(options)
        found.add(commands.run_name(cfg, options, "digest"))
    assert len(found) * len(seeds) == count


@pytest.mark.parametrize("name", GROUPS["experiment"])
def test_experiments_can_be_tried_out_on_the_toy_pair(name: str) -> None:
    trial = ("pair=toy", "recipe=smoke", "seed=1")
    jobs = jobs_of(config_of(f"+experiment={name}", *trial, hydra=True))
    for job in (jobs[0], jobs[-1]):
        cfg = composed(*job)
        assert (cfg["pair"]["name"], cfg["recipe"]["name"], cfg["seed"]) == ("toy", "smoke", 1)
        check_model(commands.train_options(cfg, DATA))


REST = [(group, name) for group in ("prep", "decode", "system") for name in GROUPS[group]]


@pytest.mark.parametrize(("group", "name"), REST)
def test_the_other_files_compose(group: str, name: str) -> None:
    assert "$" not in json.dumps(composed(f"{'+' if group == 'system' else ''}{group}={name}"))


@pytest.mark.parametrize("launcher", sorted(p.stem for p in (CONF / "hydra/launcher").iterdir()))
def test_what_a_cluster_is_asked_for_is_the_pairs(launcher: str) -> None:
    settings = [f"hydra/launcher={launcher}", "recipe=paper"]
    found = [
        OmegaConf.to_container(
            config_of(*settings, f"pair={pair}", hydra=True).hydra.launcher, resolve=True
        )
        for pair in ("gl-en", "ar-en")
    ]
    assert [(f["timeout_min"], f["gpus_per_node"]) for f in found] == [(720, 1), (1440, 1)]
    own = config_of(*settings, "~pair.request", "pair=gl-en", hydra=True)
    assert own.hydra.launcher.timeout_min == 1440


def test_flags() -> None:
    options = {"dropout": 0.1, "cpu": True, "fp16": False, "patience": None, "betas": "(0.9, 0.98)"}
    assert commands.to_flags(options) == ["--dropout", "0.1", "--cpu", "--betas", "(0.9, 0.98)"]


def test_pasteable_commands_are_quoted() -> None:
    assert commands.pasteable("tool", ["a b", "$HOME"]) == "tool 'a b' '$HOME'"


def test_l_comes_from_the_data_unless_given() -> None:
    assert commands.train_options(composed(), DATA)["qk_norm_init_length"] == 41.0
    given = composed("attn.options.qk_norm_init_length=72")
    assert commands.train_options(given, DATA)["qk_norm_init_length"] == 72
    assert "qk_norm_init_length" not in commands.train_options(composed("attn=none"), DATA)


def test_where_the_text_is_from() -> None:
    def argv(*overrides: str) -> str:
        return " ".join(commands.prepare_argv(composed("paths.work=W", *overrides)))

    assert argv("pair=toy").endswith(" --toy-seed 1")
    published = argv("pair=gl-en", "data.mirror=http://here/")
    assert published.endswith(" --source ted_talks --downloads W/downloads --mirror http://here/")
    assert "--source qi18naacl" in argv("pair=gl-en", "data.source=qi18naacl")
    local = argv("pair=gl-en", f"data.local={ROOT}")
    assert local.endswith(
        f"--train {ROOT}/ted_gl_en/train --dev {ROOT}/ted_gl_en/dev --test {ROOT}/ted_gl_en/test"
    )
    with pytest.raises(
        RunError, match=r"as data.local=DIR; expected inside it: ted_gl_en/train\.gl"
    ):
        argv("pair=gl-en", "data.source=null")
    with pytest.raises(RunError, match=r"data.local=.*nowhere: no such folder"):
        argv("pair=gl-en", "data.local=/nowhere")


def test_preparation_is_told_every_setting() -> None:
    argv = commands.prepare_argv(composed("pair=sk-en", "prep=modern", "pair.raw=[train]"))
    told = " ".join(argv)
    assert "--normalise --max-tokens 200 --max-ratio 2.0 --ratio-from 6 --min-script 0.5" in told
    assert "--drop-duplicates --subwords sentencepiece_bpe --subword-size 8000" in told
    assert "--raw train --published-length 75" in told
    argv = commands.prepare_argv(composed("pair=sk-en", "recipe=paper", "pair.raw=true"))
    told = " ".join(argv)
    assert "--normalise" not in told and "--max-ratio" not in told and "--drop" not in told
    assert "--subwords subword_nmt --subword-size 8000 --vocabulary-threshold 1" in told
    assert "--raw train dev test" in told


def test_raw_is_no_name_of_a_split() -> None:
    with pytest.raises(RunError, match=r"^prep\.raw=train is not allowed: legal is true"):
        commands.prepare_argv(composed("pair.raw=train"))


@pytest.mark.parametrize(
    ("method", "name"),
    [("subword_nmt", "subword_nmt"), ("sentencepiece_unigram", "sentencepiece")],
)
def test_dev_is_scored_without_the_datas_own_subwords(method: str, name: str) -> None:
    data = {**DATA, "subwords": {"method": method}}
    options = commands.train_options(composed("recipe=paper"), data)
    assert options["eval_bleu_remove_bpe"] == name


def test_what_would_fail_later_is_refused_before_training() -> None:
    def check(*overrides: str, file: str = "train.qaa", tokens: int = 1023) -> None:
        cfg = composed(*overrides)
        longest = {file: {"tokens": tokens, "line": 7}}
        commands.check_settings(cfg)
        commands.check_lengths(commands.train_options(cfg, DATA), longest)

    check()
    check(file="test.qaa")
    with pytest.raises(RunError, match=r"train.qaa, line 7 .* 900 subword .*max_tokens=900"):
        check("recipe.options.max_tokens=900", tokens=900)
    with pytest.raises(RunError, match=r"train.qaa, line 7 .*max_source_positions=1024"):
        check("recipe.options.max_tokens=4096", tokens=1024)
    with pytest.raises(RunError, match=r"test.qaa, line 7 .*max_source_positions=1024"):
        check(file="test.qaa", tokens=1024)
    for core in ("null", "0", "free"):
        check(f"runtime.core={core}")
    with pytest.raises(RunError, match=r"paths.work=a:b is not allowed: for its ':'"):
        check("paths.work='a:b'")
    settings = ("recipe.max_updates=null", "decode.beam=0", "runtime.threads=0")
    for setting in (*settings, "runtime.core=all", "runtime.core=-1"):
        with pytest.raises(
            RunError, match=rf"^{setting.split('=')[0]}=.* is not allowed: legal is"
        ):
            check(setting)
    check("recipe=paper")
    with pytest.raises(RunError, match=r"save_interval_updates is not allowed with updates_per"):
        check("recipe=paper", "+recipe.options.save_interval_updates=100")
    with pytest.raises(RunError, match=r"give it as decode\.beam_search"):
        check("recipe=paper", "+recipe.options.beam_search=fairseq")
    for recipe, decode in (("paper", "beam"), ("demo", "paper")):
        with pytest.raises(RunError, match=r"^recipe.options.task=.* is decoded with decode="):
            check(f"recipe={recipe}", f"decode={decode}")


def test_g_may_start_from_any_percentile_of_the_lengths() -> None:
    def start(given: str) -> float:
        options = commands.train_options(composed(f"recipe.init_length={given}"), DATA)
        return options["qk_norm_init_length"]

    assert [start(given) for given in ("data", "p97.5", "p50", "33")] == [41.0, 41.0, 15.0, 33]
    with pytest.raises(
        RunError, match=r"init_length=p60 is not .* legal is a number, data, p50, p"
    ):
        start("p60")
    assert "qk_norm_init_length" not in commands.train_options(composed("attn=none"), DATA)


def test_the_runner_takes_one_gpu() -> None:
    argv = commands.train_argv(commands.train_options(composed(), DATA), "D", "C", ("aa", "bb"))
    assert argv[argv.index("--distributed-world-size") + 1] == "1"


def test_dev_is_decoded_in_training_as_it_is_afterwards() -> None:
    cfg = composed("recipe=paper", "decode.beam=5", "+decode.temperature=2.0")
    options = commands.train_options(cfg, DATA)
    search = {"beam": 5, "lenpen": 0.6, "max_len_a": 1, "max_len_b": 50, "temperature": 2.0}
    assert json.loads(options["eval_bleu_args"]) == search
    assert options["beam_search"] == "paper"


def test_a_run_is_named_by_what_it_is() -> None:
    cfg = composed()
    options = commands.train_options(cfg, DATA)
    name = commands.run_name(cfg, options, "digest")
    assert name.startswith("toy/demo-l2/seed1-")
    assert commands.run_name(cfg, dict(reversed(options.items())), "digest") == name
    assert commands.run_name(cfg, options, "other data") != name
    assert commands.run_name(cfg, {**options, "lr": 1.0}, "digest") != name
    moved = composed("paths.work=elsewhere", "runtime.threads=2", "decode.beam=1")
    assert commands.run_name(moved, commands.train_options(moved, DATA), "digest") == name


def test_hypotheses_come_back_in_the_order_of_the_input() -> None:
    output = "S-1\tx\nH-1\t-0.5\tb \nD-1\t-0.5\tb\nH-0\t-1.0\ta\u2028c\nP-0\t-1\nH-2\t-1\t\n"
    output += "H-1\t-0.75\tsecond best\n"
    beams = in_order(output, 3)
    assert best_of(beams) == ["a\u2028c", "b ", ""]
    assert list(n_best(beams))[1:3] == ["2\t1\t-0.5000\tb ", "2\t2\t-0.7500\tsecond best"]
    with pytest.raises(RunError, match=r"no hypothesis for sentences \[3\] of 4"):
        in_order(output, 4)


def test_training_log() -> None:
    lines = [
        "2026 | INFO | fairseq.trainer | begin training epoch 1",
        '2026 | INFO | train_inner | {"epoch": 1, "num_updates": "20", "wps": "100", "wall": "5"}',
        '2026 | INFO | valid | {"valid_loss": "3", "valid_ppl": "8.0", "valid_num_updates": "20"}',
        '2026 | INFO | train_inner | {"epoch": 1, "num_updates": "40", "wps": "300", "wall',
        '2026 | INFO | train_inner | {"epoch": 2, "num_updates": "40", "wps": "200", "wall": "9"}',
        '2026 | INFO | valid | {"valid_loss": "2", "valid_ppl": "4.5", "valid_num_updates": "40"}',
        '2026 | INFO | valid | {"valid_loss": "2", "valid_ppl": "4.0", "valid_num_updates": "40"}',
    ]
    assert parse_line(lines[0]) is None
    assert parse_line(lines[3]) is None
    assert summarise(lines) == {
        "dev": [
            {"updates": 20, "loss": 3.0, "ppl": 8.0},
            {"updates": 40, "loss": 2.0, "ppl": 4.0},
        ],
        "words_per_second": 150,
        "updates": 40,
        "epochs": 2,
        "train_seconds": 9.0,
    }


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), {}),
        (("recipe=paper", "attn=qwen3", "rope=after_norm"), {}),
        (("seed=3", "prep=paper", "runtime.threads=2"), {}),
        (("recipe.options.dropout=0.35", "decode.beam=1"), {"decode.beam": 1, "dropout": 0.35}),
        (("recipe=paper", "recipe.max_updates=20"), {"max_update": 20}),
        (("recipe=paper", "recipe.init_length=10"), {"qk_norm_init_length": 10}),
        (("recipe=paper", "pair=gl-en", "pair.settings.heads=8"), dict.fromkeys(HEADS, 8)),
        (("+attn.options.qk_temperature=fixed",), {"qk_temperature": "fixed"}),
        (("~recipe.options.clip_norm",), {"clip_norm": None}),
    ],
)
def test_overridden_settings_are_known(overrides: tuple[str, ...], expected: dict) -> None:
    cfg = composed(*overrides)
    assert changed(cfg, commands.train_options(cfg, DATA), DATA) == expected


@pytest.mark.parametrize(
    ("task", "trained_as"),
    [
        ("translation", "translation_probed"),
        ("translation_qknorm", "translation_qknorm"),
    ],
)
def test_probes_change_the_task_at_most_and_not_the_run(task: str, trained_as: str) -> None:
    plain, probed = composed(), composed("probe.every=20", "probe.sentences=4")
    options = {**commands.train_options(plain, DATA), "task": task}
    assert commands.train_options(probed, DATA) == commands.train_options(plain, DATA)
    without = commands.train_argv(options, "D", "F/C", ("aa", "bb"), 1, plain["probe"])
    argv = commands.train_argv(options, "D", "F/C", ("aa", "bb"), 1, probed["probe"])
    assert "--probe-every" not in without and without[without.index("--task") + 1] == task
    given = dict(pairwise(argv))
    assert given["--task"] == trained_as
    assert (given["--probe-every"], given["--probe-sentences"]) == ("20", "4")
    assert given["--probe-file"] == "F/probes.jsonl"


def test_probes_and_decoding_that_cannot_be_are_refused() -> None:
    commands.check_settings(composed("recipe=proxy"))
    for override, said in {
        "probe.every=-1": r"probe\.every=-1 is not allowed",
        "probe.sentences=0": r"probe\.sentences=0 is not allowed",
    }.items():
        with pytest.raises(RunError, match=said):
            commands.check_settings(composed(override))
    with pytest.raises(RunError, match="decode=off is not allowed with a recipe that decodes"):
        commands.check_settings(composed("recipe=paper", "decode=off"))
