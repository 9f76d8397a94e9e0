"""The tuples of window buffers as a flat table, and back into buffers.

Idea: a snapshot has the content of buffers, not their layout: for each key its live tuples in the
order of time, and which of them the committed window reads next, ends with so far, and the newest
window starts with. A restore fills fresh zones, so no address from a file is ever used.

Invariants:
1. Tuples that were put back are lifted unchanged (`test_parity_lifted_tuples_are_put_back`).
2. The tuples lifted are the live ones (the same test, compared with the reference).

Cost: O(keys + tuples).
"""

from __future__ import annotations

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.queue.windows.zones import (
    BACK,
    DEQ,
    DF,
    ET,
    FRONT,
    NONE,
    UNREAD,
    WE,
    WIDTH,
    WS,
    ZONE,
    WindowQueueArrays,
    append_place,
    next_place,
)

#: columns of ordinals: the tuple read next, the last of the committed window, the first of the
#: newest window; NONE if there is none
READS = 0
ENDS = 1
STARTS = 2
ORDINALS = 3


@kernel
def lift_tuples(windows: WindowQueueArrays, counts: Ints, ordinals: Table, tuples: Table) -> int:
    """Copy the live tuples of all window buffers, to restore them; return how many there are."""
    facts, cells, words = windows.facts, windows.cells, windows.pool.words
    count = 0
    for cell in range(counts.size):
        begun = count
        for column in range(ORDINALS):
            ordinals[cell, column] = NONE
        reads = cells[cell, DF] if cells[cell, UNREAD] > 0 else NONE
        ends = cells[cell, WE] if cells[cell, UNREAD] > 0 else NONE
        starts = cells[cell, WS]
        is_read = False
        is_newest = False
        zone = cells[cell, FRONT]
        place = NONE
        if zone != NONE:
            place = zone + ZONE + words[zone + DEQ] * facts[WIDTH]
        while place != NONE:
            is_read = is_read or place == reads
            is_newest = is_newest or place == starts
            if is_read or is_newest:
                if place == reads:
                    ordinals[cell, READS] = count - begun
                if place == ends:
                    ordinals[cell, ENDS] = count - begun
                if place == starts:
                    ordinals[cell, STARTS] = count - begun
                for word in range(tuples.shape[1]):
                    tuples[count, word] = words[place + word]
                count += 1
            if place == ends:
                is_read = False
            place = next_place(windows, place)
        counts[cell] = count - begun
    return count


@kernel
def put_tuples(windows: WindowQueueArrays, counts: Ints, ordinals: Table, tuples: Table) -> None:
    """Restore tuples into the empty window buffers of keys; there must be zones for all."""
    cells, words = windows.cells, windows.pool.words
    taken = 0
    for cell in range(counts.size):
        for column in (FRONT, BACK, DF, WE, WS, ET):
            cells[cell, column] = NONE
        for number in range(counts[cell]):
            place = append_place(windows, cell)
            for word in range(tuples.shape[1]):
                words[place + word] = tuples[taken, word]
            if ordinals[cell, READS] == number:
                cells[cell, DF] = place
            if ordinals[cell, ENDS] == number:
                cells[cell, WE] = place
            if ordinals[cell, STARTS] == number:
                cells[cell, WS] = place
            taken += 1
