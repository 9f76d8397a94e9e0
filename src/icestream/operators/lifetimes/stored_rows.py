"""Stored rows of one input of an operator: the events of each group while they live.

Idea: the stored rows are changes, appended without reading the group. Retracting an event adds a
row with a negative count; both expire when the event ends. The store sums up the rows of groups in
which half of them cancel out, whether anyone reads them or not.

Invariants:
1. Stored rows and rows read add up to the same bag (`test_oracle_join_in_any_chunks`).
2. Retracted events leave a side that nobody probes
   (`test_bounded_ended_events_leave_a_side_that_nobody_probes`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.times import Micros
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.lifetimes.changes import DIFF, HEAD, LE, RE, column_of, identities_of
from icestream.operators.lifetimes.consolidate import consolidated, identities
from icestream.state.groups.spec import GroupRows, Groups, Synopsis, Wear

#: the instant from which a late row is garbage
UNTIL = "__until"
_OWNER = "__owner"


def live_events_synopsis(name: str, payload: pa.Schema) -> Synopsis:
    """Return the synopsis that stores events with a payload while they live."""
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
