"""Ranges of `id_high` that split a batch of events into portions, each sorted as a whole.

Idea: a batch larger than a portion is scanned several times, once for each range of groups. The
states of a pane are then on the log in the order of `id_high`, and later reads of one range of
groups read the slices of that range only. Ranges are chosen by a histogram of the upper bits of
`id_high`.

Invariant: ranges are adjacent and cover every id_high (`test_ranges_hold_every_group_once`).

Cost: one pass over the events for each portion, and one to count them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from icestream.operators.folding.fold import ID_HIGH_COLUMN

#: upper bits of id_high that the histogram distinguishes
_BITS = 12
_SHIFT = np.uint64(64 - _BITS)
_ID_HIGH_END = 2**64


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
