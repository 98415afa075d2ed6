"""Translation as the paper trained it: its batches, epochs, dev BLEU, beam search, logit mask."""

import functools
import logging
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import II
from torch import Tensor

from .batches import ORDERS, ByLongerSide, VirtualEpochs, report_fill
from .bleu import NGRAMS, bleu_of, corpus_stats
from .config import refuse_option
from .counts import count_types
from .generator import PaperBeamSearch
from .probes import ProbeConfig, Probed
from .resume import check_resumed, digest_of, forget_earlier_runs

NAME = "translation_qknorm"
BEAM_SEARCHES = ("paper", "fairseq")

logger = logging.getLogger(__name__)


@dataclass
class QKNormTranslationConfig(TranslationConfig, ProbeConfig):
    """Options of ``--task translation_qknorm``, beside those of fairseq's ``translation``."""

    updates_per_epoch: int = field(
        default=0,
        metadata={"help": "an epoch is this many updates, whatever the data; 0: one pass over it"},
    )
    batch_order: ChoiceEnum(ORDERS) = field(  # type: ignore[valid-type]
        default="longer_side",
        metadata={
            "help": "sentences are put into batches by their longer side, or in fairseq's "
            "order, by source length"
        },
    )
    beam_search: ChoiceEnum(BEAM_SEARCHES) = field(  # type: ignore[valid-type]
        default="paper",
        metadata={
            "help": "the released code's beam search, with length penalty "
            "((5 + length) / 6)^lenpen, or fairseq's, with length^lenpen"
        },
    )
    dev_reference: Optional[str] = field(
        default=None,
        metadata={
            "help": "tokenised reference of dev for --eval-bleu, a sentence a line; "
            "else the binarised target without its subwords"
        },
    )
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")
    disable_validation: bool = II("dataset.disable_validation")
    grouped_shuffling: bool = II("dataset.grouped_shuffling")
    update_ordered_indices_seed: bool = II("dataset.update_ordered_indices_seed")
    update_epoch_batch_itr: Optional[bool] = II("dataset.update_epoch_batch_itr")
    skip_remainder_batch: Optional[bool] = II("optimization.skip_remainder_batch")
    restore_file: str = II("checkpoint.restore_file")
    update_freq: List[int] = II("optimization.update_freq")


def validate(cfg: QKNormTranslationConfig) -> None:
    """Refuse, before a training, options that would have no effect or another one.

    Raises:
        ValueError: naming the option, its value and what is legal.
    """

    refuse = partial(refuse_option, cfg)
    if cfg.updates_per_epoch < 0:
        refuse("updates_per_epoch", "at least 0")
    if cfg.updates_per_epoch and len(cfg.update_freq) != 1:
        refuse("update_freq", "one number, with updates_per_epoch")
    if cfg.updates_per_epoch and len(utils.split_paths(cfg.data)) > 1:
        refuse("data", "one folder, with updates_per_epoch")
    for name in (
        "grouped_shuffling",
        "update_ordered_indices_seed",
        "update_epoch_batch_itr",
        "skip_remainder_batch",
    ):
        if getattr(cfg, name):
            refuse(name, f"false with {NAME}, whose batches are made once")
    if cfg.best_checkpoint_metric == "bleu" and not cfg.eval_bleu:
        refuse("eval_bleu", "true with best_checkpoint_metric=bleu")
    if cfg.eval_bleu and cfg.disable_validation:
        refuse("disable_validation", "false with eval_bleu")
    if cfg.eval_bleu and not cfg.eval_tokenized_bleu:
        refuse("eval_tokenized_bleu", "true with eval_bleu: dev BLEU is tokenised here")
    if cfg.eval_bleu and cfg.eval_bleu_detok != "space":
        refuse("eval_bleu_detok", "space: dev BLEU is tokenised here")
    if cfg.eval_bleu and "," in cfg.valid_subset:
        refuse("valid_subset", "one set, with eval_bleu")
    if cfg.dev_reference and not cfg.eval_bleu:
        refuse("dev_reference", "none without eval_bleu")


