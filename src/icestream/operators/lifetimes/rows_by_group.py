"""Rows of a chunk by the group they touch, for operators that go through groups in portions.

Invariants:
1. `within` finds every row of a portion's groups once, in the order of the chunk
   (`test_rows_of_a_portion_are_found_in_order`).
2. Clipped changes add up to the same bag from the watermark on
   (`test_clipping_keeps_what_lies_ahead`). What lies before it does not change once a batch is
   done, so nothing is lost.
3. `keep` leaves equivalent rows, at most twice as many as needed plus those of one chunk
   (`test_bounded_kept_rows_are_at_most_twice_those_needed`).
4. Stored events and rows read add up to the same bag (`test_oracle_join_in_any_chunks`);
   retracted ones leave a side that nobody probes
   (`test_bounded_ended_events_leave_a_side_that_nobody_probes`).

Cost: O(rows) for the order of the slots, then O(rows found).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Slots, numbers_of
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.lifetimes.changes import (
    DIFF,
    HEAD,
    LE,
    RE,
    column_of,
    consolidated,
    identities,
    identities_of,
    with_column,
)
from icestream.state.groups.spec import GroupRows, Groups, Synopsis, Wear


class RowsByGroup:
    """Which rows of a chunk belong to which slot."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._order = _order_of(slots)
        ordered = slots[self._order]
        fresh = np.flatnonzero(np.diff(ordered, prepend=-1))
        #: the distinct slots, ascending
        self.distinct: Slots = ordered[fresh]
        self._bounds = np.append(fresh, len(slots))

    def of(self, portion: Slots) -> tuple[Ints, Ints]:
        """Return the rows of some of the slots, in their order, and where those of each begin."""
        at = np.searchsorted(self.distinct, portion)
        begins, ends = self._bounds[at], self._bounds[at + 1]
        bounds = np.concatenate([[0], np.cumsum(ends - begins)])
        return self._order[numbers_of(begins, ends)], bounds

    def within(self, portion: Slots) -> tuple[Ints, Ints]:
        """Return the rows of some of the slots, and each one's position in `portion`."""
        rows, bounds = self.of(portion)
        return rows, np.repeat(np.arange(len(portion)), np.diff(bounds))


def _order_of(slots: Slots) -> Ints:
    """Return the stable order of slots, each half of their 32 bits sorted without comparisons."""
    if (slots[1:] >= slots[:-1]).all():
        return np.arange(len(slots))
    order = np.argsort(slots.astype(np.uint16), kind="stable")
    return order[np.argsort((slots >> 16).astype(np.uint16)[order], kind="stable")]


def located(changes: pa.RecordBatch, groups: Groups) -> Slots:
    """Return the slot of the group of each change, to go through rows by group."""
    return groups.locate(*identities_of(changes))


def first_rows(owners: Ints, count: int) -> Ints:
    """Return the first row of each of `count` groups, in rows by group; each must have one."""
    first = np.full(count, len(owners), dtype=np.int64)
    np.minimum.at(first, owners, np.arange(len(owners)))
    return first


#: when to wake a group that waits for the end of time; INFINITY itself means never
END = INFINITY - 1


def earliest(owners: Ints, times: Ints, count: int) -> Ints:
    """Return when to wake each of `count` groups of rows: at its first time, or never."""
    due = np.full(count, INFINITY)
    np.minimum.at(due, owners, np.minimum(times, END))
    return due


def woken(groups: Groups, watermark: Micros) -> Iterator[Slots]:
    """Yield rows by group for groups that are due; the caller must set a later wake-up for each."""
    while len(due := groups.due(min(watermark, END))):
        yield from groups.portions(due)
        # groups returned so far may leave the directory; rows are not expired by this call
        groups.begin(MINUS_INFINITY)


def clipped(changes: pa.RecordBatch, watermark: Micros) -> tuple[pa.RecordBatch, Ints, Ints]:
    """Return the changes by group that reach past the watermark, and their clipped lifetimes."""
    le, re = np.maximum(column_of(changes, LE), watermark), column_of(changes, RE)
    ahead = (le < re) & (column_of(changes, DIFF) != 0)
    if ahead.all():
        return changes, le, re
    return changes.filter(pa.array(ahead)), le[ahead], re[ahead]


def since(changes: pa.RecordBatch, instant: Micros) -> pa.RecordBatch:
    """Return what the rows of a group that changes touch concern from an instant on."""
    if changes.num_rows == 0 or int(column_of(changes, LE).min()) >= instant:
        return changes
    changes, le, _ = clipped(changes, instant)
    return with_column(changes, LE, le)


