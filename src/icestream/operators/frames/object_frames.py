"""Frames of single events by states that are objects: percentiles, collections, texts, your own.

Idea: the events of a group wait as rows of the group until the watermark has passed them, and stay
as long as a frame reaches back to them. A version reads the groups that have events to answer, in
portions that fit into memory, and lets the functions slide over states of single events
(`object_aggregates.sliding`). A frame that reaches back to the first event keeps no events, but
the state of all that it has passed, in a few rows that are combined now and then. Frames that are
bounded by rows and by time have all their aggregates here. With a slide only some events have an
answer, which is a row of its own: every m-th of a group, or the last before a multiple of a time.

Invariants:
1. There is one row for each event, in the version whose watermark passes it, with the function's
   answer over its frame (`test_oracle_objects_over_frames_are_those_of_sql`,
   `test_oracle_objects_over_frames_beside_every_window_alone`).
2. Rows do not depend on batches, budget, shards or restarts (`TestOverObjects`).
3. Events that no frame reaches are dropped (`test_bounded_events_behind_all_frames_are_gone`).
4. Rows at slides are those that each window alone has
   (`test_oracle_objects_at_slides_beside_every_window_alone`).

Cost: for a version, the events in the frames of those groups that have new ones are read and
sorted once; then each answer costs what sliding costs, whatever its frame holds. Collections cost
what they list.

Limits: the events in the frames of one group fit into the quota of a shard. What `combine` of a
user's aggregate fails on is recorded with an event of that version, not the one it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.sliding_counts import frame_begins
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.columns import ARRIVAL, BATCH
from icestream.operators.frames.event_frames import EVENT_FIELDS
from icestream.operators.lifetimes.changes import (
    LE,
    LifetimeOperator,
    changes_of,
    column_of,
    one_each,
    payload_of,
)
from icestream.operators.lifetimes.rows_by_group import (
    UNTIL,
    LazyRows,
    earliest,
    keep,
    located,
    woken,
)
from icestream.operators.object_aggregates.functions import failed_rows
from icestream.operators.object_aggregates.protocol import ObjectFunction
from icestream.operators.object_aggregates.ragged import lists_of, starts_of
from icestream.operators.object_aggregates.sliding import Slides
from icestream.operators.object_aggregates.states import any_function_of
from icestream.operators.object_aggregates.stored_values import CollectList, CollectSet
from icestream.plan.windows.frame import UNBOUNDED, Frame, RowsSlide
from icestream.state.groups.spec import GroupRows, Groups, Synopsis

#: maximum number of values that collections list at once
LISTED_AT_ONCE = 1 << 17
#: rows in which the state of all passed events of a group is stored, before they are combined
PASSED_ROWS = 16
#: how many events of a group have passed since its last row, for rows with every m-th of them
_COUNTS = pa.schema([pa.field("passed", pa.int64(), nullable=False)])
_NOBODY: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Slide:
    """Rows at some events of a group alone, over the frames that end there."""

    #: every so many rows, or at multiples of a time
    every: RowsSlide | Micros
    #: columns of keys, which rows show after their time
    keys: tuple[str, ...]
    time: pa.Field

    def due(self, times: Ints) -> Ints:
        """Return the watermark with which events at some times may have rows."""
        if isinstance(self.every, RowsSlide):
            return times + 1
        return (times // self.every + 1) * self.every

    def passed(self, watermark: Micros) -> Micros:
        """Return the instant before which events have their rows."""
        if isinstance(self.every, RowsSlide) or watermark == MINUS_INFINITY:
            return watermark
        return watermark // self.every * self.every


@dataclass(frozen=True)
class _Feature:
    """An aggregate over a frame."""

    frame: Frame
    aggregate: Aggregate
    function: ObjectFunction

    @property
    def is_unbounded(self) -> bool:
        return self.frame.range == UNBOUNDED

    @property
    def lists(self) -> bool:
        """Return whether its answers may be as large as its frames."""
        return isinstance(self.function, CollectList | CollectSet)

    def over(self, states: pa.Array, slides: Slides) -> Iterator[pa.Array]:
        """Yield the answers of windows, as many at a time as may be in memory."""
        sizes = np.cumsum(slides.last - slides.first) // LISTED_AT_ONCE if self.lists else _NOBODY
        cuts = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(slides.first)]
        for low, high in pairwise(cuts):
            some = Slides(slides.groups, slides.first[low:high], slides.last[low:high])
            yield self.function.over(states, some).cast(self.function.result)


@dataclass(frozen=True, slots=True)
class _Events:
    """Events of groups that the watermark has passed, by group, time and arrival."""

    owners: Ints
    times: Ints
    rows: pa.RecordBatch
    #: which of them have no answer yet
    is_new: Mask

    def where(self, chosen: Mask) -> _Events:
        columns = self.owners[chosen], self.times[chosen], self.rows.filter(pa.array(chosen))
        return _Events(*columns, self.is_new[chosen])

    def ends(self, frame: Frame) -> Ints:
        """Return, for each event, the place after the last event in its frame."""
        places = np.arange(1, len(self.times) + 1)
        if not frame.peers or len(places) == 0:
            return places
        changes = (self.owners[1:] != self.owners[:-1]) | (self.times[1:] != self.times[:-1])
        lasts = np.append(np.flatnonzero(changes), len(places) - 1)
        ends: Ints = lasts[np.searchsorted(lasts, places - 1)] + 1
        return ends

    def slides(self, frame: Frame) -> Slides:
        """Return the frames of the new events."""
        ends, first = self.ends(frame), np.empty(len(self.times), dtype=np.int64)
        reach = INFINITY if frame.range is None else frame.reach
        rows = INFINITY if frame.rows is None else frame.rows
        frame_begins(self.owners, self.times, ends, reach, rows, first)
        return Slides(self.owners, first[self.is_new], ends[self.is_new])


class ObjectFrames(LifetimeOperator):
    """What events learn from frames of one grouping, by object functions."""

    def __init__(
        self,
        frames: Sequence[tuple[Frame, Sequence[Aggregate]]],
        inputs: pa.Schema,
        slide: Slide | None = None,
    ) -> None:
        """Take frames, each with its aggregates; DefinitionError where types do not fit."""
        types = {each.name: each.type for each in inputs}
        self._slide = slide
        self._features = [
            _Feature(frame, each, any_function_of(each, types))
            for frame, aggregates in frames
            for each in aggregates
        ]
        self._bounded = [frame for frame, _ in frames if frame.range != UNBOUNDED]
        #: how long after its time an event may be in a frame
        self._lives = max((each.lives for each in self._bounded), default=1)
        answers = [pa.field(each.aggregate.alias, each.function.result) for each in self._features]
        own = [] if slide is None else [slide.time, *(inputs.field(key) for key in slide.keys)]
        self.result = pa.schema([*(own or EVENT_FIELDS), *answers])
        head = [pa.field(name, pa.int64(), nullable=False) for name in (LE, UNTIL)]
        self._stored = pa.schema([*head, *EVENT_FIELDS, *inputs])
        self.synopses = (Synopsis("events", self._stored, expiry=UNTIL),)
        unbounded = [each for each in self._features if each.is_unbounded]
        self._passed = pa.schema(
            [(each.aggregate.alias, stored_type(each.function.state)) for each in unbounded]
        )
        if unbounded:
            self.synopses += (Synopsis("passed", self._passed),)
        if slide is not None and isinstance(slide.every, RowsSlide):
            self.synopses += (Synopsis("counts", _COUNTS),)

    def on_changes(
        self, _port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Let events wait until the watermark has passed them."""
        changes = one_each(changes)
        slots, times = located(changes, groups), column_of(changes, LE)
        until = np.where(times > INFINITY - self._lives, INFINITY, times + self._lives)
        columns = [pa.array(times), pa.array(until), *payload_of(changes).columns]
        groups.append(0, slots, pa.RecordBatch.from_arrays(columns, schema=self._stored))
        distinct, place = np.unique(slots, return_inverse=True)
        groups.hasten(distinct, earliest(place, self._due(times), len(distinct)))
        return iter(())

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the answers of events that the watermark has passed."""
        before, passed_by = groups.watermark(), watermark
        if self._slide is not None:
            before, passed_by = (self._slide.passed(each) for each in (before, watermark))
        for portion in woken(groups, watermark):
            found = groups.read(0, portion)
            times, batch, arrival = (column_of(found.rows, name) for name in (LE, BATCH, ARRIVAL))
            order = np.lexsort((arrival, batch, times, found.owners))
            passed = order[times[order] < passed_by]
            rows = found.rows.take(pa.array(passed))
            events = _Events(found.owners[passed], times[passed], rows, times[passed] >= before)
            yield from self._answered(groups, portion, events)
            waits = times >= passed_by
            due = self._due(times[waits])
            groups.remind(portion, earliest(found.owners[waits], due, len(portion)))
            waiting = np.flatnonzero(waits)
            needed = np.sort(np.append(passed[self._needed(events, passed_by)], waiting))
            self._keep(groups, portion, found, needed)

    def _due(self, times: Ints) -> Ints:
        """Return the watermark with which events at some times have passed."""
        return times + 1 if self._slide is None else self._slide.due(times)

    def _needed(self, events: _Events, watermark: Micros) -> Mask:
        """Return which events may be in frames of later ones, unless all of them expire."""
        needed = np.full(len(events.times), self._lives < INFINITY)
        if not needed.all():
            ends = np.searchsorted(events.owners, events.owners, side="right")
            following = ends - np.arange(len(ends))
            for each in self._bounded:
                inside = events.times > max(MINUS_INFINITY, watermark - each.lives)
                needed |= inside & (following < (each.rows or INFINITY))
        return needed

    def _keep(self, groups: Groups, portion: Slots, found: GroupRows, needed: Ints) -> None:
        def rows(places: Ints) -> pa.RecordBatch:
            return found.rows.take(pa.array(needed[places]))

        after = LazyRows(found.owners[needed], rows)
        keep(groups, 0, portion, found.owners, LazyRows(_NOBODY, rows), after)

    # -- answers ---------------------------------------------------------------------------

    def _answered(
        self, groups: Groups, portion: Slots, events: _Events
    ) -> Iterator[pa.RecordBatch]:
        """Yield the answers of new events."""
        new = events.where(events.is_new)
        if len(new.times) == 0:
            return
        passed = groups.read(1, portion) if len(self._passed) else None
        fresh: dict[str, pa.Array] = {}
        columns: list[pa.Array] = []
        shown = self._shown(groups, portion, new)
        for each in self._features:
            some = new if each.is_unbounded else events
            inputs = [some.rows.column(name) for name in each.aggregate.columns]
            states = each.function.lift(inputs, some.times, np.arange(len(some.times) + 1))
            # events that were answered before failed before
            yield from failed_rows(each.aggregate, each.function, some.rows, some.is_new)
            if passed is not None and each.is_unbounded:
                fresh[each.aggregate.alias] = states
                states, slides = _since_ever(each, passed, states, new)
            else:
                slides = events.slides(each.frame)
            chosen = Slides(slides.groups, slides.first[shown], slides.last[shown])
            answers = list(each.over(states, chosen)) if shown.any() else []
            yield from failed_rows(each.aggregate, each.function, new.rows.filter(pa.array(shown)))
            columns.append(pa.chunked_array(answers, each.function.result))
        if passed is not None:
            self._add_passed(groups, portion, passed, fresh, new.owners)
        yield from self._rows(new.where(shown), columns)

    def _shown(self, groups: Groups, portion: Slots, new: _Events) -> Mask:
        """Return which new events have an answer."""
        slide, owners = self._slide, new.owners
        shown = np.ones(len(owners), dtype=np.bool_)
        if slide is None:
            return shown
        if not isinstance(slide.every, RowsSlide):
            due = slide.due(new.times)
            shown[:-1] = (owners[1:] != owners[:-1]) | (due[1:] != due[:-1])
            return shown
        every, last = slide.every.rows, len(self.synopses) - 1
        stored = groups.read(last, portion)
        counts = np.zeros(len(portion), dtype=np.int64)
        counts[stored.owners] = column_of(stored.rows, "passed")
        numbers = counts[owners] + np.arange(len(owners)) - np.searchsorted(owners, owners) + 1
        counted = np.unique(owners)
        after = (counts + np.bincount(owners, minlength=len(portion)))[counted] % every
        left = np.flatnonzero(after)
        rows = pa.RecordBatch.from_arrays([pa.array(after[left])], schema=_COUNTS)
        groups.rewrite(last, portion[counted], GroupRows(left, rows))
        shown[:] = numbers % every == 0
        return shown

    def _rows(self, events: _Events, columns: Sequence[pa.Array]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of events, given their answers: for gathering, or final ones."""
        times, identity = events.times, [events.rows.column(each.name) for each in EVENT_FIELDS]
        high, low = (np.asarray(each.to_numpy()).view(np.uint64) for each in identity)
        own = identity
        if self._slide is not None:
            # those at multiples of a time are events just before it
            instants = self._slide.due(times)
            times = instants - 1
            if isinstance(self._slide.every, RowsSlide):
                instants = times
            time = pa.array(instants).cast(self._slide.time.type)
            own = [time, *(events.rows.column(key) for key in self._slide.keys)]
        table = pa.Table.from_arrays([*own, *columns], schema=self.result)
        at = 0
        for answer in table.to_batches():
            some = slice(at, at + answer.num_rows)
            at += answer.num_rows
            yield changes_of(answer, times[some], times[some] + 1, 1, high[some], low[some])

    def _add_passed(
        self,
        groups: Groups,
        portion: Slots,
        passed: GroupRows,
        fresh: dict[str, pa.Array],
        owners: Ints,
    ) -> None:
        """Store the states of new events for frames that reach back to the first one."""
        counts = np.bincount(passed.owners, minlength=len(portion))
        is_many = counts + 1 >= PASSED_ROWS
        for whole in (False, True):
            chosen = is_many[owners] == whole
            if not chosen.any():
                continue
            old = np.flatnonzero(is_many[passed.owners]) if whole else _NOBODY
            every = np.append(passed.owners[old], owners[chosen])
            order = np.argsort(every, kind="stable")
            heads = np.flatnonzero(np.diff(every[order], prepend=-1))
            combined = []
            for each in self._features:
                name = each.aggregate.alias
                if name in fresh:
                    stored = loaded(passed.rows.column(name).take(pa.array(old)), each.function)
                    both = pa.concat_arrays([stored, fresh[name].filter(pa.array(chosen))])
                    bounds = np.append(heads, len(every))
                    made = each.function.combine(both.take(pa.array(order)), bounds)
                    combined.append(as_stored(made))
            rows = pa.RecordBatch.from_arrays(combined, schema=self._passed)
            whose = every[order][heads]
            if whole:
                numbers = np.cumsum(is_many) - 1
                groups.rewrite(1, portion[is_many], GroupRows(numbers[whose], rows))
            else:
                groups.append(1, portion[whose], rows)


