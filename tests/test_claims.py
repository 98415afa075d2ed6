"""Claims: what is made of probes, surveys and translations, and how it is told."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.claims import attention, curves, growth, stability
from experiments.claims.__main__ import main, runs_in
from experiments.claims.arms import EQUAL_LOSS, EQUAL_UPDATES, NEAR, arms_of
from experiments.claims.classes import CLASSES, classes_of
from experiments.commands import RunError
from experiments.report import claim_tables, claims
from experiments.survey import Survey, check_alike

RATES = (0.001, 0.01, 0.1)
SEGMENT = {"started": "2026-11-30T00:00:00+00:00", "commit": "c0ffee", "dirty": False}


def probe(updates: int, loss: float, heads: int = 2, **model: float) -> dict[str, Any]:
    names = (*curves.TOGETHER, "entropy")
    module: dict[str, Any] = {name: [0.25 * (h + 1) for h in range(heads)] for name in names}
    module["q_spectral"] = 3.0
    whole = {"loss": loss, "grad_norm": 1.0, "weight_norm": 2.0, "embedding_norm": 1.0 + updates}
    modules = {"encoder.layers.0.self_attn": module}
    return {
        "updates": updates,
        "model": {**whole, "update_ratio": None, **model},
        "modules": modules,
    }


def make_run(
    work: Path,
    attn: str = "none",
    seed: int = 1,
    final: float | None = 2.0,
    start: float = 5.0,
    probes: bool = True,
    name: str = "proxy",
    **options: Any,
) -> Path:
    """A finished run's folder, or, without a final loss, one that diverged."""
    given = {"qk_norm": attn, "lr": 0.01, "seed": seed, "optimizer": "adam", **options}
    given = {"weight_decay": 0.0, "max_update": 100, "warmup_updates": 60, **given}
    tag = "-".join(f"{v}" for v in given.values())
    folder = work / "runs" / "toy" / f"{name}-{attn}" / f"seed{seed}-{tag}"
    (folder / "checkpoints").mkdir(parents=True)
    save_checkpoint(folder, "best", 100)
    (work / "data" / "toy" / "binarised-d").mkdir(parents=True, exist_ok=True)
    cfg = {
        "seed": seed,
        "pair": {"name": "toy"},
        "recipe": {"name": name},
        "attn": {"name": attn, "options": {"qk_norm": attn}},
        "decode": {"beam": None},
    }
    settings = {"cfg": cfg, "data": {"digest": "d", "data": "/elsewhere/binarised-d"}}
    settings |= {"options": given, "changed": {}}
    (folder / "run.json").write_text(json.dumps(settings))
    (folder / "segments.json").write_text(json.dumps([SEGMENT]))
    if probes:
        records = [{"batch": {}}, probe(0, start), probe(100, final or math.nan)]
        lines = [json.dumps(record) + "\n" for record in records]
        (folder / "probes.jsonl").write_text("".join(lines))
    log = ""
    if final is not None:
        ppl = math.exp(final)
        valid = {"epoch": 1, "valid_loss": "9", "valid_ppl": str(ppl), "valid_num_updates": "100"}
        log = f"now | INFO | valid | {json.dumps(valid)}\n"
        log += "now | INFO | fairseq_cli.train | done training in 9 seconds\n"
        trained = {"hardware": "a CPU", "versions": {"torch": "2"}, "train_seconds": 60.0}
        dev = [{"updates": 100, "loss": 9.0, "ppl": ppl}]
        (folder / "trained.json").write_text(json.dumps({**trained, "dev": dev}))
    else:
        (folder / "failed.txt").write_text("FloatingPointError: gradients are Nan/Inf\n")
    (folder / "train.log").write_text(log)
    return folder


# Stability ---------------------------------------------------------------------------------------


def test_sensitivity_of_a_made_up_curve() -> None:
    """Wortsman et al. 2023: losses 2, 3 and one over the start, of 5: (2 + 3 + 5) / 3 - 2."""
    assert stability.sensitivity([2.0, 3.0, 9.0], 5.0) == pytest.approx(10 / 3 - 2)
    assert stability.sensitivity([2.0, 3.0, None], 5.0) == pytest.approx(10 / 3 - 2)
    assert stability.sensitivity([2.5] * 4, 5.0) == 0
    assert stability.sensitivity([None, None], 5.0) == 0


