"""Running totals by key in one process: Icestream's store of groups compared with RocksDB.

Run as `python -m bench.cold.rocksdb_state PLAN`; prints one JSON line per store.

Idea: both hold count and sum of every key within the same bytes of memory. A batch accesses many
distinct keys at once: their totals are read, updated and written back, and the batch is appended to
a log that is not synced. RocksDB is read by multi-get and written by one batch with its log on;
memtables count against the block cache, which has all of the memory. It is measured with keys in
random order and with keys sorted first, which is much faster for it; sorting counts. Batches
alternate between the stores, so that all see the same machine.

Invariant: all have the same totals in the end (`test_all_stores_hold_the_same_totals`).

Cost: generating the batches is not counted; encoding and decoding of keys and rows is.

Limits: RocksDB is called from Python, as an operator in Python would call it; the share of its time
spent inside RocksDB is reported too (`inside_share`).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from bench.cold.keyed_rows import KeyedStream
from icestream.core.arrays import Floats, Ints
from icestream.state.groups.directory import slot_order
from icestream.state.groups.spec import GroupRows, Synopsis
from icestream.state.keys import KeyCodec
from tests.fixtures.group_space import GroupSpace

KEY = pa.schema([pa.field("key", pa.int64(), nullable=False)])
TOTALS = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("total", pa.float64(), nullable=False),
    ]
)
_PAIR = np.dtype([("n", "<i8"), ("total", "<f8")])


class KeyedTotals(Protocol):
    """A store of count and sum by key."""

    #: seconds spent inside the store itself, without turning columns into its form and back
    inside: float

    def add(self, keys: Ints, n: Ints, total: Floats) -> None:
        """Add to distinct keys, as one batch; the batch is on the log afterwards."""
        ...

    def get(self, keys: Ints) -> tuple[Ints, Floats]:
        """Return the totals of distinct keys."""
        ...

    def close(self) -> None:
        """Close files."""
        ...


class StoreTotals:
    """In Icestream's store of groups."""

    def __init__(self, folder: Path, memory: int) -> None:
        """Start empty."""
        self.inside = 0.0
        self._space = GroupSpace(str(folder), [Synopsis("totals", TOTALS)], quota=memory)
        self._codec = KeyCodec(KEY)

    def add(self, keys: Ints, n: Ints, total: Floats) -> None:
        """Add to distinct keys, as one version."""
        started = time.perf_counter()
        with self._space.version() as store:
            store.begin(0)
            slots = store.locate(*self._codec.identify(pa.record_batch([keys], schema=KEY)))
            order = slot_order(slots)
            ordered = slots[order]
            for portion in store.portions(ordered):
                is_all = len(portion) == len(ordered)
                rows = order if is_all else order[np.searchsorted(ordered, portion)]
                count, amount = n[rows], total[rows]
                old = store.read(0, portion)
                count[old.owners] += np.asarray(old.rows.column(0))
                amount[old.owners] += np.asarray(old.rows.column(1))
                new = pa.record_batch([pa.array(count), pa.array(amount)], schema=TOTALS)
                store.rewrite(0, portion, GroupRows(np.arange(len(portion)), new))
        self.inside += time.perf_counter() - started

    def get(self, keys: Ints) -> tuple[Ints, Floats]:
        """Return the totals of distinct keys, which must all exist."""
        n, total = np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys))
        with self._space.version() as store:
            for first in range(0, len(keys), store.chunk_groups):
                store.begin(0)
                chunk = slice(first, first + store.chunk_groups)
                some = pa.record_batch([keys[chunk]], schema=KEY)
                slots = store.locate(*self._codec.identify(some))
                place = dict(zip(slots.tolist(), range(first, first + len(slots)), strict=True))
                for portion in store.portions(slots):
                    found = store.read(0, portion)
                    at = [place[slot] for slot in portion[found.owners].tolist()]
                    n[at] = np.asarray(found.rows.column(0))
                    total[at] = np.asarray(found.rows.column(1))
        return n, total

    def close(self) -> None:
        """Do nothing: a version closes what it opened."""


