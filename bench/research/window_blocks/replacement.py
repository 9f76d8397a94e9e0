"""Which blocks of a window stay in memory: decisions only, no block is touched here.

Idea: a window reads its blocks back in the order in which they were filled, so the block needed
last is known. With one window, that is the block just filled: it is evicted first, and when the
oldest block is used up, the next one on disk is read before it is needed. With several windows over
one stream, the nearest window behind a block needs it next; the block farthest from the window
behind it is evicted. Both pools return steps for the owner of the blocks:

    release(ancient)     its tuples left every window
    evict(block)         the block leaves memory (written to disk unless a copy is there)
    fetch(block)         the block is read back
    begin(block)         an empty block takes the newest tuples

Invariants:
1. No more than `capacity` blocks are in memory, and N + 1 are enough for N windows
   (`test_bounded_pools_of_the_least_size_serve_any_stream`).
2. No policy reads less than that of one window with two blocks or without read-ahead, nor than that
   of several windows with known lengths (`test_oracle_no_policy_reads_less_for_one_window`,
   `test_oracle_no_policy_reads_less_when_lengths_are_known`); distances in blocks come close
   (`test_distances_in_blocks_read_little_more_than_the_least`).
3. The block being filled and the blocks in use by a window are never evicted
   (`test_blocks_in_use_stay`).

Cost: O(1) for one window; O(N log B) for a victim among B blocks and N windows.

Limits: lengths in time are exact if there are events at the instants that matter. Read-ahead fills
a place as soon as it is free, so a pool of more than two blocks saves one window no transfers; the
shared pool with one window does save some, and reads a block when it is needed.

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
    """A full block is evicted and will be needed again."""

    block: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A block is read back from disk."""

    block: int


@dataclass(frozen=True, slots=True)
class Release:
    """No window needs a block any more."""

    block: int


Step = Begin | Evict | Fetch | Release


class OneWindowPool:
    """The pool of one window: the newest full block is evicted, the oldest on disk is read back."""

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
        """Blocks on disk, in the order in which they are read back."""
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
    """The pool of several windows over one stream: the block needed last is evicted."""

    def __init__(self, capacity: int, windows: int, lengths: Sequence[int] | None = None) -> None:
        """Begin with block 0, where all windows start.

        Distances are counted in blocks. With the `lengths` of the windows (all in time, or all in
        tuples) they are counted in that unit, and are then exact even where the stream's rate
        changes.
        """
        _check(capacity, windows)
        self.capacity = capacity
        self.recent = 0
        #: the block each window is using up
        self.ancient = [0] * windows
        #: blocks each window moved on to, and how many of them were in memory
        self.crossings = [0] * windows
        self.hits = [0] * windows
        self._lengths = lengths
        #: blocks in memory older than the recent one
        self._kept: list[int] = []
        #: when a window of length 0 would reach a block; only with lengths
        self._reached: dict[int, int] = {}

    @property
    def resident(self) -> list[int]:
        """Blocks in memory, oldest first."""
        return [*self._kept, self.recent]

    def roll(self, now: int = 0) -> list[Step]:
        """Begin a new block because the recent one is full.

        `now` is the time of its last tuple, or its number, in the unit of the lengths.
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
        """Move a window on to the next block because it used up its own."""
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
        """Return, per window: blocks in memory up to the next window, and all blocks up to it."""
        found = []
        for own in self.ancient:
            upto = min((other for other in self.ancient if other > own), default=self.recent)
            inside = bisect_left(self._kept, upto + 1) - bisect_left(self._kept, own + 1)
            found.append((inside + (own < self.recent == upto), upto - own))
        return found

    def _drop_victim(self) -> int:
        """Remove the block whose next use is farthest, and return it."""
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
            # windows that need a block at the same event move on in their order
            distance = block - own if self._lengths is None else self._reached[block] + length
            if best < 0 or (distance, window) > farthest:
                best, farthest = at, (distance, window)
        return self._kept.pop(best)


def _check(capacity: int, windows: int) -> None:
    if windows < 1 or capacity < windows + 1:
        msg = (
            f"a pool for {windows} windows needs at least {windows + 1} blocks: one for the newest "
            f"tuples and one for each window; got {capacity}"
        )
        raise DefinitionError(msg)
