"""Windows as updates, whole batches at a time, and a simulation of them in virtual time.

Idea: the loops around `kernels.queue.windows.transitions`. A run has one operator that takes `cost`
for each tuple; arrivals at the very time at which a tuple is finished, or a key chosen, come first.

Invariants:
1. A batch has the effect of its tuples one by one
   (`test_parity_window_queue_beside_its_definition`).
2. A run follows the rules as written down (`test_parity_runs_beside_the_definition`).

Cost: O(1) per tuple, amortised.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.fold import Index
from icestream.kernels.queue.windows.lists import WAIT
from icestream.kernels.queue.windows.transitions import (
    FULL,
    ORDINARY,
    TAKEN,
    UPDATE,
    enqueue_one,
    finish_one,
    read_one,
    serve_one,
)
from icestream.kernels.queue.windows.zones import (
    ARRIVED,
    BACK,
    CELL,
    CLOCK,
    COMMITTED,
    DF,
    END,
    ET,
    FIRST,
    FRONT,
    HI,
    LACKS,
    LAST,
    LO,
    MARK,
    NEWEST,
    NONE,
    PROMISED,
    SINCE,
    STATES,
    TIME,
    TUPLE,
    WE,
    WS,
    WindowQueueArrays,
)

#: words of a record returned: key cell, time, arrival, mark, whether it is a tuple
RECORD_CELL = 0
RECORD_TIME = 1
RECORD_ARRIVED = 2
RECORD_MARK = 3
RECORD_IS_TUPLE = 4
RECORD = 5

#: words of a commit in a run: key, window, time, start of the key's wait
COMMIT = 4
#: words of a delivery in a run: key, window, time
DELIVERY = 3
#: kinds of arrivals in a run: no update, update of a key that did not wait, of one that did
NOTHING = 0
INSERTS = 1
UPDATES_WAITING = 2


@kernel
def blank_cell(cells: Table, cell: int) -> None:
    """Initialise the cell of a new key."""
    for word in range(CELL):
        cells[cell, word] = 0
    for word in (LAST, CLOCK, NEWEST, FIRST, COMMITTED, FRONT, BACK, DF, WS, WE, ET):
        cells[cell, word] = NONE
    for word in range(LACKS, PROMISED + 1):
        cells[cell, word] = NONE


@kernel
def find_cells(
    cells: Table, index: Index, used: int, hi: Ids, lo: Ids, first: int, found: Ints
) -> tuple[int, int]:
    """Find the cell of each key from `first` on, creating new ones; stop when room ends.

    Returns (first key not done, cells used); the index is kept at most half full.
    """
    mask = index.size - 1
    for i in range(first, hi.size):
        place = np.int64(lo[i] >> np.uint64(20)) & mask
        while True:
            cell = index[place] - 1
            if cell < 0:
                if used == cells.shape[0] or 2 * (used + 1) > index.size:
                    return i, used
                cell = used
                used += 1
                index[place] = cell + 1
                blank_cell(cells, cell)
                cells[cell, HI] = np.int64(hi[i])
                cells[cell, LO] = np.int64(lo[i])
                break
            if np.uint64(cells[cell, HI]) == hi[i] and np.uint64(cells[cell, LO]) == lo[i]:
                break
            place = (place + 1) & mask
        found[i] = cell
    return hi.size, used


@kernel
def enqueue_many(
    windows: WindowQueueArrays, found: Ints, times: Ints, arrived: Ints, rows: Table
) -> None:
    """Add tuples with their rows; there must be room for all."""
    words = windows.pool.words
    for i in range(found.size):
        cell = found[i]
        said = enqueue_one(windows, cell, times[i], arrived[i])
        assert said != FULL
        if said >= TAKEN:
            place = windows.cells[cell, ET] + TUPLE
            for word in range(rows.shape[1]):
                words[place + word] = rows[i, word]


@kernel
def dequeue_many(windows: WindowQueueArrays, records: Table, rows: Table) -> int:
    """Read tuples in the order of service until records are full or no key can be served.

    A window whose last tuple came before its last instant ends with a record that is not a tuple,
    at its last instant. Returns the number of records; `records` needs room for one more than
    wanted.
    """
    cells, words = windows.cells, windows.pool.words
    count = 0
    while count < records.shape[0] - 1:
        cell, place = serve_one(windows)
        if cell == NONE:
            break
        end = cells[cell, END]
        time = NONE
        if place != NONE:
            time = words[place + TIME]
            records[count, RECORD_CELL] = cell
            records[count, RECORD_TIME] = time
            records[count, RECORD_ARRIVED] = words[place + ARRIVED]
            records[count, RECORD_MARK] = words[place + MARK]
            records[count, RECORD_IS_TUPLE] = 1
            for word in range(rows.shape[1]):
                rows[count, word] = words[place + TUPLE + word]
            count += 1
            read_one(windows, cell)
        if finish_one(windows, cell) and time != end:
            records[count, RECORD_CELL] = cell
            records[count, RECORD_TIME] = end
            records[count, RECORD_ARRIVED] = end
            records[count, RECORD_MARK] = ORDINARY
            records[count, RECORD_IS_TUPLE] = 0
            count += 1
    return count


@kernel
def arrive_until(
    windows: WindowQueueArrays,
    keys: Ints,
    times: Ints,
    arrived: Ints,
    now: int,
    first: int,
    kinds: Ints,
) -> int:
    """Add the arrivals up to now, from `first` on; return the first not added."""
    for i in range(first, keys.size):
        if arrived[i] > now:
            return i
        waits = windows.cells[keys[i], STATES] & WAIT
        said = enqueue_one(windows, keys[i], times[i], arrived[i])
        if said == FULL:
            return i
        kinds[i] = NOTHING
        if said == UPDATE:
            kinds[i] = UPDATES_WAITING if waits else INSERTS
    return keys.size


@kernel
def run_windows(
    windows: WindowQueueArrays,
    keys: Ints,
    times: Ints,
    arrived: Ints,
    cost: int,
    kinds: Ints,
    commits: Table,
    deliveries: Table,
) -> tuple[int, int, int]:
    """Run arrivals, in their order, through one operator until all is served.

    Fills in the kind of each arrival, the commits and the deliveries; returns (arrivals added,
    commits, deliveries). It stops when room ends, which is an error of the caller.
    """
    cells = windows.cells
    now = 0
    i = 0
    committed = 0
    delivered = 0
    while True:
        i = arrive_until(windows, keys, times, arrived, now, i, kinds)
        cell, place = serve_one(windows)
        if cell == NONE:
            if i == keys.size or arrived[i] <= now:
                return i, committed, delivered
            now = arrived[i]
            continue
        window = cells[cell, COMMITTED]
        if place != NONE:
            if windows.pool.words[place + MARK] > 0:
                commits[committed, 0] = cell
                commits[committed, 1] = window
                commits[committed, 2] = now
                commits[committed, 3] = cells[cell, SINCE]
                committed += 1
            read_one(windows, cell)
            now += cost
            i = arrive_until(windows, keys, times, arrived, now, i, kinds)
        if finish_one(windows, cell):
            deliveries[delivered, 0] = cell
            deliveries[delivered, 1] = window
            deliveries[delivered, 2] = now
            delivered += 1
