"""The task's options, and what it clears before a training."""

from __future__ import annotations

from typing import Any

import pytest
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq_cli import train
from omegaconf import OmegaConf

from qknorm_mt.resume import forget_earlier_runs
from qknorm_mt.task import QKNormTranslationConfig, check_subwords, validate

OFF = (
    "grouped_shuffling",
    "update_ordered_indices_seed",
    "update_epoch_batch_itr",
    "skip_remainder_batch",
    "disable_validation",
)


def config(**options: Any) -> Any:
    cfg = OmegaConf.structured(QKNormTranslationConfig)
    given = {"data": "DATA", "update_freq": [1], "valid_subset": "valid"}
    given |= dict.fromkeys(OFF, False) | {"best_checkpoint_metric": "bleu"}
    bleu = {"eval_bleu": True, "eval_tokenized_bleu": True}
    for name, value in {**given, **bleu, **options}.items():
        cfg[name] = value
    return cfg


def test_legal_options() -> None:
    validate(config())
    validate(config(updates_per_epoch=100, update_freq=[4], dev_reference="dev.vi"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updates_per_epoch": -1}, "updates_per_epoch=-1 is not allowed: legal is at least 0"),
        ({"updates_per_epoch": 5, "update_freq": [1, 2]}, r"update_freq=\[1, 2\] is not allowed"),
        ({"updates_per_epoch": 5, "data": "A:B"}, "data='A:B' is not allowed: legal is one folder"),
        ({"eval_tokenized_bleu": False}, "eval_tokenized_bleu=False is not allowed"),
        ({"eval_bleu_detok": "moses"}, "eval_bleu_detok='moses' is not allowed: legal is space"),
        ({"valid_subset": "valid,test"}, "valid_subset='valid,test' is not allowed"),
        (
            {"eval_bleu": False, "best_checkpoint_metric": "loss", "dev_reference": "x"},
            "dev_reference='x' is not allowed",
        ),
        ({"eval_bleu": False}, "eval_bleu=False is not allowed: legal is true with best_"),
        *(({name: True}, f"{name}=True is not allowed: legal is false") for name in OFF),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_illegal_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate(config(**options))


@pytest.mark.parametrize(
    ("symbol", "right", "wrong"),
    [("\u2581a", ["sentencepiece"], ["subword_nmt", "@@ "]), ("a@@", ["@@ "], ["sentencepiece"])],
)
def test_subwords_of_another_kind_are_not_undone(symbol: str, right: list, wrong: list) -> None:
    dictionary = Dictionary()
    dictionary.add_symbol(symbol)
    for name in (*right, None, "letter"):
        check_subwords(config(eval_bleu_remove_bpe=name), dictionary)
    kind = "sentencepiece" if right == ["sentencepiece"] else "subword_nmt"
    for name in wrong:
        message = f"eval_bleu_remove_bpe='{name}' is not allowed: legal is {kind}, as"
        with pytest.raises(ValueError, match=message):
            check_subwords(config(eval_bleu_remove_bpe=name), dictionary)
        check_subwords(config(eval_bleu_remove_bpe=name, eval_bleu=False), dictionary)


def test_best_scores_of_earlier_runs_are_forgotten() -> None:
    checkpoint_utils.save_checkpoint.best = 33.0
    train.should_stop_early.best, train.should_stop_early.num_runs = 33.0, 7
    forget_earlier_runs()
    assert not vars(checkpoint_utils.save_checkpoint)
    assert not vars(train.should_stop_early)