def check_subwords(cfg: QKNormTranslationConfig, dictionary: Any) -> None:
    """Refuse to undo, for dev BLEU, subwords of another kind than the dictionary has.

    Raises:
        ValueError: naming the option.
    """
    remove = cfg.eval_bleu_remove_bpe
    kinds = {
        "sentencepiece": any(symbol.startswith("\u2581") for symbol in dictionary.symbols),
        "subword_nmt": any(symbol.endswith("@@") for symbol in dictionary.symbols),
    }
    kind = {"@@": "subword_nmt", "@@ ": "subword_nmt"}.get(remove or "", remove)
    if cfg.eval_bleu and kind in kinds and not kinds[kind]:
        found = [name for name, there in kinds.items() if there]
        refuse_option(
            cfg, "eval_bleu_remove_bpe", f"{found[0] if found else 'none'}, as the dictionary is"
        )


@register_task(NAME, dataclass=QKNormTranslationConfig)
class QKNormTranslationTask(Probed, TranslationTask):
    """fairseq's translation task with the paper's training procedure.

    Raises:
        ValueError: for an illegal option, or when a training is resumed on other data.
    """

    cfg: QKNormTranslationConfig

    def __init__(self, cfg: QKNormTranslationConfig, src_dict: Any, tgt_dict: Any):
        super().__init__(cfg, src_dict, tgt_dict)
        self.trains = False
        self.optimizer: Any = None

    # Model ---------------------------------------------------------------------------------------

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        self.trains = not from_checkpoint
        if self.trains:
            validate(self.cfg)
            check_subwords(self.cfg, self.tgt_dict)
        model = super().build_model(cfg, from_checkpoint)
        if self.trains:
            forget_earlier_runs()
            if getattr(cfg, "logit_mask", False):
                model.decoder.allow(self.target_types())
            check_resumed(self.cfg.save_dir, self.cfg.restore_file, model, cfg)
        return model

    def target_types(self) -> Tensor:
        """Ids that stand in the target side of train, the end of sentence and UNK."""
        found = {self.tgt_dict.eos(), self.tgt_dict.unk()}
        langs = (self.cfg.source_lang, self.cfg.target_lang)
        for path in utils.split_paths(self.cfg.data):
            counts = count_types(
                Path(path),
                langs,
                langs[1],
                self.tgt_dict,
                self.cfg.train_subset,
                self.cfg.dataset_impl,
            )
            if counts is None:
                raise FileNotFoundError(
                    f"{path}: no {langs[1]} side of {self.cfg.train_subset}, from which the logit "
                    "mask is made"
                )
            found.update(counts.nonzero()[0].tolist())
        return torch.tensor(sorted(found))

    # Batches -------------------------------------------------------------------------------------

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        super().load_dataset(split, epoch, combine, **kwargs)
        if split == self.cfg.train_subset and str(self.cfg.batch_order) == "longer_side":
            self.datasets[split] = ByLongerSide(self.datasets[split])
        if self.trains and split == self.cfg.valid_subset and self.cfg.dev_reference:
            _ = self.dev_lines  # complain now, not after an epoch

    def get_batch_iterator(self, dataset: Any, **kwargs: Any) -> Any:
        """The training set in virtual epochs; any other as fairseq has it."""
        if dataset is not self.datasets.get(self.cfg.train_subset):
            return super().get_batch_iterator(dataset, **kwargs)
        if dataset in self.dataset_to_epoch_iter:
            return self.dataset_to_epoch_iter[dataset]
        # Batches are made once, of the first epoch's order whichever epoch a training goes on in.
        made = super().get_batch_iterator(dataset, **{**kwargs, "epoch": 1})
        batches = made.frozen_batches
        shards = kwargs.get("num_shards", 1)
        iterator = VirtualEpochs(
            dataset,
            dataset.collater,
            batches,
            seed=kwargs.get("seed", 1),
            num_shards=shards,
            shard_id=kwargs.get("shard_id", 0),
            num_workers=kwargs.get("num_workers", 0),
            epoch=kwargs.get("epoch", 1),
            buffer_size=kwargs.get("data_buffer_size", 0),
            length=self.cfg.updates_per_epoch * self.cfg.update_freq[0] * shards,
        )
        self.dataset_to_epoch_iter[dataset] = iterator
        report_fill(batches, dataset)
        return iterator

    @property
    def train_iterator(self) -> VirtualEpochs:
        return self.dataset_to_epoch_iter[self.datasets[self.cfg.train_subset]]

    # Dev BLEU ------------------------------------------------------------------------------------

    def valid_step(self, sample: Dict[str, Any], model: Any, criterion: Any) -> Any:
        # Past TranslationTask's, whose BLEU is smoothed and split at any Unicode white space.
        loss, sample_size, logging_output = super(TranslationTask, self).valid_step(
            sample, model, criterion
        )
        if self.cfg.eval_bleu:
            for i, number in enumerate(self.bleu_stats(sample, model)):
                logging_output[f"_bleu_{i}"] = number
        return loss, sample_size, logging_output

    def bleu_stats(self, sample: Dict[str, Any], model: Any) -> List[int]:
        """n-gram matches and totals, hypothesis and reference length, of a batch of dev."""
        hypotheses, references = [], []
        generated = self.inference_step(self.sequence_generator, [model], sample)
        for i, beam in enumerate(generated):
            hypotheses.append(self.words(beam[0]["tokens"], "<unk>"))
            if self.cfg.dev_reference:
                references.append(self.dev_lines[int(sample["id"][i])])
            else:
                target = utils.strip_pad(sample["target"][i], self.tgt_dict.pad())
                references.append(self.words(target, "<unk-in-reference>"))
        if self.cfg.eval_bleu_print_samples:
            logger.info(f"example hypothesis: {hypotheses[0]}")
            logger.info(f"example reference: {references[0]}")
        return corpus_stats(hypotheses, references)

    def words(self, tokens: Tensor, unk: str) -> str:
        """A sentence without subwords."""
        remove = self.cfg.eval_bleu_remove_bpe
        return self.tgt_dict.string(tokens.int().cpu(), remove, unk_string=unk)

    @functools.cached_property
    def dev_lines(self) -> List[str]:
        """The lines of ``dev_reference``, read when dev is first scored: a checkpoint that holds
        the option must load where the file is not."""
        path = Path(self.cfg.dev_reference or "")
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        sentences = len(self.dataset(self.cfg.valid_subset))
        if len(lines) != sentences:
            raise ValueError(f"{path}: {len(lines)} lines for {sentences} sentences of dev")
        return lines

    def reduce_metrics(self, logging_outputs: List[Dict[str, Any]], criterion: Any) -> None:
        super(TranslationTask, self).reduce_metrics(logging_outputs, criterion)
        if self.cfg.eval_bleu and any("_bleu_0" in log for log in logging_outputs):
            names = [f"_bleu_{i}" for i in range(2 * NGRAMS + 2)]
            for name in names:
                metrics.log_scalar(name, sum(float(log.get(name, 0)) for log in logging_outputs))
            metrics.log_derived("bleu", lambda meters: bleu_of([meters[n].sum for n in names]))

    # Training, resumed ---------------------------------------------------------------------------

    def train_step(
        self, sample: Any, model: Any, criterion: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self.optimizer = optimizer
        return super().train_step(sample, model, criterion, optimizer, *args, **kwargs)

    def post_validate(self, model: Any, stats: Dict[str, Any], agg: Any) -> None:
        """fairseq's hook between validation and save: tell the schedule an epoch's dev BLEU.

        fairseq tells it after the save, so a training that goes on from that checkpoint would
        never have known.
        """
        schedule = getattr(self.optimizer, "dev_bleu_schedule", None)
        if schedule is not None and self.train_iterator.end_of_epoch():
            schedule.observe(self.train_iterator.epoch, stats["bleu"])

    def get_checkpoint_dict(self) -> Dict[str, Any]:
        """fairseq's hook when it saves: what is kept under the task's name."""
        return {type(self).__name__: {"data": self.data_digest}}

    def set_checkpoint_dict(self, state: Dict[str, Any]) -> None:
        """fairseq's hook when a training is resumed."""
        if state["data"] != self.data_digest:
            raise ValueError(
                f"the checkpoint was trained on other text than {self.cfg.data}: resume with the "
                "same data, or save to another folder"
            )

    @functools.cached_property
    def data_digest(self) -> str:
        """What tells binarised training and dev sets apart."""
        splits = (self.cfg.train_subset, *self.cfg.valid_subset.split(","))
        return digest_of(utils.split_paths(self.cfg.data), splits)

    # Beam search ---------------------------------------------------------------------------------

    def build_generator(
        self, models: Any, args: Any, seq_gen_cls: Any = None, *others: Any, **kwargs: Any
    ) -> Any:
        if str(self.cfg.beam_search) == "paper" and seq_gen_cls is None:
            if getattr(args, "print_alignment", None):
                raise ValueError(
                    "print_alignment is not allowed with beam_search=paper: add "
                    "--beam-search fairseq"
                )
            seq_gen_cls = PaperBeamSearch
        return super().build_generator(models, args, seq_gen_cls, *others, **kwargs)
