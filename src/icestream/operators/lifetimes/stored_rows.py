"""Stored rows of one input of an operator: the events of each group while they live.

Idea: the stored rows are changes, appended without reading the group. Retracting an event adds a
row with a negative count; both expire when the event ends. If many rows of a group cancel out, they
are summed up when the group is read anyway.

Invariant: stored rows and rows read add up to the same bag (`test_oracle_join_in_any_chunks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.times import Micros
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.lifetimes.changes import DIFF, HEAD, LE, RE, column_of, identities_of
from icestream.operators.lifetimes.consolidate import consolidated
from icestream.state.groups.spec import GroupRows, Groups, Synopsis

#: the instant from which a late row is garbage
UNTIL = "__until"
_OWNER = "__owner"
#: how many rows of a group must cancel out before summing up pays off
_FEW = 4


def live_events_synopsis(name: str, payload: pa.Schema) -> Synopsis:
    """Return the synopsis that stores events with a payload while they live."""
    head = [field for field in HEAD if field.name in {LE, RE, DIFF}]
    return Synopsis(name, pa.schema([*head, *payload]), expiry=RE)


def late_events_synopsis(name: str, payload: pa.Schema) -> Synopsis:
    """Return the synopsis that stores, for one batch, events that ended before they arrived."""
    until = pa.field(UNTIL, pa.int64(), nullable=False)
    return Synopsis(name, live_events_synopsis(name, payload).schema.append(until), expiry=UNTIL)


def stored_payload(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the payload of stored rows."""
    return rows.select([name for name in rows.schema.names if name not in {LE, RE, DIFF, UNTIL}])


def store_alive(
    synopsis: int, changes: pa.RecordBatch, slots: Slots, groups: Groups, watermark: Micros
) -> None:
    """Store the changes whose events end past the watermark."""
    alive = column_of(changes, RE) > watermark
    rows = changes.drop_columns([ID_HIGH_COLUMN, ID_LOW_COLUMN])
    if not alive.all():
        slots, rows = slots[alive], rows.filter(pa.array(alive))
    if rows.num_rows:
        groups.append(synopsis, slots, rows)


def store_late(
    synopsis: int, changes: pa.RecordBatch, slots: Slots, groups: Groups, watermark: Micros
) -> None:
    """Store the other changes until the watermark moves."""
    late = column_of(changes, RE) <= watermark
    if late.any():
        rows = changes.drop_columns([ID_HIGH_COLUMN, ID_LOW_COLUMN]).filter(pa.array(late))
        until = pa.array(np.full(rows.num_rows, watermark + 1))
        field = pa.field(UNTIL, pa.int64(), nullable=False)
        groups.append(synopsis, slots[late], rows.append_column(field, until))


def read_summed(synopsis: int, slots: Slots, groups: Groups) -> Iterator[GroupRows]:
    """Read rows of groups; replace the stored rows of groups in which half cancel out.

    The rows of a group too large for memory are yielded in pieces, and stay as they are.
    """
    pieces = groups.read_pieces(synopsis, slots)
    first, second = next(pieces, None), next(pieces, None)
    if first is None:
        return
    if second is None:
        yield _summed_if_worn(synopsis, slots, first, groups)
        return
    yield from chain((first, second), pieces)


def _summed_if_worn(synopsis: int, slots: Slots, found: GroupRows, groups: Groups) -> GroupRows:
    """Return rows of groups; where half of them cancel out, sum them up and replace them."""
    taken = column_of(found.rows, DIFF) < 0
    cancelled = 2 * np.bincount(found.owners[taken], minlength=len(slots))
    worn = (cancelled >= _FEW) & (2 * cancelled >= np.bincount(found.owners, minlength=len(slots)))
    if not worn.any():
        return found
    summed = _summed(found, worn[found.owners])
    rewrite_some(synopsis, slots, worn, summed, groups)
    return summed


def rewrite_some(
    synopsis: int, slots: Slots, which: Mask, rows: GroupRows, groups: Groups
) -> GroupRows:
    """Replace the rows of the groups in `which` with theirs from `rows`, and return these."""
    mine = which[rows.owners]
    places = np.cumsum(which) - 1
    theirs = GroupRows(places[rows.owners[mine]], rows.rows.filter(pa.array(mine)))
    groups.rewrite(synopsis, slots[which], theirs)
    return theirs


def _summed(found: GroupRows, worn: Mask) -> GroupRows:
    """Sum up the rows of worn groups, and leave all others as they are."""
    owned = found.rows.append_column(_OWNER, pa.array(found.owners))
    parts = [owned.filter(pa.array(~worn)), consolidated(owned.filter(pa.array(worn)))]
    together = pa.concat_batches(parts)
    owners = column_of(together, _OWNER)
    order = np.argsort(owners, kind="stable")
    rows = together.drop_columns([_OWNER]).take(pa.array(order))
    return GroupRows(owners[order], rows)


def ids_of(changes: pa.RecordBatch, rows: Ints) -> tuple[Ids, Ids]:
    """Return id_high and id_low of the groups of some changes."""
    id_high, id_low = identities_of(changes)
    return id_high[rows], id_low[rows]