def _since_ever(
    feature: _Feature, passed: GroupRows, states: pa.Array, new: _Events
) -> tuple[pa.Array, Slides]:
    """Return stored states before those of new events, and the frames of these."""
    stored = loaded(passed.rows.column(feature.aggregate.alias), feature.function)
    owners = np.append(passed.owners, new.owners)
    order = np.argsort(owners, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    own = place[len(passed.owners) :]
    last = own[new.ends(feature.frame) - 1] + 1
    first = np.searchsorted(owners[order], new.owners)
    taken = pa.concat_arrays([stored, states]).take(pa.array(order))
    return taken, Slides(owners[order], first, last)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which states of frames are stored: lists of structs are lists apart."""
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        return pa.struct([(each.name, pa.list_(each.type)) for each in kind.value_type])
    return kind


def as_stored(states: pa.Array) -> pa.Array:
    """Return states of frames as they are stored."""
    kind = stored_type(states.type)
    if kind == states.type:
        return states
    bounds, flat = starts_of(states), states.flatten()
    return pa.StructArray.from_arrays(
        [lists_of(bounds, flat.field(each.name), each.type) for each in kind], fields=list(kind)
    )


def loaded(stored: pa.Array, function: ObjectFunction) -> pa.Array:
    """Return states of frames that were stored."""
    kind = function.state
    if stored.type == kind:
        return stored
    columns = stored.flatten()
    bounds, inner = starts_of(columns[0]), kind.value_type
    values = pa.StructArray.from_arrays([each.flatten() for each in columns], fields=list(inner))
    return lists_of(bounds, values, kind)
