"""Rows that begin and end events, as edges.

Idea: a row of a stream is a point in time. Two conditions define which rows are the start and which
the end of an event that lasts; an expression defines, for an end, when the event began. All other
rows are point events.

Invariants:
1. Edges have the lifetimes that the operator over edges expects
   (`test_rows_become_starts_ends_and_points`).
2. An end without the start of its event, and a row that is both start and end, are errors
   (`test_rows_that_are_no_edges_are_reported`).

Cost: O(changes), without state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask
from icestream.core.errors import DefinitionError, InputError
from icestream.core.times import INFINITY
from icestream.operators.lifetimes.changes import (
    DIFF,
    LE,
    changes_of,
    column_of,
    identities_of,
    payload_of,
)
from icestream.operators.lifetimes.edges import END, KIND, POINT, START
from icestream.sql.expressions.compile import Bound, Predicate, in_zone, parse


@dataclass(frozen=True)
class EdgeRows:
    """Classifies rows as starts, ends and points."""

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
        return cls(starts, ends, began, in_zone(text, starts.bound, ends.bound, began))

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
