"""Timers in event time: instants at which groups are called, stored like any other state.

Idea: a group's timers are rows of one synopsis. Its key is a row of another, stored exactly while
the group has timers, because only then is the key needed without a row. The operations of a chunk
on timers are collected in a list and applied, for all groups at once, when the chunk is done; the
store only learns each group's earliest instant.

Invariants:
1. A timer fires once, when the watermark reaches it, in time order within a group
   (`test_oracle_timers_fire_in_order`).
2. A group has a stored key exactly while it has timers (`test_keys_are_kept_while_timers_wait`).
3. While a timer fires, only later ones can be set, so firing ends
   (`test_a_timer_may_only_set_later_ones`).
4. No timer is earlier than the watermark at which it was set, so its output does not change the
   past (`test_a_timer_in_the_past_fires_at_the_watermark`).

Cost: O(n log n) in the timers of the groups whose timers changed.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask, Slots
from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, Micros
from icestream.state.groups.spec import GroupRows, Groups, Synopsis

_AT = "at"
_AT_SCHEMA = pa.schema([pa.field(_AT, pa.int64(), nullable=False)])
#: what an operation on timers does
SET, DELETE = 1, 0

Instants = set[Micros]


def timer_synopses(keys: pa.Schema) -> tuple[Synopsis, Synopsis]:
    """Return the synopses of timers: instants, and the keys of groups that have some."""
    return Synopsis("__timers", _AT_SCHEMA), Synopsis("__key", keys)


def instants(values: Ints) -> pa.RecordBatch:
    """Return rows of the synopsis of timers: one instant each."""
    return pa.RecordBatch.from_arrays([pa.array(values)], schema=_AT_SCHEMA)


def too_early(instant: Micros, firing: Micros) -> DefinitionError:
    """Return the error for a timer that would keep firing for ever."""
    return DefinitionError(
        f"the timer at {firing} set one at {instant}: a timer may only set later ones"
    )


def unhandled() -> DefinitionError:
    """Return the error for a timer that no method handles."""
    return DefinitionError(
        "a timer was set, but nothing handles it: define handleExpiredTimer or on_timers"
    )


class TimerTable:
    """The timers of the groups at `slots`, during one chunk of work.

    Groups are identified by their positions among the slots.
    """

    def __init__(self, groups: Groups, number: int, slots: Slots, floor: Micros) -> None:
        """Take the number of the synopsis of instants; the synopsis of keys follows it.

        Timers before `floor` are set at `floor`.
        """
        self._groups = groups
        self._number = number
        self._slots = slots
        #: timers are never earlier than this
        self.floor = floor
        #: operations in order: position, instant, set or delete
        self._done: list[tuple[Ints, Ints, int]] = []
        #: the same for single timers, before they become arrays
        self._singles: list[tuple[int, int, int]] = []
        self._stored: GroupRows | None = None

    def note(self, positions: Ints, at: Ints, what: int) -> None:
        """Set timers, of which some may be set already, or delete those that are set."""
        self._settle_singles()
        self._done.append((positions, np.maximum(at, self.floor), what))

    def note_one(self, position: int, at: Micros, what: int) -> None:
        """Set or delete a timer of one group."""
        self._singles.append((position, max(at, self.floor), what))

    def pending(self) -> tuple[Ints, Ints]:
        """Return position and instant of all timers, sorted in this order."""
        owners, at, kept, was = self._settled(self._read())
        fresh, lost = kept & ~was, was & ~kept
        self._done = [(owners[lost], at[lost], DELETE), (owners[fresh], at[fresh], SET)]
        return owners[kept], at[kept]

    def flush(self, keys: pa.RecordBatch) -> None:
        """Write what changed; `keys` has a row for each position."""
        self._settle_singles()
        if not self._done:
            return
        touched = np.unique(np.concatenate([positions for positions, _, _ in self._done]))
        stored = self._of_positions(touched)
        owners, at, kept, was = self._settled(stored)
        count = len(self._slots)
        before = np.bincount(stored.owners, minlength=count)[touched]
        after = np.bincount(owners[kept], minlength=count)[touched]
        shrunk = np.zeros(count, dtype=np.bool_)
        shrunk[owners[was & ~kept]] = True
        again, fresh = kept & shrunk[owners], kept & ~was & ~shrunk[owners]
        losers = np.flatnonzero(shrunk)
        slots = self._slots
        if losers.size:
            rows = GroupRows(np.searchsorted(losers, owners[again]), instants(at[again]))
            self._groups.rewrite(self._number, slots[losers], rows)
        if fresh.any():
            self._groups.append(self._number, slots[owners[fresh]], instants(at[fresh]))
        begun, ended = touched[(before == 0) & (after > 0)], touched[(before > 0) & (after == 0)]
        for positions, named in ((begun, begun), (ended, ended[:0])):
            if positions.size:
                rows = GroupRows(np.arange(len(named)), keys.take(pa.array(named)))
                self._groups.rewrite(self._number + 1, slots[positions], rows)
        first = np.full(count, INFINITY, dtype=np.int64)
        np.minimum.at(first, owners[kept], at[kept])
        self._groups.remind(slots[touched], first[touched])

    def _settle_singles(self) -> None:
        """Convert single operations to arrays, one for each run of equal operations."""
        if not self._singles:
            return
        positions, at, what = np.array(self._singles, dtype=np.int64).T
        self._singles = []
        bounds = [0, *(np.flatnonzero(np.diff(what)) + 1).tolist(), len(what)]
        for first, last in pairwise(bounds):
            self._done.append((positions[first:last], at[first:last], int(what[first])))

    def _read(self) -> GroupRows:
        self._settle_singles()
        if self._stored is None:
            self._stored = self._groups.read(self._number, self._slots)
        return self._stored

    def _of_positions(self, touched: Ints) -> GroupRows:
        """Return the stored timers of some groups, with owners as positions among all groups."""
        if self._stored is None:
            found = self._groups.read(self._number, self._slots[touched])
            return GroupRows(touched[found.owners], found.rows)
        mine = np.isin(self._stored.owners, touched)
        return GroupRows(self._stored.owners[mine], self._stored.rows.filter(pa.array(mine)))

    def _settled(self, stored: GroupRows) -> tuple[Ints, Ints, Mask, Mask]:
        """Return owner, instant, is set, was set of all timers before and after, sorted."""
        there = np.asarray(stored.rows.column(0))
        owners = np.concatenate([stored.owners, *(positions for positions, _, _ in self._done)])
        at = np.concatenate([there, *(instant for _, instant, _ in self._done)])
        sizes = [len(there), *(len(positions) for positions, _, _ in self._done)]
        what = np.repeat([SET, *(what for _, _, what in self._done)], sizes)
        old = np.arange(len(at)) < len(there)
        order = np.lexsort((at, owners))
        owners, at, what, old = owners[order], at[order], what[order], old[order]
        differs = np.ones(len(at) + 1, dtype=np.bool_)
        differs[1:-1] = (owners[1:] != owners[:-1]) | (at[1:] != at[:-1])
        first, last = differs[:-1], differs[1:]
        return owners[first], at[first], what[last] == SET, old[first]


class GroupTimers:
    """The timers of the group that user code is called for."""

    def __init__(self) -> None:
        self._table: TimerTable | None = None
        self._waiting: dict[int, Instants] | None = None
        self._position = 0
        self._firing: Micros | None = None
        #: no event with an earlier time will arrive, in microseconds
        self.watermark: Micros = 0
        #: time of the last row at hand, or of the timer that fires
        self.now: Micros = 0
        self._allowed = False

    def open(self, timers: TimerTable | None, watermark: Micros, *, allowed: bool) -> None:
        """Begin a chunk of work; without a table, end it."""
        self._table = timers
        self._waiting = None
        self._firing = None
        self._allowed = allowed
        self.watermark = watermark

    def move(self, position: int, now: Micros) -> None:
        self._position = position
        self.now = now

    def set(self, instant: Micros) -> None:
        """Set a timer that fires when the watermark reaches an instant; at once if it has."""
        if not self._allowed:
            raise unhandled()
        timers = self._in_use()
        if self._firing is not None and instant <= self._firing:
            raise too_early(instant, self._firing)
        timers.note_one(self._position, instant, SET)
        if self._waiting is not None:
            self._waiting.setdefault(self._position, set()).add(max(instant, timers.floor))

    def delete(self, instant: Micros) -> None:
        timers = self._in_use()
        timers.note_one(self._position, instant, DELETE)
        if self._waiting is not None:
            self._waiting.get(self._position, set()).discard(max(instant, timers.floor))

    def list(self) -> list[Micros]:
        """Return the instants of the group's timers, in order."""
        self._in_use()
        return sorted(self._all().get(self._position, ()))

    def due(self) -> Micros | None:
        """Remove and return the earliest timer that the watermark has reached."""
        timers = self._in_use()
        waiting = self._all().get(self._position, set())
        first = min(waiting, default=INFINITY)
        if not waiting or first > self.watermark:
            self._firing = None
            return None
        waiting.discard(first)
        timers.note_one(self._position, first, DELETE)
        self._firing = first
        return first

    def _in_use(self) -> TimerTable:
        if self._table is None:
            msg = "timers can be used only while rows or timers of a group are handled"
            raise DefinitionError(msg)
        return self._table

    def _all(self) -> dict[int, Instants]:
        if self._waiting is None:
            self._waiting = {}
            owners, at = self._in_use().pending()
            for owner, instant in zip(owners.tolist(), at.tolist(), strict=True):
                self._waiting.setdefault(owner, set()).add(instant)
        return self._waiting
