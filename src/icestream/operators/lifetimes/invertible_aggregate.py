"""Invertible aggregates, stored as edges: what each instant adds to a running row.

Idea: a change adds its words at the start of its lifetime and subtracts them at the end. The edges
of a group are its whole answer, from the watermark into the future. Edges that the watermark has
passed are merged into one, the *base*, at the start of the segment that is current. New edges are
swept together with the stored ones, and only segments that differ are emitted. New edges are
appended; the edges of a group are rewritten only if at most half of them remain. Changes of a chunk
with the same group and lifetime are added up first: they become one edge at either end.

Invariants:
1. After every chunk the emitted changes add up to the aggregate at each instant
   (`test_oracle_aggregates_that_can_be_taken_back`).
2. Retracted events were emitted before, with the same lifetimes (the same test).
3. Running aggregates of events in order read few edges, however long the history
   (`test_bounded_running_aggregates_read_few_edges`).
4. Nothing is stored for a group whose events have ended
   (`test_bounded_groups_that_are_over_are_gone`).
5. A group too large for memory is read in pieces (`test_oracle_large_groups_are_swept_in_ranges`).

Cost: O(edges past the watermark) for each touched group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints, Mask, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.lifetimes.sweep import scale_rows, sweep_edges
from icestream.operators.folding.exact_rows import ExactRows, alike, concatenated, copies_of
from icestream.operators.lifetimes.answers import LifetimeAggregate, SpanAnswers
from icestream.operators.lifetimes.changes import DIFF, PromptOperator, changes_of, column_of
from icestream.operators.lifetimes.lift import added_up
from icestream.operators.lifetimes.pieces import rows_at_once
from icestream.operators.lifetimes.rows_by_group import (
    LazyRows,
    RowsByGroup,
    clipped,
    first_rows,
    keep,
    located,
    woken,
)
from icestream.state.groups.spec import GroupRows, Groups, Synopsis

_TIME = "__t"
_NO_ROWS: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Edges:
    time: Ints
    words: ExactRows

    def and_(self, *others: _Edges) -> _Edges:
        time = np.concatenate([self.time, *(each.time for each in others)])
        return _Edges(time, concatenated(self.words, *(each.words for each in others)))

    def at(self, places: Ints) -> _Edges:
        return _Edges(self.time[places], self.words[places])

    def between(self, begin: Micros, end: Micros) -> _Edges:
        """Return the edges from one instant to another, both included."""
        return self.at(np.flatnonzero((self.time >= begin) & (self.time <= end)))

    def before(self, instant: Micros) -> _Edges:
        return self.at(np.flatnonzero(self.time < instant))

    def last_cuts(self, owners: Ints, count: int) -> Ints:
        """Return when the last event of each of `count` owners ends."""
        cuts, alive = np.full(count, MINUS_INFINITY), np.zeros(count, dtype=np.int64)
        np.maximum.at(cuts, owners, self.time)
        np.add.at(alive, owners, self.words.counts)
        return np.where((alive == 0) & (cuts > MINUS_INFINITY), cuts, INFINITY)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Segments of step functions."""

    owners: Ints
    le: Ints
    re: Ints
    diff: Ints
    words: ExactRows

    def at(self, places: Ints) -> _Parts:
        owners, le, re, diff = (each[places] for each in (self.owners, self.le, self.re, self.diff))
        return _Parts(owners, le, re, diff, self.words[places])

    def unchanged(self, answers: Sequence[pa.Array]) -> Mask:
        """Return which segments are retracted and added again with the same answer."""
        out = np.flatnonzero((self.diff[:-1] == -1) & (self.diff[1:] == 1))
        for column in (self.owners, self.le, self.re):
            out = out[column[out] == column[out + 1]]
        same = np.ones(len(out), dtype=np.bool_)
        for answer in answers:
            before, after = answer.take(pa.array(out)), answer.take(pa.array(out + 1))
            equal = pc.fill_null(pc.equal(before, after), fill_value=False)
            either = pc.or_(equal, pc.and_(before.is_null(), after.is_null()))
            same &= either.to_numpy(zero_copy_only=False)
        found = np.zeros(len(self.diff), dtype=np.bool_)
        found[out[same]] = found[out[same] + 1] = True
        return found


