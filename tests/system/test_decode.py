"""What is done with a trained run: decoded, averaged, asked to translate, rescored, compared."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments import collect
from experiments.lines import read_lines, to_text

from ..conftest import ROOT
from .conftest import run
from .test_run import QUICK

MORE = [
    *("recipe.max_updates=240", "recipe.options.save_interval_updates=80"),
    *("recipe.options.lr=0.01", "decode.beam=2", "runtime.keep_checkpoints=3"),
]


@dataclass
class Trained:
    """A finished run: where it is, and its row."""

    work: Path
    results: Path
    folder: Path
    row: dict

    def source(self) -> list[str]:
        (path,) = self.work.glob("data/toy/bitext-*/test.qaa")
        return read_lines(path)

    def hypotheses(self) -> list[str]:
        return read_lines(self.results / self.row["hypotheses"]["test"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("decode")
    places = [f"paths.work={folder}/work", f"paths.results={folder}/results"]
    # Hydra takes a setting once.
    own = {setting.split("=")[0] for setting in MORE}
    quick = [setting for setting in QUICK if setting.split("=")[0] not in own]
    done = run("experiments.run", *places, *quick, *MORE)
    assert done.returncode == 0, done.stdout
    (row,) = collect.read_rows(folder / "results")
    trained = Trained(folder / "work", folder / "results", folder / "work/runs" / row["run"], row)
    assert len(set(trained.hypotheses())) > 20  # else any of them would do for any other
    return trained


def output(*argv: str, stdin: str | None = None) -> str:
    """stdout alone of a command that must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_decoding_again_gives_what_was_scored(trained: Trained) -> None:
    done = run("experiments.decode", str(trained.folder))
    assert done.returncode == 0, done.stdout
    assert to_text(trained.hypotheses()) in done.stdout
    for name, score in trained.row["scores"]["test"].items():
        assert f"{name} {score['score']:.2f}  {score['signature']}" in done.stdout


def test_n_best_of_an_ensemble_of_a_run_with_itself(trained: Trained) -> None:
    text = output("experiments.decode", *[str(trained.folder)] * 2, "--nbest", "2")
    lines = [line.split("\t") for line in text.split("\n")[:-1]]
    assert [(int(s), int(r)) for s, r, *_ in lines] == [
        (s, r) for s in range(1, 301) for r in (1, 2)
    ]
    assert [text for _, rank, _, text in lines if rank == "1"] == trained.hypotheses()
    scores = [float(score) for _, _, score, _ in lines]
    assert all(first >= second for first, second in zip(scores[::2], scores[1::2], strict=True))


def test_checkpoints_are_averaged(trained: Trained) -> None:
    done = run("experiments.average", str(trained.folder), "--last", "3")
    assert done.returncode == 0, done.stdout
    assert "the mean at updates 80, 160, 240" in done.stdout
    lines = output(
        "experiments.decode", str(trained.folder), "--checkpoint", "checkpoint_average.pt"
    )
    assert lines.count("\n") == 300
    assert lines != to_text(trained.hypotheses())
    done = run("experiments.average", str(trained.folder), "--last", "4")
    assert done.returncode == 1
    assert "holds 3 numbered checkpoints; runtime.keep_checkpoints=N" in done.stdout


def test_translating_applies_and_undoes_the_runs_own_preprocessing(
    trained: Trained, tmp_path: Path
) -> None:
    source = trained.source()[:40]
    source[10:10] = ["", " ".join(source[:300] * 3), "   "]  # empty, over-long, blank
    (tmp_path / "in.txt").write_text(to_text(source))
    argv = [str(trained.folder), "--tokenised", "-i", str(tmp_path / "in.txt")]
    done = run("experiments.translate", *argv, "-o", str(tmp_path / "out.txt"))
    assert done.returncode == 0, done.stdout
    found = read_lines(tmp_path / "out.txt")
    assert len(found) == 43
    assert (found[10], found[12]) == ("", "")
    assert found[11]
    assert found[:10] + found[13:] == trained.hypotheses()[:40]


