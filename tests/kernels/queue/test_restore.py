from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.kernels.queue.order import TURN, next_keys
from icestream.kernels.queue.queue import ADDRESS, SIZE
from icestream.kernels.queue.restore import (
    count_ready,
    leave_lists,
    put_by_turn,
    put_values,
    take_cells,
)
from icestream.state.queue.queue import UpdateQueue
from tests.oracles.kernels.queue.restore import (
    count_ready_reference,
    leave_lists_reference,
    put_by_turn_reference,
    put_values_reference,
    take_cells_reference,
)

VALUES = pa.schema([("n", pa.int64())])


def queue_of(count: int, schedule: str) -> UpdateQueue:
    queue = UpdateQueue(VALUES, schedule=schedule)
    keys = np.arange(1, count + 1, dtype=np.uint64)
    rows = pa.record_batch([np.arange(count)], schema=VALUES)
    queue.enqueue(keys, keys, np.arange(count, dtype=np.int64), rows)
    return queue


def members(queue: UpdateQueue) -> list[int]:
    out = np.empty(len(queue), dtype=np.int64)
    return [int(each) for each in out[: next_keys(queue.order.kernel, out)]]


def test_parity_taken_cells() -> None:
    queue = queue_of(40, "inplace")
    before = members(queue)
    chosen = np.array([before[3], before[17], before[39]], dtype=np.int64)
    take_cells(queue.cells.kernel, queue.order.kernel, chosen, 100)
    assert members(queue) == take_cells_reference(before, chosen.tolist())
    assert queue.pages.used == 37
    take_cells(queue.cells.kernel, queue.order.kernel, chosen, 100)
    assert len(queue) == 37


def test_parity_keys_return_by_their_turns() -> None:
    for seed in range(20):
        dice = np.random.default_rng(seed)
        queue = queue_of(40, "inplace")
        before, reader = members(queue), queue.order.kernel
        left = np.sort(dice.choice(before, 25, replace=False))
        leave_lists(reader, left)
        stayed = leave_lists_reference(before, left.tolist())
        assert members(queue) == stayed
        assert len(queue) == 40
        reader.keys[left, TURN] = dice.integers(-5, 40, 25)
        back = left[np.argsort(reader.keys[left, TURN], kind="stable")]
        turns = reader.keys[:, TURN].tolist()
        put_by_turn(reader, back)
        assert members(queue) == put_by_turn_reference(
            [(turns[key], key) for key in stayed], [(turns[key], key) for key in back.tolist()]
        )
        # keys that come later are behind all of them
        new = np.array([99], dtype=np.uint64)
        queue.enqueue(new, new, np.array([60]), pa.record_batch([np.arange(1)], schema=VALUES))
        assert members(queue)[-1] == queue.cells.find(new, new)[0]


def test_parity_keys_that_are_ready() -> None:
    queue = queue_of(40, "inplace")
    reader = queue.order.kernel
    turns = reader.keys[members(queue), TURN].tolist()
    for turn in (-1, 0, 7, 39, 100):
        for most in (0, 5, 100):
            found = count_ready(reader, turn, most)
            assert found == count_ready_reference(turns, turn, most)


def test_parity_values_put_back() -> None:
    queue = queue_of(10, "inplace")
    slots = np.array(members(queue), dtype=np.int64)[2:5]
    store = queue.cells.kernel
    before = {int(slot): [int(slot)] for slot in members(queue)}
    # their old locations are left, which nobody misses here
    store.cells[slots, ADDRESS] = -1
    words = np.array([70, 80, 90], dtype=np.int64)
    row = int(store.cells[slots[0], SIZE])
    encoded = np.zeros(3 * row, dtype=np.int64)
    encoded[row - 1 :: row] = words
    put_values(store, slots, encoded, np.arange(4) * row)
    values = queue.cells.values(np.array(list(before), dtype=np.int64)).column(0).to_pylist()
    expected = put_values_reference(before, slots.tolist(), [[each] for each in words.tolist()])
    assert values == [each for (each,) in expected.values()]
