"""The ledger and the report made of it; and that the committed report is not stale."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import yaml

from experiments import collect, figure, stats
from experiments.commands import RunError, digest_of
from experiments.provenance import rounded
from experiments.report import build, differences, figures, groups
from experiments.report.__main__ import main
from experiments.report.paper import PAIRS, read_paper
from experiments.score import sentence_stats

from .conftest import ROOT

METRICS = ("bleu_tok", "bleu_detok", "bleu", "chrf", "ter")
PAPER = ROOT / "results" / "paper.yaml"


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for these tests; the committed report has its own number."""
    monkeypatch.setattr(stats, "RESAMPLES", 1000)


def make_row(attn: str = "none", seed: int = 1, **changes: Any) -> dict:
    """A row of the ledger; ``changes`` go over its top level."""
    pair = changes.get("pair", "toy")
    recipe = changes.get("recipe", "demo")
    options = {"lr": 0.1, "qk_norm": attn, "seed": seed, **changes.pop("options", {})}
    run = f"{pair}/{recipe}-{attn}/seed{seed}-{digest_of(options)[:12]}"
    curve = [{"updates": 10, "loss": 3.0, "ppl": 8.0}, {"updates": 20, "loss": 2.0, "ppl": 4.0}]
    row = {
        "run": run,
        "pair": pair,
        "attn": attn,
        "recipe": recipe,
        "condition": "demo",
        "changed": {},
        "text": "generated",
        "prep": {"name": "modern", "raw": False},
        "seed": seed,
        "options": options,
        "decode": {"beam": 4, "lenpen": 1.0},
        "data": {
            "digest": "d",
            "lines": {"dev": 1, "test": 60},
            "subwords": {"langs": ["qaa", "qab"]},
            "length_percentile": 41.0,
            "g_init": 10.7,
        },
        "training": {
            "segments": [
                {"started": "2026-11-29T00:00:00+00:00", "commit": "c0ffee", "dirty": False},
                {"started": "2026-11-29T01:00:00+00:00", "commit": "decaf", "dirty": True},
            ],
            "dev": curve,
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
        "g": {"encoder.layers.0.self_attn": 9.9} if attn == "l2" else {},
        "decode_seconds": 1.0,
        "scores": {
            split: {name: {"score": 12.34, "signature": f"{name}'s"} for name in METRICS}
            for split in ("dev", "test")
        },
        "references": {"dev": "r" * 64, "test": "s" * 64},
        "hypotheses": {split: f"hyps/{run}/{split}.qab" for split in ("dev", "test")},
    }
    return row | changes


def put(results: Path, row: dict, quality: float = 0.6) -> dict:
    """Store a row, with hypotheses of which a share of words is right, and their BLEU."""
    rng = np.random.default_rng(0)
    reference = [" ".join(f"w{i}" for i in rng.integers(50, size=9)) for _ in range(60)]
    rng = np.random.default_rng([row["seed"], len(row["attn"])])
    hypotheses = [
        " ".join(w if rng.random() < quality else "x" for w in line.split()) for line in reference
    ]
    collect.put_hypotheses(results, row, "test", hypotheses, reference)
    score = stats.bleu_of(np.array(sentence_stats(hypotheses, reference)))
    row["scores"]["test"]["bleu_tok"]["score"] = round(score, 2)
    collect.put_row(results, row)
    return row


def score_of(row: dict) -> float:
    return row["scores"]["test"]["bleu_tok"]["score"]


def test_a_row_of_the_same_run_and_decoding_is_replaced(tmp_path: Path) -> None:
    collect.put_row(tmp_path, make_row())
    collect.put_row(tmp_path, {**make_row(), "run": "toy/demo-l2/seed1-def"})
    collect.put_row(tmp_path, {**make_row(), "decode": {"beam": 1, "lenpen": 1.0}})
    collect.put_row(tmp_path, {**make_row(), "dev_ppl": 3.0})
    rows = collect.read_rows(tmp_path)
    assert [(r["run"][9:11], r["decode"]["beam"], r["dev_ppl"]) for r in rows] == [
        ("no", 4, 3.0),
        ("l2", 4, 4.0),
        ("no", 1, 4.0),
    ]


def test_a_broken_ledger_names_the_line(tmp_path: Path) -> None:
    collect.put_row(tmp_path, make_row())
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write("\n<<<<<<< HEAD\n")
    with pytest.raises(RunError, match=r"runs.jsonl, line 3: not JSON"):
        collect.read_rows(tmp_path)


@pytest.mark.parametrize("row", ["{}", "[1]", '{"run": "old"}'])
def test_a_row_of_another_version_names_what_it_lacks(row: str, tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text(row + "\n")
    with pytest.raises(RunError, match=r"line 1: no row of this version \(it lacks .*references"):
        collect.read_rows(tmp_path)


def test_report(tmp_path: Path) -> None:
    for attn in ("l2", "none"):
        put(tmp_path, make_row(attn))
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{build.BEGIN}\nold\n{build.END}\nafter\n")
    paths = build.make_report(tmp_path, readme)
    names = {str(path.relative_to(tmp_path)) for path in paths}
    kinds = ("main", "baselines", "variants", "runs")
    assert {f"tables/{name}.{kind}" for name in kinds for kind in ("md", "csv", "tex")} <= names
    assert {"figures/dev_perplexity.svg", "figures/g.svg", "figures/speed.svg"} <= names
    assert "figures/dev_bleu.svg" not in names  # nothing to draw
    runs = (tmp_path / "tables" / "runs.md").read_text()
    assert runs.index("baseline") < runs.index("QKNorm")
    assert "`bleu_tok's`" in runs
    table = (tmp_path / "tables" / "main.md").read_text()
    assert readme.read_text() == f"before\n{build.BEGIN}\n{table}{build.END}\nafter\n"
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    build.make_report(tmp_path, readme)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_the_page_is_self_contained_and_says_where_numbers_come_from(tmp_path: Path) -> None:
    row = put(tmp_path, make_row("l2", options={"lr": "<script>"}))
    build.make_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "00:00:00+00:00 at commit c0ffee; resumed" in page
    assert "at commit decaf with uncommitted changes" in page
    assert page.count("<svg") == 3
    assert "<dt>data digest</dt><dd>d</dd>" in page
    assert "lr=&lt;script&gt;" in page
    assert "lr=<script>" not in page
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:,)""", page)
    assert not re.search(r"url\((?!#)", page)
    for anchor in set(re.findall(r'href="#(run-[^"]+)"', page)):
        assert f'<details id="{anchor}"><summary>{row["run"]}/' in page


def test_two_decodings_of_a_run_have_places_of_their_own(tmp_path: Path) -> None:
    row = make_row()
    for beam in (1, 4):
        places = {s: f"hyps/{row['run']}/decode-{beam}/{s}.qab" for s in ("dev", "test")}
        put(tmp_path, make_row(decode={"beam": beam, "lenpen": 1.0}, hypotheses=places))
    build.make_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    anchors = re.findall(r'<details id="(run-[^"]+)"', page)
    assert len(anchors) == len(set(anchors)) == 2
    assert set(anchors) == set(re.findall(r'href="#(run-[^"]+)"', page))


def test_latex_is_booktabs_and_compiles_with_plain_letters(tmp_path: Path) -> None:
    put(tmp_path, make_row())
    put(tmp_path, make_row(seed=2))
    for seed in (1, 2):
        put(tmp_path, make_row("l2", seed), quality=0.9)
    build.make_report(tmp_path)
    for path in (tmp_path / "tables").glob("*.tex"):
        text = path.read_text()
        assert all(rule in text for rule in ("\\toprule", "\\midrule", "\\bottomrule"))
        assert text.isascii(), [c for c in text if not c.isascii()]
    text = (tmp_path / "tables" / "variants.tex").read_text()
    assert re.search(r"\d \$\\pm\$ \d", text)
    assert "<" not in text.replace("$<$", "")


def read_main(results: Path) -> list[dict[str, str]]:
    build.make_report(results)
    with (results / "tables" / "main.csv").open() as file:
        return list(csv.DictReader(file))


def full(pair: str, attn: str, seed: int) -> dict:
    """A row of the paper's recipe on published text."""
    own = {"pair": pair, "recipe": "paper", "condition": "full", "text": "ted_talks"}
    return make_row(attn, seed, **own, prep={"name": "paper", "raw": False})


def test_the_main_table_against_the_paper(tmp_path: Path) -> None:
    scores: dict[tuple[str, str], list[float]] = {}
    for i, pair in enumerate(PAIRS):
        for attn, quality in (("none", 0.5 + 0.02 * i), ("l2", 0.8)):
            rows = [put(tmp_path, full(pair, attn, seed), quality) for seed in (1, 2, 3)]
            scores[pair, attn] = [score_of(row) for row in rows]
    lines = read_main(tmp_path)
    assert [line["pair"] for line in lines] == [*PAIRS, "mean of five"]
    for line in lines[:-1]:
        sides = [np.array(scores[line["pair"], attn]) for attn in ("none", "l2")]
        assert (line["seeds"], line["condition"]) == ("3", "full")
        for name, side in zip(("baseline", "QKNorm"), sides, strict=True):
            assert line[name] == f"{side.mean():.2f} ± {side.std(ddof=1):.2f}"
        gained = sides[1] - sides[0]
        number, mark = line["difference"][:-2], line["difference"][-2:]
        assert mark == "*†"
        assert float(number) == pytest.approx(gained.mean(), abs=0.011)
        ends = scipy.stats.t.interval(0.95, 2, loc=gained.mean(), scale=scipy.stats.sem(gained))
        assert eval(line["seeds: 95%"]) == pytest.approx(ends, abs=0.03)
        assert line["p (Holm)"] == "0.005"  # 5 / 1001, the least that there can be
    raw = [scipy.stats.ttest_rel(scores[p, "l2"], scores[p, "none"]).pvalue for p in PAIRS]
    for line, p in zip(lines, stats.holm(raw), strict=False):
        assert float(line["p of seeds (Holm)"].lstrip("< ")) == pytest.approx(p, abs=0.002)
    line = lines[2]
    assert (line["paper baseline"], line["paper QKNorm"]) == ("32.49", "33.24")
    ours = np.mean(scores["en-vi", "l2"]) - 33.24
    assert (line["paper difference"], line["QKNorm - paper"]) == ("+0.75", f"{ours:+.2f}")
    assert [line["paper QKNorm"] for line in lines[:2]] == ["not verified"] * 2
    assert [line["QKNorm - paper"] for line in lines[:2]] == ["–"] * 2
    mean = np.mean([np.mean(scores[p, "l2"]) - np.mean(scores[p, "none"]) for p in PAIRS])
    assert float(lines[-1]["difference"]) == pytest.approx(mean, abs=0.011)
    assert lines[-1]["paper difference"] == "+0.928"


@pytest.mark.parametrize(
    ("change", "condition"),
    [
        ({"text": "local"}, "full, stand-in"),
        ({"changed": {"dropout": 0.9}}, "full, changed"),
        ({"prep": {"name": "modern", "raw": False}}, "full"),
        ({"condition": "cpu"}, "cpu"),
    ],
)
def test_what_was_not_trained_as_published_is_not_set_against_it(
    change: dict, condition: str, tmp_path: Path
) -> None:
    put(tmp_path, full("en-vi", "l2", 1) | change)
    lines = read_main(tmp_path)
    (line,) = [line for line in lines if line["pair"] == "en-vi"]
    assert (line["condition"], line["QKNorm - paper"]) == (condition, "not comparable")
    assert (line["seeds"], line["baseline"], line["difference"]) == ("0 and 1", "–", "–")
    assert lines[-1]["difference"] == "–"


def test_one_seed_says_so_and_seeds_are_matched(tmp_path: Path) -> None:
    put(tmp_path, make_row("none", 1))
    baseline = put(tmp_path, make_row("none", 2))
    system = put(tmp_path, make_row("l2", 2), quality=0.62)
    (line,) = [line for line in read_main(tmp_path) if line["pair"] == "toy"]
    difference = float(line["difference"].strip("*"))
    assert difference == pytest.approx(score_of(system) - score_of(baseline), abs=0.011)
    assert line["seeds"] == "2 and 1, 1 common"
    assert (line["seeds: 95%"], line["p of seeds (Holm)"]) == ("one seed", "–")


@pytest.fixture
def statistics(tmp_path: Path) -> Callable[[Any], np.ndarray]:
    return lambda row: collect.read_stats(tmp_path, row)


def test_holm_counts_the_pairs_of_a_condition(statistics: Any, tmp_path: Path) -> None:
    for pair in ("gl-en", "sk-en"):
        for attn, quality in (("none", 0.6), ("l2", 0.63)):
            put(tmp_path, make_row(attn, pair=pair), quality)
            put(tmp_path, make_row(attn, pair=pair, recipe="other"), quality)
    found = groups.grouped(collect.read_rows(tmp_path))
    assert len(found) == 4
    pairs = [(group.arms[groups.BASELINE], group.arms[groups.QKNORM]) for group in found]
    compared = [differences.difference(*pair, statistics) for pair in pairs]
    raw = compared[0].test.p_randomisation  # type: ignore[union-attr]
    assert 0.001 < raw < 0.4
    adjusted = differences.adjusted(compared, found)
    assert [p for p, _ in adjusted] == pytest.approx([2 * raw] * 4)


def test_the_baselines_table_knows_the_earlier_papers_systems(tmp_path: Path) -> None:
    fix = {"fix_norm": True}
    expected = {"PreNorm + LayerNorm": "–"}
    for name, attn, options in (
        ("PreNorm + FixNorm + LayerNorm", "none", fix),
        ("PreNorm + FixNorm + ScaleNorm", "none", fix | {"norm": "scale"}),
        ("PostNorm + LayerNorm", "none", {"norm_position": "post"}),
        ("QKNorm", "l2", fix),
    ):
        row = make_row(attn, len(expected), pair="en-vi", options=options)
        expected[name] = f"{score_of(put(tmp_path, row)):.2f}"
    build.make_report(tmp_path)
    with (tmp_path / "tables" / "baselines.csv").open() as file:
        lines = {line["system"]: line for line in csv.DictReader(file)}
    assert {name: line["en-vi ours"] for name, line in lines.items()} == expected
    assert lines["PreNorm + FixNorm + ScaleNorm"]["gl-en paper"] == "20.91"
    assert lines["QKNorm"]["gl-en paper"] == "not verified"


def test_preparations_have_lines_of_their_own(tmp_path: Path) -> None:
    for prep, digest in (("modern", "s"), ("paper", "t")):
        references = {"dev": "r", "test": digest}
        own = {"prep": {"name": prep, "raw": False}, "references": references}
        put(tmp_path, make_row(**own, run=f"toy/demo-none/seed1-{prep}"))
    build.make_report(tmp_path)
    for table in ("main", "variants"):
        with (tmp_path / "tables" / f"{table}.csv").open() as file:
            lines = [line["prep"] for line in csv.DictReader(file) if line["pair"] == "toy"]
        assert lines == ["modern", "paper"]
    text = (tmp_path / "tables" / "baselines.csv").read_text()
    assert text.count("PreNorm + LayerNorm,demo,demo") == 2


def test_what_was_overridden_is_named(tmp_path: Path) -> None:
    fixed = {"qk_temperature": "fixed"}
    for row in (
        make_row(),
        make_row(options={"lr": 0.2}, changed={"lr": 0.2}),
        make_row("l2", options=fixed, changed=fixed),
        make_row("l2"),
    ):
        put(tmp_path, row)
    found = {group.recipe: group for group in groups.grouped(collect.read_rows(tmp_path))}
    assert {*found} == {"demo", "demo, lr=0.2"}
    first = found["demo"]
    assert (first.condition, found["demo, lr=0.2"].condition) == ("demo", "demo, changed")
    assert {*first.arms} == {"baseline", "QKNorm (l2)", "QKNorm (l2), qk_temperature=fixed"}
    put(tmp_path, make_row(data=make_row()["data"] | {"digest": "other"}, run="other"))
    names = [group.recipe for group in groups.grouped(collect.read_rows(tmp_path))]
    assert sorted(name[:6] for name in names) == ["demo #", "demo #", "demo, "]
    assert len(set(names)) == 3


def test_a_run_of_another_test_set_is_refused(tmp_path: Path) -> None:
    put(tmp_path, make_row())
    other = put(tmp_path, make_row("l2", references={"dev": "r" * 64, "test": "t" * 64}))
    with pytest.raises(RunError, match="scored against different test sets") as error:
        build.make_report(tmp_path)
    assert other["run"] in str(error.value)
    put(tmp_path, {**other, "prep": {"name": "paper"}})  # its own lines, another text
    build.make_report(tmp_path)


def test_columns_never_mix_signatures(tmp_path: Path) -> None:
    put(tmp_path, make_row())
    other = make_row("l2")
    other["scores"]["test"]["bleu"]["signature"] = "another"
    put(tmp_path, other)
    with pytest.raises(RunError, match=r"scored in different ways.*rescore --write"):
        build.make_report(tmp_path)


def test_lost_statistics_are_named(tmp_path: Path) -> None:
    for attn in ("none", "l2"):
        row = put(tmp_path, make_row(attn))
    path = collect.stats_path(tmp_path / row["hypotheses"]["test"])
    perfect = "9\t9\t9\t8\t7\t6\t9\t8\t7\t6\n" * 60
    for text, message in (
        ("hyp_len\n1\n", "is broken"),
        ("\t".join(collect.STATS_HEADER) + "\n" + perfect, "does not belong to the row's BLEU"),
        (None, "no such file: `python -m experiments.rescore --write`"),
    ):
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(RunError, match=rf"bleu\.tsv.*{message}"):
            build.make_report(tmp_path)


def test_statistics_are_kept_as_they_are(tmp_path: Path) -> None:
    row = make_row()
    hypotheses, reference = ["a b c"] * 60, ["a b d"] * 60
    collect.put_hypotheses(tmp_path, row, "test", hypotheses, reference)
    row["scores"]["test"]["bleu_tok"]["score"] = 0.0  # of two words right, no four in a row
    kept = collect.read_stats(tmp_path, row)
    assert kept.tolist() == sentence_stats(hypotheses, reference)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["systems"][1].update(verified=None), "33.24 is not allowed"),
        (lambda p: p["systems"][0]["scores"].update({"en-vi": "32.5?"}), "is not allowed"),
        (lambda p: p["systems"][0]["scores"].pop("gl-en"), "legal pairs are exactly gl-en, sk-en"),
        (lambda p: p["systems"][0].update(source="hearsay"), "source 'hearsay' is none of"),
        (lambda p: p.pop("systems"), "is broken"),
    ],
)
def test_published_figures_must_be_verified(
    change: Callable[[dict], Any], message: str, tmp_path: Path
) -> None:
    paper = yaml.safe_load(PAPER.read_text(encoding="utf-8"))
    change(paper)
    (tmp_path / "paper.yaml").write_text(yaml.safe_dump(paper))
    with pytest.raises(RunError, match=message):
        read_paper(tmp_path / "paper.yaml")


