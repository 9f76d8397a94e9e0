"""State that an operator keeps between two versions in addition to its queue: named arrays.

Idea: operators over whole batches keep sorted arrays and Arrow tables, which are replaced rather
than modified. At the end of a version they are copied into the arena, within the budget, and back
at the beginning of the next; a snapshot has the same arrays as records.

Invariants:
1. What was saved is loaded again, from the arena and from a snapshot
   (`test_arrays_come_back_from_the_arena_and_from_records`).
2. Arrays that the budget has no room for are refused (`test_bounded_arrays_are_inside_the_budget`).
3. Parts, which are files, come back the same
   (`test_parts_come_back_from_their_files_and_from_records`).

Cost: a copy of everything per version, and its bytes twice while a version is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.state.arena import Arena
from icestream.state.budget import Account
from icestream.state.files import storage_error
from icestream.state.identities import EVERY_ID, IdRange
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

    def clear(self) -> None:
        """Drop the saved arrays."""
        for name in self._shapes:
            self._array(name).resize(0)
        self._shapes.clear()

    def _array(self, name: str) -> GrowingArray:
        return self._arena.array(f"{self._name}.{name}", np.uint8)


class SavedParts:
    """The states of an operator for ranges of ids, in files beside the arrays of an arena."""

    def __init__(self, arena: Arena, name: str) -> None:
        """Attach to an arena, or begin with one part, for all ids, without a state."""
        self._arena = arena
        self._name = name
        self._ranges: list[list[int]] = arena.header.setdefault(name, [[0, EVERY_ID.high]])

    @property
    def ranges(self) -> list[IdRange]:
        """Return the ranges of all parts, in order."""
        return [IdRange(*each) for each in self._ranges]

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(map(self._file_size, self.ranges))

    def divide(self, ranges: Sequence[IdRange]) -> None:
        """Have other parts, which have no state yet."""
        self._ranges[:] = [[each.low, each.high] for each in ranges]

    def load(self, ids: IdRange) -> State | None:
        """Return the state of a part; None if there is none."""
        try:
            with open(self._path(ids), "rb") as file:
                shapes, data, at = json.loads(file.readline()), file.read(), 0
        except FileNotFoundError:
            return None
        found: State = {}
        for name, kind, shape in shapes:
            found[name] = np.frombuffer(data, kind, prod(shape), at).reshape(shape).copy()
            at += found[name].nbytes
        return found

    def save(self, ids: IdRange, state: State) -> None:
        """Save the state of a part."""
        path = self._path(ids)
        shapes = [(name, each.dtype.str, each.shape) for name, each in state.items()]
        try:
            with open(path, "wb") as file:
                file.write(json.dumps(shapes).encode() + b"\n")
                file.writelines(each.tobytes() for each in state.values())
        except OSError as error:
            raise storage_error(path, error) or error from error

    def split(self, ids: IdRange) -> tuple[IdRange, IdRange]:
        """Replace a part by two, which have no state yet; return their ranges."""
        middle = (ids.low + ids.high) // 2
        halves = IdRange(ids.low, middle), IdRange(middle, ids.high)
        at = self._ranges.index([ids.low, ids.high])
        self._ranges[at : at + 1] = [[each.low, each.high] for each in halves]
        self._remove(ids)
        return halves

    def merge(self, parts: Sequence[IdRange]) -> IdRange:
        """Replace neighbouring parts by one, which has no state yet; return its range."""
        merged = IdRange(parts[0].low, parts[-1].high)
        at = self._ranges.index([parts[0].low, parts[0].high])
        self._ranges[at : at + len(parts)] = [[merged.low, merged.high]]
        for ids in parts:
            self._remove(ids)
        return merged

    def _remove(self, ids: IdRange) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(ids))

    def _file_size(self, ids: IdRange) -> int:
        try:
            return os.path.getsize(self._path(ids))
        except FileNotFoundError:
            return 0

    def _path(self, ids: IdRange) -> str:
        return self._arena.path(f"{self._name}-{ids.low:016x}-{ids.high:017x}")


def records_of(state: State, ids: IdRange = EVERY_ID) -> Iterator[bytes]:
    """Yield saved arrays, of a part of the keys, as the payloads of records."""
    for name, array in state.items():
        flat = np.ascontiguousarray(array).tobytes()
        header = {"name": name, "kind": array.dtype.str, "shape": list(array.shape)}
        if ids != EVERY_ID:
            header["ids"] = [ids.low, ids.high]
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


def parts_of(payloads: Iterable[bytes]) -> dict[IdRange, State]:
    """Decode the saved arrays of all parts that `records_of` encoded."""
    found: dict[IdRange, list[bytes]] = {}
    for payload in payloads:
        ids = json.loads(payload.partition(b"\n")[0]).get("ids")
        found.setdefault(EVERY_ID if ids is None else IdRange(*ids), []).append(payload)
    return {ids: state_of(part) for ids, part in found.items()}


def common_ranges(ranges: Iterable[IdRange]) -> list[IdRange]:
    """Return the ranges between all bounds of saved arrays, whose parts may overlap."""
    edges = sorted({edge for ids in ranges for edge in (ids.low, ids.high)})
    return [IdRange(low, high) for low, high in pairwise(edges)]


def bytes_in(state: State) -> int:
    """Return the size of arrays."""
    return sum(array.nbytes for array in state.values())


def bytes_of(table: pa.Table) -> npt.NDArray[np.uint8]:
    """Encode a table as an array to be saved."""
    return np.frombuffer(write_table(table), np.uint8)


def table_of(array: npt.NDArray[np.uint8]) -> pa.Table:
    """Decode the saved array that `bytes_of` encoded."""
    return read_table(array.tobytes())


def _size(kind: str, shape: list[int]) -> int:
    return np.dtype(kind).itemsize * prod(shape)
