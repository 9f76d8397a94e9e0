from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.state.queue.cells import KeyCells
from icestream.state.queue.order import SCHEDULES
from icestream.state.queue.pages import PagePool
from icestream.state.queue.queue import UpdateQueue
from icestream.state.queue.reader import QueueReader

SCHEMA = pa.schema([("n", pa.int64())])
STEP = st.one_of(
    st.tuples(st.just("enqueue"), st.lists(st.integers(0, 7), min_size=1, max_size=8)),
    st.tuples(st.just("dequeue"), st.tuples(st.integers(0, 2), st.integers(0, 5))),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEP, max_size=30))
def test_oracle_every_reader_has_its_own_queue(steps: list[tuple[str, Any]]) -> None:
    shared = KeyCells(SCHEMA, pool=PagePool(page_bytes=256))
    readers = [QueueReader(shared, name, schedule=name, cost=3) for name in SCHEDULES]
    own = [UpdateQueue(SCHEMA, schedule=name, cost=3) for name in SCHEDULES]
    clock = 0
    for kind, what in steps:
        if kind == "enqueue":
            keys = np.array(what, dtype=np.uint64)
            arrived = clock + np.arange(1, len(keys) + 1)
            clock += len(keys)
            rows = pa.RecordBatch.from_arrays([pa.array(arrived)], schema=SCHEMA)
            shared.enqueue(keys, keys, arrived, rows)
            for queue in own:
                queue.enqueue(keys, keys, arrived, rows)
        else:
            number, count = what
            clock += 3
            found, expected = (queues[number].dequeue(count, clock) for queues in (readers, own))
            assert found.id_high.tolist() == expected.id_high.tolist()
            assert found.since.tolist() == expected.since.tolist()
            assert found.rows == expected.rows
        waits = {id_high for reader in readers for id_high in reader.read(9).id_high.tolist()}
        assert shared.pages.used == len(waits)
    for reader, queue in zip(readers, own, strict=True):
        assert reader.staleness(clock) == queue.staleness(clock)


def test_a_reader_that_joins_is_given_what_arrives_from_then_on() -> None:
    shared = KeyCells(SCHEMA)
    first = QueueReader(shared, "first", schedule="inplace")
    keys = np.arange(3, dtype=np.uint64)
    rows = pa.RecordBatch.from_arrays([pa.array(np.arange(3))], schema=SCHEMA)
    shared.enqueue(keys, keys, np.arange(3), rows)
    second = QueueReader(shared, "second", schedule="inplace")
    shared.enqueue(keys[1:2], keys[1:2], np.array([9]), rows.slice(2, 1))
    assert (len(first), len(second)) == (3, 1)
    assert second.dequeue(5, 10).rows["n"].to_pylist() == [2]
    assert first.dequeue(5, 10).rows["n"].to_pylist() == [0, 2, 2]
    assert shared.pages.used == 0
