"""The segments a shard may read, as a flat table in its arena.

Idea: a window of a day has thousands of segments; a task must not read a list of them from JSON in
every batch. Six words per segment, sorted by ordinal, are mapped with the arena and searched.
The name of a segment follows from its ordinal and the id of the attempt that wrote it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from icestream.state.arena import Arena
from icestream.state.log.format import SegmentInfo
from icestream.state.table import CountedTable

_WORDS = 6


def segment_name(ordinal: int, attempt: str) -> str:
    """Return the file name of a segment written by an attempt (16 hexadecimal digits)."""
    return f"{ordinal:010d}-{attempt}.seg"


class SegmentTable(Mapping[int, SegmentInfo]):
    """Segments by ordinal, over an array of an arena."""

    def __init__(self, arena: Arena) -> None:
        """Attach to the arena's array, or create it."""
        self._table = CountedTable(arena, "segments", _WORDS)

    def reserve(self) -> None:
        """Make room for one more; raises `Refused` and changes nothing if the budget is full."""
        self._table.reserve(1)

    def add(self, info: SegmentInfo) -> None:
        """Add a segment with an ordinal above all others."""
        attempt = int(info.name[11:27], 16)
        numbers = (info.ordinal, attempt, info.bytes, info.records, info.expiry)
        self._table.append(np.array([_signed(n) for n in (*numbers, info.footer_checksum)]))

    def expire(self, watermark: int) -> None:
        """Drop the segments that expire at or before the watermark."""
        self._table.keep(self._table.rows[:, 4] > watermark)

    def forget(self, ordinals: Collection[int]) -> None:
        if ordinals:
            self._table.keep(~np.isin(self._table.rows[:, 0], list(ordinals)))

    def __getitem__(self, ordinal: int) -> SegmentInfo:
        table = self._table.rows
        at = int(table[:, 0].searchsorted(ordinal))
        if at == len(table) or table[at, 0] != ordinal:
            raise KeyError(ordinal)
        _, attempt, size, records, expiry, checksum = table[at].tolist()
        name = segment_name(ordinal, f"{attempt % 2**64:016x}")
        return SegmentInfo(ordinal, name, size, records, expiry, checksum % 2**64)

    def __iter__(self) -> Iterator[int]:
        return iter(self._table.rows[:, 0].tolist())

    def __len__(self) -> int:
        return len(self._table)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
