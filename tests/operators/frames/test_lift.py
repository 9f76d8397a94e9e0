from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.operators.folding.fields import Field, Layout
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN, LAST
from icestream.operators.frames.layout import TupleLayout
from icestream.operators.frames.lift import ArrivedGroups, Lifter, pieces
from icestream.operators.grid.groups import ID_HIGH_END
from icestream.operators.grid.partitions import Partition
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.keys import KeyCodec

KEYS = pa.schema([("k0", pa.string())])
CODEC = KeyCodec(KEYS)
LAYOUT = TupleLayout(Layout.of((Field("valid", "x0"), Field("sum_i64", "x0"))).fields)
LIFTER = Lifter(LAYOUT, CODEC)


def events(*rows: tuple[int, str | None, int | None]) -> pa.RecordBatch:
    times, names, values = zip(*rows, strict=True)
    keys = pa.record_batch([pa.array(names, pa.string())], schema=KEYS)
    id_high, id_low = CODEC.identify(keys)
    columns = [pa.array(times, pa.int64()), pa.array(id_high), pa.array(id_low), keys.column(0)]
    return pa.record_batch(
        [*columns, pa.array(values, pa.int32())],
        ["time", ID_HIGH_COLUMN, ID_LOW_COLUMN, "k0", "x0"],
    )


def partition(folder: Path, low: int = 0, high: int = ID_HIGH_END) -> Partition:
    arena = Arena.create(str(folder), Budget(1 << 20).account("groups"))
    facts: dict[str, Any] = {"low": low, "high": high, "fronts": 0, "next": 0}
    return Partition(facts, arena, 1)


def test_lifting_keeps_every_event_and_its_order() -> None:
    batch = events((5, "a", 7), (5, "a", 7), (3, None, None), (9, "b", -1))
    tuples = LIFTER.lift(batch, 10)
    assert tuples[:, -1].tolist() == [5, 5, 3, 9]
    assert tuples[:, 2:-1].tolist() == [[1, 1, 7], [1, 1, 7], [1, 0, 0], [1, 1, -1]]
    assert (tuples[:, 0].view(np.uint64) == batch.column(ID_HIGH_COLUMN).to_numpy()).all()
    assert (tuples[:, 1].view(np.uint64) == batch.column(ID_LOW_COLUMN).to_numpy()).all()


def test_groups_come_once_with_their_latest_time(tmp_path: Path) -> None:
    batch = events((5, "a", 1), (8, "b", 1), (7, "a", 1), (6, None, 1))
    found = LIFTER.groups(batch, partition(tmp_path))
    assert found.column("k0").to_pylist() == ["a", "b", None]
    assert found.column(LAST).to_pylist() == [7, 8, 6]
    middle = int(np.sort(batch.column(ID_HIGH_COLUMN).to_numpy())[2])
    halves = [(0, middle), (middle, ID_HIGH_END)]
    parts = [LIFTER.groups(batch, partition(tmp_path, *half)) for half in halves]
    names = [name for part in parts for name in part.column("k0").to_pylist()]
    assert sorted(map(str, names)) == ["None", "a", "b"]


def test_groups_of_all_pieces_come_once_while_they_are_few() -> None:
    arrived = ArrivedGroups(CODEC, 3, limit=120)
    assert arrived.add(events((5, "a", 1), (8, "b", 1), (7, "a", 1)))
    assert arrived.add(events((9, "b", 1), (2, "a", 1)))
    assert arrived.add(events((6, None, 1)))
    found = arrived.table()
    assert found.column("k0").to_pylist() == ["a", "b", None]
    assert found.column(LAST).to_pylist() == [7, 9, 6]
    ids = CODEC.identify(found.select(["k0"]).combine_chunks().to_batches()[0])
    assert [found.column(name).to_pylist() for name in (ID_HIGH_COLUMN, ID_LOW_COLUMN)] == [
        each.tolist() for each in ids
    ]
    assert not arrived.add(events((6, "c", 1), (6, "d", 1), (6, "e", 1)))


def test_events_behind_the_watermark_are_left_out() -> None:
    batch = events((5, "a", 1), (8, "b", 1), (7, "a", 1), (6, None, 1))
    found = [piece.column("time").to_pylist() for piece in pieces([batch], 7, 3)]
    assert found == [[8, 7]]
    assert [piece.num_rows for piece in pieces([batch, batch], 0, 3)] == [3, 1, 3, 1]
