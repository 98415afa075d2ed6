"""What TensorBoard is told of a run's settings and results."""

from __future__ import annotations

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from experiments.hparams import write_hparams
from experiments.plan import Run

CFG = {group: {"name": f"the-{group}"} for group in ("pair", "recipe", "attn", "rope", "prep")}
OPTIONS = {"lr": 0.002, "adam_betas": "(0.9, 0.98)", "cpu": True, "max_epoch": None}
ROW = {
    "dev_ppl": 23.5,
    "scores": {split: {"bleu_tok": {"score": s}} for split, s in (("dev", 14.0), ("test", 13.5))},
}


def events(folder: Path) -> dict[str, object]:
    """Scalars, and the plugin's data, by tag, of the one file there is."""
    (path,) = (folder / "tensorboard" / "hparams").iterdir()
    data, found = path.read_bytes(), {}
    while data:  # length, its checksum, event, its checksum
        (length,) = struct.unpack("<Q", data[:8])
        for value in Event.FromString(data[12 : 12 + length]).summary.value:
            content = value.metadata.plugin_data.content
            found[value.tag] = HParamsPluginData.FromString(content) if content else None
            found[value.tag] = found[value.tag] or value.simple_value
        data = data[16 + length :]
    return found


def test_settings_from_the_start_and_results_once_there_are_any(tmp_path: Path) -> None:
    run = Run(CFG, {}, OPTIONS, tmp_path)
    write_hparams(run)
    begun = events(tmp_path)
    assert {name for name in begun if not name.startswith("_")} == set()
    settings = begun["_hparams_/session_start_info"].session_start_info.hparams  # type: ignore[attr-defined]
    assert settings["lr"].number_value == 0.002
    assert settings["adam_betas"].string_value == "(0.9, 0.98)"
    assert settings["cpu"].bool_value is True
    assert settings["attn"].string_value == "the-attn"
    assert "max_epoch" not in settings

    write_hparams(run, ROW)
    scored = events(tmp_path)
    assert scored["_hparams_/session_start_info"] == begun["_hparams_/session_start_info"]
    results = {name: value for name, value in scored.items() if not name.startswith("_")}
    assert results == {"dev/ppl": 23.5, "dev/bleu": 14.0, "test/bleu": 13.5}
