"""Windows as updates, whole batches at a time: the loops around `transitions`.

Invariant: a batch leaves what its tuples leave one by one
(`test_parity_window_queue_beside_its_definition`).

Cost: O(1) per tuple, amortised.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.fold import Index
from icestream.kernels.queue.windows.transitions import (
    FULL,
    ORDINARY,
    TAKEN,
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
    ID_HIGH,
    ID_LOW,
    LACKS,
    LAST,
    MARK,
    NEWEST,
    NONE,
    PROMISED,
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


@kernel
def blank_cell(cells: Table, cell: int) -> None:
    """Initialise the cell of a new key of a batch of tuples."""
    for word in range(CELL):
        cells[cell, word] = 0
    for word in (LAST, CLOCK, NEWEST, FIRST, COMMITTED, FRONT, BACK, DF, WS, WE, ET):
        cells[cell, word] = NONE
    for word in range(LACKS, PROMISED + 1):
        cells[cell, word] = NONE


@kernel
def find_cells(
    cells: Table, index: Index, used: int, id_high: Ids, id_low: Ids, first: int, found: Ints
) -> tuple[int, int]:
    """Find the cell of each key of a batch of tuples, or create it; stop when room ends.

    Returns (first key not done, cells used); the index is kept at most half full.
    """
    mask = index.size - 1
    for i in range(first, id_high.size):
        place = np.int64(id_low[i] >> np.uint64(20)) & mask
        while True:
            cell = index[place] - 1
            if cell < 0:
                if used == cells.shape[0] or 2 * (used + 1) > index.size:
                    return i, used
                cell = used
                used += 1
                index[place] = cell + 1
                blank_cell(cells, cell)
                cells[cell, ID_HIGH] = np.int64(id_high[i])
                cells[cell, ID_LOW] = np.int64(id_low[i])
                break
            if (
                np.uint64(cells[cell, ID_HIGH]) == id_high[i]
                and np.uint64(cells[cell, ID_LOW]) == id_low[i]
            ):
                break
            place = (place + 1) & mask
        found[i] = cell
    return id_high.size, used


@kernel
def enqueue_many(
    windows: WindowQueueArrays, found: Ints, times: Ints, arrived: Ints, rows: Table
) -> None:
    """Add a batch of tuples with their rows; there must be room for all."""
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
def dequeue_many(windows: WindowQueueArrays, records: Table, rows: Table, most: int) -> int:
    """Read a batch of tuples in the order of service until records are full or no key is left.

    At most `most` windows end.
    A window whose last tuple came before its last instant ends with a record that is not a tuple,
    at its last instant. Returns the number of records; `records` needs room for one more than
    wanted.
    """
    cells, words = windows.cells, windows.pool.words
    count = ended = 0
    while count < records.shape[0] - 1 and ended < most:
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
        if not finish_one(windows, cell):
            continue
        ended += 1
        if time != end:
            records[count, RECORD_CELL] = cell
            records[count, RECORD_TIME] = end
            records[count, RECORD_ARRIVED] = end
            records[count, RECORD_MARK] = ORDINARY
            records[count, RECORD_IS_TUPLE] = 0
            count += 1
    return count
