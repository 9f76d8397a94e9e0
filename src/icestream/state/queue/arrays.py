"""Growing arrays on the heap, with the interface of an arena's, with or without an account.

Invariants:
1. A refused resize changes nothing (`test_a_refused_resize_changes_nothing`).
2. New rows are zero, rows below the new capacity keep their content
   (`test_resizing_keeps_rows_and_zeroes_new_ones`).
3. `grow` grows all arrays or none (`test_grow_is_all_or_nothing`).

Cost: growing copies, and needs old and new memory at once, which the account counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from icestream.state.budget import Account, Refused

#: growing arrays get this fraction more than they need, if it fits
_SPARE = 1 / 2
#: arrays are aligned to cache lines, as those of an arena are
_LINE = 64


class GrowingArray(Protocol):
    """An array of rows that grows; `state.arena.ArenaArray` is one."""

    @property
    def view(self) -> npt.NDArray[Any]:
        """The rows; never keep them across a resize."""

    @property
    def capacity(self) -> int:
        """Rows that fit."""

    @property
    def bytes(self) -> int:
        """Bytes held."""

    def resize(self, capacity: int) -> None:
        """Make room for `capacity` rows; a refusal changes nothing."""


class Arrays(Protocol):
    """A provider of arrays; `state.arena.Arena` is one."""

    def array(
        self, name: str, dtype: np.dtype[Any] | type, width: int = 1, capacity: int = 0
    ) -> GrowingArray:
        """Open the array `name`, creating it if it is new, with room for `capacity` rows."""


class HeapArray:
    """A growing array of numbers, or of rows of `width` numbers, on the heap."""

    def __init__(self, dtype: np.dtype[Any], width: int, account: Account | None) -> None:
        self.dtype = dtype
        self.width = width
        self.view: npt.NDArray[Any] = self._made(0)
        self._account = account

    @property
    def capacity(self) -> int:
        return len(self.view)

    @property
    def bytes(self) -> int:
        return int(self.view.nbytes)

    def resize(self, capacity: int) -> None:
        """Make room for exactly `capacity` rows; `Refused` if the account cannot reserve them."""
        if capacity == self.capacity:
            return
        before, row = self.bytes, self.dtype.itemsize * self.width
        if self._account is not None:
            self._account.reserve(capacity * row)
        made, kept = self._made(capacity), min(capacity, self.capacity)
        made[:kept] = self.view[:kept]
        self.view = made
        if self._account is not None:
            self._account.release(before)

    def _made(self, capacity: int) -> npt.NDArray[Any]:
        size = capacity * self.width * self.dtype.itemsize
        room = np.zeros(size + _LINE, dtype=np.uint8)
        first = -room.ctypes.data % _LINE
        made = room[first : first + size].view(self.dtype)
        return made if self.width == 1 else made.reshape(capacity, self.width)


class HeapArrays:
    """Arrays by name, on the heap of this process."""

    def __init__(self, account: Account | None = None) -> None:
        self._account = account
        self._arrays: dict[str, HeapArray] = {}

    @property
    def bytes(self) -> int:
        return sum(array.bytes for array in self._arrays.values())

    def array(
        self, name: str, dtype: np.dtype[Any] | type, width: int = 1, capacity: int = 0
    ) -> HeapArray:
        array = self._arrays.get(name)
        if array is None:
            array = HeapArray(np.dtype(dtype), width, self._account)
            array.resize(capacity)
            self._arrays[name] = array
        elif (array.dtype, array.width) != (np.dtype(dtype), width):
            msg = (
                f"array {name!r} holds {array.width} of {array.dtype}, asked for {width} of {dtype}"
            )
            raise ValueError(msg)
        elif array.capacity < capacity:
            array.resize(capacity)
        return array


def grow(targets: Sequence[tuple[GrowingArray, int]]) -> None:
    """Grow every array of a queue to at least its capacity, or none and raise the refusal."""
    grown: list[tuple[GrowingArray, int]] = []
    try:
        for array, capacity in targets:
            if array.capacity < capacity:
                grown.append((array, array.capacity))
                array.resize(capacity)
    except BaseException:
        for array, before in grown:
            array.resize(before)
        raise


def grow_ahead(targets: Sequence[tuple[GrowingArray, int]], most: int | None = None) -> None:
    """Grow arrays of a queue with room to spare if that fits, else to just what is needed.

    No array gets room for more than `most` rows unless it needs them.
    """
    if all(array.capacity >= capacity for array, capacity in targets):
        return
    try:
        ahead = [(array, capacity + int(capacity * _SPARE)) for array, capacity in targets]
        if most is not None:
            needed = [capacity for _, capacity in targets]
            ahead = [(a, max(n, min(c, most))) for (a, c), n in zip(ahead, needed, strict=True)]
        grow(ahead)
    except Refused:
        grow(targets)
