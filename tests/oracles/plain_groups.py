"""The obvious store of rows by group: a dictionary of lists.

Idea: it implements `icestream.state.groups.spec.Groups` with Python's own containers, so
that operators can be tested without a log and the real store can be compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.state.groups.spec import GroupPieces, GroupRows, Groups, Kinds, Synopsis


class PlainGroups(Groups):
    """Rows by group, all in memory."""

    def __init__(self, synopses: Sequence[Synopsis], piece_rows: int = 0) -> None:
        """Start empty."""
        self._synopses = tuple(synopses)
        #: rows of a group that are read at once; 0 for all
        self._piece_rows = piece_rows
        self._slots: dict[tuple[int, int], int] = {}
        self._rows: list[list[list[dict[str, Any]]]] = []
        self._due: list[int] = []
        self._watermark = MINUS_INFINITY

    def watermark(self) -> Micros:
        return self._watermark

    def begin(self, watermark: Micros) -> None:
        """Forget expired rows."""
        self._watermark = max(watermark, self._watermark)
        for group in self._rows:
            for number, synopsis in enumerate(self._synopses):
                if synopsis.expiry is not None:
                    group[number] = [
                        r for r in group[number] if r[synopsis.expiry] > self._watermark
                    ]

    def locate(self, id_high: Ids, id_low: Ids) -> Slots:
        """Return the slot of each group."""
        slots = []
        for identity in zip(id_high.tolist(), id_low.tolist(), strict=True):
            if identity not in self._slots:
                self._slots[identity] = len(self._rows)
                self._rows.append([[] for _ in self._synopses])
                self._due.append(INFINITY)
            slots.append(self._slots[identity])
        return np.array(slots, dtype=np.int64)

    def knows(self, id_high: Ids, id_low: Ids) -> npt.NDArray[np.bool_]:
        """Return which groups it knows."""
        named = zip(id_high.tolist(), id_low.tolist(), strict=True)
        return np.array([each in self._slots for each in named], dtype=np.bool_)

    def identities(self, slots: Slots) -> tuple[Ids, Ids]:
        """Return id_high and id_low of groups."""
        known = list(self._slots)
        pairs = [known[slot] for slot in slots.tolist()]
        id_high, id_low = ([pair[part] for pair in pairs] for part in (0, 1))
        return np.array(id_high, dtype=np.uint64), np.array(id_low, dtype=np.uint64)

    def portions(self, slots: Slots, synopses: Sequence[int] = ()) -> Iterator[Slots]:
        """Yield a few groups at a time, to test that callers handle portions."""
        del synopses
        some = 1 if self._piece_rows else 3
        for first in range(0, len(slots), some):
            yield slots[first : first + some]

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        """Return the rows of distinct groups."""
        owners, rows = [], []
        for position, slot in enumerate(slots.tolist()):
            kept = self._rows[slot][synopsis]
            owners += [position] * len(kept)
            rows += kept
        schema = self._synopses[synopsis].schema
        return GroupRows(
            np.array(owners, dtype=np.int64), pa.RecordBatch.from_pylist(rows, schema=schema)
        )

    def fits(self, synopsis: int, slots: Slots) -> bool:
        """Return whether no group has more rows than a piece."""
        most = self._piece_rows
        return not most or all(len(self._rows[slot][synopsis]) <= most for slot in slots.tolist())

    def pieces(self, synopsis: int, slots: Slots, kinds: Kinds | None = None) -> GroupPieces:
        """Return a few rows at a time, to test that callers handle pieces."""
        found = self.read(synopsis, slots)
        some = self._piece_rows or max(1, found.rows.num_rows)
        if kinds is not None:
            count = -(-found.rows.num_rows // some) or 1
            part = kinds(found.rows) % np.uint64(count)
            parts = [found.where(part == number) for number in range(count)]
            return GroupPieces(
                count, parts.__getitem__, lambda ids: (ids % np.uint64(count)).astype(np.int64)
            )

        def read(number: int) -> GroupRows:
            first = number * some
            return GroupRows(found.owners[first : first + some], found.rows.slice(first, some))

        return GroupPieces(-(-found.rows.num_rows // some), read)

    def read_best(self, synopsis: int, slots: Slots, counts: Ints) -> GroupRows:
        """Return the best rows of each group, and no others."""
        rank = self._synopses[synopsis].rank
        assert rank is not None
        owners, rows = [], []
        for position, (slot, count) in enumerate(zip(slots.tolist(), counts.tolist(), strict=True)):
            kept = self._rows[slot][synopsis]
            ordered = sorted(range(len(kept)), key=lambda i: (-kept[i][rank], i))[:count]
            owners += [position] * len(ordered)
            rows += [kept[i] for i in sorted(ordered)]
        schema = self._synopses[synopsis].schema
        return GroupRows(
            np.array(owners, dtype=np.int64), pa.RecordBatch.from_pylist(rows, schema=schema)
        )

    def append(self, synopsis: int, slots: Slots, rows: pa.RecordBatch) -> None:
        """Add rows."""
        expiry = self._synopses[synopsis].expiry
        for slot, row in zip(slots.tolist(), rows.to_pylist(), strict=True):
            if expiry is None or row[expiry] > self._watermark:
                self._rows[slot][synopsis].append(row)

    def rewrite(self, synopsis: int, slots: Slots, rows: GroupRows) -> None:
        """Replace rows."""
        for slot in slots.tolist():
            self._rows[slot][synopsis] = []
        self.append(synopsis, slots[rows.owners], rows.rows)

    def remind(self, slots: Slots, due: Ints) -> None:
        """Set when groups are due."""
        for slot, instant in zip(slots.tolist(), due.tolist(), strict=True):
            self._due[slot] = instant

    def hasten(self, slots: Slots, due: Ints) -> None:
        """Set when groups are due, unless they are due earlier."""
        for slot, instant in zip(slots.tolist(), due.tolist(), strict=True):
            self._due[slot] = min(instant, self._due[slot])

    def due(self, watermark: Micros) -> Slots:
        """Return the groups that are due."""
        return np.array([s for s, due in enumerate(self._due) if due <= watermark], dtype=np.int64)