@pytest.fixture
def sweep(tmp_path: Path) -> list[Path]:
    """Without normalisation the highest rate diverges; with it, a seed's is merely worse."""
    return [
        make_run(tmp_path, attn, seed, final, lr=rate)
        for attn, ends in {"none": (3.0, 2.0, None), "l2": (3.0, 2.0, 2.75)}.items()
        for seed in (1, 2)
        for rate, final in zip(RATES, ends, strict=True)
    ]


def test_a_sweep_is_summed_up(sweep: list[Path]) -> None:
    none, l2 = stability.summary(stability.measure(sweep[::-1]))[::-1]
    assert (none["attn"], l2["attn"]) == ("none", "l2")
    assert none["sensitivity"].mean == pytest.approx((3 + 2 + 5) / 3 - 2)
    assert l2["sensitivity"].mean == pytest.approx((3 + 2 + 2.75) / 3 - 2, abs=1e-4)
    assert l2["difference"].mean == pytest.approx(-2.25 / 3, abs=1e-4)
    assert none["difference"] is None
    assert (none["best_lr"], none["broken"], none["diverged"]) == (0.01, 0.1, (2, 6))
    assert (l2["best_lr"], l2["broken"], l2["diverged"]) == (0.01, 0.1, (0, 6))
    assert none["best"] == pytest.approx(2)


def test_what_is_measured_says_where_it_is_from(sweep: list[Path]) -> None:
    found = stability.measure(sweep)
    assert found["commits"] == ["c0ffee"] and found["hardware"] == ["a CPU"]
    assert (found["data"], found["train_minutes"]) == ("d", 10.0)
    assert "lr" not in found["options"] and found["options"]["max_update"] == 100
    lost = [run for run in found["runs"] if run["final"] is None]
    assert {(run["attn"], run["lr"]) for run in lost} == {("none", 0.1)}
    curve = found["runs"][0]["curve"]
    assert (curve["updates"], curve["logit_max"], curve["entropy_share"]) == (
        [0, 100],
        [0.5, 0.5],
        [0.375, 0.375],
    )


def test_seeds_with_other_rates_are_refused(sweep: list[Path]) -> None:
    with pytest.raises(RunError, match=r"same learning rates.*seed 1: 0.01, 0.1; seed 2: 0.001"):
        stability.summary(stability.measure(sweep[1:]))


def test_runs_of_another_sweep_are_refused(sweep: list[Path], tmp_path: Path) -> None:
    other = make_run(tmp_path, seed=3, max_update=7)
    with pytest.raises(RunError, match="not of one sweep: max_update is 7 and 100"):
        stability.measure([*sweep, other])


def test_a_run_without_probes_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path, probes=False)
    with pytest.raises(RunError, match=r"no probes\.jsonl.*train it again with probe\.every=100"):
        stability.measure([folder])
    (folder / "probes.jsonl").write_text('{"batch": {}}\n' + json.dumps(probe(50, 3.0)) + "\n")
    with pytest.raises(RunError, match="no probe before the first update"):
        stability.measure([folder])


def test_a_training_that_goes_on_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path, final=None)
    (folder / "failed.txt").write_text("RunError: fairseq_cli.train was stopped\n")
    with pytest.raises(RunError, match="has not ended: give the run's command again"):
        stability.measure([folder])


def test_growth(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, seed=s, optimizer=o) for s in (1, 2) for o in ("adam", "adam_l2")]
    lines = growth.summary(growth.measure(runs))
    assert [(line["optimizer"], line["seeds"]) for line in lines] == [("Adam", 2), ("AdamW", 2)]
    assert lines[0]["embedding_norm"] == (101, 101, 101) and lines[0]["weight_norm"] == (1, 1, 1)


def test_growth_of_what_has_not_ended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not trained to its end"):
        growth.measure([make_run(tmp_path, final=None)])
    with pytest.raises(RunError, match="optimizer=sgd: legal is adam, adam_fused, adam_l2"):
        growth.measure([make_run(tmp_path, optimizer="sgd")])


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    (folder / "probes.jsonl").write_text('{"batch": {}}\n{"updates": 0,\n')
    with pytest.raises(RunError, match=r"probes\.jsonl: a line is not JSON"):
        stability.measure([folder])


