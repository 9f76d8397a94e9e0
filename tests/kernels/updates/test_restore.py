from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.kernels.updates.order import LIST
from icestream.kernels.updates.restore import (
    list_members,
    list_members_reference,
    put_in_lists,
    put_in_lists_reference,
    take_cells,
    take_cells_reference,
)
from icestream.state.update_queue.queue import UpdateQueue

VALUES = pa.schema([("n", pa.int64())])


def queue_of(count: int, schedule: str) -> UpdateQueue:
    queue = UpdateQueue(VALUES, schedule=schedule)
    keys = np.arange(1, count + 1, dtype=np.uint64)
    rows = pa.record_batch([np.arange(count)], schema=VALUES)
    queue.enqueue(keys, keys, np.arange(count, dtype=np.int64), rows)
    return queue


def members(queue: UpdateQueue) -> list[int]:
    out = np.empty(len(queue), dtype=np.int64)
    assert list_members(queue.order.kernel, out) == len(queue)
    return [int(each) for each in out]


def test_parity_taken_cells() -> None:
    queue = queue_of(40, "inplace")
    before = members(queue)
    chosen = np.array([before[3], before[17], before[39]], dtype=np.int64)
    take_cells(queue.cells.kernel, queue.order.kernel, chosen, 100)
    assert members(queue) == take_cells_reference(before, chosen.tolist())
    assert queue.pages.used == 37
    take_cells(queue.cells.kernel, queue.order.kernel, chosen, 100)
    assert len(queue) == 37


def test_parity_lists_put_back() -> None:
    queue = queue_of(40, "index")
    dice = np.random.default_rng(1)
    slots = dice.permutation(np.array(members(queue), dtype=np.int64))
    numbers = dice.integers(0, 5, 40)
    put_in_lists(queue.order.kernel, slots, numbers)
    expected = put_in_lists_reference(slots.tolist(), numbers.tolist())
    assert sorted(members(queue)) == sorted(list_members_reference(expected))
    places = queue.order.kernel.keys[members(queue), LIST] - 1
    found: dict[int, list[int]] = {}
    for slot, number in zip(members(queue), places.tolist(), strict=True):
        found.setdefault(number, []).append(slot)
    assert found == expected
