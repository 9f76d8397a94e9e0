"""What an operator has shown and may have to revise: its answer past the watermark, stored as such.

Idea: the answer of a group is stored in a synopsis of its own. So a retraction is exactly what was
emitted, whatever has expired since, and only what changed is emitted.

Invariant: the emitted changes add up to what is stored plus what has passed
(`test_oracle_top_k_of_random_changes`, `test_oracle_aggregates_that_keep_events`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Slots
from icestream.core.times import Micros
from icestream.operators.lifetimes.changes import DIFF, HEAD, LE, RE, changes_of, column_of
from icestream.operators.lifetimes.counted_intervals import CountedIntervals, revised
from icestream.operators.lifetimes.rows_by_group import RowsByGroup, located
from icestream.state.groups.spec import GroupRows, Groups, Synopsis

#: columns of stored events before their payload
LIFETIME = HEAD[:3]


def events_synopsis(
    name: str, payload: pa.Schema, *more: pa.Field, rank: str | None = None
) -> Synopsis:
    """Return a synopsis of shown events, to be revised until their lifetime has ended."""
    return Synopsis(name, pa.schema([*LIFETIME, *payload, *more]), expiry=RE, rank=rank)


def payload_of(rows: pa.RecordBatch, payload: pa.Schema) -> pa.RecordBatch:
    """Return the payload of stored output that may be revised."""
    return pa.RecordBatch.from_arrays(
        rows.columns[len(LIFETIME) : len(LIFETIME) + len(payload)], schema=payload
    )


def stretches_of(rows: pa.RecordBatch, owners: Ints, kinds: Ints) -> CountedIntervals:
    """Return shown output that may be revised as counted intervals."""
    le, re, diff = (column_of(rows, name) for name in (LE, RE, DIFF))
    return CountedIntervals(owners, kinds, le, re, diff)


def rows_of(
    stretches: CountedIntervals, payload: pa.RecordBatch, *more: pa.Array, schema: pa.Schema
) -> GroupRows:
    """Return counted intervals as rows of revisable output to store, one row for each interval."""
    head = [pa.array(each) for each in (stretches.le, stretches.re, stretches.count)]
    rows = pa.RecordBatch.from_arrays([*head, *payload.columns, *more], schema=schema)
    return GroupRows(stretches.owner, rows)


def hold(changes: pa.RecordBatch, groups: Groups, schema: pa.Schema, due: Micros) -> None:
    """Append changes to what is held for output, without a read, and wake their groups."""
    if changes.num_rows:
        slots = located(changes, groups)
        columns = [changes.column(name) for name in schema.names]
        groups.append(0, slots, pa.RecordBatch.from_arrays(columns, schema=schema))
        touched = RowsByGroup(slots).distinct
        groups.remind(touched, np.full(len(touched), due))


@dataclass(frozen=True)
class RevisableOutput:
    """A synopsis of what was shown."""

    number: int
    synopsis: Synopsis

    def revise(
        self,
        groups: Groups,
        slots: Slots,
        before: CountedIntervals,
        answer: CountedIntervals,
        kinds: pa.RecordBatch,
        watermark: Micros,
        over: Micros,
        *,
        owed: tuple[CountedIntervals, CountedIntervals] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield how the answers of groups change, and store what is shown past an instant.

        `kinds` has the payload of each kind; `owed` are intervals stored next to the answers, as
        they were and as they will be.
        """
        after = revised(before, answer, watermark)
        emitted = after.and_(before.negative()).consolidated()
        lasting = after.where(after.re > over)
        self._keep(groups, slots, emitted, before, lasting, kinds, owed)
        yield from self.emitted(groups, slots, emitted, kinds)

    def emitted(
        self, groups: Groups, slots: Slots, changed: CountedIntervals, kinds: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        """Yield what changed, retracted rows first."""
        if len(changed):
            changed = changed.at(np.argsort(changed.count > 0, kind="stable"))
            id_high, id_low = groups.identities(slots[changed.owner])
            payload = kinds.take(pa.array(changed.kind))
            yield changes_of(payload, changed.le, changed.re, changed.count, id_high, id_low)

    def _keep(
        self,
        groups: Groups,
        slots: Slots,
        emitted: CountedIntervals,
        before: CountedIntervals,
        after: CountedIntervals,
        kinds: pa.RecordBatch,
        owed: tuple[CountedIntervals, CountedIntervals] | None,
    ) -> None:
        changed = np.zeros(len(slots), dtype=np.bool_)
        changed[emitted.owner] = True
        if owed is not None:
            before = before.and_(owed[0])
            after = after.and_(owed[1])
            more = owed[1].and_(owed[0].negative()).consolidated()
            changed[more.owner[more.count > 0]] = True
            fresh = more.where(~changed[more.owner])
            groups.append(self.number, slots[fresh.owner], self.rows(fresh, kinds).rows)
        # a group that had nothing and has nothing needs no rewrite
        there = np.zeros(len(slots), dtype=np.bool_)
        there[before.owner] = there[after.owner] = True
        changed &= there
        kept = self.rows(after.where(changed[after.owner]), kinds)
        owners = (np.cumsum(changed) - 1)[kept.owners]
        order = np.argsort(owners, kind="stable")
        rows = GroupRows(owners[order], kept.rows.take(pa.array(order)))
        groups.rewrite(self.number, slots[changed], rows)

    def rows(self, stretches: CountedIntervals, kinds: pa.RecordBatch) -> GroupRows:
        payload = kinds.take(pa.array(stretches.kind))
        return rows_of(stretches, payload, schema=self.synopsis.schema)
