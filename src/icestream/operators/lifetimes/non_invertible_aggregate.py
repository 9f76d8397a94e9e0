"""Aggregates without an inverse: the events that are alive are stored, as rows of words.

Idea: when a minimum leaves, only the remaining events determine the next one. Events of a group are
merged into intervals of equal words, and the segments between their ends are computed again
(`answers`). Object aggregates store the columns that they read beside the words.

Of an input that grows no event leaves, so all that is alive between two instants is merged into one
row of words. If answers are minima, maxima and other choices only, how many events there are does
not count, and neighbouring rows with equal words become one: as many rows as answers.

Invariants:
1. After every chunk the emitted changes add up to the aggregate at each instant
   (`test_oracle_aggregates_that_keep_events`).
2. Retracted events were emitted before, with the same lifetimes (the same test).
3. Of an input that grows, rows are as many as instants past the watermark, or as answers
   (`test_bounded_choices_of_events_that_stay_are_one_row`,
   `test_bounded_choices_alone_store_their_answers`).

Cost: O(n log n) for the n events of a group that are alive, for each chunk that touches it. A group
too large for memory is revised in ranges of time (`pieces`).

Limits: a group with object aggregates must fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.field_words import ADD_I64, is_invertible
from icestream.kernels.lifetimes.sweep import scale_rows
from icestream.operators.bad_rows import Made
from icestream.operators.folding.exact_rows import ExactRows, copies_of
from icestream.operators.lifetimes.answers import EventSpans, LifetimeAggregate, SpanAnswers
from icestream.operators.lifetimes.changes import (
    BEGAN,
    DIFF,
    LE,
    RE,
    began_of,
    column_of,
    identities,
)
from icestream.operators.lifetimes.counted_intervals import CountedIntervals, TimeSegments
from icestream.operators.lifetimes.event_rows import EventRows, EventWords
from icestream.operators.lifetimes.lift import added_up
from icestream.operators.lifetimes.pieces import AnswerRows, EventRanges, ShownRanges
from icestream.operators.lifetimes.revisable_output import (
    RevisableOutput,
    events_synopsis,
    payload_of,
    rows_of,
    stretches_of,
)
from icestream.operators.lifetimes.rows_by_group import (
    LazyRows,
    RowsByGroup,
    clipped,
    first_rows,
    keep,
    located,
)
from icestream.state.groups.spec import GroupRows, Groups, Wear
from icestream.state.identities import numbered


class NonInvertibleAggregate(LifetimeAggregate):
    """An aggregate with fields that have no inverse."""

    def __init__(self, answers: SpanAnswers, *, grows: bool) -> None:
        """Store events as words and columns, and the answers shown; `grows` as for the others."""
        super().__init__(answers)
        self._lifting, self._objects = lifting, objects = answers.lifting, answers.objects
        self._merges = grows and not objects.results
        inputs = [each.with_name(f"__input.{each.name}") for each in objects.inputs]
        began = [pa.field(BEGAN, pa.int64(), nullable=False)] * objects.depends_on_order
        self._words = pa.schema([*lifting.fold.schema, *inputs, *began])
        self._shown = RevisableOutput(1, events_synopsis("shown", self.result))
        self._events = EventRows(lifting, answers.keys, grows=True)
        alive = events_synopsis("alive", self._words)
        if not grows:
            alive = replace(alive, wear=Wear(self._consolidated, DIFF, self._kinds))
        self.synopses = (alive, self._shown.synopsis)
        #: whether of all fields but the choices it only matters if they are 0
        self._only_choices = all(
            {each.kind for each in fields if is_invertible(each.op)} <= {"rows", "valid"}
            and not all(is_invertible(each.op) for each in fields)
            for fields in lifting.fields
        )

    def on_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Recompute the answers of the touched groups, and yield what differs."""
        changes, le, re = clipped(changes, watermark)
        if changes.num_rows == 0:
            return
        slots, diff = located(changes, groups), column_of(changes, DIFF)
        lifted = self._lifting.lifted(changes, copies_of(diff))
        if self._merges:
            scale_rows(lifted.table, diff, *lifted.layout.at.sums)
            heads, lifted = added_up(slots, le, re, lifted)
            slots, le, re, diff = slots[heads], le[heads], re[heads], np.ones_like(heads)
            changes = changes.take(pa.array(heads))
        columns = self._lifting.fold.stored(lifted)
        columns += [changes.column(name) for name in self._objects.inputs.names]
        columns += [began_of(changes)] * self._objects.depends_on_order
        rows = pa.RecordBatch.from_arrays(columns, schema=self._words)
        keys = self.answers.keys_of(changes)
        by_slot = RowsByGroup(slots)
        for portion in groups.portions(by_slot.distinct):
            chosen, owners = by_slot.within(portion)
            new = CountedIntervals(owners, owners, le[chosen], re[chosen], diff[chosen])
            first = chosen[first_rows(owners, len(portion))]
            large = not all(groups.fits(number, portion) for number in (0, 1))
            large &= not self._objects.results
            yield from (self._of_large if large else self._revised)(
                groups,
                portion,
                new,
                rows.take(pa.array(chosen)),
                keys.take(pa.array(first)),
                watermark,
            )

    def _revised(
        self,
        groups: Groups,
        portion: Slots,
        new: CountedIntervals,
        new_words: pa.RecordBatch,
        keys: pa.RecordBatch,
        watermark: Micros,
    ) -> Made:
        kept, shown = (groups.read(number, portion) for number in (0, 1))
        everything = pa.concat_batches([payload_of(kept.rows, self._words), new_words])
        kinds, heads = numbered(*identities(everything))
        old = stretches_of(kept.rows, kept.owners, kinds[: len(kept.owners)]).since(watermark)
        new = CountedIntervals(new.owner, kinds[len(kept.owners) :], new.le, new.re, new.count)
        events = old.and_(new).levelled()
        words_of_kinds = everything.take(pa.array(heads))
        schema = self.synopses[0].schema
        emitted = payload_of(shown.rows, self.result)
        words = words_of_kinds.columns[: len(self._lifting.fold.schema)]
        there = events.where(events.count > 0)
        copies = self._lifting.fold.loaded(words, copies_of(events.count))[there.kind]
        scale_rows(copies.table, there.count, *copies.layout.at.sums)
        segments = TimeSegments.of(there)
        spans = self._spans(there, segments, words_of_kinds)
        chosen, table, found = self.answers.over(copies, spans, len(segments.owner))
        yield from self.answers.take_bad()
        owners = segments.owner[chosen]

        def added(places: Ints) -> pa.RecordBatch:
            return rows_of(new.at(places), new_words.take(pa.array(places)), schema=schema).rows

        def needed(places: Ints) -> pa.RecordBatch:
            some = events.at(places)
            return rows_of(some, words_of_kinds.take(pa.array(some.kind)), schema=schema).rows

        def merged(places: Ints) -> pa.RecordBatch:
            first, last = chosen[runs[places]], chosen[runs[places + 1] - 1]
            one = np.ones(len(first), dtype=np.int64)
            head = [pa.array(each) for each in (segments.le[first], segments.re[last], one)]
            columns = [*head, *self._lifting.fold.stored(table[runs[places]])]
            return pa.RecordBatch.from_arrays(columns, schema=schema)

        after = LazyRows(events.owner, needed)
        if self._merges:
            runs = self._runs(segments, chosen, table)
            after = LazyRows(owners[runs[:-1]], merged)
        keep(groups, 0, portion, kept.owners, LazyRows(new.owner, added), after)
        columns = [*keys.take(pa.array(owners)).columns, *found.columns]
        answers = pa.RecordBatch.from_arrays(columns, schema=self.result)
        payloads = pa.concat_batches([emitted, answers])
        answer_kinds, answer_heads = numbered(*identities(payloads))
        count = emitted.num_rows
        before = stretches_of(shown.rows, shown.owners, answer_kinds[:count])
        answer = CountedIntervals(
            owners,
            answer_kinds[count:],
            segments.le[chosen],
            segments.re[chosen],
            np.ones(len(chosen), dtype=np.int64),
        )
        yield from self._shown.revise(
            groups,
            portion,
            before,
            answer,
            payloads.take(pa.array(answer_heads)),
            watermark,
            watermark,
        )

    def _runs(self, segments: TimeSegments, chosen: Ints, table: ExactRows) -> Ints:
        """Return the first of each run of segments that are stored as one, and their number."""
        if not self._only_choices:
            return np.arange(len(chosen) + 1)
        at = table.layout.at
        counts = at.places[at.ops == ADD_I64]
        table.table[:, counts] = np.minimum(table.table[:, counts], 1)
        differs = np.ones(len(chosen) + 1, dtype=np.bool_)
        differs[1:-1] = (table.table[1:] != table.table[:-1]).any(axis=1)
        differs[1:-1] |= segments.re[chosen[:-1]] != segments.le[chosen[1:]]
        differs[1:-1] |= np.diff(segments.owner[chosen]) != 0
        return np.flatnonzero(differs)

    def _of_large(
        self,
        groups: Groups,
        portion: Slots,
        new: CountedIntervals,
        new_words: pa.RecordBatch,
        keys: pa.RecordBatch,
        watermark: Micros,
    ) -> Made:
        """Revise a group too large for memory, a range of time after the other."""
        added = rows_of(new, new_words, schema=self.synopses[0].schema)
        groups.append(0, portion[added.owners], added.rows)
        stored = groups.pieces(0, portion, None if self._merges else self._kinds)
        events = EventRanges(self._events, stored, self._loaded, watermark)
        shown = ShownRanges(groups.pieces(1, portion), self.synopses[1].schema, self.result)
        nothing = self._shown.rows(shown.nothing.stretches, shown.nothing.payload)
        groups.rewrite(1, portion, nothing)
        carried, since = shown.alive(watermark), MINUS_INFINITY
        for end, found in events.ranges():
            answers = carried.and_(self._answers(found, keys))
            after = answers.stretches.levelled()
            is_open = (after.re == end) & (end < INFINITY)
            carried = answers.with_(after.where(is_open))
            until = int(carried.stretches.le.min(initial=end))
            before = shown.between(since, until)
            done = answers.with_(after.where(~is_open))
            every = done.and_(before.with_(before.stretches.negative()))
            yield from self._shown.emitted(
                groups, portion, every.stretches.consolidated(), every.payload
            )
            lasting = done.stretches.where(done.stretches.re > watermark)
            rows = self._shown.rows(lasting, done.payload)
            groups.append(1, portion[rows.owners], rows.rows)
            since = until

    def _answers(self, events: EventWords, keys: pa.RecordBatch) -> AnswerRows:
        """Return the answers of one group."""
        there = CountedIntervals(events.owner, events.owner, events.le, events.re, events.count)
        segments = TimeSegments.of(there)
        none = pa.RecordBatch.from_pylist([{}] * len(there))
        spans = EventSpans(*segments.spans(there), there.count, there.le, none)
        chosen, _, found = self.answers.over(events.words, spans, len(segments.owner))
        columns = [*keys.take(pa.array(0 * chosen)).columns, *found.columns]
        stretches = CountedIntervals(
            0 * chosen,
            np.arange(len(chosen)),
            segments.le[chosen],
            segments.re[chosen],
            np.ones(len(chosen), dtype=np.int64),
        )
        return AnswerRows(stretches, pa.RecordBatch.from_arrays(columns, schema=self.result))

    def _loaded(self, kept: GroupRows) -> EventWords:
        """Return stored events as words, without those retracted."""
        if not self._merges:
            left = self._consolidated(kept)
            kept = left.where(column_of(left.rows, DIFF) > 0)
        le, re, count = (column_of(kept.rows, name) for name in (LE, RE, DIFF))
        words = payload_of(kept.rows, self._words).columns[: len(self._lifting.fold.schema)]
        loaded = self._lifting.fold.loaded(words, copies_of(count))
        return EventWords(kept.owners, le, re, count, loaded, np.arange(len(le)))

    def _consolidated(self, kept: GroupRows) -> GroupRows:
        """Return stored events without those that were retracted, from then on."""
        payload = payload_of(kept.rows, self._words)
        kinds, heads = numbered(*identities(payload))
        left = stretches_of(kept.rows, kept.owners, kinds).levelled()
        words = payload.take(pa.array(heads[left.kind]))
        return rows_of(left, words, schema=self.synopses[0].schema)

    def _kinds(self, rows: pa.RecordBatch) -> Ids:
        return identities(payload_of(rows, self._words))[0]

    def _spans(
        self, there: CountedIntervals, segments: TimeSegments, kinds: pa.RecordBatch
    ) -> EventSpans:
        """Return the columns that object aggregates read of the events alive."""
        first, inputs = len(self._lifting.fold.schema), self._objects.inputs
        rows = kinds.take(pa.array(there.kind))
        columns = rows.columns[first : first + len(inputs)]
        began = column_of(rows, BEGAN) if self._objects.depends_on_order else there.le
        read = pa.RecordBatch.from_arrays(columns, schema=inputs)
        return EventSpans(*segments.spans(there), there.count, began, read)
