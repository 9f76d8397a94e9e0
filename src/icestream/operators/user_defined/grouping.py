"""Changes by group: sorted by group, then by time, in portions that fit into memory.

Idea: one sort of the chunk's slots and times makes every group's rows one range, in time order;
rows of equal times stay in the order in which they came. What follows works on ranges.

Invariant: a group's rows are in time order, and every row of the chunk is in exactly one portion
(`test_portions_cover_a_chunk_in_time_order`).

Cost: O(rows log rows), a copy of the payload unless it is in order already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.kernels.ranges import numbers_of
from icestream.operators.temporal.changes import DIFF, LE, RE, column_of, payload_of
from icestream.operators.windows.fold import HI, LO
from icestream.state.synopses.spec import Groups, Ints, Slots


@dataclass(frozen=True)
class Portion:
    """Rows of some groups of a chunk, by group and time."""

    #: the distinct groups
    slots: Slots
    #: first row of each group, and the number of rows
    starts: Ints
    events: pa.RecordBatch
    #: first and last instant of each event, the latter left out; how many such events come or go
    times: Ints
    ends: Ints
    diffs: Ints

    def keys(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the key columns, a row for each group."""
        first = self.events.select(schema.names).take(pa.array(self.starts[:-1]))
        return pa.RecordBatch.from_arrays(first.columns, schema=schema)


def portions_of(groups: Groups, changes: pa.RecordBatch, *, expand: bool) -> Iterator[Portion]:
    """Sort changes by group and time and hand them out; `expand` repeats events that come twice."""
    slots = groups.locate(*(column_of(changes, name).view(np.uint64) for name in (HI, LO)))
    times, diffs = column_of(changes, LE), column_of(changes, DIFF)
    rows = np.lexsort((times, slots))
    if expand and (diffs != 1).any():
        rows = np.repeat(rows, diffs[rows])
        diffs = np.ones_like(diffs)
    if not len(rows):
        return
    ordered = slots[rows]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    distinct, bounds = ordered[first], np.append(first, len(rows))
    ends, payload = column_of(changes, RE), payload_of(changes)
    for part in groups.portions(distinct):
        starts, mine = _ranges(bounds, distinct, part)
        picked = rows[mine]
        events = take(payload, picked)
        yield Portion(part, starts, events, times[picked], ends[picked], diffs[picked])


def take(batch: pa.RecordBatch, rows: Ints) -> pa.RecordBatch:
    """Return some rows of a batch, the batch itself if that is all of them in order."""
    if len(rows) == batch.num_rows and np.array_equal(rows, np.arange(len(rows))):
        return batch
    return batch.take(pa.array(rows))


def _ranges(bounds: Ints, every: Slots, some: Slots) -> tuple[Ints, Any]:
    """Return the starts of the ranges of some groups laid side by side, and an index of them."""
    if len(some) == len(every):
        return bounds, slice(None)
    positions = np.searchsorted(every, some)
    sizes = bounds[positions + 1] - bounds[positions]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    first = int(bounds[positions[0]])
    if len(positions) == positions[-1] - positions[0] + 1 and (np.diff(positions) == 1).all():
        return starts, slice(first, first + int(starts[-1]))
    return starts, numbers_of(bounds[positions], bounds[positions + 1])
