"""Top-k over lifetimes: at each instant the k best events of a group that are alive then.

Idea: what is shown, now and at all later instants as lifetimes end, is stored next to the events.
It is enough to place new events. A retracted event matters only where it was shown, and only there
are events behind the k-th needed. These are read best first: k plus as many as were retracted, then
four times as many, until all such instants are full; in the end all are read, and rows that cancel
out are dropped. Of a group too large for memory the best are collected, kinds after kinds.

    shown      k rows at each instant      always read
    events     all that are alive          appended without a read; read from the best down

Retracted events that were not shown are recorded next to what is shown, as *owed*: if they arrive
only later in the batch, they are not shown. Of an input that only grows, nothing else is stored.

Invariants:
1. After every chunk the emitted changes add up to the k best at each instant
   (`test_oracle_top_k_of_random_changes`), also if events are retracted before they arrive
   (`test_oracle_top_k_of_shuffled_changes`).
2. New events read no stored events (`test_bounded_new_events_read_what_is_shown_only`); a retracted
   event reads about k more (`test_bounded_an_event_taken_out_reads_few`).
3. Reading everything gives the same answers (`test_reading_everything_changes_nothing`), in pieces
   too (`test_oracle_top_k_of_large_groups`).
4. With a rank, rows at each instant are numbered from 1 (`test_oracle_ranks_of_random_changes`).
5. An input that grows needs no events but those shown (`test_oracle_top_k_of_events_that_stay`).
6. Of events that live at the same time, `selected` has the k best of each group
   (`test_selected_events_have_the_best_of_each_group`).

Cost: O(k) rows for each instant at which what is shown changes; with random ranks and equal
lifetimes that is O(k log n) for n events.

References: top-k and partial reconstruction of grouped state. Expired events count as retracted
here, because the rows that are shown store when they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Slots, Table, numbers_of
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.kernels.lifetimes.top import fill_segments
from icestream.operators.lifetimes.changes import (
    DIFF,
    PromptOperator,
    changes_of,
    column_of,
    identities,
    with_column,
)
from icestream.operators.lifetimes.changes import payload_of as payload_of_changes
from icestream.operators.lifetimes.counted_intervals import (
    CountedIntervals,
    TimeSegments,
    revised,
)
from icestream.operators.lifetimes.current_top import CurrentTop
from icestream.operators.lifetimes.ordering import Order, Ordering
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
    keep,
    located,
)
from icestream.state.groups.spec import GroupRows, Groups, Wear
from icestream.state.identities import numbered

_RANK = "__rank"
_BEST = np.int64(2**63 - 1)
#: stands for reading all events instead of a number
_ALL = -1
#: factor by which a second read grows, and the factor from which all events are read
_STEP = 4
_MOST = 16
#: runs of events for which there is room at first, for each event and segment, and factor by which
#: there is more
_RUNS = 4
#: owed intervals of a group from which all its events are read, and cancelled ones dropped
_PATIENCE = 256


@dataclass
class Reads:
    """How much of the state was read; for reports and tests only."""

    #: rows of events
    events: int = 0
    #: rows that are shown
    shown: int = 0


@dataclass(frozen=True, slots=True)
class _Touched:
    """The groups at hand and the changes to their events."""

    slots: Slots
    changes: CountedIntervals
    payload: pa.RecordBatch

    def only(self, chosen: Mask) -> _Touched:
        inside = np.flatnonzero(chosen[self.changes.owner])
        changes = self.changes.at(inside)
        changes = replace(changes, owner=(np.cumsum(chosen) - 1)[changes.owner])
        return _Touched(self.slots[chosen], changes, self.payload.take(pa.array(inside)))


@dataclass(frozen=True, slots=True)
class _Read:
    """Events of the groups at hand that were read."""

    rows: GroupRows
    #: rank above which all events of a group were read
    above: Ints
    #: whether all events of a group were read
    whole: Mask
    #: whether all were read because retracted events ranked above the best
    worn: bool
    #: whether rows stand for a group too large for memory, of which these are enough
    large: bool = False


@dataclass(frozen=True, slots=True)
class _Scene:
    """All that is known of the groups at hand; kinds are numbered across all groups."""

    shown: CountedIntervals
    owed: CountedIntervals
    changes: CountedIntervals
    #: events that were read, including those that the changes retract
    read: CountedIntervals
    #: events from which the best are chosen
    candidates: CountedIntervals
    answer: CountedIntervals
    kinds: pa.RecordBatch
    ranks: Ints
    #: groups for which more events must be read
    lacking: Mask


class TopK(PromptOperator):
    """The k best events of each group."""

    emits_at_once = True
    forgets = True

    def __init__(
        self,
        payload: pa.Schema,
        k: int,
        by: Sequence[Order],
        *,
        partial: bool = True,
        rank: str | None = None,
        grows: bool = False,
    ) -> None:
        """Show the k best by some columns; with `partial` false all events are always read.

        `rank` names a further column for the place of a row among those at the same instant. An
        input that `grows` never retracts an event.
        """
        given: object = k
        if not isinstance(given, int) or given < 1:
            msg = f"a top-k needs a whole number k >= 1, got k = {k!r}"
            raise DefinitionError(msg)
        self._made_of = payload, k, tuple(by)
        self._rank = rank
        #: how many events of a group are shown
        self.k = k
        self._partial = partial
        self.grows = grows
        self._ordering = Ordering(payload, by)
        self._payload = payload
        place = [pa.field(rank, pa.int32(), nullable=False)] if rank is not None else []
        self.result = pa.schema([*payload, *place])
        word = pa.field(_RANK, pa.int64(), nullable=False)
        wear = Wear(self._consolidated, DIFF, self._kinds)
        stored = replace(events_synopsis("events", payload, word, rank=_RANK), wear=wear)
        events = () if grows else (stored,)
        self._shown = RevisableOutput(len(events), events_synopsis("shown", payload))
        self.synopses = (*events, self._shown.synopsis)
        #: what was read since the operator was created
        self.reads = Reads()

    def growing(self) -> TopK:
        """Return the same of an input that never retracts an event."""
        return TopK(*self._made_of, rank=self._rank, grows=True)

    def current(self) -> CurrentTop:
        """Return the same of events that stay, where nobody asks for the past."""
        return CurrentTop(self._payload, self.k, self._ordering, self._rank)

    def selected(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return the events that may be among the best of their group, if nothing is known of it.

        They live at the same time, and the input grows: no other of them is ever shown.
        """
        return self._ordering.selected(changes, self.k)

    def on_last_changes(
        self,
        _port: int,
        changes: pa.RecordBatch,
        groups: Groups,
        watermark: Micros,
        over: Micros,
    ) -> Iterator[pa.RecordBatch]:
        if groups.are_transient:
            changes = self._ordering.selected_at_once(changes, self.k)
        changes, le, re = clipped(changes, watermark)
        if changes.num_rows == 0:
            return
        payload = payload_of_changes(changes)
        diff = column_of(changes, DIFF)
        by_slot = RowsByGroup(located(changes, groups))
        for portion in groups.portions(by_slot.distinct):
            chosen, owners = by_slot.within(portion)
            part = CountedIntervals(owners, owners, le[chosen], re[chosen], diff[chosen])
            touched = _Touched(portion, part, payload.take(pa.array(chosen)))
            scale = 0 if self._partial else _ALL
            while len(touched.slots):
                read = self._read(groups, touched, scale, watermark)
                scene = self._scene(groups, touched, read, watermark)
                yield from self._settled(groups, touched, read, scene, watermark, over)
                touched = touched.only(scene.lacking)
                scale = _ALL if scale >= _MOST else max(1, _STEP * scale)

    def _read(self, groups: Groups, touched: _Touched, scale: int, watermark: Micros) -> _Read:
        """Read `scale` times as many of the best events as may be missing."""
        slots, size = touched.slots, len(touched.slots)
        large = scale == _ALL and not groups.fits(0, slots)
        if scale in (0, _ALL):
            if large:
                rows = self._best_of_large(groups, touched, watermark)
            else:
                rows = groups.read(0, slots if scale else slots[:0])
            whole = np.full(size, scale == _ALL)
            above = np.full(size, _BEST)
        else:
            leaving = touched.changes.owner[touched.changes.count < 0]
            # one more row shows that the rows before it are all rows of their rank
            counts = 1 + scale * (self.k + np.bincount(leaving, minlength=size))
            rows = groups.read_best(0, slots, counts)
            whole = np.bincount(rows.owners, minlength=size) < counts
            ranks = column_of(rows.rows, _RANK)
            order = np.lexsort((~ranks, rows.owners))
            last = np.searchsorted(rows.owners, np.arange(size)) + counts - 1
            at = order[last[~whole]]
            above = np.full(size, _BEST)
            above[~whole] = ranks[at]
        self.reads.events += rows.rows.num_rows
        return _Read(rows, above, whole, worn=scale == _ALL and self._partial, large=large)

    def _best_of_large(self, groups: Groups, touched: _Touched, watermark: Micros) -> GroupRows:
        """Return rows that have, with the changes, the best events of a group at each instant."""
        given = self._stored(touched.changes, touched.payload)
        kinds, applied = self._kinds(given), np.zeros(given.num_rows, dtype=np.bool_)
        best = given.slice(0, 0)
        for piece in groups.pieces(0, touched.slots, self._kinds):
            self.reads.events += piece.rows.num_rows
            mine = np.isin(kinds, self._kinds(piece.rows))
            applied |= mine
            rows = pa.concat_batches([best, piece.rows, given.filter(pa.array(mine))])
            owners = np.zeros(rows.num_rows, dtype=np.int64)
            best = self._best_rows(self._consolidated(GroupRows(owners, rows)).rows, watermark)
        # changes are counted once more with all others
        undone = given.filter(pa.array(applied))
        undone = with_column(undone, DIFF, -column_of(undone, DIFF))
        rows = pa.concat_batches([best, undone])
        return GroupRows(np.zeros(rows.num_rows, dtype=np.int64), rows)

    def _best_rows(self, rows: pa.RecordBatch, watermark: Micros) -> pa.RecordBatch:
        """Return the rows of a group that are among the best somewhere, or owed."""
        numbers = np.arange(rows.num_rows)
        events = stretches_of(rows, 0 * numbers, numbers)
        chosen = (events.count < 0) & (events.re > watermark)
        there = events.where(events.count > 0).since(watermark)
        places = self._ordering.places(payload_of(rows, self._payload))
        chosen[self._best(TimeSegments.of(there), there, places).kind] = True
        return rows.filter(pa.array(chosen))

    def _scene(self, groups: Groups, touched: _Touched, read: _Read, watermark: Micros) -> _Scene:
        """Collect what is known, and find where it is not enough."""
        kept = groups.read(self._shown.number, touched.slots)
        self.reads.shown += kept.rows.num_rows
        parts = [payload_of(each.rows, self._payload) for each in (kept, read.rows)]
        payloads = pa.concat_batches([*parts, touched.payload])
        numbers, heads = numbered(*identities(payloads))
        kinds = payloads.take(pa.array(heads))
        ranks = self._ordering.ranks(kinds)
        first, second = len(kept.owners), len(kept.owners) + len(read.rows.owners)
        changes = replace(touched.changes, kind=numbers[second:])
        everything = stretches_of(kept.rows, kept.owners, numbers[:first])
        shown, owed = (everything.where(everything.count * sign > 0) for sign in (1, -1))
        events = stretches_of(read.rows.rows, read.rows.owners, numbers[first:second])

        def is_known(stretches: CountedIntervals) -> Mask:
            owner = stretches.owner
            return read.whole[owner] | (ranks[stretches.kind] > read.above[owner])

        guess = everything.since(watermark).and_(changes).levelled()
        events = events.since(watermark).and_(changes)
        events = events.where(is_known(events)).levelled()
        candidates = guess.where(~is_known(guess)).and_(events)
        segments = TimeSegments.of(shown.since(watermark).and_(candidates))
        places = self._ordering.places(kinds)
        answer = self._best(segments, candidates.where(candidates.count > 0), places)
        short = self._short(segments, shown.since(watermark), answer, places, is_known)
        owing = np.append(owed.owner, candidates.owner[candidates.count < 0])
        lacking = np.bincount(owing, minlength=len(touched.slots)) > 2 * _PATIENCE
        lacking[segments.owner[short]] = True
        lacking &= ~read.whole
        return _Scene(shown, owed, changes, events, candidates, answer, kinds, ranks, lacking)

    def _best(
        self, segments: TimeSegments, events: CountedIntervals, places: Ints
    ) -> CountedIntervals:
        order = np.argsort(places[events.kind], kind="stable")
        row, start, stop, count = _filled(segments, events, order, self.k)
        return CountedIntervals(
            events.owner[row], events.kind[row], segments.le[start], segments.le[stop], count
        )

    def _short(
        self,
        segments: TimeSegments,
        shown: CountedIntervals,
        answer: CountedIntervals,
        places: Ints,
        is_known: Callable[[CountedIntervals], Mask],
    ) -> Mask:
        """Return the segments in which events that were not read may be among the best.

        Where fewer than k were shown there are no others. Elsewhere the last one shown is better
        than all others, and so is every event that ranks above those read.
        """
        full = segments.totals(shown) >= self.k
        sure = segments.totals(answer.where(is_known(answer))) >= self.k
        cut, last = (_worst(segments, each, places) for each in (shown, answer))
        return full & ~sure & ((segments.totals(answer) < self.k) | (last > cut))

    def _settled(
        self,
        groups: Groups,
        touched: _Touched,
        read: _Read,
        scene: _Scene,
        watermark: Micros,
        over: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the answers of groups for which enough is known, and store those that last."""

        def of_settled(stretches: CountedIntervals) -> CountedIntervals:
            return stretches.where(~scene.lacking[stretches.owner])

        candidates = of_settled(scene.candidates)
        owed = candidates.where((candidates.count < 0) & (candidates.re > over))
        self._keep(groups, touched.slots, read, scene, over)
        shown, answer = of_settled(scene.shown), of_settled(scene.answer)
        changes = self._shown.revise(
            groups,
            touched.slots,
            shown,
            answer,
            scene.kinds,
            watermark,
            max(watermark, over),
            owed=(of_settled(scene.owed), owed),
        )
        if self._rank is None:
            yield from changes
        # consumed for what it stores
        elif list(changes):
            after = revised(shown, answer, watermark)
            yield from self._renumbered(groups, touched.slots, shown, after, scene.kinds)

    def _renumbered(
        self,
        groups: Groups,
        slots: Slots,
        before: CountedIntervals,
        after: CountedIntervals,
        kinds: pa.RecordBatch,
    ) -> Iterator[pa.RecordBatch]:
        """Yield how the numbered rows of groups change."""
        places = self._ordering.places(kinds)
        old, new = (_numbered_rows(each, places, self.k) for each in (before, after))
        emitted = new.and_(old.negative()).consolidated()
        if len(emitted):
            emitted = emitted.at(np.argsort(emitted.count > 0, kind="stable"))
            id_high, id_low = groups.identities(slots[emitted.owner])
            payload = kinds.take(pa.array(emitted.kind // self.k))
            numbers = pa.array((emitted.kind % self.k + 1).astype(np.int32))
            payload = pa.RecordBatch.from_arrays([*payload.columns, numbers], schema=self.result)
            yield changes_of(payload, emitted.le, emitted.re, emitted.count, id_high, id_low)

    def _keep(self, groups: Groups, slots: Slots, read: _Read, scene: _Scene, over: Micros) -> None:
        """Append the changes to the stored events, or rewrite groups that were read completely."""
        if self.grows:
            return
        new = scene.changes.where(~scene.lacking[scene.changes.owner] & (scene.changes.re > over))
        replaced = read.whole & (not read.large)
        whole = scene.read.where(replaced[scene.read.owner] & (scene.read.re > over))
        after = whole.and_(new.where(~replaced[new.owner]))
        after = after.at(np.argsort(after.owner, kind="stable"))
        new = new.at(np.argsort(new.owner, kind="stable"))
        kept = read.rows.owners[replaced[read.rows.owners]]
        rows = self._rows(new, scene), self._rows(after, scene)
        keep(groups, 0, slots, kept, *rows, worn=read.worn and not read.large)

    def _rows(self, events: CountedIntervals, scene: _Scene) -> LazyRows:
        def at(places: Ints) -> pa.RecordBatch:
            chosen = events.at(places)
            payload = scene.kinds.take(pa.array(chosen.kind))
            ranks = pa.array(scene.ranks[chosen.kind])
            return rows_of(chosen, payload, ranks, schema=self.synopses[0].schema).rows

        return LazyRows(events.owner, at)

    def _stored(self, events: CountedIntervals, payload: pa.RecordBatch) -> pa.RecordBatch:
        ranks = pa.array(self._ordering.ranks(payload))
        return rows_of(events, payload, ranks, schema=self.synopses[0].schema).rows

    def _consolidated(self, found: GroupRows) -> GroupRows:
        """Return stored events without those that were retracted, from then on."""
        payload = payload_of(found.rows, self._payload)
        kinds, heads = numbered(*identities(payload))
        left = stretches_of(found.rows, found.owners, kinds).levelled()
        rows = self._stored(left, payload.take(pa.array(heads[left.kind])))
        return GroupRows(left.owner, rows)

    def _kinds(self, rows: pa.RecordBatch) -> Ids:
        return identities(payload_of(rows, self._payload))[0]


def _numbered_rows(shown: CountedIntervals, places: Ints, k: int) -> CountedIntervals:
    """Return rows by place at each instant; a kind is k times the row's, plus the place from 0."""
    segments = TimeSegments.of(shown)
    first, last = segments.spans(shown)
    row = np.repeat(np.arange(len(shown)), (last - first) * shown.count)
    at = numbers_of(np.repeat(first, shown.count), np.repeat(last, shown.count))
    order = np.lexsort((places[shown.kind[row]], at))
    row, at = row[order], at[order]
    place = np.arange(len(at)) - np.searchsorted(at, at)
    return CountedIntervals(
        shown.owner[row],
        shown.kind[row] * k + place,
        segments.le[at],
        segments.re[at],
        np.ones_like(row),
    ).levelled()


def _filled(segments: TimeSegments, events: CountedIntervals, order: Ints, k: int) -> Table:
    """Return the columns of the runs that fill the segments: row, first, end and count."""
    first, last = segments.spans(events)
    size, made = len(segments.owner), -1
    # a row is rarely in several runs, but may have one for each of its segments
    most, room = min(int((last - first).sum()), k * size), _RUNS * (size + len(order))
    while made < 0:
        runs = np.empty((min(most, room), 4), dtype=np.int64)
        ahead, free = np.arange(size + 1), np.full(size, k)
        made = fill_segments(order, first, last, events.count, k, ahead, free, runs)
        room *= _RUNS
    return runs[:made].T


def _worst(segments: TimeSegments, events: CountedIntervals, places: Ints) -> Ints:
    """Return the last place among the events of each segment, or -1 if there are none."""
    mine = places[events.kind]
    row, start, stop, _ = _filled(segments, events, np.argsort(-mine, kind="stable"), 1)
    worst = np.full(len(segments.owner), -1)
    worst[numbers_of(start, stop)] = np.repeat(mine[row], stop - start)
    return worst
