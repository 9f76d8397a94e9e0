from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.queue.cells import KeyCells
from icestream.state.queue.eviction import KeyEviction
from icestream.state.queue.reader import QueueReader

SCHEMAS = {
    "fixed": pa.schema([("price", pa.int64())]),
    "of any length": pa.schema([("price", pa.int64()), ("text", pa.string())]),
}


def queue_in(folder: Path, budget: int, schema: pa.Schema) -> KeyEviction:
    folder.mkdir()
    account = Budget(budget).account("queue")
    arena = Arena.create(str(folder), account)
    cells = KeyCells(schema, arrays=arena)
    readers = tuple(QueueReader(cells, name, schedule=name) for name in ("inplace", "fifo"))
    return KeyEviction(cells, readers, arena, account)


@pytest.mark.parametrize("values", SCHEMAS)
def test_oracle_many_keys_are_served_where_they_are(values: str, tmp_path: Path) -> None:
    """Two readers take more keys at once than half of those that fit, at their own pace."""
    schema, dice = SCHEMAS[values], np.random.default_rng(8)
    little, plenty = (
        queue_in(tmp_path / str(budget), budget, schema) for budget in (600 << 10, 32 << 20)
    )
    assert little.most < 500
    clock = served = 0
    for _ in range(30):
        ids = dice.integers(1, 4000, 600).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        arrived = clock + np.arange(len(ids))
        clock += len(ids)
        columns = {"price": arrived, "text": ["x" * (n % 40) for n in arrived.tolist()]}
        rows = pa.RecordBatch.from_pydict({n: columns[n] for n in schema.names}, schema=schema)
        counts = [int(dice.choice([3, 300, 700])) for _ in range(2)]
        taken = []
        for queue in (little, plenty):
            queue.enqueue(ids, ids, arrived, rows)
            taken.append([queue.dequeue(reader, n, clock) for reader, n in enumerate(counts)])
            queue.delivered(clock + 5)
        for mine, other in zip(*taken, strict=True):
            served += len(mine)
            assert mine.rows == other.rows
            for name in ("id_high", "id_low", "since", "arrived"):
                np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))
        little.cold.clean()
    assert served > 10_000
    assert little.cold.waiting > 500
