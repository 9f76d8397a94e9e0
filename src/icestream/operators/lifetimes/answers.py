"""Answers of aggregates over the segments of time that events of a group span.

Idea: every segment merges the words of the events that span it, for all segments at once, and
functions without words are computed from the events themselves. Nothing is subtracted, so no field
needs an inverse.

A state that is a list of values is as large as its events: each segment is computed from the events
that span it, in the order in which they began, a bounded number of events at a time.

Invariants:
1. Answers are those of the functions over the events alive in a segment
   (`test_oracle_final_segments_come_once`, `test_oracle_aggregates_that_keep_events`).
2. Values are collected in the order in which their events began
   (`test_values_are_collected_in_the_order_of_time`).

Cost: O(n log s) for n events and s segments.

Limits: among events that begin together, the one with the least identity is first: changes have no
order of arrival. Functions that depend on order need events that are never retracted, or that carry
their own time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, numbers_of
from icestream.core.errors import DefinitionError
from icestream.kernels.lifetimes.spans import merge_spans
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.bad_rows import BadRows
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.lifetimes.changes import BEGAN, LifetimeOperator, identities
from icestream.operators.lifetimes.lift import Lifting, PairLifting
from icestream.operators.object_aggregates.functions import (
    ORDERED_FUNCTIONS,
    failed_rows,
    function_of,
    needs_objects,
)
from icestream.operators.object_aggregates.protocol import ObjectFunction
from icestream.state.key_columns import KeyLayout
from icestream.state.keys import KeyCodec

#: the word aggregate to use when all aggregates are object aggregates
_COUNTED = Aggregate("count", None, "")


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


class SpanAnswers:
    """Aggregates over events of a payload; the columns of keys precede them in the output."""

    def __init__(
        self,
        payload: pa.Schema,
        aggregates: Sequence[Aggregate],
        keys: Sequence[str] = (),
        *,
        grows: bool,
        left: Sequence[str] | None = None,
    ) -> None:
        """Choose functions; an input that `grows` never retracts an event.

        With `left`, events are those of both sides of a join, which has these columns on the left,
        and answers are over their pairs.
        """
        self.payload, self.aggregates, self.left = payload, tuple(aggregates), left
        self.keys = pa.schema([payload.field(name) for name in keys])
        self.objects = ObjectSpans(payload, aggregates, grows=grows)
        words = [each for each in aggregates if each.alias not in self.objects.results]
        words = words or [_COUNTED]
        self.lifting = (
            Lifting(payload, words) if left is None else PairLifting(payload, words, left)
        )
        fields = {field.name: field for field in self.lifting.result}
        fields |= {alias: pa.field(alias, kind) for alias, kind in self.objects.results.items()}
        #: columns of the answers, and of the output
        self.schema = pa.schema([fields[each.alias] for each in aggregates])
        self.result = pa.schema([*self.keys, *self.schema])
        codec = KeyCodec(self.keys)
        floats = any(each.kind is KeyLayout.FLOAT for each in codec.nodes)
        self._canonical = codec.canonical if floats else None

    def keys_of(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return the keys of changes as Spark shows those of groups: with -0.0 as 0.0."""
        keys = changes.select(self.keys.names)
        return keys if self._canonical is None else self._canonical(keys)

    @property
    def inverts(self) -> bool:
        return self.lifting.inverts and not self.objects.results

    def over(
        self, words: ExactRows, spans: EventSpans, segments: int, lasting: Mask | None = None
    ) -> tuple[Ints, ExactRows, pa.RecordBatch]:
        """Return the segments that have answers, their merged words, and their answers.

        `words` are those of all copies of each event; segments that are not `lasting` are left out.
        """
        at = words.layout.at
        tree = np.tile(at.identity, (2 * segments, 1))
        merge_spans(spans.first, spans.last, words.table, at.ops, at.places, tree)
        table = ExactRows(words.layout, tree[segments:])
        there = np.flatnonzero(self.lifting.shows(table) & (True if lasting is None else lasting))
        table = table[there]
        names, lowered = self.lifting.result.names, self.lifting.lower(table)
        columns = dict(zip(names, lowered, strict=True))
        columns |= self.objects.answers(spans, there, segments)
        shown = [columns[name] for name in self.schema.names]
        return there, table, pa.RecordBatch.from_arrays(shown, schema=self.schema)

    def take_bad(self) -> list[BadRows]:
        """Return the events on which functions of the user failed since the last call."""
        found, self.objects.bad = self.objects.bad, []
        return found


class LifetimeAggregate(LifetimeOperator):
    """A grouped aggregate: its output has one event for each instant and group."""

    def __init__(self, answers: SpanAnswers) -> None:
        self.answers = answers
        self.result = answers.result

    @property
    def depends_on_order(self) -> bool:
        """Return whether an answer depends on when events began."""
        return self.answers.objects.depends_on_order or self.answers.lifting.needs_order

    def check_retractions(self) -> None:
        """Refuse functions that need events that are never retracted."""
        ObjectSpans(self.answers.payload, self.answers.aggregates, grows=False)