def test_line_by_line_and_the_attention_of_the_first(trained: Trained, tmp_path: Path) -> None:
    page = tmp_path / "attention.html"
    argv = [str(trained.folder), "--together", "1", "--nbest", "1", "--attention", str(page)]
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.translate", *argv],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for i, line in enumerate(trained.source()[:2], 1):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        sentence, rank, score, text = process.stdout.readline().rstrip("\n").split("\t")
        assert (sentence, rank) == (str(i), "1")
        assert float(score) < 0
        assert text
    _, said = process.communicate()
    assert process.returncode == 0
    assert "attention of sentence 1" in said
    assert "Cross-attention" in page.read_text()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{empty}"], "is no run's folder, which holds run.json"),
        (["{run}", "--checkpoint", "none.pt"], "none.pt: no such file"),
        (["{run}", "--beam", "0"], "--beam 0 is not allowed"),
        (["{run}", "--together", "0"], "--together 0 is not allowed"),
        (["{run}", "--nbest", "3"], "--nbest 3 is not allowed: legal is 1 to the beam"),
        (["{run}", "{run}", "--attention", "x"], "--attention is of one model"),
        (["{run}", "-i", "{empty}/none"], "none: No such file or directory"),
        (["{run}", "-i", "{binary}"], "line 2: not UTF-8"),
        (["{moved}"], "its prepared data"),
    ],
)
def test_bad_input_is_named(
    argv: list[str], message: str, trained: Trained, tmp_path: Path
) -> None:
    (tmp_path / "binary").write_bytes(b"a\n\xff\n")
    moved = tmp_path / "work" / "runs" / trained.row["run"]
    moved.mkdir(parents=True)
    shutil.copy(trained.folder / "run.json", moved)
    places = {"empty": tmp_path, "run": trained.folder, "binary": tmp_path / "binary"}
    filled = [word.format(**places, moved=moved) for word in argv]
    done = run("experiments.translate", *filled, stdin="a\n")
    assert done.returncode == 1
    last = done.stdout.rstrip("\n").split("\n")[-1]
    assert last.startswith("error: ")
    assert message in last


def test_a_model_that_cannot_be_loaded_ends_the_pipe(trained: Trained) -> None:
    argv = [str(trained.folder), "--checkpoint", "../run.json"]
    done = run("experiments.translate", *argv, stdin="more than a pipe holds\n" * 20_000)
    assert done.returncode == 1
    assert "error: the model failed: " in done.stdout


def test_rescoring_finds_what_was_changed_and_mends_it(trained: Trained, tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(trained.results, results)
    argv = ["--results", str(results), "--work", str(trained.work)]
    done = run("experiments.rescore", *argv)
    assert done.returncode == 0, done.stdout
    assert "1 rows: 1 as it was" in done.stdout
    row = trained.row | {"scores": json.loads(json.dumps(trained.row["scores"]))}
    row["scores"]["test"]["bleu_tok"]["score"] += 1
    collect.put_row(results, row)
    path = collect.stats_path(results / row["hypotheses"]["test"])
    path.write_text(path.read_text().replace("\t0\n", "\t1\n", 1))
    done = run("experiments.rescore", *argv)
    assert done.returncode == 1
    assert "test bleu_tok: " in done.stdout
    assert "bleu.tsv: not there, or other sentence statistics" in done.stdout
    done = run("experiments.rescore", *argv, "--write")
    assert done.returncode == 0, done.stdout
    assert collect.read_rows(results) == [trained.row]
    done = run("experiments.rescore", "--results", str(results), "--work", str(tmp_path))
    assert done.returncode == 1
    assert "1 rows: 1 without references" in done.stdout


def test_runs_are_compared_by_name(trained: Trained, tmp_path: Path) -> None:
    other = tmp_path / "other.qab"
    lines = trained.hypotheses()
    other.write_text(to_text(["no", *lines[1:]]))
    argv = [trained.row["run"], str(other), "--results", str(trained.results)]
    text = output("experiments.compare", *argv, "--work", str(trained.work))
    assert "A and B differ in 1 of 300 sentences" in text
    assert "Words by frequency in training" in text
    assert "no figures by word frequency" not in text