def test_the_committed_published_figures() -> None:
    paper = read_paper(PAPER)
    found = {
        (system, pair): figure.score
        for system, by_pair in paper.figures.items()
        for pair, figure in by_pair.items()
        if system in ("baseline", "QKNorm") and figure.score is not None
    }
    assert found == {("baseline", "en-vi"): 32.49, ("QKNorm", "en-vi"): 33.24}
    assert paper.mean_difference.score == 0.928
    assert paper.score("PreNorm + FixNorm + ScaleNorm", "sk-en") == 30.25


def test_nothing_to_report_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path)]) == 1
    assert "no runs in" in capsys.readouterr().err


def test_a_readme_without_markers_is_refused(tmp_path: Path) -> None:
    put(tmp_path, make_row())
    readme = tmp_path / "README.md"
    readme.write_text("no markers")
    with pytest.raises(RunError, match="has no lines <!-- results: begin -->"):
        build.make_report(tmp_path, readme)
    assert readme.read_text() == "no markers"


def test_figures_take_the_pages_colours_and_mark_seeds(tmp_path: Path) -> None:
    rows = [make_row("l2", seed, training=make_row()["training"]) for seed in (1, 2)]
    _, draw, height = figures.FIGURES["dev_perplexity"]
    svg = figures.make(groups.grouped(rows), draw, height)
    assert svg is not None
    assert "currentColor" in svg
    assert figure.INK not in svg
    assert svg.count(figure.COLOURS["l2"].lower()) >= 4
    assert "seed 2" in svg
    assert figures.mean([1.0, 3.0]) == 2.0


