"""The tuples of windows over one stream, most of them on disk.

Idea: the newest tuples go to the recent block, and each window takes its oldest tuples from a block
of its own; everything in between is on disk. A repository holds `columns` (one array `[frame, row]`
for each column), and the `tail` and `cursors` that `block_kernels` uses. It is called at
the end of a block: `roll` when the recent block is full, `cross` when a window used up its block. A
pool decides which blocks move, and buffers move them.

    one window      ancient | ahead |  ... on disk ...  | behind | recent
    several         ancient N | ... | ancient 2 | ... | ancient 1 | ... on disk ... | recent

Invariants:
1. For any stream, pool, mode and block factor every window sees exactly its tuples
   (`test_oracle_one_window_sees_its_tuples`, `test_oracle_shared_windows_see_their_tuples`).
2. A tuple is deleted, and its space freed, when the last window has passed it
   (`test_bounded_space_follows_the_largest_window`).
3. The requests counted are those that the formulas predict (`test_requests_follow_the_formulas`).

Cost: per block and window O(1) Python calls; transfers as in `request_formulas`.

Limits: tuples arrive in order of time. Not thread-safe. The blocks do not survive the process:
durable state is on the log before it comes here.

References: SlideM (`WindowRepository`) and Shared SlideM (`SharedRepository`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bench.research.window_blocks.buffers import Buffers, Counters
from bench.research.window_blocks.layout import BlockLayout
from bench.research.window_blocks.replacement import (
    Begin,
    Evict,
    Fetch,
    OneWindowPool,
    Release,
    SharedPool,
)
from bench.research.window_blocks.store import BlockStore
from icestream.state.budget import Account

#: blocks of a pool for one window
LEAST = 2


class Repository(Protocol):
    """The part of a repository that an operator uses."""

    layout: BlockLayout
    #: one array `[frame, row]` per column
    columns: tuple[npt.NDArray[Any], ...]
    #: frame, position of the next tuple, position where its block ends
    tail: npt.NDArray[np.int64]
    #: the same, for the oldest tuple of each window
    cursors: npt.NDArray[np.int64]

    def roll(self) -> None:
        """Begin a new block because the recent one is full."""

    def cross(self, window: int) -> None:
        """Move a window to its next block because it used up the one it had."""

    def close(self) -> None:
        """Delete the files."""


class _Blocks:
    """The common part of both repositories: buffers, a tail and cursors."""

    def __init__(
        self, buffers: Buffers, layout: BlockLayout, windows: int, account: Account | None
    ) -> None:
        self.layout = layout
        self._buffers = buffers
        self._account = account
        if account is not None:
            account.reserve(buffers.frames.bytes)
        self.columns = buffers.frames.columns
        first = [buffers.begin(0), 0, layout.factor]
        self.tail = np.array(first, np.int64)
        self.cursors = np.array([first] * windows, np.int64)

    @property
    def counters(self) -> Counters:
        """Requests so far."""
        return self._buffers.counters

    @property
    def frame_bytes(self) -> int:
        """Bytes of the pool and of all blocks in transfer."""
        return self._buffers.frames.bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of the index of block places in memory."""
        return self._buffers.store.index_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes on disk."""
        return self._buffers.store.file_bytes

    @property
    def direct(self) -> bool:
        """Whether transfers bypass the page cache."""
        return self._buffers.store.direct

    def close(self) -> None:
        """Delete the files and free the memory; closing twice is fine."""
        self._buffers.close()
        if self._account is not None:
            self._account.release(self._buffers.frames.bytes)
            self._account = None

    def _begun(self, frame: int) -> None:
        self.tail[0] = frame
        self.tail[2] += self.layout.factor

    def _moved(self, window: int) -> None:
        """Point a cursor at the block after its own."""
        end = int(self.cursors[window, 2])
        self.cursors[window, 0] = self._buffers.frame(end // self.layout.factor)
        self.cursors[window, 2] = end + self.layout.factor


class WindowRepository(_Blocks):
    """The tuples of one window."""

    def __init__(
        self,
        layout: BlockLayout,
        store: BlockStore,
        pool: int = LEAST,
        *,
        behind: int = 1,
        ahead: int = 1,
        account: Account | None = None,
    ) -> None:
        """Keep `pool` blocks in memory, plus those being written and read ahead."""
        self._pool = OneWindowPool(pool)
        buffers = Buffers(layout, store, pool, behind=behind, ahead=ahead)
        super().__init__(buffers, layout, 1, account)

    def roll(self) -> None:
        """Begin a new block because the recent one is full."""
        for step in self._pool.roll():
            if isinstance(step, Evict):
                self._buffers.evict(step.block)
            else:
                self._begun(self._buffers.begin(step.block))
        self._buffers.read_ahead(self._pool.upcoming)

    def cross(self, window: int = 0) -> None:
        """Move on to the next block because the oldest one is used up."""
        for step in self._pool.cross():
            if isinstance(step, Release):
                self._buffers.release(step.block)
            else:
                self._buffers.fetch(step.block)
        self._buffers.read_ahead(self._pool.upcoming)
        self._moved(window)


class SharedRepository(_Blocks):
    """The tuples of several windows over one stream, each stored once."""

    def __init__(
        self,
        layout: BlockLayout,
        store: BlockStore,
        windows: int,
        pool: int,
        *,
        behind: int = 0,
        lengths: Sequence[int] | None = None,
        by_rows: bool = False,
        account: Account | None = None,
    ) -> None:
        """Keep `pool` blocks in memory.

        With the `lengths` of the windows, in microseconds or all in tuples (`by_rows`), the block
        needed last is chosen exactly to the event; without them, to the block.
        """
        self.pool = SharedPool(pool, windows, lengths)
        self._by_rows = by_rows
        # a slot is read before its new block is written
        spare = 1 if store.exclusive else 0
        buffers = Buffers(layout, store, pool, behind=behind, spare=spare)
        super().__init__(buffers, layout, windows, account)

    def roll(self) -> None:
        """Begin a new block because the recent one is full."""
        frame, position = int(self.tail[0]), int(self.tail[1])
        last = position - 1 if self._by_rows else int(self.columns[0][frame, -1])
        for step in self.pool.roll(last):
            if isinstance(step, Evict):
                self._buffers.evict(step.block)
            elif isinstance(step, Begin):
                self._begun(self._buffers.begin(step.block))

    def cross(self, window: int) -> None:
        """Move a window to its next block because it used up the one it had."""
        steps = self.pool.cross(window)
        if steps and isinstance(steps[0], Release):
            self._buffers.release(steps.pop(0).block)
        match steps:
            case [Evict(victim), Fetch(wanted)]:
                self._buffers.exchange(victim, wanted)
            case [Fetch(wanted)]:
                self._buffers.fetch(wanted)
        self._moved(window)