def test_the_command(sweep: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = sorted({str(folder.parent) for folder in sweep})
    assert len(runs_in([Path(f) for f in folders])) == 12
    argv = ["stability", *folders, "--results", str(tmp_path / "results")]
    assert main(argv) == 0
    path = tmp_path / "results" / "claims" / "stability-toy.json"
    assert json.loads(path.read_text()) == stability.measure(sorted(sweep))
    before = path.read_bytes()
    assert main(argv) == 0 and path.read_bytes() == before
    assert main(["stability", str(tmp_path)]) == 1
    assert "neither a run's folder nor one with runs in it" in capsys.readouterr().err


# Arms at equal loss ------------------------------------------------------------------------------


def test_two_pairs_share_columns_whatever_their_order() -> None:
    """The baseline stands first; a pair without an arm has nothing there."""

    def arm(condition: str, attn: str, sink: float) -> dict[str, Any]:
        figures = {name: {"mean": sink, "low": 0, "high": 0} for name in claim_tables.ATTENTION}
        heads = {kind: figures for kind in claim_tables.KINDS}
        return {"condition": condition, "attn": attn, "seed": 1, "heads": heads}

    first = {"pair": "aa", "arms": [arm(EQUAL_LOSS, "l2", 0.25), arm(EQUAL_LOSS, "none", 0.125)]}
    second = {"pair": "bb", "arms": [arm(EQUAL_UPDATES, n, 0.5) for n in ("rmsnorm", "none")]}
    frame = claim_tables.attention_table([first, second]).frame()
    assert list(frame.columns[3:]) == [
        *("baseline, equal updates", "QK-RMSNorm, equal updates"),
        *("baseline, equal dev loss", "QKNorm (l2), equal dev loss"),
    ]
    sinks = frame[frame["figure (mean of heads)"] == "sink share"]
    assert list(sinks.iloc[0][3:]) == ["–", "–", "0.125", "0.250"]
    assert list(sinks.iloc[-1][3:]) == ["0.500", "0.500", "–", "–"]


def save_checkpoint(folder: Path, name: str, updates: int) -> None:
    state = {"optimizer_history": [{"num_updates": updates}]}
    torch.save(state, folder / "checkpoints" / f"checkpoint_{name}.pt")


def keep(folder: Path, *points: tuple[int, float]) -> None:
    """Dev losses of a run, with a checkpoint of each."""
    path = folder / "trained.json"
    trained = json.loads(path.read_text())
    dev = [{"updates": n, "loss": 9.0, "ppl": math.exp(loss)} for n, loss in points]
    path.write_text(json.dumps({**trained, "dev": dev}))
    for n, _ in points:
        save_checkpoint(folder, f"1_{n}", n)


def test_the_better_one_is_taken_where_the_other_ended(tmp_path: Path) -> None:
    none, l2 = make_run(tmp_path, final=2.0), make_run(tmp_path, "l2", final=1.5)
    keep(l2, (40, 2.3), (60, 2.01), (80, 1.7), (100, 1.5))
    found = [(a.condition, a.attn, a.updates, round(a.loss, 2)) for a in arms_of([l2, none])]
    assert found == [
        ("equal updates", "l2", 100, 1.5),
        ("equal updates", "none", 100, 2.0),
        ("equal dev loss", "none", 100, 2.0),
        ("equal dev loss", "l2", 60, 2.01),
    ]
    assert arms_of([none, l2])[-1].checkpoint.name == "checkpoint_1_60.pt"


def test_without_a_checkpoint_at_equal_loss_it_says_how_to_get_one(tmp_path: Path) -> None:
    none, l2 = make_run(tmp_path, final=2.0), make_run(tmp_path, "l2", final=1.5)
    with pytest.raises(RunError, match=r"kept: 1\.500\).*runtime\.keep_checkpoints=15"):
        arms_of([none, l2])
    keep(l2, (60, 2.0 + 2 * NEAR), (100, 1.5))
    with pytest.raises(RunError, match=r"kept: 1\.500, 1\.500, 2\.060"):
        arms_of([none, l2])


def test_two_kinds_of_one_seed_are_asked_for(tmp_path: Path) -> None:
    none, l2 = make_run(tmp_path), make_run(tmp_path, "l2", seed=2)
    with pytest.raises(RunError, match=r"each seed needs both kinds.*stands alone"):
        arms_of([none, l2])
    with pytest.raises(RunError, match="attn=none and another one; given: none"):
        arms_of([none])


def test_data_that_are_gone_are_named(tmp_path: Path) -> None:
    none, l2 = make_run(tmp_path), make_run(tmp_path, "l2")
    (tmp_path / "data" / "toy" / "binarised-d").rmdir()
    with pytest.raises(RunError, match=r"prepared data .* is gone: run the same command again"):
        arms_of([none, l2])


# Tokens ------------------------------------------------------------------------------------------

SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "▁the", "▁,", "ing", "▁rareword", "s!", "▁5", "▁word"]
COUNTS = np.array([0, 0, 90, 1, 99, 50, 40, 3, 20, 60, 30])


