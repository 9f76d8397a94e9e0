"""Ranges of panes and `id_high` that split a batch of events into portions, each sorted as a whole.

Idea: a batch larger than a portion is scanned several times, once for each portion: some panes, or
a range of groups of one pane. So a batch of many panes is written in as few slices as many batches
of a few panes. The states of a pane are on the log in the order of `id_high`, and later reads of
one range of groups read the slices of that range only. Ranges are chosen by a histogram of the
upper bits of `id_high`.

Invariants:
1. Ranges are adjacent and cover every id_high (`test_ranges_hold_every_group_once`).
2. Every event is in one portion (`test_portions_of_a_batch_hold_every_event_once`).
3. The number of portions and panes bounds the number of slices
   (`test_bounded_a_batch_of_many_panes_is_written_in_few_slices`).

Cost: one pass over the events for each portion, one to count them, and one for each large pane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.operators.folding.fold import ID_HIGH_COLUMN

#: upper bits of id_high that the histogram distinguishes
_BITS = 12
_SHIFT = np.uint64(64 - _BITS)
_ID_HIGH_END = 2**64


class EventPortions:
    """The events of a batch, which can be read again and again, in portions."""

    def __init__(
        self,
        batches: Callable[[], Iterator[pa.RecordBatch]],
        panes_of: Callable[[pa.RecordBatch], Ints],
        size: int,
    ) -> None:
        """Count the bytes of each pane; a portion has about `size` of them."""
        self._batches = batches
        self._panes_of = panes_of
        self._size = size
        #: bytes of each pane
        self._panes: Counter[int] = Counter()
        #: first and last pane of each batch
        self._spans: list[tuple[int, int]] = []
        for batch in batches():
            panes, counts = np.unique(panes_of(batch), return_counts=True)
            self._spans.append((int(panes[0]), int(panes[-1])) if len(panes) else (0, -1))
            for pane, count in zip(panes.tolist(), counts.tolist(), strict=True):
                self._panes[pane] += count * batch.nbytes // batch.num_rows

    def __iter__(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield portions in the order of panes, each as batches in the order of the source."""
        together: list[int] = []
        held = 0
        for pane in sorted(self._panes):
            size = self._panes[pane]
            if together and held + size > self._size:
                yield self._of(together[0], together[-1])
                together, held = [], 0
            if size <= self._size:
                together.append(pane)
                held += size
                continue
            for low, high in ranges_of(self._of(pane, pane), self._size):
                yield (within(batch, low, high) for batch in self._of(pane, pane))
        if together:
            yield self._of(together[0], together[-1])

    def _of(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        for batch, (begin, end) in zip(self._batches(), self._spans, strict=True):
            if begin > last or end < first:
                continue
            if first <= begin and end <= last:
                yield batch
                continue
            panes = self._panes_of(batch)
            yield batch.filter(pa.array((panes >= first) & (panes <= last)))


def ranges_of(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of id_high of an object aggregate's events, each with about `size` bytes."""
    weights = np.zeros(2**_BITS)
    for batch in batches:
        if batch.num_rows:
            bins = np.asarray(batch.column(ID_HIGH_COLUMN)) >> _SHIFT
            counts = np.bincount(bins.astype(np.int64), minlength=2**_BITS)
            weights += counts * (batch.nbytes / batch.num_rows)
    passed = np.cumsum(weights)
    steps = np.arange(1, int(passed[-1] // max(1, size)) + 1) * size
    ends = np.unique(np.searchsorted(passed, steps, side="left") + 1)
    low = 0
    for end in (ends[ends < 2**_BITS].astype(object) << int(_SHIFT)).tolist():
        yield low, end
        low = end
    yield low, _ID_HIGH_END


def within(batch: pa.RecordBatch, low: int, high: int) -> pa.RecordBatch:
    """Return the events of an object aggregate in a range `low <= id_high < high`."""
    if low == 0 and high == _ID_HIGH_END:
        return batch
    id_high = np.asarray(batch.column(ID_HIGH_COLUMN))
    inside = (id_high >= np.uint64(low)) & (id_high <= np.uint64(high - 1))
    return batch.filter(pa.array(inside))
