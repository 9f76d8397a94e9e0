from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import DamageError
from icestream.operators.dataflow.sorted_changes import END
from icestream.operators.folding.exact_rows import ExactRows, concatenated
from icestream.operators.folding.fields import Layout
from icestream.operators.lifetimes.changes import changes_of
from icestream.runtime.exchange import parcels as exchange_parcels
from icestream.runtime.exchange.parcels import ExchangeWriter, ParcelReader, Parcels, Sent
from icestream.state.files import LocalFiles
from icestream.state.log.reader import SegmentReader
from icestream.testing.simulated_disk import SimulatedDisk


def table(first: int, rows: int) -> ExactRows:
    """Return entries without fields: pane and identity."""
    words = np.arange(first, first + 3 * rows, dtype=np.int64).reshape(rows, 3)
    return ExactRows(Layout(()), words)


def names(first: int, rows: int) -> pa.Table:
    return pa.table({"name": [f"n{i}" for i in range(first, first + rows)]})


def test_parcels_are_read_in_the_order_of_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_parcels, "RECORD_BYTES", 48)
    monkeypatch.setattr(exchange_parcels, "RECORD_KEYS", 2)
    disk = SimulatedDisk()
    # splits finish in another order than they are numbered
    for split in (2, 0, 1):
        out = ExchangeWriter(disk, f"x/{split}", disk, "root", f"{split}")
        for shard in (1, 0):
            out.keys(shard, names(100 * split + 10 * shard, 5))
            out.entries(shard, table(1000 * split + 100 * shard, 5))
        assert out.finish() == Sent(None, None)
    reader = ParcelReader(disk, [f"x/{split}" for split in range(3)])
    for shard in (0, 1, 2):
        parcels = Parcels(reader, shard)
        for _ in range(2):  # repeatable
            entries = list(parcels.entries())
            keys = list(parcels.groups())
            if shard == 2:
                assert entries == keys == []
                continue
            expected = concatenated(*(table(1000 * s + 100 * shard, 5) for s in range(3)))
            assert concatenated(*entries).table.tolist() == expected.table.tolist()
            found = pa.concat_tables(keys).column("name").to_pylist()
            assert found == [f"n{100 * s + 10 * shard + i}" for s in range(3) for i in range(5)]
    reader.close()
    assert disk.open_handles == 0


def test_a_parcel_reader_opens_every_parcel_once_for_all_shards() -> None:
    disk = SimulatedDisk()
    paths = [f"x/{split}" for split in range(3)]
    for path in paths:
        out = ExchangeWriter(disk, path, disk, "root", path)
        for shard in range(5):
            out.entries(shard, table(shard, 4))
        out.finish()
    reader = ParcelReader(disk, paths)
    assert disk.open_handles == 0
    for shard in range(5):
        assert len(list(Parcels(reader, shard).entries())) == 3
    headers = [(path, length) for path, offset, length in disk.reads if offset == 0]
    assert len(headers) == len(paths)
    reader.close()
    assert disk.open_handles == 0


def test_bounded_files_that_a_parcel_reader_has_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_parcels, "MOST_OPEN", 2)
    disk = SimulatedDisk()
    paths = [f"x/{split}" for split in range(6)]
    for path in paths:
        out = ExchangeWriter(disk, path, disk, "root", path)
        out.entries(0, table(0, 4))
        out.finish()
    reader = ParcelReader(disk, paths)
    for _ in range(2):
        found = 0
        for _ in Parcels(reader, 0).entries():
            assert disk.open_handles <= 2
            found += 1
        assert found == 6
    reader.close()
    assert disk.open_handles == 0


def test_late_events_are_synced_and_entries_are_not() -> None:
    disk = SimulatedDisk()
    out = ExchangeWriter(disk, "x/0", disk, "root", "0")
    out.entries(0, table(0, 1))
    out.late(pa.record_batch({"time": [1, 2]}))
    out.late(pa.record_batch({"time": [3]}))
    late = out.finish().late
    assert late is not None
    assert late.records == 2
    synced = {path for what, path in disk.trace if what == "sync"}
    assert "root/results/0-late.rows" in synced
    assert "x/0" not in synced


def test_an_abandoned_parcel_leaves_nothing_behind() -> None:
    disk = SimulatedDisk()
    out = ExchangeWriter(disk, "x/0", disk, "root", "0")
    out.entries(0, table(0, 1))
    out.late(pa.record_batch({"time": [1]}))
    out.abandon()
    assert not disk.exists("x/0")
    assert not disk.exists("root/results/0-late.rows")


def test_a_flipped_bit_in_a_parcel_is_noticed() -> None:
    disk = SimulatedDisk()
    out = ExchangeWriter(disk, "x/0", disk, "root", "0")
    out.entries(0, table(0, 10))
    out.finish()
    disk.flip("x/0", 60, 4)
    with pytest.raises(DamageError, match="x/0"):
        list(Parcels(ParcelReader(disk, ["x/0"]), 0).entries())


def sent_changes(path: Path) -> None:
    """Write a parcel of changes in several records."""
    keys = np.arange(10_000, dtype=np.int64)
    payload, ids = pa.record_batch({"k": keys}), keys.astype(np.uint64)
    out = ExchangeWriter(LocalFiles(), str(path), LocalFiles(), "root", "0")
    out.changes(0, 0, changes_of(payload, keys, keys + 1, 1, ids, ids))
    out.finish()


def test_bounded_records_that_several_passes_need_are_verified_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_parcels, "SMALL_PARCEL", 0)
    monkeypatch.setattr(exchange_parcels, "RECORD_BYTES", 1 << 19)
    monkeypatch.setattr(exchange_parcels, "MOST_REMEMBERED", 2)
    sent_changes(tmp_path / "0")
    verified: list[tuple[str, int]] = []
    verify = SegmentReader._verify

    def noted(
        self: SegmentReader, block: int, data: bytes | memoryview, checksum: int, part: str
    ) -> None:
        verified.append((part, block))
        verify(self, block, data, checksum, part)

    monkeypatch.setattr(SegmentReader, "_verify", noted)
    reader = ParcelReader(LocalFiles(), [str(tmp_path / "0")])
    parcels = Parcels(reader, 0)
    records = len(parcels.ranges(0)[0])
    assert records > 2
    found: list[int] = []
    for first in range(0, 10_000, 100):
        for batch in parcels.changes(0, first, first + 100):
            found += batch.column("k").to_pylist()
    assert found == list(range(10_000))
    assert [each for each in verified if each[0] == "block"] == [
        ("block", n) for n in range(records)
    ]
    reader.close()


def test_damage_in_a_mapped_parcel_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_parcels, "SMALL_PARCEL", 0)
    sent_changes(tmp_path / "0")
    data = bytearray((tmp_path / "0").read_bytes())
    data[len(data) // 3] ^= 1
    (tmp_path / "0").write_bytes(data)
    with pytest.raises(DamageError, match="block 0 does not match"):
        list(Parcels(ParcelReader(LocalFiles(), [str(tmp_path / "0")]), 0).changes(0, 0, END))
