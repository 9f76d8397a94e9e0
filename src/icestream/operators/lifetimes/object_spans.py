"""Object aggregates over the segments that events span: percentiles, collections, distinct counts.

Idea: a state that is a list of values is as large as its events, so each segment is computed from
the events that span it, in the order in which they began. A few segments are processed at a time:
as many as have a bounded number of events together.

Invariants:
1. Answers are those of the function over the events alive in a segment
   (`test_oracle_final_segments_come_once`).
2. Values are collected in the order in which their events began
   (`test_values_are_collected_in_the_order_of_time`).

Cost: O(events x segments they span), sorted.

Limits: among events that begin together, the one with the least identity is first: changes have no
order of arrival. Functions that depend on order need events that are never retracted, or that
carry their own time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.kernels.ranges import numbers_of
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.bad_rows import BadRows
from icestream.operators.lifetimes.changes import BEGAN, identities
from icestream.operators.object_aggregates.functions import (
    ORDERED_FUNCTIONS,
    failed_rows,
    function_of,
    needs_objects,
)
from icestream.operators.object_aggregates.protocol import ObjectFunction

#: maximum number of events in segments that are lifted together
_AT_ONCE = 1 << 17


@dataclass(frozen=True, slots=True)
class EventSpans:
    """Events, and the segments that each spans."""

    first: Ints
    last: Ints
    count: Ints
    #: when each began
    began: Ints
    inputs: pa.RecordBatch


class ObjectSpans:
    """The object aggregates among some aggregates."""

    def __init__(self, payload: pa.Schema, aggregates: Sequence[Aggregate], *, grows: bool) -> None:
        """Choose functions; DefinitionError where the types do not fit."""
        types = {field.name: field.type for field in payload}
        self._functions: list[tuple[Aggregate, ObjectFunction]] = [
            (each, function_of(each, types)) for each in aggregates if needs_objects(each, types)
        ]
        #: events on which functions of the user failed
        self.bad: list[BadRows] = []
        names = dict.fromkeys(name for each, _ in self._functions for name in each.columns)
        #: columns that the functions read
        self.inputs = pa.schema([payload.field(name) for name in names])
        #: types of the answers, by alias
        self.results = {each.alias: function.result for each, function in self._functions}
        ordered = [each.text for each, _ in self._functions if each.function in ORDERED_FUNCTIONS]
        #: whether an answer depends on when events began
        self.depends_on_order = bool(ordered)
        if ordered and not grows and BEGAN not in types:
            msg = (
                f"{ordered[0]} depends on the order of events: it needs events that are never "
                "retracted, not the answers of an aggregate, a difference or a top-k"
            )
            raise DefinitionError(msg)

    def answers(self, spans: EventSpans, segments: Ints, count: int) -> dict[str, pa.Array]:
        """Return the answers of some of `count` segments, ascending, each with at least one event.

        The key is the alias of the aggregate.
        """
        if not self._functions:
            return {}
        steps = np.zeros(count + 1, dtype=np.int64)
        np.add.at(steps, spans.first, spans.count)
        np.subtract.at(steps, spans.last, spans.count)
        portions = np.cumsum(np.cumsum(steps)[segments]) // _AT_ONCE
        cuts = [0, *(np.flatnonzero(np.diff(portions)) + 1).tolist(), len(segments)]
        tie = identities(spans.inputs)[1] if len(self.inputs) else spans.began.view(np.uint64)
        parts: dict[str, list[pa.Array]] = {alias: [] for alias in self.results}
        for first, last in pairwise(cuts):
            event, bounds = _ordered(spans, segments[first:last], tie)
            for alias, answers in self._lowered(spans, event, bounds):
                parts[alias].append(answers)
        return {
            alias: pa.concat_arrays([each.cast(kind) for each in parts[alias]])
            for alias, kind in self.results.items()
        }

    def _lowered(
        self, spans: EventSpans, event: Ints, bounds: Ints
    ) -> Iterator[tuple[str, pa.Array]]:
        inputs = spans.inputs.take(pa.array(event))
        for aggregate, function in self._functions:
            columns = [inputs.column(name) for name in aggregate.columns]
            states = function.lift(columns, spans.began[event], bounds)
            self.bad += failed_rows(aggregate, function, inputs)
            answers = function.lower(states)
            self.bad += failed_rows(aggregate, function, inputs.take(pa.array(bounds[:-1])))
            yield aggregate.alias, answers


def _ordered(
    spans: EventSpans, segments: Ints, tie: np.ndarray[tuple[int], np.dtype[np.uint64]]
) -> tuple[Ints, Ints]:
    """Return the events of segments in order, and where those of each begin and end."""
    low, high = (int(segments[0]), int(segments[-1]) + 1) if len(segments) else (0, 0)
    place = np.full(high - low + 1, -1)
    place[segments - low] = np.arange(len(segments))
    first, last = np.maximum(spans.first, low), np.minimum(spans.last, high)
    there = np.flatnonzero(first < last)
    first, last = first[there], last[there]
    at = place[numbers_of(first, last) - low]
    event = np.repeat(there, last - first)
    event, at = event[at >= 0], at[at >= 0]
    copies = spans.count[event]
    event, at = np.repeat(event, copies), np.repeat(at, copies)
    order = np.lexsort((tie[event], spans.began[event], at))
    return event[order], np.searchsorted(at[order], np.arange(len(segments) + 1))