def test_classes_by_spelling_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.claims.classes.FUNCTION_WORDS", 1)
    found = [CLASSES[c] if c >= 0 else None for c in classes_of(SYMBOLS, COUNTS)]
    assert found == [
        *("<s>", None, "</s>", None, "function word", "punctuation", "continuation"),
        *("rare", "continuation", "other", "other"),
    ]
    subwords = ["</s>", "the", "mo@@", ",", "ther"]
    found = [CLASSES[c] for c in classes_of(subwords, np.array([9, 99, 50, 60, 70]))]
    assert found == ["</s>", "function word", "continuation", "punctuation", "other"]


def survey_of(symbols: list[str] = SYMBOLS, text: str = "t", **arrays: np.ndarray) -> Survey:
    modules = {
        "encoder.layers.0.self_attn": {"kind": "encoder"},
        "decoder.layers.0.self_attn": {"kind": "decoder"},
        "decoder.layers.0.encoder_attn": {"kind": "cross"},
    }
    n = len(symbols)
    types: dict[str, np.ndarray] = {}
    for side in ("source", "target"):
        types[f"{side}/symbols"] = np.array(symbols)
        types[f"{side}/train"] = COUNTS[:n]
        types[f"{side}/embedding"] = np.linspace(1, 2, n)[:, None] * np.ones((1, 3))
    for name in modules:
        types[f"{name}/count"] = np.ones(n)
        types[f"{name}/uniform"] = np.ones(n)
        types[f"{name}/mass"] = np.ones(n)
        types[f"{name}/k_raw_norm"] = np.sqrt(COUNTS[:n].astype(float))
    return Survey("run", "none", 1, {"text": text, "modules": modules}, {**types, **arrays})


def test_mass_by_class() -> None:
    mass = np.ones(len(SYMBOLS))
    mass[2] = 11.0  # the end of sentence gets eleven times its share of the other ten
    survey = survey_of(**{"encoder.layers.0.self_attn/mass": mass})
    found = attention.class_masses(survey, "encoder")
    assert found["</s>"] == {"mass": 52.38, "uniform": 9.09, "ratio": pytest.approx(5.762)}
    assert attention.class_masses(survey, "cross")["</s>"]["ratio"] == 1


def test_lengths_that_follow_frequency() -> None:
    ranks = {line["space"]: line for line in attention.frequency_ranks(survey_of())}
    assert ranks["encoder keys"]["rank"] == 1 and ranks["encoder keys"]["types"] == 9
    assert abs(ranks["source embedding"]["rank"]) < 0.6


def test_surveys_of_other_text_are_not_set_side_by_side() -> None:
    check_alike([survey_of(), survey_of()])
    with pytest.raises(RunError, match="different source dictionaries"):
        check_alike([survey_of(), survey_of(SYMBOLS[:-1])])
    with pytest.raises(RunError, match="surveyed over different sentences"):
        check_alike([survey_of(), survey_of(text="u")])


# The report --------------------------------------------------------------------------------------


def test_tables_and_figures_of_a_sweep(sweep: list[Path]) -> None:
    found = {"stability": [stability.measure(sweep)]}
    (table,) = claims.tables(found)
    frame = table.frame()
    assert list(frame["attention"]) == ["baseline", "QKNorm (l2)"]
    assert list(frame["diverged"]) == ["2 of 6", "0 of 6"]
    drawn = claims.figures(found)
    assert drawn == claims.figures(found)
    names = [name for name, _, _ in drawn]
    assert names == ["claims_sensitivity", "claims_logits", "claims_entropy", "claims_gradients"]
    assert all("learning rate" in svg for name, _, svg in drawn if name == "claims_sensitivity")