def committed(path: str) -> str:
    """A file as HEAD has it: a user's own runs add to results/, which makes no test fail."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "show", f"HEAD:{path}"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"not in a git clone, or {path} is not committed")
    return done.stdout.decode("utf-8")


def committed_files(folder: str) -> list[str]:
    argv = ["git", "-C", str(ROOT), "ls-tree", "--name-only", "HEAD", f"{folder}/"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_the_committed_report_is_made_of_the_committed_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    (tmp_path / collect.LEDGER).write_text(committed("results/runs.jsonl"), "utf-8")
    (tmp_path / "paper.yaml").write_text(committed("results/paper.yaml"), "utf-8")
    for row in collect.read_rows(tmp_path):
        for split, path in row["hypotheses"].items():
            assert committed(f"results/{path}").count("\n") == row["data"]["lines"][split]
        path = collect.stats_path(Path(row["hypotheses"]["test"]))
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(committed(f"results/{path}"), "utf-8")
    for path in committed_files("results/claims"):
        (tmp_path / "claims").mkdir(exist_ok=True)
        (tmp_path / "claims" / Path(path).name).write_text(committed(path), "utf-8")
    readme = tmp_path / "README.md"
    readme.write_text(committed("README.md"), "utf-8")
    paths = build.make_report(tmp_path, readme)
    for path in (*paths, readme):
        name = str(path.relative_to(tmp_path))
        name = name if path == readme else f"results/{name}"
        assert committed(name) == path.read_text("utf-8"), f"{name} is stale: run `make report`"


def test_attention_is_named_with_its_rotary_positions() -> None:
    assert groups.attention_name(make_row()) == "baseline"
    qwen3 = make_row("qwen3", options={"rope": "after_norm", "positions": "none"})
    assert groups.attention_name(qwen3) == "as Qwen3, RoPE after norm"
    qwen3["changed"] = {"positions": None, "lr": 0.2, "rope_base": 500.0}
    assert groups.attention_name(qwen3)[25:] == ", positions=None, rope_base=500.0"


def test_g_of_a_module_or_of_each_head() -> None:
    assert rounded(torch.tensor([1.23456])) == 1.2346
    assert rounded(torch.tensor([1.0, 2.00001])) == [1.0, 2.0]
