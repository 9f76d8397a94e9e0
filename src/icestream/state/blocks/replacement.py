"""Which blocks of a window stay in memory: decisions only, no block is touched here.

Idea: a window reads its blocks back in the order they were filled, so what is needed last is known.
With one window that is the block just filled: it leaves first, and when the oldest block was used
up, the one on disk that comes next takes its place before it is needed. With several windows over
one stream a block is needed next by the nearest window behind it; the block farthest from the
window behind it leaves. Both answer with steps for whoever holds the blocks:

    release(ancient)     its tuples left every window
    evict(block)         the block leaves memory (written to disk unless a copy is there)
    fetch(block)         the block comes back
    begin(block)         an empty block takes the newest tuples

Invariants:
1. No more than `capacity` blocks are in memory, and two are enough for one window, N + 1 for N
   (`test_bounded_pools_of_the_least_size_serve_any_stream`).
2. No policy reads less than one window does in two blocks or without reading ahead, nor than
   several windows whose lengths are known (`test_oracle_no_policy_reads_less_for_one_window`,
   `test_oracle_no_policy_reads_less_when_lengths_are_known`); distances in blocks come close
   (`test_distances_in_blocks_read_little_more_than_the_least`).
3. A block used by a window right now, and the one being filled, never leave
   (`test_blocks_in_use_stay`).

Cost: O(1) for one window; O(N log B) for a victim among B blocks and N windows.

Limits: lengths in time are exact as far as there are events at the instants that matter. Reading
ahead fills a place as soon as it is free, so a pool of more than two blocks saves
one window no transfers; the shared pool of one window does, and reads when a block is needed.

References: Belady's MIN; the buffer management of SlideM and Shared SlideM.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from icestream.core.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class Begin:
    """An empty block takes the newest tuples."""

    block: int


@dataclass(frozen=True, slots=True)
class Evict:
    """A full block leaves memory and will be needed again."""

    block: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A block comes back from disk."""

    block: int


@dataclass(frozen=True, slots=True)
class Release:
    """A block is needed by no window any more."""

    block: int


Step = Begin | Evict | Fetch | Release


class OneWindowPool:
    """The pool of one window: the newest full block leaves first, the oldest on disk comes back."""

    def __init__(self, capacity: int) -> None:
        """Begin with block 0 and `capacity` places."""
        _check(capacity, 1)
        self.capacity = capacity
        #: the block being filled
        self.recent = 0
        #: blocks in memory older than the recent one, oldest first
        self._kept: deque[int] = deque()
        #: blocks on disk are those from here ...
        self._from = 0
        #: ... to before this one
        self._to = 0

    @property
    def upcoming(self) -> range:
        """Blocks on disk, in the order in which they come back."""
        return range(self._from, self._to)

    @property
    def resident(self) -> list[int]:
        """Blocks in memory, oldest first."""
        return [*self._kept, self.recent]

    def roll(self) -> list[Step]:
        """Begin a new block because the recent one is full."""
        steps: list[Step] = []
        if len(self._kept) + 1 == self.capacity:
            steps.append(Evict(self.recent))
            if self._from == self._to:
                self._from = self.recent
            self._to = self.recent + 1
        else:
            self._kept.append(self.recent)
        self.recent += 1
        steps.append(Begin(self.recent))
        return steps

    def cross(self) -> list[Step]:
        """Leave the oldest block because its tuples are used up."""
        steps: list[Step] = [Release(self._kept.popleft())]
        if self._from < self._to:
            steps.append(Fetch(self._from))
            self._kept.append(self._from)
            self._from += 1
        return steps


class SharedPool:
    """The pool of several windows over one stream: the block needed last leaves."""

    def __init__(self, capacity: int, windows: int, lengths: Sequence[int] | None = None) -> None:
        """Begin with block 0, where all windows start.

        Distances are counted in blocks. With the `lengths` of the windows (all in time, or all in
        tuples) they are counted in these, and then exact also where the stream's rate changes.
        """
        _check(capacity, windows)
        self.capacity = capacity
        self.recent = 0
        #: the block each window is using up
        self.ancient = [0] * windows
        #: blocks each window went on to, and how many of them were in memory
        self.crossings = [0] * windows
        self.hits = [0] * windows
        self._lengths = lengths
        #: blocks in memory older than the recent one
        self._kept: list[int] = []
        #: when a window of no length would reach a block; only with lengths
        self._reached: dict[int, int] = {}

    @property
    def resident(self) -> list[int]:
        """Blocks in memory, oldest first."""
        return [*self._kept, self.recent]

    def roll(self, now: int = 0) -> list[Step]:
        """Begin a new block because the recent one is full.

        `now` is the time of its last tuple, or its number, as the lengths are counted.
        """
        steps: list[Step] = []
        self._kept.append(self.recent)
        if len(self._kept) == self.capacity:
            steps.append(Evict(self._drop_victim()))
        self.recent += 1
        if self._lengths is not None:
            self._reached[self.recent] = now
        steps.append(Begin(self.recent))
        return steps

    def cross(self, window: int) -> list[Step]:
        """Let a window go on to the next block because it used up its own."""
        steps: list[Step] = []
        left = self.ancient[window]
        wanted = left + 1
        self.ancient[window] = wanted
        self.crossings[window] += 1
        if left < min(self.ancient):
            self._kept.remove(left)
            self._reached.pop(left, None)
            steps.append(Release(left))
        at = bisect_left(self._kept, wanted)
        if wanted == self.recent or (at < len(self._kept) and self._kept[at] == wanted):
            self.hits[window] += 1
            return steps
        if len(self._kept) + 1 == self.capacity:
            steps.append(Evict(self._drop_victim()))
        insort(self._kept, wanted)
        steps.append(Fetch(wanted))
        return steps

    def segments(self) -> list[tuple[int, int]]:
        """Return, per window, how many blocks up to the next window are in memory, of how many."""
        found = []
        for own in self.ancient:
            upto = min((other for other in self.ancient if other > own), default=self.recent)
            inside = bisect_left(self._kept, upto + 1) - bisect_left(self._kept, own + 1)
            found.append((inside + (own < self.recent == upto), upto - own))
        return found

    def _drop_victim(self) -> int:
        """Take away the block whose next use is farthest, and return it."""
        lengths = self._lengths or [0] * len(self.ancient)
        nearest: dict[int, tuple[int, int]] = {}
        for window, (own, length) in enumerate(zip(self.ancient, lengths, strict=True)):
            nearest[own] = min((length, window), nearest.get(own, (length, window)))
        behind = sorted(nearest)
        best, farthest = -1, (0, 0)
        for own, following in zip(behind, [*behind[1:], self.recent + 1], strict=True):
            at = bisect_left(self._kept, following) - 1
            if at < 0 or self._kept[at] <= own:
                continue
            block, (length, window) = self._kept[at], nearest[own]
            # windows that need a block at one event go on in their order
            distance = block - own if self._lengths is None else self._reached[block] + length
            if best < 0 or (distance, window) > farthest:
                best, farthest = at, (distance, window)
        return self._kept.pop(best)


def _check(capacity: int, windows: int) -> None:
    if windows < 1 or capacity < windows + 1:
        msg = (
            f"a pool for {windows} windows needs {windows + 1} blocks or more: one for the newest "
            f"tuples and one for each window; got {capacity}"
        )
        raise DefinitionError(msg)
