"""Batches as the paper made them, and epochs of a fixed number of updates."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from fairseq.data import BaseWrapperDataset, LanguagePairDataset
from fairseq.data.iterators import EpochBatchIterator, ShardedIterator

logger = logging.getLogger(__name__)

ORDERS = ("longer_side", "fairseq")


class ByLongerSide(BaseWrapperDataset):
    """A bitext in the order of its sentences' longer sides.

    A batch is as wide on both sides as its longest sentence, so neighbours should be alike in
    their longer side first. fairseq orders by source length, then target length.
    """

    def __init__(self, dataset: LanguagePairDataset):
        super().__init__(dataset)
        self.src_sizes, self.tgt_sizes = dataset.src_sizes, dataset.tgt_sizes

    def ordered_indices(self) -> np.ndarray:
        src, tgt = self.src_sizes, self.tgt_sizes
        return np.lexsort((tgt, src, np.maximum(src, tgt)))


def fill(batches: Sequence[Sequence[int]], src: np.ndarray, tgt: np.ndarray) -> float:
    """Share of the positions of all batches that hold a token and not padding."""
    tokens = padded = 0
    for batch in batches:
        for sizes in (src[batch], tgt[batch]):
            tokens += int(sizes.sum())
            padded += len(batch) * int(sizes.max())
    return tokens / padded


def report_fill(
    batches: Sequence[Sequence[int]], dataset: LanguagePairDataset | ByLongerSide
) -> None:
    """Log how full the batches are, and warn of sentences that are in none."""
    share = fill(batches, dataset.src_sizes, dataset.tgt_sizes)
    logger.info(f"{len(batches)} batches, {share:.1%} of their positions filled")
    missing = len(dataset) - sum(len(batch) for batch in batches)
    if missing:
        logger.warning(
            f"{missing} of {len(dataset)} training sentences are in no batch: use "
            "--required-batch-size-multiple 1, or raise --max-tokens"
        )


class VirtualEpochs(EpochBatchIterator):
    """Epochs of a fixed number of batches, cut from an endless sequence of shuffled passes.

    A pass is the same batches in an order that depends on seed and pass alone, so any place in
    the sequence is found again after a restart.

    Args:
        length: batches in an epoch, over all shards; 0 for an epoch of one pass.
        others: see :class:`fairseq.data.iterators.EpochBatchIterator`.
    """

    def __init__(self, *args, length: int = 0, **kwargs):  # type: ignore[no-untyped-def]
        super().__init__(*args, **kwargs)
        self.length = length or len(self.frozen_batches)

    def __len__(self) -> int:
        return -(-self.length // self.num_shards)

    def ordered_batches(
        self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool
    ) -> list[list[int]]:
        """fairseq's hook: this shard's batches of ``epoch``, which is counted from 1."""
        batches: list[list[int]] = []
        pass_length = len(self.frozen_batches)
        place = (epoch - 1) * self.length
        while len(batches) < self.length:
            number, offset = divmod(place + len(batches), pass_length)
            order = np.arange(pass_length)
            if shuffle:
                order = np.random.default_rng((self.seed, number)).permutation(order)
            wanted = order[offset:][: self.length - len(batches)]
            batches += [self.frozen_batches[i] for i in wanted]
        return list(ShardedIterator(batches, self.num_shards, self.shard_id, fill_value=[]))
