"""The segments a shard may read, as a flat table in its arena.

Idea: a window of a day has thousands of segments; a task must not read a list of them from JSON at
every batch. Six words per segment, sorted by ordinal, are mapped with the arena and searched.
The name of a segment follows from its ordinal and the id of the attempt that wrote it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.state.arena import Arena
from icestream.state.log.format import SegmentInfo

_WORDS = 6


def segment_name(ordinal: int, attempt: str) -> str:
    """Return the file name of a segment written by an attempt (16 hexadecimal digits)."""
    return f"{ordinal:010d}-{attempt}.seg"


class SegmentTable(Mapping[int, SegmentInfo]):
    """Segments by ordinal, over an array of an arena."""

    def __init__(self, arena: Arena) -> None:
        """Attach to the arena's array, or make it."""
        self._arena = arena
        self._array = arena.array("segments", np.int64, _WORDS)
        arena.header.setdefault("segments", 0)

    @property
    def _table(self) -> npt.NDArray[Any]:
        return self._array.view[: self._arena.header["segments"]]

    def reserve(self) -> None:
        """Make room for one more; raises `Refused`, with nothing changed, if the budget is full."""
        count = len(self)
        if count == self._array.capacity:
            self._array.resize(count + 1 + count // 4)

    def add(self, info: SegmentInfo) -> None:
        """Take in a segment with an ordinal above all others."""
        self.reserve()
        count = len(self)
        attempt = int(info.name[11:27], 16)
        numbers = (info.ordinal, attempt, info.bytes, info.records, info.expiry)
        self._array.view[count] = [_signed(n) for n in (*numbers, info.footer_checksum)]
        self._arena.header["segments"] = count + 1

    def expire(self, watermark: int) -> None:
        """Forget the segments that expire at or before the watermark."""
        kept = self._table[self._table[:, 4] > watermark].copy()
        self._array.view[: len(kept)] = kept
        self._arena.header["segments"] = len(kept)

    def forget(self, ordinals: Collection[int]) -> None:
        """Forget the segments of some ordinals."""
        kept = self._table[~np.isin(self._table[:, 0], list(ordinals))].copy()
        self._array.view[: len(kept)] = kept
        self._arena.header["segments"] = len(kept)

    def __getitem__(self, ordinal: int) -> SegmentInfo:
        """Return the segment with an ordinal."""
        table = self._table
        at = int(np.searchsorted(table[:, 0], ordinal))
        if at == len(table) or table[at, 0] != ordinal:
            raise KeyError(ordinal)
        _, attempt, size, records, expiry, checksum = table[at].tolist()
        name = segment_name(ordinal, f"{attempt % 2**64:016x}")
        return SegmentInfo(ordinal, name, size, records, expiry, checksum % 2**64)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ordinals."""
        return iter(self._table[:, 0].tolist())

    def __len__(self) -> int:
        """Return the number of segments."""
        return int(self._arena.header["segments"])


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
