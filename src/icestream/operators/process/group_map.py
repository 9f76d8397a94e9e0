"""Map state of one group at a time: rows found by a key.

Idea: a map is a list of puts and removals; the last one of a key is valid. A put appends without a
read. The store consolidates a map when it has twice as many words as after the last time. A map too
large for memory is read by ranges of its keys, one at a time.

Invariants:
1. It behaves like a dictionary, iterated in the order of the last puts
   (`test_oracle_per_group_state_is_a_dictionary`); if it is too large for memory, in any order
   (`test_oracle_a_map_beyond_memory_is_a_dictionary`).
2. A map does not grow with its updates, read or not
   (`test_bounded_user_state_that_is_only_written`).
3. With a time to live, a write never shortens the life of its key: the row it replaced would
   reappear (`test_a_covered_row_never_comes_back`).
"""
# ruff: noqa: N802 - PySpark's names

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.times import INFINITY, Micros
from icestream.operators.lifetimes.changes import taken
from icestream.operators.process.declarations import GONE, MapState
from icestream.operators.process.group_state import GroupContext, GroupVariable
from icestream.operators.process.grouping import kinds_of_puts
from icestream.operators.process.stored_state import living, with_expiry
from icestream.operators.process.values import Row, RowCoder, decoded
from icestream.state.groups.spec import GroupPieces, GroupRows
from icestream.state.keys import KeyCodec

#: the row put under a key, or None if the key was removed, and its expiry
_Entry = tuple[Row | None, Micros]


class _LargeMap:
    """A map too large for memory: keys written since it was read, and one range of the others."""

    def __init__(self, parts: GroupPieces, owner: GroupMap, written: dict[Row, _Entry]) -> None:
        self._parts, self._map = parts, owner
        self._written = dict(written)
        self._number, self._rows, self._ids = (
            -1,
            owner.batch_of(),
            owner.codec.identify(owner.batch_of()),
        )

    def get(self, key: Row) -> _Entry | None:
        if key in self._written:
            entry = self._written[key]
            return None if entry[0] is None else entry
        id_high, id_low = self._map.codec.identify(self._map.batch_of(key))
        self._load(int(self._parts.place(id_high)[0]))
        found = np.flatnonzero((self._ids[0] == id_high) & (self._ids[1] == id_low))
        for _, entry in self._map.entries(taken(self._rows, found[-1:])):
            return None if entry[0] is None else entry
        return None

    def __contains__(self, key: Row) -> bool:
        return self.get(key) is not None

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def __setitem__(self, key: Row, entry: _Entry) -> None:
        self._written[key] = entry

    def pop(self, key: Row, _default: None) -> None:
        self._written[key] = (None, 0)

    def __iter__(self) -> Iterator[Row]:
        return (key for key, _ in self.items())

    def items(self) -> Iterator[tuple[Row, _Entry]]:
        for number in range(self._parts.count):
            self._load(number)
            for key, entry in dict(self._map.entries(self._rows)).items():
                if entry[0] is not None and key not in self._written:
                    yield key, entry
        yield from [each for each in self._written.items() if each[1][0] is not None]

    def _load(self, number: int) -> None:
        if number != self._number:
            self._number, self._rows = number, self._map.living_rows(self._parts.read(number))
            names = self._map.codec.schema.names
            self._ids = self._map.codec.identify(self._rows.select(names))


