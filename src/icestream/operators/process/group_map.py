"""Map state of one group at a time: rows found by a key.

Idea: a map is a list of puts and removals; the last one of a key is valid. A put appends without a
read. The store consolidates a map when it has twice as many words as after the last time.

Invariants:
1. It behaves like a dictionary, iterated in the order of the last puts
   (`test_oracle_per_group_state_is_a_dictionary`).
2. A map does not grow with its updates, read or not
   (`test_bounded_user_state_that_is_only_written`).
3. With a time to live, a write never shortens the life of its key: the row it replaced would
   reappear (`test_a_covered_row_never_comes_back`).
"""
# ruff: noqa: N802 - PySpark's names

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

from icestream.core.times import INFINITY, Micros
from icestream.operators.process.declarations import GONE, MapState
from icestream.operators.process.group_state import GroupContext, GroupVariable
from icestream.operators.process.stored_state import with_expiry
from icestream.operators.process.values import Row, RowCoder, decoded

#: the row put under a key, or None if the key was removed, and its expiry
_Entry = tuple[Row | None, Micros]


class GroupMap(GroupVariable):
    """Rows found by a key."""

    def __init__(self, scene: GroupContext, number: int, name: str, declared: MapState) -> None:
        super().__init__(scene, number, name, declared)
        self._keys, self._values = RowCoder(declared.keys), RowCoder(declared.values)
        self._no_value: Row = (None,) * len(declared.values)

    def begin(self) -> None:
        self._stored: list[tuple[Row, Row, bool, Micros]] | None = None
        self._bounds: list[int] = []
        #: by position: existing keys, written keys, whether all others were removed
        self._live: dict[int, dict[Row, _Entry]] = {}
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
        """Return all keys and rows, in the order in which they were last put."""
        return iter([(key, row) for key, (row, _) in self._current().items() if row is not None])

    def keys(self) -> Iterator[Row]:
        return iter(list(self._current()))

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
                position: (self._live.get(position) or {}) if position in self._cleared else writes
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

    def _known(self) -> dict[Row, _Entry] | None:
        """Return the keys of the group if they are known without a read, else None."""
        return self._live.get(self._scene.position)

    def _current(self) -> dict[Row, _Entry]:
        position = self._scene.position
        live = self._live.get(position)
        if live is None:
            stored = self._stored if self._stored is not None else self._load()
            live = {}
            for key, value, gone, until in stored[
                self._bounds[position] : self._bounds[position + 1]
            ]:
                live.pop(key, None)
                if not gone:
                    live[key] = (value, until)
            for key, entry in self._writes.get(position, {}).items():
                live.pop(key, None)
                if entry[0] is not None:
                    live[key] = entry
            self._live[position] = live
        return live

    def _load(self) -> list[tuple[Row, Row, bool, Micros]]:
        found = self._read()
        self._bounds = self._starts(found)
        width = len(self._keys.schema)
        keys = [self._keys.key(key) for key in self._keys.rows(found.rows)]
        values = self._values.rows(found.rows.select(found.rows.schema.names[width:]))
        gone = decoded(found.rows.column(GONE))
        expiries = [INFINITY] * len(keys)
        if self._lifetime is not None:
            expiries = decoded(found.rows.column(found.rows.num_columns - 1))
        self._stored = list(zip(keys, values, gone, expiries, strict=True))
        return self._stored

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
