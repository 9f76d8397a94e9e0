"""Edges: events that arrive in two parts, a start and later an end, converted to changes.

Idea: a start edge is an event without an end. It is stored until its end edge, which names the same
instant and key columns, arrives; then the endless lifetime is retracted and the shorter one added.
An end edge that arrives first waits as long as its start can still arrive in time; then it is
dropped and counted. Points and intervals pass through.

Invariants:
1. The output is the bag of the starts, where the k-th end edge of an instant and key ends the k-th
   start, whatever the chunks (`test_oracle_edges_in_any_chunks`).
2. A start that has ended, and an end that has found its start, are not stored any more
   (`test_bounded_nothing_is_kept_of_ended_events`).
3. An end edge is given up exactly when the watermark is past its start's instant
   (`test_an_end_without_a_start_is_counted`).
4. Rows become edges with the lifetimes that the operator expects
   (`test_rows_become_starts_ends_and_points`); an end without the start of its event, and a row
   that is both, are errors (`test_rows_that_are_no_edges_are_reported`).

Cost: O(edges + stored rows of groups with an end edge); groups that receive only start edges are
not read, except for waiting ends.

Limits: an event ends once; an end before the watermark is moved to the watermark, because the past
does not change.

References: start and end edges, insertions and revisions of streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.errors import DefinitionError, InputError
from icestream.core.times import INFINITY, Micros
from icestream.operators.bad_rows import BadRows, mapped
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.lifetimes.changes import (
    DIFF,
    HEAD,
    LE,
    RE,
    LifetimeOperator,
    changes_of,
    changes_schema,
    column_of,
    consolidated,
    identities,
    identities_of,
    one_each,
    payload_of,
)
from icestream.operators.lifetimes.rows_by_group import RowsByGroup, earliest, located, rewrite_some
from icestream.sql.expressions.compile import Bound, Predicate, parse, text_in_zone
from icestream.state.groups.spec import GroupRows, Groups, Synopsis
from icestream.state.identities import numbered

#: the first column of the payload of edges: the kind of each
KIND = "__kind"
START, END, POINT, INTERVAL = range(4)

_OPEN, _WAITING = 0, 1
_OWNER = "__owner"


class _Matches(NamedTuple):
    """Which start each end has found, as positions among all starts and ends."""

    starts: Ints
    ends: Ints


class Edges(LifetimeOperator):
    """Converts edges to changes; within a group and instant, `keys` match an end to its start."""

    def __init__(self, payload: pa.Schema, keys: Sequence[str]) -> None:
        unknown = sorted(set(keys) - set(payload.names))
        if unknown:
            msg = (
                f"the rows of edges have no columns {', '.join(unknown)} to be their keys: name "
                f"some of {', '.join(payload.names)}"
            )
            raise DefinitionError(msg)
        self.result = payload
        self._keys = [LE, *keys]
        head = [field for field in HEAD if field.name in {LE, RE}]
        schema = pa.schema([*head, *payload])
        self.synopses = (Synopsis("open", schema), Synopsis("waiting", schema))
        #: end edges without a start that were dropped since this object was created
        self.dropped = 0

    def on_changes(
        self, port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        if not changes.num_rows:
            return
        for made in mapped("edges", changes, _checked):
            if isinstance(made, BadRows):
                yield made
                changes = changes.slice(0, 0)
            else:
                changes = made
        edges = one_each(changes)
        kinds = np.asarray(edges.column(KIND).to_numpy())
        passing = self._passing(edges, kinds)
        if passing.num_rows:
            yield passing
        edged = edges.filter(pa.array((kinds == START) | (kinds == END)))
        if not edged.num_rows:
            return
        touched = RowsByGroup(located(edged, groups))
        for portion in groups.portions(touched.distinct):
            mine, owners = touched.within(portion)
            rows = edged.take(pa.array(mine))
            yield from self._edged(rows, owners, portion, groups, watermark)

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Give up ends whose start can no longer arrive."""
        due = groups.due(watermark)
        for portion in groups.portions(due) if len(due) else ():
            waiting = groups.read(_WAITING, portion)
            self._settle(portion, waiting, groups, watermark, changed=np.full(len(portion), False))
        return iter(())

    def _passing(self, edges: pa.RecordBatch, kinds: npt.NDArray[np.int8]) -> pa.RecordBatch:
        """Return the changes of all edges except ends."""
        passing = kinds != END
        begun = edges.filter(pa.array(passing))
        le, re, kinds = column_of(begun, LE), column_of(begun, RE), kinds[passing]
        ends = np.where(kinds == START, INFINITY, np.where(kinds == POINT, le + 1, re))
        return self._made(begun, ends, 1)

    def _edged(
        self, edged: pa.RecordBatch, owners: Ints, portion: Slots, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Match starts and ends of some groups, and yield what the ends change."""
        is_end = np.asarray(edged.column(KIND).to_numpy()) == END
        new = edged.drop_columns([DIFF, ID_HIGH_COLUMN, ID_LOW_COLUMN, KIND])
        if not is_end.all():
            groups.append(_OPEN, portion[owners[~is_end]], new.filter(pa.array(~is_end)))
        waited = groups.read(_WAITING, portion)
        ends = _together(waited, GroupRows(owners[is_end], new.filter(pa.array(is_end))))
        asked = np.zeros(len(portion), dtype=np.bool_)
        asked[ends.owners] = True
        if not asked.any():
            return
        held = groups.read(_OPEN, portion[asked])
        starts = GroupRows(np.flatnonzero(asked)[held.owners], held.rows)
        found = self._matched(starts, ends)
        if len(found.starts):
            loses = np.zeros(len(portion), dtype=np.bool_)
            loses[starts.owners[found.starts]] = True
            rewrite_some(_OPEN, portion, loses, _without(starts, found.starts), groups)
            begun = starts.rows.take(pa.array(found.starts))
            ids = groups.identities(portion[starts.owners[found.starts]])
            end = np.maximum(column_of(ends.rows, RE)[found.ends], watermark)
            yield self._ended(begun, *ids, np.maximum(end, column_of(begun, LE)))
        self._settle(portion, _without(ends, found.ends), groups, watermark, changed=asked)

    def _ended(self, begun: pa.RecordBatch, id_high: Ids, id_low: Ids, re: Ints) -> pa.RecordBatch:
        for name, part in ((ID_HIGH_COLUMN, id_high), (ID_LOW_COLUMN, id_low)):
            begun = begun.append_column(name, pa.array(part))
        endless = self._made(begun, np.full(begun.num_rows, INFINITY), -1)
        return consolidated(pa.concat_batches([endless, self._made(begun, re, 1)]))

    def _matched(self, starts: GroupRows, ends: GroupRows) -> _Matches:
        """Match the k-th end of an instant and key with the k-th start."""
        emitted = [
            each.rows.select(self._keys).append_column(_OWNER, pa.array(each.owners))
            for each in (starts, ends)
        ]
        numbers, _ = numbered(*identities(pa.concat_batches(emitted)))
        split = len(starts.owners)
        # a pair is identified by its number and by how many rows of that number precede it
        one, two = (
            part * len(numbers) + _occurrence(part) for part in (numbers[:split], numbers[split:])
        )
        _, in_starts, in_ends = np.intersect1d(one, two, assume_unique=True, return_indices=True)
        return _Matches(in_starts, in_ends)

    def _settle(
        self, portion: Slots, ends: GroupRows, groups: Groups, watermark: Micros, *, changed: Mask
    ) -> None:
        """Give up ends that cannot find a start any more; store the others and set a wake-up.

        `changed` groups may have other ends than those stored.
        """
        le = column_of(ends.rows, LE)
        hopeless = le < watermark
        if hopeless.any():
            self.dropped += int(hopeless.sum())
            changed[ends.owners[hopeless]] = True
        if not changed.any():
            return
        staying = _without(ends, np.flatnonzero(hopeless))
        waiting = rewrite_some(_WAITING, portion, changed, staying, groups)
        due = earliest(waiting.owners, column_of(waiting.rows, LE) + 1, int(changed.sum()))
        groups.remind(portion[changed], due)

    def _made(self, rows: pa.RecordBatch, re: Ints, sign: int) -> pa.RecordBatch:
        """Return changes that add, or retract, events with these ends."""
        schema = changes_schema(self.result)
        parts = {RE: pa.array(re), DIFF: pa.array(np.full(rows.num_rows, sign))}
        columns = [parts[n] if n in parts else rows.column(n) for n in schema.names]
        made = pa.RecordBatch.from_arrays(columns, schema=schema)
        return made.filter(pc.less(made.column(LE), made.column(RE)))


def _checked(edges: pa.RecordBatch) -> pa.RecordBatch:
    """Reject unknown kinds, ends before starts, and retracted edges."""
    kinds = np.asarray(edges.column(KIND).to_numpy())
    if not ((kinds >= START) & (kinds <= INTERVAL)).all():
        odd = sorted({int(kind) for kind in kinds} - set(range(4)))
        msg = f"{KIND} must be 0 (start), 1 (end), 2 (point) or 3 (interval); got {odd}"
        raise InputError(msg)
    ended = (kinds == END) | (kinds == INTERVAL)
    if (column_of(edges, RE)[ended] < column_of(edges, LE)[ended]).any():
        msg = "an event ends before it begins; send the end of its lifetime, not the length"
        raise InputError(msg)
    if (column_of(edges, DIFF) < 0).any():
        msg = "an edge cannot be retracted; send an end edge at the instant of the start instead"
        raise InputError(msg)
    return edges


def _occurrence(numbers: Ints) -> Ints:
    """Return how many earlier rows have the same number, for each row."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    before = np.empty(len(numbers), dtype=np.int64)
    before[order] = np.arange(len(numbers)) - np.searchsorted(ordered, ordered)
    return before


def _together(first: GroupRows, second: GroupRows) -> GroupRows:
    """Merge rows of the same groups, those of the first before those of the second."""
    owners = np.concatenate([first.owners, second.owners])
    order = np.argsort(owners, kind="stable")
    rows = pa.concat_batches([first.rows, second.rows]).take(pa.array(order))
    return GroupRows(owners[order], rows)


def _without(rows: GroupRows, gone: Ints) -> GroupRows:
    stays = np.ones(len(rows.owners), dtype=np.bool_)
    stays[gone] = False
    return rows.where(stays)


@dataclass(frozen=True)
class EdgeRows:
    """Classifies rows as starts, ends and points: two conditions, and when an ended event began."""

    start: Predicate
    end: Predicate
    since: Bound
    #: description, for readers and for checkpoints
    text: str

    @classmethod
    def bind(
        cls, payload: pa.Schema, start: str, end: str, since: str, *, zone: str = "UTC"
    ) -> EdgeRows:
        """Bind the conditions, and the expression for the start of an ending event, to columns."""
        expression = parse(since)
        began = expression.bind(payload, zone=zone)
        if not pa.types.is_timestamp(began.type):
            msg = (
                f"since={since!r} must be a time, not {began.type}: for an end edge it is when "
                "the event began"
            )
            raise DefinitionError(msg)
        starts, ends = (Predicate.bind(payload, each, zone=zone) for each in (start, end))
        text = f"edges, start where {starts.text}, end where {ends.text} since {expression}"
        return cls(starts, ends, began, text_in_zone(text, starts.bound, ends.bound, began))

    def schema(self, payload: pa.Schema) -> pa.Schema:
        return pa.schema([pa.field(KIND, pa.int8(), nullable=False), *payload])

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        payload = payload_of(changes)
        starts, ends = (_holds(each, payload) for each in (self.start, self.end))
        if (starts & ends).any():
            msg = (
                f"a row is a start edge ({self.start.text}) and an end edge ({self.end.text}) at "
                "once; make the conditions exclude each other"
            )
            raise InputError(msg)
        time = column_of(changes, LE)
        le = np.where(ends, self._began(payload, ends), time)
        re = np.select([starts, ends], [np.full(len(time), INFINITY), time], time + 1)
        kinds = np.select([starts, ends], [START, END], POINT).astype(np.int8)
        edges = pa.RecordBatch.from_arrays(
            [pa.array(kinds), *payload.columns], schema=self.schema(payload.schema)
        )
        id_high, id_low = identities_of(changes)
        return changes_of(edges, le, re, column_of(changes, DIFF), id_high, id_low)

    def _began(self, payload: pa.RecordBatch, ends: Mask) -> Ints:
        """Return when the events that some rows end began; arbitrary for other rows."""
        since = self.since.evaluate(payload)
        if since.filter(pa.array(ends)).null_count:
            msg = (
                f"an end edge ({self.end.text}) does not have the start of its event; "
                "fill that column, or filter such rows out with where(...)"
            )
            raise InputError(msg)
        micros = since.cast(pa.timestamp("us", since.type.tz)).cast(pa.int64())
        return np.asarray(micros.fill_null(0).to_numpy(zero_copy_only=False))


def _holds(condition: Predicate, payload: pa.RecordBatch) -> Mask:
    return np.asarray(condition.mask(payload).to_numpy(zero_copy_only=False))