@dataclass(frozen=True)
class LazyRows:
    """Rows of groups that are built only when they are needed."""

    #: position of the group of each row, ascending
    owners: Ints
    #: returns the rows at some positions
    at: Callable[[Ints], pa.RecordBatch]


def keep(
    groups: Groups,
    synopsis: int,
    slots: Slots,
    kept: Ints,
    new: LazyRows,
    after: LazyRows,
    *,
    worn: bool = False,
) -> None:
    """Append new rows to those of a group, or rewrite it if at most half of its rows remain.

    `kept` are the owners of the rows that were read, `after` all rows a group needs from now on;
    `worn` rewrites all groups.
    """
    sizes = np.bincount(kept, minlength=len(slots)) + np.bincount(new.owners, minlength=len(slots))
    needed = np.bincount(after.owners, minlength=len(slots))
    shrinks = (worn | (2 * needed <= sizes)) & (sizes > 0)
    added = np.flatnonzero(~shrinks[new.owners])
    if len(added):
        groups.append(synopsis, slots[new.owners[added]], new.at(added))
    if shrinks.any():
        rewritten = np.flatnonzero(shrinks[after.owners])
        owners = (np.cumsum(shrinks) - 1)[after.owners[rewritten]]
        groups.rewrite(synopsis, slots[shrinks], GroupRows(owners, after.at(rewritten)))


#: the instant from which a late row is garbage
UNTIL = "__until"
_OWNER = "__owner"


def live_events_synopsis(name: str, payload: pa.Schema) -> Synopsis:
    """Return the synopsis that stores events with a payload while they live.

    They are changes, appended without reading the group: retracting an event adds a row with a
    negative count. The store sums up the rows of groups in which half of them cancel out.
    """
    head = [field for field in HEAD if field.name in {LE, RE, DIFF}]
    return Synopsis(name, pa.schema([*head, *payload]), expiry=RE, wear=SUMMED)


def late_events_synopsis(name: str, payload: pa.Schema) -> Synopsis:
    """Return the synopsis that stores, for one batch, events that ended before they arrived."""
    until = pa.field(UNTIL, pa.int64(), nullable=False)
    return Synopsis(name, live_events_synopsis(name, payload).schema.append(until), expiry=UNTIL)


def stored_payload(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the payload of stored rows of one input."""
    return rows.select([name for name in rows.schema.names if name not in {LE, RE, DIFF, UNTIL}])


def store_alive(
    synopsis: int, changes: pa.RecordBatch, slots: Slots, groups: Groups, watermark: Micros
) -> None:
    """Store the changes of one input whose events end past the watermark."""
    alive = column_of(changes, RE) > watermark
    rows = changes.drop_columns([ID_HIGH_COLUMN, ID_LOW_COLUMN])
    if not alive.all():
        slots, rows = slots[alive], rows.filter(pa.array(alive))
    if rows.num_rows:
        groups.append(synopsis, slots, rows)


def store_late(
    synopsis: int, changes: pa.RecordBatch, slots: Slots, groups: Groups, watermark: Micros
) -> None:
    """Store the other changes, which ended before they arrived, until the watermark moves."""
    late = column_of(changes, RE) <= watermark
    if late.any():
        rows = changes.drop_columns([ID_HIGH_COLUMN, ID_LOW_COLUMN]).filter(pa.array(late))
        until = pa.array(np.full(rows.num_rows, watermark + 1))
        field = pa.field(UNTIL, pa.int64(), nullable=False)
        groups.append(synopsis, slots[late], rows.append_column(field, until))


def rewrite_some(
    synopsis: int, slots: Slots, which: Mask, rows: GroupRows, groups: Groups
) -> GroupRows:
    """Replace the stored rows of the groups in `which` with theirs from `rows`."""
    mine = rows.where(which[rows.owners])
    theirs = GroupRows((np.cumsum(which) - 1)[mine.owners], mine.rows)
    groups.rewrite(synopsis, slots[which], theirs)
    return theirs


def summed(found: GroupRows) -> GroupRows:
    """Return one row for each event of a group, none for those that cancel out."""
    left = consolidated(found.rows.append_column(_OWNER, pa.array(found.owners)))
    return GroupRows(column_of(left, _OWNER), left.drop_columns([_OWNER]))


def _kinds(rows: pa.RecordBatch) -> Ids:
    """Return equal ids for changes of one event."""
    return identities(rows.drop_columns([DIFF]))[0]


#: retracted events and the rows they cancel are superfluous
SUMMED = Wear(summed, DIFF, _kinds)


def ids_of(changes: pa.RecordBatch, rows: Ints) -> tuple[Ids, Ids]:
    """Return id_high and id_low of the groups of changes whose rows are stored."""
    id_high, id_low = identities_of(changes)
    return id_high[rows], id_low[rows]