@dataclass(frozen=True, slots=True)
class _New:
    """New edges: those chosen, the position of the group of each, and whether it lasts."""

    edges: _Edges
    chosen: Ints
    owners: Ints
    lasts: Mask


@dataclass(frozen=True, slots=True)
class _Swept:
    """The remaining edges to store, and the segments to emit."""

    owners: Ints
    time: Ints
    words: ExactRows
    parts: _Parts


class InvertibleAggregate(LifetimeAggregate, PromptOperator):
    """An aggregate whose fields all have an inverse."""

    emits_at_once = True
    forgets = True

    def __init__(self, answers: SpanAnswers) -> None:
        super().__init__(answers)
        self._lifting = lifting = answers.lifting
        time = pa.field(_TIME, pa.int64(), nullable=False)
        self._schema = pa.schema([time, *lifting.fold.schema])
        self.synopses = (Synopsis("edges", self._schema),)
        self._nothing = _Edges(_NO_ROWS, lifting.fold.nothing)

    def on_last_changes(
        self,
        _port: int,
        changes: pa.RecordBatch,
        groups: Groups,
        watermark: Micros,
        over: Micros,
    ) -> Iterator[pa.RecordBatch]:
        changes, le, re = clipped(changes, watermark)
        if changes.num_rows == 0:
            return
        slots = located(changes, groups)
        heads, words = self._folded(changes, slots, le, re)
        keys = self.answers.keys_of(changes)
        slots, le, re = slots[heads], le[heads], re[heads]
        if groups.are_transient and (np.diff(slots) > 0).all():
            # one lifetime of each group, and none before: it is the answer
            every = np.arange(len(slots))
            only = _Parts(every, le, re, np.ones_like(every), words)
            yield from self._emitted(groups, slots, only, keys.take(pa.array(heads)))
            return
        ends = np.flatnonzero(re < INFINITY)
        taken, at = words[ends], words.layout.at
        scale_rows(taken.table, np.full(len(ends), -1), at.ops, at.places)
        each = np.concatenate([np.arange(len(le)), ends])
        edges = _Edges(np.concatenate([le, re[ends]]), concatenated(words, taken))
        key_of = heads[each]
        by_slot = RowsByGroup(slots[each])
        for portion in groups.portions(by_slot.distinct):
            chosen, owners = by_slot.within(portion)
            new = _New(edges, chosen, owners, re[each[chosen]] > over)
            first = key_of[chosen[first_rows(owners, len(portion))]]
            if groups.fits(0, portion):
                parts = iter((self._revised(groups, portion, new, watermark),))
            else:
                parts = self._of_large(groups, portion, new, watermark)
            for swept in parts:
                shown = keys.take(pa.array(first[swept.owners]))
                yield from self._emitted(groups, portion, swept, shown)

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Drop groups that have ended; their answers were emitted already."""
        for portion in woken(groups, watermark):
            groups.rewrite(0, portion, GroupRows(_NO_ROWS, self._batch(self._nothing, _NO_ROWS)))
            groups.remind(portion, np.full(len(portion), INFINITY))
        yield from ()

    def _folded(
        self, changes: pa.RecordBatch, slots: Slots, le: Ints, re: Ints
    ) -> tuple[Ints, ExactRows]:
        """Add up words of changes with the same group and lifetime; return first rows and sums."""
        diff = column_of(changes, DIFF)
        words = self._lifting.lifted(changes, copies_of(diff))
        scale_rows(words.table, diff, words.layout.at.ops, words.layout.at.places)
        return added_up(slots, le, re, words)

    def _revised(self, groups: Groups, portion: Slots, new: _New, watermark: Micros) -> _Parts:
        """Sweep over stored and new edges of a few groups; store those of groups that last."""
        kept = groups.read(0, portion)
        swept = self._swept(
            self._edges(kept.rows), kept.owners, new.edges, new.chosen, new.owners, watermark
        )
        left = _Edges(swept.time, swept.words)
        lasts = np.zeros(len(portion), dtype=np.bool_)
        lasts[new.owners[new.lasts]] = True
        lasts[kept.owners] = True
        added = np.flatnonzero(lasts[new.owners])
        chosen = new.chosen[added]
        keep(
            groups,
            0,
            portion,
            kept.owners,
            LazyRows(new.owners[added], lambda places: self._batch(new.edges, chosen[places])),
            LazyRows(swept.owners, lambda places: self._batch(left, places)),
        )
        due = left.last_cuts(swept.owners, len(portion))
        due = np.where(due > watermark, due, INFINITY)
        groups.remind(portion[lasts], due[lasts])
        return swept.parts

    def _of_large(
        self, groups: Groups, portion: Slots, new: _New, watermark: Micros
    ) -> Iterator[_Parts]:
        """Sweep over a group too large for memory, a range of time after the other.

        A range ends where both the stored and the new function change, so no segment is cut.
        """
        added = self._summed(_Edges(new.edges.time[new.chosen], new.edges.words[new.chosen]))
        large = _StoredEdges(self, groups, portion, watermark)
        before, ahead, begin = self._nothing, self._nothing, MINUS_INFINITY
        while begin < INFINITY:
            stored, end = large.between(begin, added)
            fresh = added.between(begin, end)
            old, news = before.and_(stored), ahead.and_(fresh)
            zeros = (np.zeros(len(each.time), dtype=np.int64) for each in (old, news))
            old_owners, new_owners = zeros
            every = np.arange(len(news.time))
            parts = self._swept(old, old_owners, news, every, new_owners, watermark).parts
            yield parts.at(np.flatnonzero(parts.le < end))
            before, ahead = (self._total(each.before(end), end) for each in (old, news))
            begin = end
        if 2 * large.passed > large.rows:
            self._drop_passed(groups, portion, large, watermark)
        groups.append(0, portion[new.owners], self._batch(new.edges, new.chosen))
        # what is left adds up to no events if the last one ends
        alive = int(before.words.counts.sum() + ahead.words.counts.sum())
        last = max(large.last, int(added.time.max(initial=MINUS_INFINITY)))
        due = last if alive == 0 and last > watermark else INFINITY
        groups.remind(portion, np.array([due]))

    def _drop_passed(
        self, groups: Groups, portion: Slots, large: _StoredEdges, watermark: Micros
    ) -> None:
        """Write the edges of a large group again, those before the watermark as one."""
        base = self._nothing
        groups.rewrite(0, portion, GroupRows(_NO_ROWS, self._batch(self._nothing, _NO_ROWS)))
        for piece in large.pieces:
            edges = self._edges(piece.rows)
            base = self._total(base.and_(edges.before(watermark)), large.last_passed)
            left = np.flatnonzero(edges.time >= watermark)
            groups.append(0, np.repeat(portion, len(left)), self._batch(edges, left))
        groups.append(0, portion[: len(base.time)], self._batch(base, np.arange(len(base.time))))

    def _summed(self, edges: _Edges) -> _Edges:
        """Add up edges of one group at the same time, in the order of time; none that are zero."""
        order = np.argsort(edges.time, kind="stable")
        time, words = edges.time[order], edges.words[order]
        words = words.reshaped(words.layout.with_room(len(words)))
        zeros, fold = np.zeros_like(time), self._lifting.fold
        heads, words = added_up(zeros, time, zeros, words)
        return _Edges(time[heads], fold.loaded(fold.stored(words)))

    def _total(self, edges: _Edges, at: Micros) -> _Edges:
        """Add up all edges of one group into one at an instant; none if that is zero."""
        return self._summed(_Edges(np.full(len(edges.time), at), edges.words))

    def _swept(
        self,
        old: _Edges,
        old_owners: Ints,
        new: _Edges,
        chosen: Ints,
        new_owners: Ints,
        watermark: Micros,
    ) -> _Swept:
        owners = np.concatenate([old_owners, new_owners])
        time = np.concatenate([old.time, new.time[chosen]])
        order = np.lexsort((time, owners))
        owners = owners[order]
        before, after = alike(old.words, new.words[chosen])
        layout = before.layout
        count, width = len(owners), layout.at.width
        room = count + int(np.count_nonzero(np.diff(owners))) + 1
        group, instant = (np.empty(room, dtype=np.int64) for _ in range(2))
        words = np.empty((room, width), dtype=np.int64)
        parts, part_words = (np.empty((2 * room, each), dtype=np.int64) for each in (4, width))
        made, emitted = sweep_edges(
            owners,
            time[order],
            order,
            before.table,
            after.table,
            watermark,
            layout.at.ops,
            layout.at.places,
            False,  # no answers without events
            group,
            instant,
            words,
            parts,
            part_words,
        )
        owner, le, re, diff = parts[:emitted].T
        segments = _Parts(owner, le, re, diff, ExactRows(layout, part_words[:emitted]))
        return _Swept(group[:made], instant[:made], ExactRows(layout, words[:made]), segments)

    def _emitted(
        self, groups: Groups, portion: Slots, parts: _Parts, keys: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        """Yield segments with answers as changes, without those whose answer does not change."""
        there = self._lifting.shows(parts.words)
        if not there.all():
            parts = parts.at(np.flatnonzero(there))
            keys = keys.filter(pa.array(there))
        answers = self._lifting.lower(parts.words)
        chosen = ~parts.unchanged(answers)
        if not chosen.any():
            return
        id_high, id_low = groups.identities(portion[parts.owners[chosen]])
        columns = [column.filter(pa.array(chosen)) for column in (*keys.columns, *answers)]
        payload = pa.RecordBatch.from_arrays(columns, schema=self.result)
        le, re, diff = (column[chosen] for column in (parts.le, parts.re, parts.diff))
        yield changes_of(payload, le, re, diff, id_high, id_low)

    def _batch(self, edges: _Edges, places: Ints) -> pa.RecordBatch:
        """Return the edges at some positions as rows to store."""
        columns = self._lifting.fold.stored(edges.words[places])
        return pa.RecordBatch.from_arrays(
            [pa.array(edges.time[places]), *columns], schema=self._schema
        )

    def _edges(self, rows: pa.RecordBatch) -> _Edges:
        return _Edges(column_of(rows, _TIME), self._lifting.fold.loaded(rows.columns[1:]))


class _StoredEdges:
    """The stored edges of a group too large for memory, by ranges of time."""

    def __init__(
        self, owner: InvertibleAggregate, groups: Groups, slots: Slots, watermark: Micros
    ) -> None:
        self._owner, self.pieces = owner, groups.pieces(0, slots)
        #: rows, those before the watermark, and rows of the largest piece
        self.rows, self.passed, self._most = 0, 0, 1
        #: the last edge, and the last one before the watermark that `between` returned
        self.last = self.last_passed = MINUS_INFINITY
        self._watermark = watermark
        #: first and last edge of each piece before the watermark, then from it on
        self._bounds: list[list[tuple[Micros, Micros]]] = []
        for piece in self.pieces:
            time = column_of(piece.rows, _TIME)
            passed = time < watermark
            self._bounds.append(
                [
                    (int(each.min(initial=INFINITY)), int(each.max(initial=MINUS_INFINITY)))
                    for each in (time[passed], time[~passed])
                ]
            )
            self.rows += len(time)
            self.passed += int(np.count_nonzero(passed))
            self.last = max(self.last, int(time.max(initial=MINUS_INFINITY)))
            self._most = max(self._most, len(time))

    def between(self, begin: Micros, added: _Edges) -> tuple[_Edges, Micros]:
        """Return edges from an instant on, added up, and the last instant that they are for.

        There the sum of stored edges is not zero, nor is it with those that are added.
        """
        owner, end, most = self._owner, INFINITY, rows_at_once(self._most)
        found, waiting, size = owner._nothing, list[_Edges](), 0
        for number, bounds in enumerate(self._bounds):
            if any(low <= end and high >= begin for low, high in bounds):
                edges = owner._edges(self.pieces.read(number).rows).between(begin, end)
                waiting.append(edges)
                size += len(edges.time)
            if size > most or number == len(self._bounds) - 1:
                found = owner._summed(found.and_(*waiting)).between(begin, end)
                if len(found.time) > most:
                    end = int(found.time[len(found.time) // 2])
                    found = found.between(begin, end)
                waiting, size = [], len(found.time)
        if end < INFINITY:
            both = owner._summed(found.and_(added.between(begin, end)))
            cuts = np.intersect1d(found.time, both.time)
            cuts = cuts[cuts > begin]
            if len(cuts):
                end = int(cuts[-1])
                found = found.between(begin, end)
            else:
                rest, end = self.between(end + 1, added)
                found = found.and_(rest)
        passed = found.time[found.time < self._watermark]
        self.last_passed = max(self.last_passed, int(passed.max(initial=MINUS_INFINITY)))
        return found, end
