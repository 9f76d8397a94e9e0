"""Changes by group: sorted by group, then by time, in portions that fit into memory.

Idea: changes mostly arrive in runs, one for each group, so groups are looked up and sorted run by
run. Each group's rows then form one range, in time order; rows with equal times keep the order in
which they arrived. All later steps work on ranges.

Invariants:
1. A group's rows are in time order, and every row of the chunk is in exactly one portion
   (`test_portions_cover_a_chunk_in_time_order`).
2. The last puts of a map are what a dictionary has, in their order
   (`test_parity_both_forms_give_equal_results`).

Cost: O(rows + runs log runs), or O(rows log rows) if a group has several runs or they are not in
the order of time; a copy of the payload unless it is in order already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Slots, numbers_of, slice_bounds
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.lifetimes.changes import DIFF, LE, RE, column_of, payload_of, taken
from icestream.state.groups.directory import slot_order
from icestream.state.groups.spec import GroupRows, Groups
from icestream.state.keys import KeyCodec


class GroupRanges(ABC):
    """Rows of many groups, sorted by group, as user code for many groups receives them."""

    #: first row of each group, and the number of rows
    starts: Ints

    def __len__(self) -> int:
        """Return how many groups there are."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> Ints:
        """Return how many rows each group has."""
        return np.diff(self.starts)

    @abstractmethod
    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of the rows as an array."""

    def reduce(self, function: np.ufunc, values: Any) -> npt.NDArray[Any]:
        """Fold a column, or one value per row, within each group: `np.add`, `np.maximum`."""
        column = self.column(values) if isinstance(values, str) else np.asarray(values)
        folded: npt.NDArray[Any] = function.reduceat(column, self.starts[:-1])
        return folded


@dataclass(frozen=True)
class GroupPortion:
    """Rows of some groups of a chunk, by group and time."""

    #: the distinct groups
    slots: Slots
    #: first row of each group, and the number of rows
    starts: Ints
    events: pa.RecordBatch
    #: start and (exclusive) end of each event; how many such events are added or retracted
    times: Ints
    ends: Ints
    diffs: Ints

    def keys(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the key columns, a row for each group."""
        first = self.events.select(schema.names).take(pa.array(self.starts[:-1]))
        return pa.RecordBatch.from_arrays(first.columns, schema=schema)

    def halves(self) -> tuple[GroupPortion, ...]:
        """Return two parts: each has half of the groups or, of a single one, of the rows."""
        rows, groups = int(self.starts[-1]), len(self.slots)
        if rows < 2:
            return ()
        middle = int(self.starts[groups // 2]) if groups > 1 else rows // 2
        return self._part(0, middle), self._part(middle, rows)

    def _part(self, first: int, last: int) -> GroupPortion:
        begins, ends = self.starts[:-1], self.starts[1:]
        mine = (begins < last) & (ends > first)
        starts = np.append(np.maximum(begins[mine], first), last) - first
        columns = (each[first:last] for each in (self.times, self.ends, self.diffs))
        events = self.events.slice(first, last - first)
        return GroupPortion(self.slots[mine], starts, events, *columns)


def portions_of(groups: Groups, changes: pa.RecordBatch, *, expand: bool) -> Iterator[GroupPortion]:
    """Yield changes grouped and by time; `expand` repeats events with a count above one."""
    id_high, id_low = (
        column_of(changes, name).view(np.uint64) for name in (ID_HIGH_COLUMN, ID_LOW_COLUMN)
    )
    times, diffs = column_of(changes, LE), column_of(changes, DIFF)
    if not len(times):
        return
    begins = slice_bounds(id_high, id_low)[:-1]
    rows, slots, bounds = _by_slot(groups.locate(id_high[begins], id_low[begins]), begins, times)
    if expand and (diffs != 1).any():
        counts = diffs[rows]
        rows, diffs = np.repeat(rows, counts), np.ones_like(diffs)
        bounds = np.concatenate(([0], np.cumsum(counts)))[bounds]
        left = np.diff(bounds) > 0
        slots, bounds = slots[left], np.append(bounds[:-1][left], len(rows))
    ends, payload = column_of(changes, RE), payload_of(changes)
    for part in groups.portions(slots) if len(slots) else ():
        starts, mine = _ranges(bounds, slots, part)
        picked = rows[mine]
        events = taken(payload, picked)
        yield GroupPortion(part, starts, events, times[picked], ends[picked], diffs[picked])


def _by_slot(located: Slots, begins: Ints, times: Ints) -> tuple[Ints, Slots, Ints]:
    """Return the order of rows by slot and time, the distinct slots, and where those of each begin.

    Rows come in runs of one slot each. In the common case that each slot has one run, in time
    order, the runs are sorted instead of the rows.
    """
    ends = np.append(begins[1:], len(times))
    falls = times[1:] < times[:-1]
    falls[begins[1:] - 1] = False
    order = slot_order(located)
    slots = located[order]
    if not falls.any() and len(slots) == len(located) and (slots[1:] != slots[:-1]).all():
        bounds = np.concatenate(([0], np.cumsum((ends - begins)[order])))
        return numbers_of(begins[order], ends[order]), slots, bounds
    every = np.repeat(located, ends - begins)
    rows = np.lexsort((times, every))
    ordered = every[rows]
    bounds = slice_bounds(ordered)
    return rows, ordered[bounds[:-1]], bounds


def _ranges(bounds: Ints, every: Slots, some: Slots) -> tuple[Ints, Any]:
    """Return the starts of the concatenated ranges of some groups, and an index of their rows."""
    if len(some) == len(every):
        return bounds, slice(None)
    positions = np.searchsorted(every, some)
    sizes = bounds[positions + 1] - bounds[positions]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    first = int(bounds[positions[0]])
    if len(positions) == positions[-1] - positions[0] + 1 and (np.diff(positions) == 1).all():
        return starts, slice(first, first + int(starts[-1]))
    return starts, numbers_of(bounds[positions], bounds[positions + 1])


def last_puts(found: GroupRows, keys: KeyCodec, gone: str) -> GroupRows:
    """Return the last row of each key of each group of a map, unless it is `gone`.

    Keys are compared by their 128-bit identities, sorted, whatever the types.
    """
    owners, rows = found.owners, found.rows
    id_high, id_low = keys.identify(rows.select(keys.schema.names))
    order = np.lexsort((id_low, id_high, owners))
    last = slice_bounds(owners[order], id_high[order], id_low[order])[1:] - 1
    chosen = order[last]
    chosen = chosen[~np.asarray(rows.column(gone).to_numpy(zero_copy_only=False))[chosen]]
    chosen = chosen[np.lexsort((chosen, owners[chosen]))]
    return GroupRows(owners[chosen], taken(rows, chosen))


def kinds_of_puts(rows: pa.RecordBatch, keys: KeyCodec) -> Ids:
    """Return, by group, equal ids for puts of a map under one key."""
    return keys.identify(rows.select(keys.schema.names))[0]
