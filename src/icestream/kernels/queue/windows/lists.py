"""The queues of keys with windows: waiting keys, and keys being processed.

Idea: waiting keys are a doubly linked list in the order of their tickets, keys being processed a
singly linked one, first come first served. A key may wait while its last window is still being
processed; since a key has one committed window at a time, it is then skipped: it is *held* outside
the list, and returns to its position as soon as its window is done.

Invariants:
1. Keys are taken in the order of their tickets, skipping those being processed
   (`test_parity_window_queue_beside_its_definition`).

Cost: O(1), except that a held key moves past keys held before it that returned meanwhile.
"""

from __future__ import annotations

from icestream.kernels.compile import kernel
from icestream.kernels.queue.windows.zones import (
    COMMITTED,
    FIFO,
    NONE,
    READIES,
    SINCE,
    STATES,
    TICKET,
    TICKETS,
    UPQ_HEAD,
    UPQ_NEXT,
    UPQ_TAIL,
    WAITING,
    WQ_HEAD,
    WQ_NEXT,
    WQ_PREV,
    WQ_TAIL,
    WindowQueueArrays,
)

#: states of a key, of which WAIT may be combined with READY and IDLE; a key in none is DONE or new
WAIT = 1
READY = 2
IDLE = 4
#: waits outside the list of waiting keys
HELD = 8


@kernel
def link_waiting(windows: WindowQueueArrays, cell: int, before: int) -> None:
    """Put a key into the list of keys whose windows wait, after another, NONE for the front."""
    facts, cells = windows.facts, windows.cells
    after = facts[WQ_HEAD] if before == NONE else cells[before, WQ_NEXT]
    cells[cell, WQ_PREV] = before
    cells[cell, WQ_NEXT] = after
    if before == NONE:
        facts[WQ_HEAD] = cell
    else:
        cells[before, WQ_NEXT] = cell
    if after == NONE:
        facts[WQ_TAIL] = cell
    else:
        cells[after, WQ_PREV] = cell


@kernel
def unlink_waiting(windows: WindowQueueArrays, cell: int) -> None:
    """Remove a key from the list of keys whose windows wait."""
    facts, cells = windows.facts, windows.cells
    before, after = cells[cell, WQ_PREV], cells[cell, WQ_NEXT]
    if before == NONE:
        facts[WQ_HEAD] = after
    else:
        cells[before, WQ_NEXT] = after
    if after == NONE:
        facts[WQ_TAIL] = before
    else:
        cells[after, WQ_PREV] = before


@kernel
def await_service(windows: WindowQueueArrays, cell: int, arrived: int) -> None:
    """Add a key to the list of keys whose windows wait; one in it stays, except in FIFO."""
    facts, cells = windows.facts, windows.cells
    if not cells[cell, STATES] & WAIT:
        cells[cell, STATES] |= WAIT
        cells[cell, SINCE] = arrived
        facts[WAITING] += 1
    elif not facts[FIFO]:
        return
    elif cells[cell, STATES] & HELD:
        cells[cell, STATES] ^= HELD
    else:
        unlink_waiting(windows, cell)
    facts[TICKETS] += 1
    cells[cell, TICKET] = facts[TICKETS]
    link_waiting(windows, cell, facts[WQ_TAIL])


@kernel
def next_waiting(windows: WindowQueueArrays) -> int:
    """Take the first key without a committed window from the list of waiting ones."""
    facts, cells = windows.facts, windows.cells
    while facts[WQ_HEAD] != NONE:
        cell = facts[WQ_HEAD]
        unlink_waiting(windows, cell)
        if cells[cell, COMMITTED] == NONE:
            cells[cell, STATES] ^= WAIT
            facts[WAITING] -= 1
            return int(cell)
        cells[cell, STATES] |= HELD
    return NONE


@kernel
def stop_holding(windows: WindowQueueArrays, cell: int) -> None:
    """Return a held key to the list of waiting keys: before all that were never held."""
    cells = windows.cells
    cells[cell, STATES] ^= HELD
    before = NONE
    after = windows.facts[WQ_HEAD]
    while after != NONE and cells[after, TICKET] < cells[cell, TICKET]:
        before = after
        after = cells[after, WQ_NEXT]
    link_waiting(windows, cell, before)


@kernel
def under_processing(windows: WindowQueueArrays, cell: int) -> None:
    """Put a key at the end of the list of keys whose windows are processed."""
    facts, cells = windows.facts, windows.cells
    cells[cell, STATES] |= READY
    facts[READIES] += 1
    cells[cell, UPQ_NEXT] = NONE
    if facts[UPQ_TAIL] == NONE:
        facts[UPQ_HEAD] = cell
    else:
        cells[facts[UPQ_TAIL], UPQ_NEXT] = cell
    facts[UPQ_TAIL] = cell


@kernel
def end_service(windows: WindowQueueArrays, cell: int) -> None:
    """Remove the first key of the list of keys whose windows are processed."""
    facts, cells = windows.facts, windows.cells
    cells[cell, STATES] ^= READY
    facts[READIES] -= 1
    facts[UPQ_HEAD] = cells[cell, UPQ_NEXT]
    if facts[UPQ_HEAD] == NONE:
        facts[UPQ_TAIL] = NONE
