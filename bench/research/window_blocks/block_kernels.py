"""Windows that move with every event, over tuples stored in blocks.

Idea: tuples are in frames of `factor` rows each (columns are `[frame, row]`). The *tail* is where
the next tuple goes; a *cursor* per window points to the oldest tuple inside. Both are three
numbers: frame, position in the stream, and the position at which the frame's block ends. An event
first moves every cursor past the tuples that left its window, then is added, then its result is
computed. At the end of a block the loop stops and returns the reason: its caller loads the next
block and calls again from the same event.

    RANGE r: at an event of time t a window holds (t - r, t];  ROWS n: the last n events with this

Invariants:
1. Results follow the definition for any cut into blocks and calls, events of one time in the order
   of arrival (`test_parity_sliding_averages_follow_the_definition`).
2. Stopping changes only tail and cursors: the event it stopped at has left no trace in any sum
   (`test_a_stopped_event_is_answered_once`).

Cost: per event O(windows) and, over time, one tuple added and one subtracted for each window.

Limits: times never decrease and are less than 2**63 apart; groups are dense numbers. `first_unfit`
checks both before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench.research.window_blocks.exact_sums import (
    ROW,
    Words,
    add_product,
    average,
    is_plain,
    wide_rows_free,
)
from icestream.core.arrays import Floats, Ints
from icestream.kernels.compile import kernel

SmallInts = npt.NDArray[np.int32]

#: places in a tail and in a cursor
FRAME, POSITION, END = 0, 1, 2
#: why the loop stopped, if not at the end of the cursor's block of a window (0, 1, ...)
DONE, FULL, WIDE_NEEDED = -1, -2, -3
#: `extents` counts events instead of time where `by_rows` is not 0
Flags = npt.NDArray[np.int8]


@kernel
def first_unfit(times: Ints, groups: SmallInts, last: int, limit: int) -> int:
    """Return the first event that blocks refuse: time decreases, group not in [0, limit); or -1."""
    for i in range(times.size):
        if times[i] < last or groups[i] < 0 or groups[i] >= limit:
            return i
        last = times[i]
    return -1


@kernel
def slide_averages(
    clocks: Ints,
    groups: SmallInts,
    values: Words,
    weights: SmallInts,
    tail: Ints,
    cursors: Ints,
    extents: Ints,
    by_rows: Flags,
    new_times: Ints,
    new_groups: SmallInts,
    new_values: Words,
    new_weights: SmallInts,
    first: int,
    sums: Words,
    wide: Words,
    scratch: Words,
    out: Floats,
) -> tuple[int, int]:
    """Slide frames over blocks: from `first` on, per window the average of an event's group.

    The average is weighted. `sums` holds a row (`exact_sums`) per window and group. Returns (event
    stopped at, reason).
    """
    factor = clocks.shape[1]
    windows = cursors.shape[0]
    span = sums.size // windows
    for i in range(first, new_times.size):
        now = new_times[i]
        arrived = tail[POSITION]
        for w in range(windows):
            frame, position, end = cursors[w, FRAME], cursors[w, POSITION], cursors[w, END]
            extent, counted = extents[w], by_rows[w]
            while position < arrived:
                if counted and arrived - position < extent:
                    break
                if position == end:
                    cursors[w, POSITION] = position
                    return i, w
                row = position - end + factor
                if not counted and now - clocks[frame, row] < extent:
                    break
                add_product(
                    sums, w * span + groups[frame, row] * ROW, wide,
                    values[frame, row], np.int64(weights[frame, row]), True,
                )  # fmt: skip
                position += 1
            cursors[w, POSITION] = position
        if arrived == tail[END]:
            return i, FULL
        bits, weight, group = new_values[i], np.int64(new_weights[i]), new_groups[i]
        if not is_plain(bits) and wide_rows_free(wide) < windows:
            return i, WIDE_NEEDED
        frame, row = tail[FRAME], arrived - tail[END] + factor
        clocks[frame, row] = now
        groups[frame, row] = group
        values[frame, row] = bits
        weights[frame, row] = new_weights[i]
        tail[POSITION] = arrived + 1
        for w in range(windows):
            at = w * span + group * ROW
            add_product(sums, at, wide, bits, weight, False)
            out[w, i] = average(sums, at, wide, scratch)
    return new_times.size, DONE


@kernel
def slide_totals(
    clocks: Ints,
    groups: SmallInts,
    values: Words,
    weights: SmallInts,
    tail: Ints,
    cursors: Ints,
    extents: Ints,
    by_rows: Flags,
    new_times: Ints,
    new_groups: SmallInts,
    new_values: Words,
    new_weights: SmallInts,
    first: int,
    totals: Ints,
) -> tuple[int, int]:
    """Slide frames over blocks from `first` on; keep the weights of each window in `totals`.

    Returns (event stopped at, reason).
    """
    factor = clocks.shape[1]
    windows = cursors.shape[0]
    for i in range(first, new_times.size):
        now = new_times[i]
        arrived = tail[POSITION]
        for w in range(windows):
            frame, position, end = cursors[w, FRAME], cursors[w, POSITION], cursors[w, END]
            extent, counted = extents[w], by_rows[w]
            while position < arrived:
                if counted and arrived - position < extent:
                    break
                if position == end:
                    cursors[w, POSITION] = position
                    return i, w
                row = position - end + factor
                if not counted and now - clocks[frame, row] < extent:
                    break
                totals[w] -= weights[frame, row]
                position += 1
            cursors[w, POSITION] = position
        if arrived == tail[END]:
            return i, FULL
        frame, row = tail[FRAME], arrived - tail[END] + factor
        clocks[frame, row] = now
        groups[frame, row] = new_groups[i]
        values[frame, row] = new_values[i]
        weights[frame, row] = new_weights[i]
        tail[POSITION] = arrived + 1
        for w in range(windows):
            totals[w] += new_weights[i]
    return new_times.size, DONE
