"""The ledger and the report made of it; and that the committed report is not stale."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path

import pytest
import torch

from experiments import collect, report
from experiments.commands import RunError
from experiments.provenance import rounded
from experiments.score import scores

from .conftest import ROOT

ROW = {
    "run": "toy/demo-none/seed1-abc",
    "pair": "toy",
    "attn": "none",
    "recipe": "demo",
    "condition": "demo",
    "prep": {"name": "modern", "raw": False},
    "seed": 1,
    "options": {"lr": 0.1},
    "decode": {"beam": 4, "lenpen": 1.0},
    "data": {"digest": "d", "lines": {}, "tokens": {}, "length_percentile": 41.0, "g_init": 10.7},
    "training": {
        "segments": [
            {"started": "2026-11-29T00:00:00+00:00", "commit": "c0ffee", "dirty": False},
            {"started": "2026-11-29T01:00:00+00:00", "commit": "decaf", "dirty": True},
        ],
        "dev": [{"updates": 10, "loss": 3.0, "ppl": 8.0}, {"updates": 20, "loss": 2.0, "ppl": 4.0}],
        "words_per_second": 1000,
        "updates": 20,
        "epochs": 1,
        "train_seconds": 90.0,
        "hardware": "a CPU",
        "versions": {"torch": "2.13.0"},
    },
    "dev_ppl": 4.0,
    "best_update": 20,
    "parameters": 1_234_567,
    "g": {},
    "decode_seconds": 1.0,
    "scores": {
        split: {name: {"score": 12.345, "signature": name} for name in ("bleu_tok", "bleu", "chrf")}
        for split in ("dev", "test")
    },
    "hypotheses": {"dev": "d", "test": "t"},
}


def test_a_row_of_the_same_run_and_decoding_is_replaced(tmp_path: Path) -> None:
    collect.put_row(tmp_path, ROW)
    collect.put_row(tmp_path, {**ROW, "run": "toy/demo-l2/seed1-def"})
    collect.put_row(tmp_path, {**ROW, "decode": {"beam": 1, "lenpen": 1.0}})
    collect.put_row(tmp_path, {**ROW, "dev_ppl": 3.0})
    rows = collect.read_rows(tmp_path)
    assert [(r["run"][9:11], r["decode"]["beam"], r["dev_ppl"]) for r in rows] == [
        ("no", 4, 3.0),
        ("l2", 4, 4.0),
        ("no", 1, 4.0),
    ]


def test_a_broken_ledger_names_the_line(tmp_path: Path) -> None:
    collect.put_row(tmp_path, ROW)
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write("\n<<<<<<< HEAD\n")
    with pytest.raises(RunError, match=r"runs.jsonl, line 3: not JSON"):
        collect.read_rows(tmp_path)


def test_report(tmp_path: Path) -> None:
    other = copy.deepcopy(ROW) | {"run": "toy/demo-l2/seed1-def", "attn": "l2", "g": {"x": 9.9}}
    for row in (other, ROW):
        collect.put_row(tmp_path, row)
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    paths = report.make_report(tmp_path, readme)
    table = paths["table"].read_text()
    assert table.index("baseline") < table.index("QKNorm")
    assert "12.35" in table or "12.34" in table
    text = readme.read_text()
    assert text == f"before\n{report.BEGIN}\n{table}{report.END}\nafter\n"
    page = paths["page"].read_text()
    assert "00:00:00+00:00 at commit c0ffee; resumed" in page
    assert "at commit decaf with uncommitted changes" in page
    assert "<svg" in page
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    report.make_report(tmp_path, readme)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_columns_never_mix_signatures(tmp_path: Path) -> None:
    other = copy.deepcopy(ROW) | {"run": "toy/demo-l2/seed1-def"}
    other["scores"]["test"]["bleu"]["signature"] = "another"
    for row in (ROW, other):
        collect.put_row(tmp_path, row)
    with pytest.raises(ValueError, match="scored in different ways"):
        report.make_report(tmp_path)


def test_nothing_to_report_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--results", str(tmp_path)]) == 1
    assert "no runs in" in capsys.readouterr().err


def test_published_outputs_score_what_was_published(data_dir: Path) -> None:
    """The authors' own hypotheses on en-vi: 32.49 and 33.24 tokenised BLEU."""
    reference = (data_dir / "iwslt15_en_vi" / "tst2013.vi").read_text("utf-8").split("\n")[:-1]
    for system, expected in {"baseline": 32.49, "qknorm": 33.24}.items():
        path = data_dir / "published_outputs_en_vi" / f"{system}.vi"
        hypotheses = path.read_text("utf-8").split("\n")[:-1]
        result = scores(hypotheses, reference, hypotheses, reference)
        assert result["bleu_tok"]["score"] == expected
        assert "tok:none" in result["bleu_tok"]["signature"]


def test_unequal_numbers_of_lines_are_refused() -> None:
    with pytest.raises(RunError, match="2 hypotheses for 1 references"):
        scores(["a", "b"], ["a"], ["a", "b"], ["a"])


def committed(path: str) -> str:
    """A file as HEAD has it: a user's own runs add to results/, which makes no test fail."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "show", f"HEAD:{path}"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"not in a git clone, or {path} is not committed")
    return done.stdout.decode("utf-8")


def test_the_committed_report_is_made_of_the_committed_rows(tmp_path: Path) -> None:
    (tmp_path / collect.LEDGER).write_text(committed("results/runs.jsonl"), "utf-8")
    readme = tmp_path / "README.md"
    readme.write_text(committed("README.md"), "utf-8")
    paths = report.make_report(tmp_path, readme)
    for path in (*paths.values(), readme):
        name = str(path.relative_to(tmp_path))
        name = name if path == readme else f"results/{name}"
        assert committed(name) == path.read_text("utf-8"), f"{name} is stale: run `make report`"
    for row in collect.read_rows(tmp_path):
        for split, path in row["hypotheses"].items():
            assert committed(f"results/{path}").count("\n") == row["data"]["lines"][split]


def test_attention_is_named_with_its_rotary_positions() -> None:
    assert report.attention_name(ROW) == "baseline"
    qwen3 = {**ROW, "attn": "qwen3", "options": {"rope": "after_norm"}}
    assert report.attention_name(qwen3) == "as Qwen3, RoPE after norm"


def test_g_of_a_module_or_of_each_head() -> None:
    assert rounded(torch.tensor([1.23456])) == 1.2346
    assert rounded(torch.tensor([1.0, 2.00001])) == [1.0, 2.0]
