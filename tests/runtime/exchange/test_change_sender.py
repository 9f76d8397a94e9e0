from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.dataflow.sorted_changes import END
from icestream.operators.dataflow.steps import regrouped
from icestream.operators.folding.fold import ID_HIGH_COLUMN
from icestream.operators.lifetimes.changes import changes_of
from icestream.runtime.exchange import change_sender
from icestream.runtime.exchange.change_sender import ChangeSender, ChangeTargets, Routing
from icestream.runtime.exchange.parcels import ParcelReader, Parcels
from icestream.testing.simulated_disk import SimulatedDisk

PAYLOAD = pa.schema([("k", pa.int64())])
KEY_GROUPS, SHARDS = 16, 4
#: two edges: to the second component, and to the third
TARGETS = (1, 2)


def changes(keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.RecordBatch:
    count = len(keys)
    ones, nobody = np.ones(count, np.int64), np.zeros(count, np.uint64)
    payload = pa.record_batch([pa.array(keys)], PAYLOAD)
    bare = changes_of(payload, np.arange(count), np.arange(count) + 1, ones, nobody, nobody)
    return regrouped(bare, ("k",))


def sends(disk: SimulatedDisk) -> ChangeTargets:
    routes = tuple(group * SHARDS // KEY_GROUPS for group in range(KEY_GROUPS))
    return ChangeTargets(disk, "exchange", routes, SHARDS, TARGETS)


def received(disk: SimulatedDisk, path: str, shard: int, edge: int) -> list[int]:
    parcels = Parcels(ParcelReader(disk, [path]), shard)
    return [key for batch in parcels.changes(edge, 0, END) for key in batch.column("k").to_pylist()]


def test_every_change_goes_to_one_shard_of_the_edges_component() -> None:
    disk, keys = SimulatedDisk(), np.arange(200) % 37
    out = ChangeSender(sends(disk), "a")
    for edge in range(2):
        out.take(edge, changes(keys))
    path = out.finish()
    assert path is not None
    for edge, target in enumerate(TARGETS):
        shards = range(target * SHARDS, (target + 1) * SHARDS)
        parts = {shard: received(disk, path, shard, edge) for shard in shards}
        assert sorted(key for part in parts.values() for key in part) == sorted(keys.tolist())
        assert all(parts.values())
        owners = {key: shard for shard, part in parts.items() for key in part}
        assert all(owners[key] == shard for shard, part in parts.items() for key in part)
        others = set(range(3 * SHARDS)) - set(shards)
        assert not any(received(disk, path, shard, edge) for shard in others)


def test_the_same_changes_make_the_same_parcel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_sender, "ENOUGH_ROWS", 16)
    monkeypatch.setattr(change_sender, "ENOUGH_BYTES", 0)
    dice = np.random.default_rng(1)
    batches = [changes(dice.integers(0, 50, 30)) for _ in range(6)]
    disk = SimulatedDisk()
    parcels = []
    for name in ("a", "b"):
        out = ChangeSender(sends(disk), name)
        for number, batch in enumerate(batches):
            out.take(number % 2, batch)
        path = out.finish()
        assert path is not None
        parcels.append(disk.files()[path])
    assert parcels[0] == parcels[1]


def test_records_of_a_shard_are_in_the_order_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_sender, "ENOUGH_ROWS", 8)
    monkeypatch.setattr(change_sender, "ENOUGH_BYTES", 0)
    disk = SimulatedDisk()
    out = ChangeSender(sends(disk), "a")
    everything = changes(np.arange(100) % 23)
    for first in range(0, 100, 7):
        out.take(0, everything.slice(first, 7))
    path = out.finish()
    assert path is not None
    for shard in range(SHARDS, 2 * SHARDS):
        parcels = Parcels(ParcelReader(disk, [path]), shard)
        firsts, _ = parcels.ranges(0)
        for number, batch in enumerate(parcels.changes(0, 0, END)):
            identities = batch.column(ID_HIGH_COLUMN).to_numpy()
            assert identities[0] == firsts[number]
            assert (identities[1:] >= identities[:-1]).all()
            middle = int(identities[len(identities) // 2])
            parts = [*parcels.changes(0, 0, middle), *parcels.changes(0, middle, END)]
            assert sum(part.num_rows for part in parts) == len(received(disk, path, shard, 0))


def test_nothing_to_send_makes_no_file(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    out = ChangeSender(sends(disk), "a")
    out.take(0, changes(np.arange(0)))
    assert out.finish() is None
    assert disk.files() == {}


def test_the_load_counts_rows_by_key_group() -> None:
    routing = Routing(sends(SimulatedDisk()))
    batch = changes(np.arange(64))
    cut = dict(routing.cut(0, batch))
    assert routing.load.sum() == 64
    assert sum(part.num_rows for part in cut.values()) == 64
    for shard, part in cut.items():
        groups = part.column(ID_HIGH_COLUMN).to_numpy() >> np.uint64(64 - 4)
        assert {SHARDS + int(group) * SHARDS // KEY_GROUPS for group in groups} == {shard}


def test_narrow_changes_are_sent_in_long_sorted_runs() -> None:
    disk = SimulatedDisk()
    one_shard = ChangeTargets(disk, "exchange", (0,) * KEY_GROUPS, 1, TARGETS)
    out = ChangeSender(one_shard, "a")
    for first in range(0, 40_000, 4_000):
        out.take(0, changes(np.arange(first, first + 4_000)))
    path = out.finish()
    assert path is not None
    firsts, _ = Parcels(ParcelReader(disk, [path]), 1).ranges(0)
    assert len(firsts) > 4
    assert (firsts[1:] > firsts[:-1]).all()
