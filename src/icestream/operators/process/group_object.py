"""Object state of one group at a time: a serialised object and its deltas.

Idea: the log stores the bytes of an object, followed by the deltas since. An update asks the user's
`delta` what changed and appends that; the whole object is written again when its deltas have grown
as large as the object. `appendDelta` appends a delta without reading the object.

Invariants:
1. An object that was not updated is not written (`test_reading_writes_nothing`).
2. Bytes and deltas add up to the object last written, whatever the chunks
   (`test_oracle_objects_survive_as_deltas`).
3. The stored deltas of an object that is read and updated are no larger than the object
   (`test_bounded_deltas_weigh_no_more_than_the_object`). The store folds deltas that are appended
   without a read once they are as large as the object
   (`test_bounded_user_state_that_is_only_written`).

References: delta serialisation with dirty indication in migration-aware user-defined operators.
"""
# ruff: noqa: N802 - PySpark's names

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.process.declarations import ObjectState
from icestream.operators.process.group_state import GroupContext, GroupVariable
from icestream.operators.process.stored_state import with_expiry
from icestream.operators.process.values import decoded

_NONE = object()


class GroupObject(GroupVariable):
    """A Python object."""

    def __init__(self, scene: GroupContext, number: int, name: str, declared: ObjectState) -> None:
        super().__init__(scene, number, name, declared)
        self._how = declared

    def begin(self) -> None:
        self._stored: list[tuple[bool, bytes]] | None = None
        self._bounds: list[int] = []
        #: by position: the object that user code holds, deltas it appended, whether it updated it
        self._objects: dict[int, Any] = {}
        self._deltas: dict[int, list[bytes]] = {}
        self._updated: dict[int, int] = {}

    def get(self) -> Any:
        """Return the object, or the initial one; modifications are stored only after `update`."""
        position = self._scene.position
        if position not in self._objects:
            self._objects[position] = self._rebuilt(position)
        found = self._objects[position]
        if found is _NONE:
            return None if self._how.initial is None else self._how.initial()
        return found

    def exists(self) -> bool:
        self.get()
        return self._objects[self._scene.position] is not _NONE

    def update(self, new: Any) -> None:
        """Store an object: the one that was read, modified, or another."""
        self._scene.store()
        self._objects[self._scene.position] = new
        self._updated[self._scene.position] = self._scene.now

    def clear(self) -> None:
        self.update(_NONE)

    def appendDelta(self, change: bytes) -> None:
        self._scene.store()
        apply = self._how.apply
        if apply is None or self._how.initial is None:
            msg = (
                f"object state {self.name!r} accepts deltas only with apply and initial: give both"
            )
            raise DefinitionError(msg)
        position = self._scene.position
        if position in self._objects:
            self._objects[position] = apply(self.get(), change)
        if position not in self._updated:
            self._deltas.setdefault(position, []).append(change)

    def flush(self) -> None:
        """Append deltas, or write whole objects."""
        whole: dict[int, bytes | None] = {}
        parts: dict[int, list[bytes]] = {}
        for position in sorted({*self._updated, *self._deltas}):
            self._scene.position = position
            changes = self._changes(position)
            if changes is None:
                new = self._objects[position]
                whole[position] = None if new is _NONE else self._bytes(self._how.serialise(new))
            else:
                parts[position] = changes
        owners = [position for position, data in whole.items() if data is not None]
        rows = _rows(False, [data for data in whole.values() if data is not None])
        if self._lifetime is not None:
            times = np.array([self._updated[position] for position in owners], dtype=np.int64)
            rows = with_expiry(rows, times + self._lifetime)
        if whole:
            self._write(list(whole), owners, rows)
        owners = [position for position, changes in parts.items() for _ in changes]
        self._write([], owners, _rows(True, [each for part in parts.values() for each in part]))

    def _changes(self, position: int) -> list[bytes] | None:
        """Return the deltas to append for a group, or None if the whole object must be written."""
        appended = self._deltas.get(position, [])
        if position not in self._updated:
            read = self._stored is not None and position in self._objects
            return None if read and self._outweighs(position, appended) else appended
        new = self._objects[position]
        if self._how.delta is None or new is _NONE or self._stored is None:
            return None
        old = self._rebuilt(position)
        change = None if old is _NONE else self._how.delta(old, new)
        if change is None:
            return None
        changes = [*appended, self._bytes(change)]
        return None if self._outweighs(position, changes) else changes

    def _outweighs(self, position: int, more: list[bytes]) -> bool:
        """Return whether the deltas of an object that was read are as large as the object."""
        stored = self._of(position)
        whole = sum(len(data) for is_delta, data in stored if not is_delta)
        changes = sum(len(data) for is_delta, data in stored if is_delta)
        return changes + sum(map(len, more)) > whole

    def _bytes(self, made: Any) -> bytes:
        if not isinstance(made, bytes):
            msg = f"object state {self.name!r}: serialise and delta must return bytes, not {made!r}"
            raise DefinitionError(msg)
        return made

    def _of(self, position: int) -> list[tuple[bool, bytes]]:
        if self._stored is None:
            found = self._read()
            self._bounds = self._starts(found)
            self._stored = list(zip(*map(decoded, found.rows.columns[:2]), strict=True))
        return self._stored[self._bounds[position] : self._bounds[position + 1]]

    def _rebuilt(self, position: int) -> Any:
        """Rebuild the object from its bytes and all deltas."""
        changes = [(True, change) for change in self._deltas.get(position, [])]
        return self._how.rebuilt([*self._of(position), *changes], _NONE)


def _rows(is_delta: bool, data: list[bytes]) -> pa.RecordBatch:
    """Return rows of bytes."""
    flags = pa.array([is_delta] * len(data), type=pa.bool_())
    schema = ObjectState(bytes, bytes).columns
    return pa.RecordBatch.from_arrays([flags, pa.array(data, type=pa.binary())], schema=schema)
