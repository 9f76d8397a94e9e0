"""A queue of windows before one operator, in virtual time.

Idea: the operator takes `cost` for each tuple. What arrives at the instant at which a tuple is
done, or a key is chosen, has arrived before. The queue is the real one: `enqueue_one`, `serve_one`,
`read_one` and `finish_one` are what batches run.

Invariant: a run follows the rules as written down (`test_parity_runs_beside_the_definition`).

Cost: O(1) per tuple, amortised.
"""

from __future__ import annotations

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.queue.windows.lists import WAIT
from icestream.kernels.queue.windows.transitions import (
    FULL,
    UPDATE,
    enqueue_one,
    finish_one,
    read_one,
    serve_one,
)
from icestream.kernels.queue.windows.zones import (
    COMMITTED,
    MARK,
    NONE,
    SINCE,
    STATES,
    WindowQueueArrays,
)

#: words of a commit: key, window, instant, since when the key waited
COMMIT = 4
#: words of a delivery: key, window, instant
DELIVERY = 3
#: what an arrival is: nothing, an update of a key that did not wait, of one that did
NOTHING = 0
INSERTS = 1
UPDATES_WAITING = 2


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
    """Let what has come by now arrive, from `first` on; return where that or room ends."""
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

    Fills what each arrival was, the commits and the deliveries; returns (arrivals taken, commits,
    deliveries). It stops where room ends, which is an error of the caller.
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
