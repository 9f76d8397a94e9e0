"""The tuples of a version for windows, those of some keys at a time.

Idea: a batch that is small beside the memory of a shard is read and sorted once. Of a larger one
only the tuples of one part of the keys are in memory: it is read again for each part, where the
exchange or the log has it. The caller halves parts that have too many tuples to be held.

Invariants:
1. Windows get the same tuples in the same order, however large the batch
   (`test_bounded_windows_of_batches_beyond_memory`).
2. Tuples held at once, with their copy in time order, take no more than a quarter of the memory of
   the shard (the same test), unless they are of one key.

Cost: one sort; a large batch is read once for each part of the keys.

Limits: all tuples of one key are held, and those of a tree before the windows, whose operators take
a whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.operators.latest.coalescing import identity_of, joined
from icestream.operators.latest.update_stream import UpdateStream
from icestream.state.budget import LENT, Account
from icestream.state.identities import EVERY_ID, IdRange

#: tuples with the high words of their keys' ids
Tuples = tuple[Ids, pa.RecordBatch]
#: bytes of a tuple's time, and of the high words of its ids
_NUMBERS = 24


@dataclass(frozen=True)
class WindowInput:
    """Tuples for windows, in time order."""

    rows: pa.RecordBatch
    times: Ints
    #: high words of the ids of keys and of groups; None if the whole stream is one key
    keys: Ids | None
    groups: Ids | None

    def __len__(self) -> int:
        return len(self.times)

    def of(self, ids: IdRange) -> WindowInput:
        """Return the tuples of a range of keys."""
        if self.keys is None or self.groups is None or ids == EVERY_ID:
            return self
        mine = np.flatnonzero(ids.holds(self.keys))
        rows = self.rows.take(pa.array(mine))
        return WindowInput(rows, self.times[mine], self.keys[mine], self.groups[mine])


class WindowBatch:
    """The tuples of one version."""

    def __init__(
        self,
        read: Callable[[], Iterable[Tuples]],
        stream: UpdateStream,
        by: tuple[str, ...],
        account: Account,
        tree: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    ) -> None:
        """Open the tuples that `read` reads again and again, always in the same order.

        Args:
            read: reads the tuples.
            stream: columns, key and time of the windows' input.
            by: group-by columns.
            account: holds the tuples in memory.
            tree: what makes the windows' input of all tuples, in time order; the caller holds them.
        """
        self._read = read
        self._stream = stream
        self._by = by
        self._account = account
        self._tree = tree
        #: bytes that tuples may have of which there are two copies
        self._most = int(account.budget.total * LENT) // 2
        self._reserved = 0
        #: all tuples, if they may be held at once
        self._whole: WindowInput | None = None
        self._whole = self._of(EVERY_ID, divides=tree is None and bool(stream.keys))

    @property
    def is_empty(self) -> bool:
        return self._whole is not None and not len(self._whole)

    @property
    def is_held(self) -> bool:
        """Return whether all tuples are in memory."""
        return self._whole is not None

    def of(self, ids: IdRange) -> WindowInput | None:
        """Return the tuples of a range of keys; None if there are too many to hold at once."""
        return self._of(ids, divides=True) if self._whole is None else self._whole.of(ids)

    def every(self, ids: IdRange) -> WindowInput:
        """Return the tuples of a range of keys, however many they are."""
        found = self._of(ids, divides=False) if self._whole is None else self._whole.of(ids)
        assert found is not None
        return found

    def records(self, rows: int) -> Iterable[pa.RecordBatch]:
        """Yield what `read` has to read when the version is replayed, up to `rows` at a time."""
        held = None if self._tree is not None else self._whole
        for part in self._each() if held is None else [held.rows]:
            for first in range(0, part.num_rows, rows):
                yield part.slice(first, rows)

    def close(self) -> None:
        """Give up the memory of the tuples that were returned last, unless they are all."""
        if self._whole is None:
            self._account.release(self._reserved)
            self._reserved = 0

    def _each(self) -> Iterable[pa.RecordBatch]:
        return (rows for _, rows in self._read())

    def _of(self, ids: IdRange, *, divides: bool) -> WindowInput | None:
        """Return the tuples of a range; None if there are too many, of keys that can be divided."""
        self.close()
        parts: list[pa.RecordBatch] = []
        keys: Ids | None = None
        size, several = 0, False
        for id_high, rows in self._read():
            mine = np.flatnonzero(ids.holds(id_high))
            if not len(mine):
                continue
            part = rows if len(mine) == len(id_high) else rows.take(pa.array(mine))
            keys = id_high[mine[:1]] if keys is None else keys
            size += part.nbytes + _NUMBERS * len(mine)
            several = several or bool((id_high[mine] != keys).any())
            if divides and several and size > self._most:
                return None
            parts.append(part)
        if self._tree is None:
            self._account.reserve(2 * size)
            self._reserved = 2 * size
        return self._in_order(parts)

    def _in_order(self, parts: Sequence[pa.RecordBatch]) -> WindowInput:
        if not parts:
            nothing = pa.RecordBatch.from_pylist([], self._stream.schema)
            return WindowInput(nothing, np.empty(0, dtype=np.int64), None, None)
        rows = joined(parts)
        if self._tree is not None:
            rows = self._tree(rows)
        times = self._stream.times(rows)
        if self._tree is None and (np.diff(times) < 0).any():
            order = np.argsort(times, kind="stable")
            rows, times = rows.take(pa.array(order)), times[order]
        if not self._stream.keys:
            return WindowInput(rows, times, None, None)
        keys, groups = (identity_of(rows, by)[0] for by in (self._stream.keys, self._by))
        return WindowInput(rows, times, keys, groups)
