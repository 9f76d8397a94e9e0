"""Many slides of a window in one call: slices enter, rows are emitted, slices leave, step by step.

Idea: for few groups, the work of a slide costs less than the calls of the kernels that do it. Here
the steps of a whole version run in one loop over contiguous entries. The loop stops when it needs
entries or room for rows, returns which, and continues from there when called again.

Invariant: the rows, dead groups and emitted fields are those of the obvious loop, wherever it was
stopped on the way (`test_parity_strides_beside_folding_every_window`).

Cost: O(entries) to add and remove, O(resident groups) for each slide.

Limits: slices that leave must have suffixes for the fields without an inverse; if they have none
yet, the loop stops.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Slots, Table
from icestream.kernels.compile import kernel
from icestream.kernels.fold import Index
from icestream.kernels.grid.groups import add_slice, emit, expire_slice

#: why a call returned
DONE = 0
NEEDS_ENTERING = 1
NEEDS_LEAVING = 2
IS_FULL = 3
IS_MISSING = 4
NEEDS_SUFFIXES = 5

#: places in the state of a stride: the step and its stage, the next slice that enters and the next
#: that leaves, the next group to emit, rows emitted and dead groups listed so far
STEP = 0
STAGE = 1
ENTERS = 2
LEAVES = 3
GROUP = 4
ROWS = 5
DEAD = 6
STATE = 7

_ENTER = 0
_EMIT = 1
_LEAVE = 2


@kernel
def locate(index: Index, rows: Table, entries: Table, slots: Slots) -> int:
    """Fill `slots` with the row of each entry's group before a stride; return 0 if all have one."""
    if index.size == 0:
        return len(entries)
    mask = index.size - 1
    for i in range(len(entries)):
        id_high = entries[i, 0]
        id_low = entries[i, 1]
        place = np.int64(np.uint64(id_low) >> np.uint64(20)) & mask
        at = index[place] - 1
        while at >= 0 and (rows[at, 0] != id_high or rows[at, 1] != id_low):
            place = (place + 1) & mask
            at = index[place] - 1
        if at < 0:
            return 1
        slots[i] = at
    return 0


@kernel
def stride(
    rows: Table,
    index: Index,
    used: int,
    ops: Ints,
    places: Ints,
    identity: Ints,
    starts: Ints,
    reach: int,
    slide: int,
    entering_panes: Ints,
    entering_bounds: Ints,
    entering: Table,
    leaving_panes: Ints,
    leaving_bounds: Ints,
    leaving: Table,
    suffixes: Table,
    suffixes_at: int,
    ready: int,
    flipped: int,
    next_back: int,
    turning: int,
    fields: Table,
    slots: Slots,
    row_starts: Ints,
    row_ends: Ints,
    dead: Slots,
    found: Slots,
    state: Ints,
) -> int:
    """Process many slides of a window in one stride over `starts`; return why it stopped.

    Slices are given by their panes, in order, and by bounds in the entries. More slices may follow
    the last one unless its pane is past what is needed; to end them, pass a slice without entries
    and with a pane beyond all. `suffixes` are those of the slices that leave before slice `ready`,
    the last slice's first; slices before pane `flipped` have them. Slices from pane `turning` on
    also join the next back (see `add_slice`). `found` has room for the entries of any slice, `dead`
    for all that leave.
    """
    while state[STEP] < starts.size:
        start = starts[state[STEP]]
        if state[STAGE] == _ENTER:
            while True:
                at = state[ENTERS]
                if at == entering_panes.size:
                    return NEEDS_ENTERING
                if entering_panes[at] >= start + reach:
                    break
                part = entering[entering_bounds[at] : entering_bounds[at + 1]]
                if locate(index, rows, part, found):
                    return IS_MISSING
                also = next_back if entering_panes[at] >= turning else 0
                add_slice(rows, found[: len(part)], part, ops, places, also)
                state[ENTERS] += 1
            state[STAGE] = _EMIT
            state[GROUP] = 0
        if state[STAGE] == _EMIT:
            before = state[ROWS]
            group, filled = emit(
                rows, state[GROUP], used, ops, places, suffixes_at, fields, slots, before, False
            )
            for row in range(before, filled):
                row_starts[row] = start
                row_ends[row] = start + reach
            state[GROUP] = group
            state[ROWS] = filled
            if group < used:
                return IS_FULL
            state[STAGE] = _LEAVE
        if start + slide > flipped:
            return NEEDS_SUFFIXES
        while True:
            at = state[LEAVES]
            if at == leaving_panes.size:
                return NEEDS_LEAVING
            if leaving_panes[at] >= start + slide:
                break
            part = leaving[leaving_bounds[at] : leaving_bounds[at + 1]]
            if locate(index, rows, part, found):
                return IS_MISSING
            above = leaving_bounds[max(ready, at + 1)] - leaving_bounds[at + 1]
            state[DEAD] += expire_slice(
                rows,
                found[: len(part)],
                part,
                ops,
                places,
                identity,
                suffixes[above : above + len(part)],
                suffixes_at,
                leaving_panes[at],
                dead[state[DEAD] :],
            )
            state[LEAVES] += 1
        state[STAGE] = _ENTER
        state[STEP] += 1
    return DONE
