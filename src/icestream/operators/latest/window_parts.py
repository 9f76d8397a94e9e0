"""The keys of windows over updates in parts, one of which is in memory at a time.

Idea: while all keys fit they are one part, whose arrays are those of the arena. A part for whose
tuples the arena would become too large is halved by id before they enter it; from then on each part
is a file, brought into the arena and saved again. Where little is left of several, they are merged.
Parts are divided, merged and restored by the functions that divide shards.

Invariants:
1. More keys than fit get the same answers (`test_bounded_windows_of_more_keys_than_fit`).
2. Parts that large batches needed are merged when batches are small
   (`test_bounded_parts_of_windows_are_merged`).

Cost: nothing while all keys fit; otherwise opening and closing a part reads and writes its keys and
tuples.

Limits: a part is halved when it grows, not when there is less memory: with less than it was made
with, a part may not fit, and a BudgetError lists what is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from icestream.core.times import Micros
from icestream.operators.latest.saved_arrays import (
    SavedArrays,
    SavedParts,
    State,
    bytes_in,
    common_ranges,
)
from icestream.operators.latest.window_aggregate import WindowedUpdates
from icestream.operators.latest.window_batch import WindowInput
from icestream.operators.latest.window_staleness import WindowStaleness
from icestream.operators.protocol import Shard
from icestream.state.identities import IdRange
from icestream.state.queue.eviction import SHARE
from icestream.state.queue.pages import PagePool
from icestream.state.queue.windows.snapshot import Content, bring_back, content_of, taken_over

#: least number of keys that are worth a part without them
LEAST_FORGOTTEN = 128
#: merged parts take at most 1/MERGED of what a part may take
MERGED = 4
#: prefix of the names of a queue's arrays in the state of a part
_QUEUE = "queue."


class WindowParts:
    """The windows of one shard."""

    def __init__(self, shard: Shard, operator: Callable[[PagePool], WindowedUpdates]) -> None:
        """Attach to the shard's arena; `operator` makes windows over a pool of pages."""
        self._shard = shard
        self._operator = operator
        self._kept = SavedArrays(shard.arena, shard.account)
        #: the files, if not all keys fit
        self._files = SavedParts(shard.arena, "parts")
        self._core: tuple[WindowedUpdates, WindowStaleness] | None = None
        #: approximate bytes of the parts that were closed
        self._sizes: dict[IdRange, int] = {}

    @property
    def windows(self) -> WindowedUpdates:
        """Return the part in memory."""
        return self._opened[0]

    @property
    def staleness(self) -> WindowStaleness:
        """Return the staleness of the part in memory."""
        return self._opened[1]

    @property
    def ranges(self) -> list[IdRange]:
        return self._files.ranges

    @property
    def size(self) -> int:
        """Return the approximate bytes of all parts that were closed."""
        return sum(self._sizes.values())

    def each(self) -> Iterator[IdRange]:
        """Bring all parts into memory, one after the other, to read them."""
        for ids in self.ranges:
            self.open(ids)
            yield ids

    def in_turn(self) -> list[IdRange]:
        """Return the parts, the first one last; each is first in turn, so that all are served."""
        parts, header = self.ranges, self._shard.arena.header
        first = header["turn"] = (header.get("turn", 0) + 1) % len(parts)
        return [*parts[first:], *parts[:first]][::-1]

    def open(self, ids: IdRange) -> None:
        """Bring a part into memory, in place of the one that is there."""
        state = self._files.load(ids)
        if state is not None:
            self._bring(state)

    def close(self, ids: IdRange) -> None:
        """Save the part in memory."""
        _, others = self.contents()
        self._sizes[ids] = self._used + bytes_in(others)
        if len(self.ranges) > 1:
            self._files.save(ids, self._state())
        else:
            self._kept.save(self.windows.state())

    def is_large(self, arrived: WindowInput) -> bool:
        """Return whether the part in memory could become too large by tuples."""
        if arrived.keys is None or arrived.groups is None or not len(arrived):
            return False
        groups, keys = (len(np.unique(each)) for each in (arrived.groups, arrived.keys))
        arrays = self.windows.queue.arrays
        growth = arrays.growth(groups, len(arrived))
        # as much again is for what is kept beside the queue
        room = self._most - self._shard.arena.bytes
        return growth > 0 and arrays.keys + keys > 1 and 2 * growth > room

    def divide(self, ids: IdRange) -> tuple[IdRange, IdRange]:
        """Save the halves of the part in memory instead of it."""
        state = self._state()
        self._kept.clear()
        halves = self._files.split(ids)
        for half in halves:
            self._files.save(half, self._of_keys([state], half))
        return halves

    def merge(self) -> bool:
        """Merge small neighbours if at most half of the parts are left then; return whether."""
        runs, size = list[list[IdRange]](), 0
        for ids in self.ranges:
            size += self._sizes[ids]
            if not runs or MERGED * size > self._most:
                runs.append([])
                size = self._sizes[ids]
            runs[-1].append(ids)
        if 2 * len(runs) > len(self.ranges):
            return False
        for run in runs:
            if len(run) > 1:
                states = [state for ids in run if (state := self._files.load(ids)) is not None]
                merged = self._files.merge(run)
                self._bring(self._of_keys(states, merged))
                self.close(merged)
        self._sizes = {ids: self._sizes[ids] for ids in self.ranges}
        return True

    def forget(self, before: Micros) -> bool:
        """Drop keys without updates since a time, once they are half of all; return whether."""
        found = self.windows.without(before, LEAST_FORGOTTEN)
        if found is None:
            return False
        keys, others = found
        queue = taken_over([content_of(self.windows.queue.arrays)], keys.kept)
        staleness = self.staleness.taken_over([self.staleness.state()], keys)
        self._bring({**_named(queue), **others, **staleness})
        return True

    def contents(self) -> tuple[State, State]:
        """Return the state of the part in memory: of the queue, and the rest."""
        others = {**self.windows.state(), **self.staleness.state()}
        return content_of(self.windows.queue.arrays), others

    def restore(
        self, parents: Sequence[tuple[IdRange, State, State]], keeps: IdRange | None
    ) -> None:
        """Restore `contents` of all parts, or of several parents for the keys in a range."""
        parts = common_ranges([ids for ids, _, _ in parents])
        self._files.divide(parts)
        for ids in parts:
            states = [
                {**_named(queue), **others} for each, queue, others in parents if each.meets(ids)
            ]
            if keeps is not None:
                states = [self._of_keys(states, ids.within(keeps))]
            (state,) = states
            self._bring(state)
            self.close(ids)

    @property
    def _opened(self) -> tuple[WindowedUpdates, WindowStaleness]:
        if self._core is None:
            self._core = self._attached(self._kept.load())
        return self._core

    def _attached(self, known: State | None) -> tuple[WindowedUpdates, WindowStaleness]:
        windows = self._operator(PagePool(self._shard.arena, name="windows.pool"))
        if known is not None:
            windows.recall(known)
        return windows, WindowStaleness(self._shard.arena, windows.queue)

    def _bring(self, state: State) -> None:
        arrays = self.windows.queue.arrays
        arrays.clear()
        bring_back(arrays, _queue_of(state))
        self._core = self._attached(state)
        self.staleness.recall(state)

    def _state(self) -> State:
        queue, others = self.contents()
        return {**_named(queue), **others}

    @property
    def _most(self) -> int:
        """Return the bytes that the arena may have."""
        return int(self._shard.account.budget.total * SHARE)

    @property
    def _used(self) -> int:
        """Return the approximate bytes of the part in memory."""
        queue = self.windows.queue
        return int(queue.table.nbytes + queue.arrays.zone_bytes)

    def _of_keys(self, states: Sequence[State], keeps: IdRange) -> State:
        """Return the states of parents, of the keys in a range, as one."""
        keys = self.windows.kept_keys(states, keeps)
        return {
            **_named(taken_over([_queue_of(each) for each in states], keys.kept)),
            **self.windows.taken_over(states, keys),
            **self.staleness.taken_over(states, keys),
        }


def _named(queue: Content) -> State:
    """Return the arrays of a queue with their names in the state of a part."""
    return {f"{_QUEUE}{name}": array for name, array in queue.items()}


def _queue_of(state: State) -> Content:
    """Return the arrays of the queue in the state of a part."""
    names = [name for name in state if name.startswith(_QUEUE)]
    return {name.removeprefix(_QUEUE): state[name] for name in names}
