"""Answers of aggregates over the segments of time that events of a group span.

Idea: every segment merges the words of the events that span it, for all segments at once, and
functions without words are computed from the events themselves (`object_spans`). Nothing is
subtracted, so no field needs an inverse.

Invariant: answers are those of the functions over the events alive in a segment
(`test_oracle_final_segments_come_once`, `test_oracle_aggregates_that_keep_events`).

Cost: O(n log s) for n events and s segments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask
from icestream.kernels.lifetimes.spans import merge_spans
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.bad_rows import BadRows
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.lifetimes.changes import LifetimeOperator
from icestream.operators.lifetimes.lift import Lifting
from icestream.operators.lifetimes.object_spans import EventSpans, ObjectSpans
from icestream.operators.lifetimes.pair_lifting import PairLifting
from icestream.state.key_columns import KeyLayout
from icestream.state.keys import KeyCodec

#: the word aggregate to use when all aggregates are object aggregates
_COUNTED = Aggregate("count", None, "")


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
