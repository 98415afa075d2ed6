"""Parts of the runner that only show after a kill at a bad moment."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from experiments.commands import RunError
from experiments.locks import exclusive
from experiments.process import run_module, write_atomically
from experiments.provenance import parameters
from experiments.references import references
from experiments.train import begin_segment, repair_checkpoints
from experiments.training_log import is_finished


def save(path: Path, value: int) -> None:
    torch.save({"value": value}, path)


def load(path: Path) -> int:
    return torch.load(path, weights_only=True)["value"]


@pytest.mark.parametrize("cut", ["checkpoint_last.pt", "checkpoint_best.pt"])
def test_a_checkpoint_cut_short_is_copied_again(tmp_path: Path, cut: str) -> None:
    for name in ("checkpoint_1_200.pt", "checkpoint_last.pt", "checkpoint_best.pt"):
        save(tmp_path / name, 200)
    save(tmp_path / "checkpoint_2_1000.pt", 1000)
    whole = (tmp_path / "checkpoint_2_1000.pt").read_bytes()
    (tmp_path / cut).write_bytes(whole[: len(whole) // 2])
    repair_checkpoints(tmp_path)
    values = {n: load(tmp_path / n) for n in ("checkpoint_last.pt", "checkpoint_best.pt")}
    assert values == {**dict.fromkeys(values, 200), cut: 1000}
    assert not list(tmp_path.glob("*.partial"))


def test_a_last_checkpoint_cut_short_is_the_best_where_none_is_numbered(tmp_path: Path) -> None:
    save(tmp_path / "checkpoint_best.pt", 5)
    (tmp_path / "checkpoint_last.pt").write_bytes(b"PK")
    repair_checkpoints(tmp_path)
    assert load(tmp_path / "checkpoint_last.pt") == load(tmp_path / "checkpoint_best.pt") == 5


def test_the_end_of_a_training_is_told_from_a_stop() -> None:
    assert is_finished(["2026-11-29 | INFO | fairseq_cli.train | done training in 4.0 seconds"])
    assert not is_finished(["2026-11-29 | INFO | fairseq_cli.train | begin training epoch 1"])


def test_every_start_of_a_training_is_noted(tmp_path: Path) -> None:
    for _ in range(2):
        begin_segment(tmp_path / "segments.json")
    segments = json.loads((tmp_path / "segments.json").read_text())
    assert [sorted(segment) for segment in segments] == [["commit", "dirty", "started"]] * 2


def test_a_lock_outlives_its_holder_in_the_child_that_was_given_it(tmp_path: Path) -> None:
    waited = []
    with exclusive(tmp_path / "lock", lambda: None, threading.Event()) as lock:
        child = subprocess.Popen(["sleep", "1"], pass_fds=(lock,))
    with exclusive(tmp_path / "lock", lambda: waited.append(child.poll()), threading.Event()):
        assert child.wait(timeout=5) == 0
    assert waited == [None]


def test_waiting_for_a_lock_can_be_stopped(tmp_path: Path) -> None:
    stop = threading.Event()
    with (
        exclusive(tmp_path / "lock", lambda: None, stop),
        pytest.raises(RunError, match="stopped while waiting"),
        exclusive(tmp_path / "lock", stop.set, stop),
    ):
        pass


def test_a_process_can_be_stopped(tmp_path: Path) -> None:
    stop = threading.Event()
    log = tmp_path / "log"
    with pytest.raises(RunError, match=r"http.server was stopped"):
        run_module("http.server", ["0"], log, on_line=lambda line: stop.set(), stop=stop)


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ("OSError: [Errno 28] No space left on device", OSError, "No space left"),
        (
            "ValueError: dropout=2",
            RunError,
            r"^tool ended with exit code 3: ValueError: dropout=2 \(all it said: ",
        ),
    ],
    ids=["disk", "other"],
)
def test_a_failing_tool_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, error: type, message: str
) -> None:
    (tmp_path / "tool.py").write_text(f"print({said!r}); raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(error, match=message):
        run_module("tool", [], tmp_path / "log")


def test_a_core_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"runtime.core=4000: no such CPU core here; there are \[\d"):
        run_module("this", [], tmp_path / "log", cores=[4000])


def test_a_failing_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"


def test_shared_embeddings_count_once(tmp_path: Path) -> None:
    embedding = torch.randn(10, 4)
    state = {
        "encoder.version": torch.tensor([3.0]),
        "encoder.embed_tokens.weight": embedding,
        "encoder.layers.0.self_attn.qk_norm.g": torch.tensor([9.87654]),
        "decoder.embed_tokens.weight": embedding.clone(),  # as a GPU's checkpoint holds it
        "decoder.output_projection.weight": embedding,
        "vocabulary": torch.arange(8),
    }
    torch.save({"model": state}, tmp_path / "checkpoint.pt")
    assert parameters(tmp_path / "checkpoint.pt") == {
        "parameters": 41,
        "g": {"encoder.layers.0.self_attn": 9.8765},
    }


def test_the_plain_reference_is_the_users_own_text_where_it_came_raw(tmp_path: Path) -> None:
    (tmp_path / "reference.dev.en").write_text("It &apos;s &quot; so &quot; .\n\n")
    assert references(tmp_path, "dev", "en") == (
        ["It &apos;s &quot; so &quot; .", ""],
        ['It\'s "so".', ""],
    )
    (tmp_path / "plain.dev.en").write_text("It\u2019s \u201cso\u201d.\n\n")
    assert references(tmp_path, "dev", "en")[1] == ["It\u2019s \u201cso\u201d.", ""]
