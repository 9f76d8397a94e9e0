"""Window buffers of keys: tuples of one key in linked zones of equal length.

Idea: a *zone* is one block of a page: enclosing page, block offset, dequeue and enqueue offset and
its neighbours, then room for tuples. The zones of a key are a doubly linked list, and its tuples,
read along the list, are in the order of time. A *place* is the address of a tuple. Two stretches of
a buffer are live: the rest of the committed window, from DF on, and the newest window, from WS to
ET. Zones without a live tuple return to the pool at once, also those in between.

Invariants:
1. Live tuples are kept, and no zone without one
   (`test_parity_window_queue_beside_its_definition`).
2. Every block in use is in the list of one key (`test_blocks_in_use_are_in_one_buffer`).

Cost: O(1) per tuple, amortised.

References: fixed-length contiguous zones and the pointers ET, DF, WS and WE are those of section
7.2 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from typing import NamedTuple

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.queue.pages import (
    FREE_PAGE,
    OPEN_PAGE,
    PAGES_SEEN,
    SHIFT,
    UNIT,
    PoolArrays,
    give_unit,
    take_unit,
)

#: words of a key's cell; the id comes first, where `kernels.hash_index` expects it
ID_HIGH = 0
ID_LOW = 1
#: WAIT, READY, IDLE and HELD
STATES = 2
#: time of the key's latest tuple
LAST = 3
#: number of the newest window by the semantics in use, and of the key's first window
NEWEST = 4
FIRST = 5
#: arrival of the oldest waiting update
SINCE = 6
#: number of the window being processed, or NONE, and its last instant
COMMITTED = 7
END = 8
#: first and last zone of the buffer
FRONT = 9
BACK = 10
#: places: what the committed window reads next, where the newest window starts, what the committed
#: window ends with so far, and what was enqueued last
DF = 11
WS = 12
WE = 13
ET = 14
#: tuples left in the committed window, those of them before WS, and tuples from WS on
UNREAD = 15
BEFORE = 16
KEPT = 17
#: links in the queue of waiting keys, order of arrival there, link among keys being processed
WQ_PREV = 18
WQ_NEXT = 19
TICKET = 20
UPQ_NEXT = 21
#: the key's time: that of its latest tuple, or later if no tuple comes before
CLOCK = 22
#: when a window after the one that was last delivered became full; NONE while there is none. The
#: same for the window being delivered to the application, and for the last committed one
LACKS = 23
LACKS_NEXT = 24
LACKS_LATER = 25
#: numbers of these windows: delivered, being delivered (NONE for none), committed
SHOWN = 26
FLYING = 27
PROMISED = 28
CELL = 29

#: words of a zone before its tuples
PAGE = 0
BLOCK = 1
DEQ = 2
ENQ = 3
PREV = 4
NEXT = 5
ZONE = 6

#: words of a tuple before those of its row: time, arrival, window specification mark
TIME = 0
ARRIVED = 1
MARK = 2
TUPLE = 3

#: facts of a window queue: size and slide of the windows, whether windows are committed as soon
#: as they start, whether an update moves its key to the end, tuples of a zone, words of a tuple
SIZE = 0
SLIDE = 1
EAGER = 2
FIFO = 3
ROWS = 4
WIDTH = 5
#: ends of the queue of waiting keys and of the queue of keys being processed
WQ_HEAD = 6
WQ_TAIL = 7
UPQ_HEAD = 8
UPQ_TAIL = 9
#: tickets issued so far
TICKETS = 10
#: keys in WAIT, READY and IDLE
WAITING = 11
READIES = 12
IDLES = 13
#: maximum of live tuples of a buffer: from WS on, and in all
MOST_KEPT = 14
MOST_LIVE = 15
#: tuples that came too late for their key
LATE = 16
#: windows that were started (or full), committed and done
UPDATES = 17
COMMITS = 18
DONES = 19
#: keys ever seen
KEYS = 20
FACTS = 21

NONE = -1


class WindowQueueArrays(NamedTuple):
    """The arrays of a window queue."""

    facts: Ints
    cells: Table
    pool: PoolArrays
    space: Ints


@kernel
def has_room(windows: WindowQueueArrays) -> bool:
    """Return whether another zone for tuples can be taken."""
    pool = windows.pool
    if windows.space[OPEN_PAGE] != 0 or pool.facts[FREE_PAGE] != 0:
        return True
    seen = pool.facts[PAGES_SEEN]
    return bool(seen < min(pool.pages.shape[0], pool.words.size >> pool.facts[SHIFT]))


@kernel
def zone_of(windows: WindowQueueArrays, place: int) -> int:
    """Return the zone of a tuple."""
    shift = windows.pool.facts[SHIFT]
    start = (place >> shift) << shift
    return int(start + (place - start) // windows.space[UNIT] * windows.space[UNIT])


@kernel
def offset_of(windows: WindowQueueArrays, place: int) -> int:
    """Return the offset of a tuple in its zone."""
    return int((place - zone_of(windows, place) - ZONE) // windows.facts[WIDTH])


@kernel
def next_place(windows: WindowQueueArrays, place: int) -> int:
    """Return the next tuple of a buffer, in its zone or the next one, NONE after the last."""
    words, width = windows.pool.words, windows.facts[WIDTH]
    zone = zone_of(windows, place)
    if place + width < zone + ZONE + words[zone + ENQ] * width:
        return int(place + width)
    after = words[zone + NEXT]
    if after == NONE:
        return NONE
    return int(after + ZONE + words[after + DEQ] * width)


@kernel
def append_place(windows: WindowQueueArrays, cell: int) -> int:
    """Make room for a tuple in the last zone of a buffer, or a new one (`has_room`)."""
    words, cells = windows.pool.words, windows.cells
    back = cells[cell, BACK]
    if back == NONE or words[back + ENQ] == windows.facts[ROWS]:
        zone = take_unit(windows.pool, windows.space)
        shift = windows.pool.facts[SHIFT]
        words[zone + PAGE] = zone >> shift
        words[zone + BLOCK] = (zone - (zone >> shift << shift)) // windows.space[UNIT]
        words[zone + DEQ] = 0
        words[zone + ENQ] = 0
        words[zone + PREV] = back
        words[zone + NEXT] = NONE
        if back == NONE:
            cells[cell, FRONT] = zone
        else:
            words[back + NEXT] = zone
        cells[cell, BACK] = zone
        back = zone
    place = back + ZONE + words[back + ENQ] * windows.facts[WIDTH]
    words[back + ENQ] += 1
    cells[cell, ET] = place
    return int(place)


@kernel
def drop_zone(windows: WindowQueueArrays, cell: int, zone: int) -> None:
    """Remove a zone from its buffer and free its block."""
    words, cells = windows.pool.words, windows.cells
    before, after = words[zone + PREV], words[zone + NEXT]
    if before == NONE:
        cells[cell, FRONT] = after
    else:
        words[before + NEXT] = after
    if after == NONE:
        cells[cell, BACK] = before
    else:
        words[after + PREV] = before
    give_unit(windows.pool, windows.space, zone)


@kernel
def drop_back(windows: WindowQueueArrays, cell: int, place: int) -> None:
    """Drop a tuple and all after it from the zones of a buffer; its zone stays."""
    words, cells = windows.pool.words, windows.cells
    zone = zone_of(windows, place)
    while cells[cell, BACK] != zone:
        drop_zone(windows, cell, cells[cell, BACK])
    words[zone + ENQ] = offset_of(windows, place)


@kernel
def drop_front(windows: WindowQueueArrays, cell: int) -> None:
    """Drop all zones before the first live tuple, or everything if there is none."""
    words, cells = windows.pool.words, windows.cells
    reads, starts = NONE, NONE
    if cells[cell, UNREAD] > 0:
        reads = zone_of(windows, cells[cell, DF])
    if cells[cell, WS] != NONE:
        starts = zone_of(windows, cells[cell, WS])
    while cells[cell, FRONT] != NONE:
        front = cells[cell, FRONT]
        if front in (reads, starts):
            offset = windows.facts[ROWS]
            if front == reads:
                offset = offset_of(windows, cells[cell, DF])
            if front == starts:
                offset = min(offset, offset_of(windows, cells[cell, WS]))
            words[front + DEQ] = offset
            return
        drop_zone(windows, cell, front)


@kernel
def drop_middle(windows: WindowQueueArrays, cell: int) -> None:
    """Drop the zones between the committed window and the newest one."""
    words, cells = windows.pool.words, windows.cells
    if cells[cell, UNREAD] == 0 or cells[cell, WS] == NONE:
        return
    reads = zone_of(windows, cells[cell, DF])
    zone = words[zone_of(windows, cells[cell, WS]) + PREV]
    while zone not in (NONE, reads):
        first = zone + ZONE + words[zone + DEQ] * windows.facts[WIDTH]
        if words[first + TIME] <= cells[cell, END]:
            return
        before = words[zone + PREV]
        drop_zone(windows, cell, zone)
        zone = before
