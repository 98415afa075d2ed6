"""The paper's batches, and epochs of a fixed number of updates."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
from fairseq.data import Dictionary, LanguagePairDataset, ListDataset
from hypothesis import given, settings
from hypothesis import strategies as st

from qknorm_mt.batches import ByLongerSide, VirtualEpochs, fill

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=80)


def bitext(lengths: list[tuple[int, int]]) -> LanguagePairDataset:
    import torch

    sides = []
    for side in (0, 1):
        sizes = np.array([pair[side] for pair in lengths])
        sides += [ListDataset([torch.full((n,), 5) for n in sizes], sizes), sizes]
    return LanguagePairDataset(sides[0], sides[1], Dictionary(), sides[2], sides[3], Dictionary())


def make_batches(dataset: object, max_tokens: int) -> list[list[int]]:
    order = dataset.ordered_indices()  # type: ignore[attr-defined]
    return [list(b) for b in dataset.batch_by_size(order, max_tokens=max_tokens)]  # type: ignore


@settings(max_examples=50, deadline=None)
@given(LENGTHS)
def test_batches_hold_every_sentence_once_within_the_budget(lengths: list[tuple[int, int]]) -> None:
    batches = make_batches(ByLongerSide(bitext(lengths)), 60)
    assert sorted(chain(*batches)) == list(range(len(lengths)))
    longer = [max(pair) for pair in lengths]
    assert all(len(b) * max(longer[i] for i in b) <= 60 for b in batches)
    # in order of the longer side: batches do not interleave
    assert all(max(longer[i] for i in a) <= min(longer[i] for i in b) for a, b in pairwise(batches))


def test_the_order_is_the_same_every_time() -> None:
    lengths = [(int(a), int(b)) for a, b in np.random.default_rng(1).integers(1, 9, (200, 2))]
    orders = []
    for seed in (1, 2):
        np.random.seed(seed)  # fairseq's own order depends on it
        orders.append(ByLongerSide(bitext(lengths)).ordered_indices().tolist())
    assert orders[0] == orders[1]


def test_fill_by_hand() -> None:
    src, tgt = np.array([2, 4, 1]), np.array([3, 3, 5])
    # batch [0, 1]: 6 of 8 source and 6 of 6 target positions; batch [2]: all of 1 and 5
    assert fill([[0, 1], [2]], src, tgt) == (6 + 6 + 1 + 5) / (8 + 6 + 1 + 5)


def test_the_longer_side_fills_more_than_fairseqs_order() -> None:
    generator = np.random.default_rng(0)
    src = generator.integers(2, 60, 3000)
    tgt = np.clip((src * generator.uniform(0.6, 1.6, 3000)).astype(int), 1, None)
    dataset = bitext(list(zip(src.tolist(), tgt.tolist(), strict=True)))
    ours = fill(make_batches(ByLongerSide(dataset), 1024), src, tgt)
    stock = fill(make_batches(dataset, 1024), src, tgt)
    assert ours > stock + 0.01


def epochs(length: int, shards: int = 1, batches: int = 7, seed: int = 1) -> list[VirtualEpochs]:
    dataset = bitext([(1, 1)] * batches)
    made = [[i] for i in range(batches)]
    return [
        VirtualEpochs(
            dataset,
            dataset.collater,
            made,
            seed=seed,
            num_shards=shards,
            shard_id=shard,
            length=length,
        )
        for shard in range(shards)
    ]


def batches_of(iterator: VirtualEpochs, epoch: int, shuffle: bool = True) -> list[int]:
    return [batch[0] for batch in iterator.ordered_batches(epoch, False, shuffle)]


@pytest.mark.parametrize("length", [1, 3, 7, 10, 20])
def test_epochs_are_cut_from_whole_passes(length: int) -> None:
    (iterator,) = epochs(length)
    stream = list(chain(*(batches_of(iterator, e) for e in range(1, 43))))
    assert all(len(batches_of(iterator, e)) == length == len(iterator) for e in (1, 2, 5))
    passes = [stream[i : i + 7] for i in range(0, len(stream) - 6, 7)]
    assert all(sorted(p) == list(range(7)) for p in passes)
    assert len({tuple(p) for p in passes[:6]}) == 6  # each in another order


def test_another_seed_is_another_order_and_no_shuffling_none() -> None:
    assert batches_of(epochs(7)[0], 1) != batches_of(epochs(7, seed=2)[0], 1)
    assert batches_of(epochs(7)[0], 3, shuffle=False) == list(range(7))


@pytest.mark.parametrize("length", [4, 6])
def test_shards_together_have_every_batch_of_the_epoch(length: int) -> None:
    (whole,) = epochs(length)
    parts = epochs(length, shards=2)
    for epoch in (1, 2, 3):
        got = [batches_of(part, epoch) for part in parts]
        assert [len(part) for part in got] == [length // 2] * 2 == [len(p) for p in parts]
        assert Counter(chain(*got)) == Counter(batches_of(whole, epoch))


@pytest.mark.parametrize("done", [0, 1, 4, 9, 10])
def test_a_restart_goes_on_where_it_stopped(done: int) -> None:
    def read(iterator: VirtualEpochs, count: int) -> list[int]:
        seen: list[int] = []
        while len(seen) < count:
            for sample in iterator.next_epoch_itr():
                seen += sample["id"].tolist()
                if len(seen) == count:
                    break
        return seen

    whole = read(epochs(5)[0], 20)
    (first,) = epochs(5)
    start = read(first, done)
    (second,) = epochs(5)
    if done:
        second.load_state_dict(first.state_dict())
    assert start + read(second, 20 - done) == whole
