"""State that an operator keeps between two versions in addition to its queue: named arrays.

Idea: operators over whole batches keep sorted arrays and Arrow tables, which are replaced rather
than modified. At the end of a version they are copied into the arena, within the budget, and back
at the beginning of the next; a snapshot has the same arrays as records.

Invariants:
1. What was saved is loaded again, from the arena and from a snapshot
   (`test_arrays_come_back_from_the_arena_and_from_records`).
2. Arrays that the budget has no room for are refused (`test_bounded_arrays_are_inside_the_budget`).

Cost: a copy of everything per version, and its bytes twice while a version is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.state.arena import Arena
from icestream.state.budget import Account
from icestream.state.log.ipc import read_table, write_table
from icestream.state.queue.arrays import GrowingArray

#: arrays of an operator by name
State = dict[str, npt.NDArray[Any]]

#: maximum bytes of an array in one record
RECORD_BYTES = 1 << 20


class SavedArrays:
    """The arrays of an operator in an arena."""

    def __init__(self, arena: Arena, account: Account, name: str = "kept") -> None:
        """Attach to an arena; `account` holds the copy that the operator works on."""
        self._arena = arena
        self._account = account
        self._name = name
        self._shapes: dict[str, Any] = arena.header.setdefault(name, {})

    def load(self) -> State | None:
        """Return copies of the saved arrays; None if there are none."""
        if not self._shapes:
            return None
        self._account.reserve(sum(_size(kind, shape) for kind, shape in self._shapes.values()))
        found: State = {}
        for name, (kind, shape) in self._shapes.items():
            view = self._array(name).view[: _size(kind, shape)]
            found[name] = np.frombuffer(view.tobytes(), kind).reshape(shape).copy()
        return found

    def save(self, state: State) -> None:
        """Save arrays for the next version, replacing the previous ones."""
        for name, array in state.items():
            flat = np.frombuffer(np.ascontiguousarray(array), np.uint8)
            target = self._array(name)
            target.resize(len(flat))
            target.view[: len(flat)] = flat
            self._shapes[name] = array.dtype.str, list(array.shape)

    def _array(self, name: str) -> GrowingArray:
        return self._arena.array(f"{self._name}.{name}", np.uint8)


def records_of(state: State) -> Iterator[bytes]:
    """Yield saved arrays as the payloads of records."""
    for name, array in state.items():
        flat = np.ascontiguousarray(array).tobytes()
        header = {"name": name, "kind": array.dtype.str, "shape": list(array.shape)}
        head = json.dumps(header).encode() + b"\n"
        for first in range(0, max(1, len(flat)), RECORD_BYTES):
            yield head + flat[first : first + RECORD_BYTES]


def state_of(payloads: Iterable[bytes]) -> State:
    """Decode the saved arrays that `records_of` encoded."""
    parts: dict[str, list[bytes]] = {}
    shapes: dict[str, tuple[str, list[int]]] = {}
    for payload in payloads:
        head, _, data = payload.partition(b"\n")
        header = json.loads(head)
        shapes[header["name"]] = header["kind"], header["shape"]
        parts.setdefault(header["name"], []).append(data)
    return {
        name: np.frombuffer(b"".join(parts[name]), kind).reshape(shape).copy()
        for name, (kind, shape) in shapes.items()
    }


def bytes_of(table: pa.Table) -> npt.NDArray[np.uint8]:
    """Encode a table as an array to be saved."""
    return np.frombuffer(write_table(table), np.uint8)


def table_of(array: npt.NDArray[np.uint8]) -> pa.Table:
    """Decode the saved array that `bytes_of` encoded."""
    return read_table(array.tobytes())


def _size(kind: str, shape: list[int]) -> int:
    return np.dtype(kind).itemsize * prod(shape)
