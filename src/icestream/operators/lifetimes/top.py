"""Top-k over lifetimes: at each instant the k best events of a group that are alive then.

Idea: what is shown, now and at all later instants as lifetimes end, is kept beside the events. It
is enough to place new events; an event that is taken out matters only where it was shown, and only
there events behind the k-th are needed. These are read best first: k and as many as are taken out,
then four times as many, until all such instants are full; at last all are, and what cancels goes.

    shown      k rows at each instant      always read
    events     all that are alive          added to without a read; read from the best down

Events taken out that were not shown are noted beside what is shown, as *owed*: should they come
only later in the batch, they do not show.

Invariants:
1. After every chunk all changes told add up to the k best at each instant
   (`test_oracle_top_k_of_random_changes`), also if events are taken out before they come
   (`test_oracle_top_k_of_shuffled_changes`).
2. New events need no event read (`test_bounded_new_events_read_what_is_shown_only`), one that is
   taken out some k more (`test_bounded_an_event_taken_out_reads_few`).
3. Reading everything gives the same answers (`test_reading_everything_changes_nothing`).

Cost: O(k) rows for each instant at which what is shown changes; with random ranks and equal
lifetimes that is O(k log n) of n events.

References: top-k and partial reconstruction of grouped state; expired events count as taken out
here because what is shown knows when they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints, Slots, Table
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.kernels.lifetimes.top import fill_segments
from icestream.kernels.ranges import numbers_of
from icestream.operators.lifetimes.changes import DIFF, column_of
from icestream.operators.lifetimes.changes import payload_of as payload_of_changes
from icestream.operators.lifetimes.consolidate import identities, numbered
from icestream.operators.lifetimes.counted_intervals import CountedIntervals, TimeSegments
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
from icestream.state.groups.spec import GroupRows, Groups, Synopsis

_RANK = "__rank"
_BEST = np.int64(2**63 - 1)
#: in place of how many events to read
_ALL = -1
#: how many times as many events are read when those read were not enough, and before all are
_STEP = 4
_MOST = 16
#: owed stretches of a group after which all its events are read, and what cancels is dropped
_PATIENCE = 256

Flags = npt.NDArray[np.bool_]


@dataclass
class Reads:
    """How much of the state was read; for reports and tests only."""

    #: rows of events
    events: int = 0
    #: rows of what is shown
    shown: int = 0


@dataclass(frozen=True, slots=True)
class _Touched:
    """Groups at hand and the changes to their events."""

    slots: Slots
    changes: CountedIntervals
    payload: pa.RecordBatch

    def only(self, chosen: Flags) -> _Touched:
        """Return the same for some of the groups."""
        inside = np.flatnonzero(chosen[self.changes.owner])
        changes = self.changes.at(inside)
        changes = replace(changes, owner=(np.cumsum(chosen) - 1)[changes.owner])
        return _Touched(self.slots[chosen], changes, self.payload.take(pa.array(inside)))


@dataclass(frozen=True, slots=True)
class _Read:
    """Events that were read of the groups at hand."""

    rows: GroupRows
    #: rank above which all events of a group were read
    above: Ints
    #: whether all events of a group were read
    whole: Flags
    #: whether all were read because those taken out stood before the best
    worn: bool


@dataclass(frozen=True, slots=True)
class _Scene:
    """All that is known of the groups at hand; kinds are numbered across."""

    shown: CountedIntervals
    owed: CountedIntervals
    changes: CountedIntervals
    #: events that were read, those taken out by the changes too
    read: CountedIntervals
    #: events among which the best are chosen
    candidates: CountedIntervals
    answer: CountedIntervals
    kinds: pa.RecordBatch
    ranks: Ints
    #: groups of which more events must be read
    lacking: Flags


class TopK:
    """The k best events of each group."""

    is_prompt = True
    tells_at_once = True
    forgets = True

    def __init__(
        self, payload: pa.Schema, k: int, by: Sequence[Order], *, partial: bool = True
    ) -> None:
        """Show the k best by some columns; with `partial` false all events are always read."""
        if k < 1:
            msg = f"a top-k shows at least one event, got k = {k}"
            raise DefinitionError(msg)
        self._k = k
        self._partial = partial
        self._ordering = Ordering(payload, by)
        self.result = payload
        rank = pa.field(_RANK, pa.int64(), nullable=False)
        self._shown = RevisableOutput(1, events_synopsis("shown", payload))
        self.synopses: tuple[Synopsis, ...] = (
            events_synopsis("events", payload, rank, rank=_RANK),
            self._shown.synopsis,
        )
        #: what was read since the operator was made
        self.reads = Reads()

    def on_changes(
        self, port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Tell how the best of the groups touched change."""
        return self.on_last_changes(port, changes, groups, watermark, watermark)

    def on_last_changes(
        self,
        _port: int,
        changes: pa.RecordBatch,
        groups: Groups,
        watermark: Micros,
        over: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Do the same, keeping nothing that ends by an instant."""
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
                read = self._read(groups, touched, scale)
                scene = self._scene(groups, touched, read, watermark)
                yield from self._settled(groups, touched, read, scene, watermark, over)
                touched = touched.only(scene.lacking)
                scale = _ALL if scale >= _MOST else max(1, _STEP * scale)

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Tell nothing: the future was told already."""
        return iter(())

    def _read(self, groups: Groups, touched: _Touched, scale: int) -> _Read:
        """Read `scale` times as many of the best events as may be missing."""
        slots, size = touched.slots, len(touched.slots)
        if scale in (0, _ALL):
            rows = groups.read(0, slots if scale else slots[:0])
            whole = np.full(size, scale == _ALL)
            above = np.full(size, _BEST)
        else:
            leaving = touched.changes.owner[touched.changes.count < 0]
            # one more shows that those before it are all of their rank
            counts = 1 + scale * (self._k + np.bincount(leaving, minlength=size))
            rows = groups.read_best(0, slots, counts)
            whole = np.bincount(rows.owners, minlength=size) < counts
            ranks = column_of(rows.rows, _RANK)
            order = np.lexsort((~ranks, rows.owners))
            last = np.searchsorted(rows.owners, np.arange(size)) + counts - 1
            at = order[last[~whole]]
            above = np.full(size, _BEST)
            above[~whole] = ranks[at]
        self.reads.events += rows.rows.num_rows
        return _Read(rows, above, whole, worn=scale == _ALL and self._partial)

    def _scene(self, groups: Groups, touched: _Touched, read: _Read, watermark: Micros) -> _Scene:
        """Put together what is known, and tell where it is not enough."""
        kept = groups.read(1, touched.slots)
        self.reads.shown += kept.rows.num_rows
        parts = [payload_of(each.rows, self.result) for each in (kept, read.rows)]
        payloads = pa.concat_batches([*parts, touched.payload])
        numbers, heads = numbered(*identities(payloads))
        kinds = payloads.take(pa.array(heads))
        ranks = self._ordering.ranks(kinds)
        first, second = len(kept.owners), len(kept.owners) + len(read.rows.owners)
        changes = replace(touched.changes, kind=numbers[second:])
        everything = stretches_of(kept.rows, kept.owners, numbers[:first])
        shown, owed = (everything.where(everything.count * sign > 0) for sign in (1, -1))
        events = stretches_of(read.rows.rows, read.rows.owners, numbers[first:second])

        def is_known(stretches: CountedIntervals) -> Flags:
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
        lacking = np.bincount(owed.owner, minlength=len(touched.slots)) > _PATIENCE
        lacking[segments.owner[short]] = True
        lacking &= ~read.whole
        return _Scene(shown, owed, changes, events, candidates, answer, kinds, ranks, lacking)

    def _best(
        self, segments: TimeSegments, events: CountedIntervals, places: Ints
    ) -> CountedIntervals:
        """Return the k best at each instant."""
        order = np.argsort(places[events.kind], kind="stable")
        row, start, stop, count = _filled(segments, events, order, self._k)
        return CountedIntervals(
            events.owner[row], events.kind[row], segments.le[start], segments.le[stop], count
        )

    def _short(
        self,
        segments: TimeSegments,
        shown: CountedIntervals,
        answer: CountedIntervals,
        places: Ints,
        is_known: Callable[[CountedIntervals], Flags],
    ) -> Flags:
        """Tell the segments in which events that were not read may be among the best.

        Where fewer than k were shown there are no others. Elsewhere the last that was shown is
        better than all others, and so is what ranks above those read.
        """
        full = segments.totals(shown) >= self._k
        sure = segments.totals(answer.where(is_known(answer))) >= self._k
        cut, last = (_worst(segments, each, places) for each in (shown, answer))
        return full & ~sure & ((segments.totals(answer) < self._k) | (last > cut))

    def _settled(
        self,
        groups: Groups,
        touched: _Touched,
        read: _Read,
        scene: _Scene,
        watermark: Micros,
        over: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Tell the answers of groups of which enough is known, and keep those that last."""

        def of_settled(stretches: CountedIntervals) -> CountedIntervals:
            return stretches.where(~scene.lacking[stretches.owner])

        candidates = of_settled(scene.candidates)
        owed = candidates.where((candidates.count < 0) & (candidates.re > over))
        self._keep(groups, touched.slots, read, scene, over)
        yield from self._shown.revise(
            groups,
            touched.slots,
            of_settled(scene.shown),
            of_settled(scene.answer),
            scene.kinds,
            watermark,
            max(watermark, over),
            owed=(of_settled(scene.owed), owed),
        )

    def _keep(self, groups: Groups, slots: Slots, read: _Read, scene: _Scene, over: Micros) -> None:
        """Add the changes to the events kept, or rewrite groups that were read as a whole."""
        new = scene.changes.where(~scene.lacking[scene.changes.owner] & (scene.changes.re > over))
        whole = scene.read.where(read.whole[scene.read.owner] & (scene.read.re > over))
        after = whole.and_(new.where(~read.whole[new.owner]))
        after = after.at(np.argsort(after.owner, kind="stable"))
        new = new.at(np.argsort(new.owner, kind="stable"))
        kept = read.rows.owners[read.whole[read.rows.owners]]
        rows = self._rows(new, scene), self._rows(after, scene)
        keep(groups, 0, slots, kept, *rows, worn=read.worn)

    def _rows(self, events: CountedIntervals, scene: _Scene) -> LazyRows:
        def at(places: Ints) -> pa.RecordBatch:
            chosen = events.at(places)
            payload = scene.kinds.take(pa.array(chosen.kind))
            ranks = pa.array(scene.ranks[chosen.kind])
            return rows_of(chosen, payload, ranks, schema=self.synopses[0].schema).rows

        return LazyRows(events.owner, at)


def _filled(segments: TimeSegments, events: CountedIntervals, order: Ints, k: int) -> Table:
    """Return columns of the runs that filling segments makes: row, first, end and count."""
    first, last = segments.spans(events)
    size = len(segments.owner)
    runs = np.empty((min(int((last - first).sum()), k * size), 4), dtype=np.int64)
    room = np.full(size, k)
    made = fill_segments(order, first, last, events.count, k, np.arange(size + 1), room, runs)
    return runs[:made].T


def _worst(segments: TimeSegments, events: CountedIntervals, places: Ints) -> Ints:
    """Return the last place among the events of each segment, -1 where there are none."""
    mine = places[events.kind]
    row, start, stop, _ = _filled(segments, events, np.argsort(-mine, kind="stable"), 1)
    worst = np.full(len(segments.owner), -1)
    worst[numbers_of(start, stop)] = np.repeat(mine[row], stop - start)
    return worst
