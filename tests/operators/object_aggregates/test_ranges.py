"""Ranges of id_high beside looking at every event."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import Ints
from icestream.operators.folding.fold import ID_HIGH_COLUMN
from icestream.operators.object_aggregates.ranges import EventPortions, ranges_of, within


@given(
    st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=40), max_size=4),
    st.integers(8, 200),
)
def test_ranges_hold_every_group_once(batches: list[list[int]], size: int) -> None:
    events = [
        pa.record_batch([pa.array(id_high, pa.uint64())], names=[ID_HIGH_COLUMN])
        for id_high in batches
    ]
    ranges = list(ranges_of(events, size))
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 2**64
    assert all(a[1] == b[0] and a[0] < a[1] for a, b in pairwise(ranges))
    for batch, id_high in zip(events, batches, strict=True):
        parts = [within(batch, *each).column(ID_HIGH_COLUMN).to_pylist() for each in ranges]
        assert sorted(value for part in parts for value in part) == sorted(id_high)


def test_bounded_ranges_are_of_about_one_size() -> None:
    """Also where a shard has a narrow part of all groups."""
    dice = np.random.default_rng(1)
    id_high = dice.integers(2**62, 2**63, 100_000, dtype=np.uint64)
    batch = pa.record_batch([pa.array(id_high)], names=[ID_HIGH_COLUMN])
    sizes = [within(batch, *each).nbytes for each in ranges_of([batch], 50_000)]
    assert len(sizes) == 17
    assert max(sizes) <= 60_000


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**64 - 1)), max_size=40), max_size=4
    ),
    st.integers(8, 200),
)
def test_portions_of_a_batch_hold_every_event_once(
    batches: list[list[tuple[int, int]]], size: int
) -> None:
    names = [ID_HIGH_COLUMN, "pane"]
    events = [
        pa.record_batch(
            [
                pa.array([high for _, high in batch], pa.uint64()),
                pa.array([pane for pane, _ in batch], pa.int64()),
            ],
            names,
        )
        for batch in batches
    ]

    def panes_of(batch: pa.RecordBatch) -> Ints:
        return np.asarray(batch.column("pane"))

    portions = [
        [row for batch in portion for row in zip(*batch.to_pydict().values(), strict=True)]
        for portion in EventPortions(lambda: iter(events), panes_of, size)
    ]
    found = [(pane, high) for portion in portions for high, pane in portion]
    assert sorted(found) == sorted(event for batch in batches for event in batch)
    firsts = [min(pane for _, pane in portion) for portion in portions if portion]
    assert firsts == sorted(firsts)


def test_no_events_are_one_range() -> None:
    assert list(ranges_of([], 100)) == [(0, 2**64)]
