from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.times import INFINITY
from icestream.operators.multi_join.generations import (
    CLEANED,
    CUT,
    DISCARDED,
    Generations,
)
from icestream.operators.multi_join.logged_rows import record_of
from icestream.state.arena import Arena
from icestream.state.budget import Budget

PARTITIONS = 4


def made(folder: Path) -> Generations:
    arena = Arena.create(str(folder), Budget(1 << 20).account("test"))
    return Generations(arena, "join", PARTITIONS, {})


def id_high_of(partition: int) -> int:
    return partition << 62


def record(generations: Generations, first: int, last: int, ends: int = INFINITY) -> None:
    """Write a record of the partitions from a first to a last one, in a segment of its own."""
    epoch = generations.begin_flush()
    id_high = np.array([id_high_of(first), id_high_of(last)], dtype=np.uint64)
    generations.add(record_of(0, epoch, epoch << 32, id_high, 20, ends))
    generations.add_segment(epoch)


actions = st.lists(
    st.tuples(st.sampled_from(("flush", "cut", "clean", "discard")), st.sets(st.integers(0, 3))),
    max_size=20,
)


@given(actions)
def test_parity_generations_beside_a_recount(
    tmp_path_factory: pytest.TempPathFactory, scenario: list[tuple[str, set[int]]]
) -> None:
    """A list of flushes for each generation of each partition tells the same."""
    generations = made(tmp_path_factory.mktemp("generations"))
    plain: list[list[list[int]]] = [[[]] for _ in range(PARTITIONS)]
    for kind, chosen in scenario:
        some = np.array(sorted(chosen), dtype=np.int64)
        events = np.column_stack([some, np.full_like(some, generations.epoch)])
        if kind == "flush":
            epoch = generations.begin_flush()
            for each in plain:
                each[-1].append(epoch)
        elif kind == "cut":
            fresh = [p for p in sorted(chosen) if plain[p][-1]]
            generations.apply(events[np.isin(some, fresh)], CUT)
            for p in fresh:
                plain[p].append([])
        elif kind == "clean":
            generations.apply(events, CLEANED)
            for p in chosen:
                *ended, resident = plain[p]
                merged = [[epoch for each in ended for epoch in each]] if ended else []
                plain[p] = [*merged, resident]
        else:
            generations.apply(events, DISCARDED)
            for p in chosen:
                plain[p] = [[]]
    assert generations.counts().tolist() == [len(each) - 1 for each in plain]
    for partition, lists in enumerate(plain):
        for number, epochs in enumerate(lists):
            for epoch in epochs:
                begin, end = generations.cut_begins()[partition : partition + 2]
                assert (generations.cuts[begin:end, 1] < epoch).sum() == number
        over = [epoch for each in lists[:-1] for epoch in each]
        assert generations.last_cuts()[partition] >= max(over, default=0)
        later = [epoch for each in lists[1:] for epoch in each]
        assert generations.first_cuts()[partition] < min(later, default=np.iinfo(np.int64).max + 1)


@pytest.mark.parametrize(
    ("floor", "owing", "watermark", "stays"),
    [
        ([0, 0, 0, 0], [0, 0, 0, 0], 5, True),
        ([0, 0, 0, 0], [0, 0, 0, 0], 10, False),
        ([0, 0, 0, 0], [0, 0, 1, 0], 10, True),
        ([0, 0, 0, 0], [1, 0, 0, 1], 10, False),
        ([0, 1, 1, 0], [0, 0, 0, 0], 5, False),
        ([1, 1, 0, 1], [1, 1, 1, 1], 5, True),
    ],
)
def test_a_record_stays_while_one_of_its_partitions_needs_it(
    tmp_path: Path, floor: list[int], owing: list[int], watermark: int, stays: bool
) -> None:
    """The record covers partitions 1 and 2 and its last row ends at 10."""
    generations = made(tmp_path)
    record(generations, 1, 2, ends=10)
    owes = np.array(owing, dtype=np.bool_)
    since = np.where(owes, 0, np.iinfo(np.int64).max)
    generations.forget(np.array(floor), since, np.full(len(owes), watermark))
    assert len(generations.records) == stays
    assert generations.release() == (() if stays else (1,))
    assert generations.segments[:, 0].tolist() == ([1] if stays else [])


def test_markers_of_late_ordinals_survive(tmp_path: Path) -> None:
    """Ordinals and identities use all their bits."""
    generations = made(tmp_path)
    ordinal = 2**32 - 2
    id_high = np.array([2**64 - 1, 2**64 - 1], dtype=np.uint64)
    generations.add(record_of(0, 1, ordinal << 32, id_high, 20, 3))
    generations.add_segment(ordinal)
    assert generations.partitions_of(generations.records)[1].tolist() == [PARTITIONS - 1]
    assert generations.release() == ()