class GroupMap(GroupVariable):
    """Rows found by a key."""

    def __init__(self, scene: GroupContext, number: int, name: str, declared: MapState) -> None:
        super().__init__(scene, number, name, declared)
        self._keys, self._values = RowCoder(declared.keys), RowCoder(declared.values)
        self._no_value: Row = (None,) * len(declared.values)
        #: identities of keys
        self.codec = KeyCodec(declared.keys)

    def begin(self) -> None:
        self._stored: list[tuple[Row, _Entry]] | None = None
        self._bounds: list[int] = []
        #: by position: existing keys, written keys, whether all others were removed
        self._live: dict[int, dict[Row, _Entry] | _LargeMap] = {}
        self._writes: dict[int, dict[Row, _Entry]] = {}
        self._cleared: set[int] = set()

    def getValue(self, key: Any) -> Row | None:
        """Return the row under a key, or None."""
        entry = self._current().get(self._keys.key(key))
        return None if entry is None else entry[0]

    def containsKey(self, key: Any) -> bool:
        """Return whether there is a row under a key."""
        return self._keys.key(key) in self._current()

    def updateValue(self, key: Any, value: Any) -> None:
        """Put a row under a key; without a ttl, this does not read the map."""
        self._scene.store()
        self._put(self._keys.key(key), self._values.row(value))

    def removeKey(self, key: Any) -> None:
        self._scene.store()
        known = self._keys.key(key)
        live = self._current() if self._lifetime is not None else self._known()
        if live is None or known in live:
            self._put(known, None)

    def iterator(self) -> Iterator[tuple[Row, Row]]:
        """Return all keys and rows, in the order of the last puts unless there are too many."""
        live = self._current()
        entries = list(live.items()) if isinstance(live, dict) else live.items()
        return ((key, row) for key, (row, _) in entries if row is not None)

    def keys(self) -> Iterator[Row]:
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[Row]:
        return (row for _, row in self.iterator())

    def exists(self) -> bool:
        return bool(self._current())

    def clear(self) -> None:
        self._scene.store()
        position = self._scene.position
        self._cleared.add(position)
        self._writes[position] = {}
        self._live[position] = {}

    def flush(self) -> None:
        if self._writes:
            changed = {
                position: {key: each for key, each in writes.items() if each[0] is not None}
                if position in self._cleared
                else writes
                for position, writes in self._writes.items()
            }
            self._write(sorted(self._cleared), *self._encoded(changed))

    def _put(self, key: Row, value: Row | None) -> None:
        until = INFINITY
        if self._lifetime is not None:
            before = self._current().get(key)
            covered = 0 if before is None else before[1]
            until = covered if value is None else max(self._until(), covered)
        position = self._scene.position
        for entries in (self._writes.setdefault(position, {}), self._known()):
            if entries is not None:
                entries.pop(key, None)
                if value is not None or entries is self._writes[position]:
                    entries[key] = (value, until)

    def _known(self) -> dict[Row, _Entry] | _LargeMap | None:
        """Return the keys of the group if they are known without a read, else None."""
        return self._live.get(self._scene.position)

    def _current(self) -> dict[Row, _Entry] | _LargeMap:
        position = self._scene.position
        live = self._live.get(position)
        if live is None:
            live = self._live[position] = self._read_live(position)
        return live

    def _read_live(self, position: int) -> dict[Row, _Entry] | _LargeMap:
        writes = self._writes.get(position, {})
        if self._stored is None and not self._fits():
            scene, kinds = self._scene, partial(kinds_of_puts, keys=self.codec)
            parts = scene.store().pieces(self._number, scene.slots, kinds)
            return _LargeMap(parts, self, writes)
        if self._stored is None:
            found = self._read()
            self._bounds, self._stored = self._starts(found), self.entries(found.rows)
        live: dict[Row, _Entry] = {}
        mine = self._stored[self._bounds[position] : self._bounds[position + 1]]
        for key, entry in chain(mine, writes.items()):
            live.pop(key, None)
            if entry[0] is not None:
                live[key] = entry
        return live

    def living_rows(self, found: GroupRows) -> pa.RecordBatch:
        return living(found, self._scene.watermark).rows

    def batch_of(self, *keys: Row) -> pa.RecordBatch:
        return self._keys.batch(keys)

    def entries(self, rows: pa.RecordBatch) -> list[tuple[Row, _Entry]]:
        """Return keys and entries of stored rows."""
        width = len(self._keys.schema)
        keys = [self._keys.key(key) for key in self._keys.rows(rows)]
        values = self._values.rows(rows.select(rows.schema.names[width:]))
        expiries = [INFINITY] * len(keys)
        if self._lifetime is not None:
            expiries = decoded(rows.column(rows.num_columns - 1))
        there = zip(keys, values, decoded(rows.column(GONE)), expiries, strict=True)
        return [(key, (None if gone else row, until)) for key, row, gone, until in there]

    def _encoded(self, maps: dict[int, dict[Row, _Entry]]) -> tuple[list[int], pa.RecordBatch]:
        owners = [position for position, entries in maps.items() for _ in entries]
        keys = self._keys.batch(list(chain.from_iterable(maps.values())))
        entries = [entry for part in maps.values() for entry in part.values()]
        values = self._values.batch([value or self._no_value for value, _ in entries])
        gone = pa.array([value is None for value, _ in entries], type=pa.bool_())
        rows = pa.RecordBatch.from_arrays(
            [*keys.columns, *values.columns, gone], schema=self._declared.columns
        )
        if self._lifetime is not None:
            rows = with_expiry(rows, [until for _, until in entries])
        return owners, rows
