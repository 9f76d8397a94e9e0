"""A result with every event: weighted averages over the last hour, or the last thousand events.

Idea: the events of a stream go to a repository of blocks, which keeps those inside a window and
returns its oldest ones to each window in time; sums are exact (`exact_sums`), so removing a
tuple undoes adding it. Events are taken in arrays of any length; the kernel stops at the ends of
blocks, and the repository moves to the next one.

Invariants:
1. Every result is the double nearest to sum(value * weight) / sum(weight) over the event's window
   and group (`test_oracle_a_result_per_event_over_one_window`,
   `test_oracle_a_result_per_event_over_shared_windows`).
2. Events out of order, and groups beyond the given number, are rejected before any is taken
   (`test_unfit_events_are_refused_before_any_is_taken`).

Cost: for E events, W windows: O(E * W); 64 bytes for each window and group.

Limits: groups are dense numbers below `groups`; times are microseconds and never decrease.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.research.window_blocks.block_kernels import (
    DONE,
    FULL,
    WIDE_NEEDED,
    first_unfit,
    slide_averages,
    slide_totals,
)
from bench.research.window_blocks.exact_sums import ROW, WIDE
from bench.research.window_blocks.layout import BLOCK_BYTES, BlockLayout
from bench.research.window_blocks.repository import Repository
from icestream.core.arrays import Floats, Ints
from icestream.core.errors import DefinitionError, InputError

SmallInts = npt.NDArray[np.int32]

_BEFORE_ALL = -(2**63)


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a window reaches back: RANGE in microseconds, or ROWS in events."""

    length: int
    rows: bool = False

    def __post_init__(self) -> None:
        """Check the length."""
        if self.length < 1:
            msg = f"a window must reach back at least 1 microsecond or 1 event; got {self.length}"
            raise DefinitionError(msg)


def weighted_layout(block_bytes: int = BLOCK_BYTES, factor: int = 0) -> BlockLayout:
    """Return the block layout for a result per event: (time, value, group, weight)."""
    columns = (("time", "i8"), ("value", "u8"), ("group", "i4"), ("weight", "i4"))
    return BlockLayout(columns, block_bytes, factor)


class _Sliding:
    """Events of one stream, processed by a kernel that stops where blocks end."""

    def __init__(self, repository: Repository, extents: Sequence[Extent], groups: int) -> None:
        if len(extents) != len(repository.cursors):
            msg = f"the repository has {len(repository.cursors)} windows; got {len(extents)}"
            raise DefinitionError(msg)
        self._repository = repository
        self._extents = np.array([extent.length for extent in extents], np.int64)
        self._by_rows = np.array([extent.rows for extent in extents], np.int8)
        self._groups = groups
        self._last = _BEFORE_ALL

    def _check(self, times: Ints, groups: SmallInts) -> None:
        at = first_unfit(times, groups, self._last, self._groups)
        if at >= 0:
            msg = (
                f"event {at} of the batch has time {times[at]} and group {groups[at]}; sort events "
                f"by time, and number groups from 0 to {self._groups - 1}"
            )
            raise InputError(msg)
        if times.size:
            self._last = int(times[-1])

    def _drive(self, take: Callable[[int], tuple[int, int]], widen: Callable[[], None]) -> None:
        at, why = take(0)
        while why != DONE:
            if why == FULL:
                self._repository.roll()
            elif why == WIDE_NEEDED:
                widen()
            else:
                self._repository.cross(why)
            at, why = take(at)


class SlidingAverages(_Sliding):
    """sum(value * weight) / sum(weight) per group, for one or more windows, with every event."""

    def __init__(self, repository: Repository, extents: Sequence[Extent], groups: int) -> None:
        """Answer for groups 0 to `groups` - 1; the repository has a window for each extent."""
        super().__init__(repository, extents, groups)
        self._sums = np.zeros(len(extents) * groups * ROW, np.uint64)
        self._wide = np.zeros(0, np.uint64)
        self._scratch = np.zeros(WIDE, np.uint64)

    @property
    def state_bytes(self) -> int:
        """Return the bytes of the sums, without the blocks."""
        return self._sums.nbytes + self._wide.nbytes + self._scratch.nbytes

    def feed(
        self,
        times: Ints,
        groups: SmallInts,
        values: Floats,
        weights: SmallInts,
        out: Floats | None = None,
    ) -> Floats:
        """Take events and return the results, one row per window; NaN where weights add up to 0."""
        self._check(times, groups)
        if out is None:
            out = np.empty((len(self._extents), times.size))
        found = out
        clocks, old_values, old_groups, old_weights = self._repository.columns
        bits = values.view(np.uint64)

        def take(first: int) -> tuple[int, int]:
            return slide_averages(
                clocks, old_groups, old_values, old_weights,
                self._repository.tail, self._repository.cursors, self._extents, self._by_rows,
                times, groups, bits, weights, first,
                self._sums, self._wide, self._scratch, found,
            )  # fmt: skip

        self._drive(take, self._widen)
        return found

    def _widen(self) -> None:
        """Add room for one more wide row per window, and double the capacity."""
        more = max(len(self._extents) * WIDE, self._wide.size)
        self._wide = np.concatenate([self._wide, np.zeros(more, np.uint64)])


class SlidingTotals(_Sliding):
    """sum(weight) of whole windows, which is enough to check what they hold."""

    def __init__(self, repository: Repository, extents: Sequence[Extent], groups: int) -> None:
        """Count the windows of a repository; it has one for each extent."""
        super().__init__(repository, extents, groups)
        #: sum of weights by window
        self.totals = np.zeros(len(extents), np.int64)

    def feed(self, times: Ints, groups: SmallInts, values: Floats, weights: SmallInts) -> None:
        """Take events."""
        self._check(times, groups)
        clocks, old_values, old_groups, old_weights = self._repository.columns
        bits = values.view(np.uint64)

        def take(first: int) -> tuple[int, int]:
            return slide_totals(
                clocks, old_groups, old_values, old_weights,
                self._repository.tail, self._repository.cursors, self._extents, self._by_rows,
                times, groups, bits, weights, first, self.totals,
            )  # fmt: skip

        self._drive(take, lambda: None)