class RocksTotals:
    """In RocksDB."""

    def __init__(self, folder: Path, memory: int) -> None:
        """Start empty; memtables and cached blocks have `memory` bytes together."""
        import rocksdict as rocks  # noqa: PLC0415 - a peer, installed with the extra of that name

        cache = rocks.Cache(memory)
        tables = rocks.BlockBasedOptions()
        tables.set_block_cache(cache)
        tables.set_bloom_filter(10, False)
        tables.set_cache_index_and_filter_blocks(True)
        options = rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(tables)
        options.set_write_buffer_size(memory // 4)
        manager = rocks.WriteBufferManager.new_write_buffer_manager_with_cache(
            memory // 2, False, cache
        )
        options.set_write_buffer_manager(manager)
        options.set_compression_type(rocks.DBCompressionType.none())
        self.inside = 0.0
        self._database = rocks.Rdict(str(folder), options)
        self._batch: Callable[[], Any] = lambda: rocks.WriteBatch(raw_mode=True)

    def add(self, keys: Ints, n: Ints, total: Floats) -> None:
        """Add to distinct keys, as one write."""
        names = _keys(keys)
        old_n, old_total = self._read(names)
        new = np.empty(len(keys), dtype=_PAIR)
        new["n"], new["total"] = old_n + n, old_total + total
        batch, data = self._batch(), new.tobytes()
        put = batch.put
        for at, name in enumerate(names):
            put(name, data[16 * at : 16 * at + 16])
        started = time.perf_counter()
        self._database.write(batch)
        self._database.flush_wal(sync=False)
        self.inside += time.perf_counter() - started

    def get(self, keys: Ints) -> tuple[Ints, Floats]:
        """Return the totals of distinct keys."""
        return self._read(_keys(keys))

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _read(self, names: list[bytes]) -> tuple[Ints, Floats]:
        started = time.perf_counter()
        found = self._database.get(names, default=bytes(16))
        self.inside += time.perf_counter() - started
        values = np.frombuffer(b"".join(found), dtype=_PAIR)
        return values["n"], values["total"]


def _keys(keys: Ints) -> list[bytes]:
    """Return keys as bytes that sort in the same order."""
    data = keys.astype(">i8").tobytes()
    return [data[at : at + 8] for at in range(0, len(data), 8)]


class SortedRocksTotals(RocksTotals):
    """In RocksDB, with sorted keys."""

    def add(self, keys: Ints, n: Ints, total: Floats) -> None:
        """Sort distinct keys and add to them, as one write."""
        order = np.argsort(keys)
        super().add(keys[order], n[order], total[order])


#: the stores by name
STORES: dict[str, Callable[[Path, int], KeyedTotals]] = {
    "icestream": StoreTotals,
    "rocksdb": RocksTotals,
    "rocksdb sorted": SortedRocksTotals,
}


def measure(plan: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Run all stores over the same batches, in turn; return key updates per second of each."""
    stream = KeyedStream("totals", plan["seed"], plan["keys"])
    stores = {
        name: make(folder / name.replace(" ", "-"), plan["memory"]) for name, make in STORES.items()
    }
    spent, updates = dict.fromkeys(stores, 0.0), 0
    for number in range(plan["batches"]):
        batch = stream.totals(number * plan["rows"], plan["rows"])
        if number == plan["skip"]:
            spent, updates = dict.fromkeys(stores, 0.0), 0
            for store in stores.values():
                store.inside = 0.0
        for name, store in stores.items():
            started = time.perf_counter()
            store.add(*batch)
            spent[name] += time.perf_counter() - started
        updates += len(batch[0])
    keys, n, total = stream.totals(0, plan["batches"] * plan["rows"])
    results = []
    for name, store in stores.items():
        inside = store.inside
        found_n, found_total = store.get(keys)
        wrong = int(((found_n != n) | (found_total != total)).sum())
        results.append(
            {
                "name": f"{plan['name']}|{name}",
                "eps": updates / spent[name],
                "inside_share": inside / spent[name],
                "wrong": wrong,
            }
        )
        store.close()
    return results


def main() -> None:
    """Run every case of the plan."""
    plan = json.loads(sys.argv[1])
    for one in plan["runs"]:
        Path(one["folder"]).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=one["folder"]) as folder:
            for result in measure(one, Path(folder)):
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
