"""Groups finer than the update key: what supersedes what, and when their windows are complete.

Idea: with group-by columns beyond the update key, a key has several groups. The results of a group
supersede earlier results of that group only: a window replaces older windows of its own group, and
queueing is by group. But time belongs to the key: its tuples arrive in time order whatever their
group, so a tuple of one group tells all groups of its key that nothing older will arrive. Their
windows that ended before are complete, however rare the group. A tuple older than its key's latest
is late, even if its own group has no later one. Of tuples of
one group and time the last counts.

Invariants:
1. Answers are over whole windows, and those of every group of a key are delivered, if served, once
   the key's time has passed them
   (`test_oracle_windows_of_groups_are_filled_by_the_time_of_their_key`).

Cost: one pass over the groups of the keys in each batch; 16 bytes for each group, 16 for each key.

Limits: groups receive the time at the end of a batch, so in EAGER and LAZY alike a window may be
recognised as complete a batch after its key's tuple arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask
from icestream.core.times import MINUS_INFINITY
from icestream.kernels.queue.windows.key_times import going_up, link_groups
from icestream.operators.latest.identities import newest
from icestream.operators.latest.kept_keys import KeptKeys
from icestream.operators.latest.saved_arrays import State
from icestream.operators.latest.update_stream import KeyDirectory, UpdateStream, grown
from icestream.state.identities import IdRange
from icestream.state.queue.windows.queue import WindowQueue


class KeyClocks:
    """The time of every key, and the groups that share it."""

    def __init__(self, stream: UpdateStream) -> None:
        self._stream = stream
        self._keys = KeyDirectory()
        self._last: Ints = np.zeros(0, dtype=np.int64)
        self._first: Ints = np.zeros(0, dtype=np.int64)
        self._after: Ints = np.zeros(0, dtype=np.int64)
        self._linked = 0
        self._dropped = 0
        #: number of dropped tuples
        self.late = 0

    def in_order(self, batch: pa.RecordBatch) -> Ints:
        """Return the tuples that are not older than their key's latest."""
        keys = self._keys.numbers(*self._stream.identify(batch))
        times = self._stream.times(batch)
        self._last = grown(self._last, len(self._keys), MINUS_INFINITY)
        keep = np.empty(len(times), dtype=np.bool_)
        last = self._last.copy()
        late = going_up(keys, times, last, keep)
        self._dropped = late
        return np.flatnonzero(keep)

    def state(self) -> State:
        """Return the whole state, for `recall`."""
        return {
            "clocks.known": self._keys.state(),
            "clocks.last": self._last,
            "clocks.first": self._first,
            "clocks.after": self._after,
            "clocks.counts": np.array([self._linked, self.late]),
        }

    def kept_keys(self, states: Sequence[State], keeps: IdRange) -> KeptKeys:
        """Return the keys of several parents that are in a range."""
        known = [each["clocks.known"] for each in states]
        return KeptKeys.of(known, keeps, keyless=not self._stream.keys)

    def idle(self, groups: Mask, of: tuple[Ids, Ids]) -> tuple[Mask, Mask]:
        """Return the groups of keys whose groups are all idle, and these keys.

        Args:
            groups: which groups are idle.
            of: identities of their keys.
        """
        owner = self._keys.numbers(*of)
        idle = np.ones(len(self._keys), dtype=np.bool_)
        idle[owner[~groups]] = False
        return idle[owner], idle

    @staticmethod
    def taken_over(states: Sequence[State], groups: KeptKeys, keys: KeptKeys) -> State:
        """Return the states of several parents, of the groups and keys that are kept, as one."""
        found = {name: keys.by_key(states, name) for name in ("clocks.known", "clocks.last")}
        for name, members in (("clocks.first", keys), ("clocks.after", groups)):
            renumbered: list[State] = [
                {name: groups.numbers(parent, state[name])} for parent, state in enumerate(states)
            ]
            found[name] = members.by_key(renumbered, name)
        late = sum(int(each["clocks.counts"][1]) for each in states)
        return {**found, "clocks.counts": np.array([len(groups), late])}

    def recall(self, state: State) -> None:
        """Restore what `state` returned."""
        self._keys.recall(state["clocks.known"])
        self._last, self._first = state["clocks.last"], state["clocks.first"]
        self._after = state["clocks.after"]
        self._linked, self.late = state["clocks.counts"].tolist()

    def advance_all(self, time: int) -> None:
        """Advance the time of all known keys to a watermark."""
        known = self._last[: len(self._keys)]
        np.maximum(known, time, out=known)

    def advance(
        self, queue: WindowQueue, batch: pa.RecordBatch, groups: Ints, arrived: Ints
    ) -> None:
        """Advance the time of all groups of the keys in a batch that the queue has taken."""
        self.late += self._dropped
        id_high, id_low = self._stream.identify(batch)
        keys = self._keys.numbers(id_high, id_low)
        self._first = grown(self._first, len(self._keys), -1)
        self._after = grown(self._after, int(groups.max(initial=-1)) + 1, -1)
        self._linked = link_groups(keys, groups, self._linked, self._first, self._after)
        times = self._stream.times(batch)
        chosen, _, _ = newest(id_high, id_low, times)
        self._last[keys[chosen]] = times[chosen]
        queue.advance(keys[chosen], times[chosen], arrived[chosen], self._first, self._after)
