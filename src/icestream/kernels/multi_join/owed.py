"""Results that combine several generations of a partition.

Idea: the rows of each port are sorted by id and then by generation. A merge of all ports finds the
ids that all of them have; their rows are combined in nested loops that skip what was emitted
before: combinations of one generation, and those without a member that came after the last
clean-up. Such combinations are hardly visited: if all members so far are of one generation, later
ports that have no other are not entered, and the last loop jumps over the rows of that generation;
likewise if none is new.

Invariants:
1. Exactly the combinations with a common instant, members of at least two generations and a new
   member are found, once each, whatever the capacity (`test_parity_owed_combinations`).

Cost: O(rows + combinations that share a generation's prefix and an instant).

References: incremental view maintenance of a join by its sources' changes.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.multi_join.gathering import GENERATION, PLACE
from icestream.kernels.multi_join.rows import LOG_ID_HIGH, LOG_ID_LOW, LOG_LE, LOG_RE

#: state of the traversal for each port: the rows of the current key, the position among them,
#: the lifetime of the members up to this port, their generation if it is one, and the generation
#: that all later ports consist of, if it is one; whether a member up to this port is new, and
#: whether a later port has a new row
BEGIN = 0
END = 1
CURSOR = 2
START = 3
STOP = 4
SAME = 5
LATER = 6
NEW = 7
NEWS = 8
WALK = 9
#: no single generation
MIXED = -1


@kernel
def _less(heap: Ints, at: int, other: int) -> bool:
    """Return whether the id of a row is less than that of another."""
    a = np.uint64(heap[at + LOG_ID_HIGH])
    b = np.uint64(heap[other + LOG_ID_HIGH])
    if a != b:
        return bool(a < b)
    return bool(np.uint64(heap[at + LOG_ID_LOW]) < np.uint64(heap[other + LOG_ID_LOW]))


@kernel
def _next_key(heap: Ints, pairs: Table, bounds: Ints, walk: Table) -> bool:
    """Move to the rows of the next id that all ports have; False if there is none."""
    ports = walk.shape[0]
    for port in range(ports):
        walk[port, BEGIN] = walk[port, END]
        if walk[port, BEGIN] == bounds[port + 1]:
            return False
    agreed = 1
    most = pairs[walk[0, BEGIN], PLACE]
    port = 1
    while agreed < ports:
        while _less(heap, pairs[walk[port, BEGIN], PLACE], most):
            walk[port, BEGIN] += 1
            if walk[port, BEGIN] == bounds[port + 1]:
                return False
        if _less(heap, most, pairs[walk[port, BEGIN], PLACE]):
            most = pairs[walk[port, BEGIN], PLACE]
            agreed = 1
        else:
            agreed += 1
        port = (port + 1) % ports
    for port in range(ports):
        end = walk[port, BEGIN] + 1
        while end < bounds[port + 1] and not _less(heap, most, pairs[end, PLACE]):
            end += 1
        walk[port, END] = end
    return True


@kernel
def _look_ahead(pairs: Table, walk: Table) -> bool:
    """Record what later ports have; False if all rows are of one generation, or none is new."""
    later = np.int64(-2)
    news = np.int64(0)
    for port in range(walk.shape[0] - 1, -1, -1):
        walk[port, LATER] = later
        walk[port, NEWS] = news
        first = pairs[walk[port, BEGIN], GENERATION] >> 1
        final = pairs[walk[port, END] - 1, GENERATION]
        later = first if first == final >> 1 and later in (-2, first) else np.int64(MIXED)
        news |= final & 1
    return bool(later == MIXED and news)


@kernel
def _leap(pairs: Table, row: int, end: int) -> int:
    """Return the first row of a later generation, given the sorted rows of a key and port."""
    generation = pairs[row, GENERATION] >> 1
    low = row + 1
    high = end
    while low < high:
        middle = (low + high) // 2
        if pairs[middle, GENERATION] >> 1 > generation:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _first_new(pairs: Table, row: int, end: int) -> int:
    """Return the first new row, given the sorted rows of a key and port."""
    low = row
    high = end
    while low < high:
        middle = (low + high) // 2
        if pairs[middle, GENERATION] & 1:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def owed(
    heap: Ints,
    pairs: Table,
    bounds: Ints,
    state: Ints,
    walk: Table,
    found: Table,
    lifetimes: Table,
) -> int:
    """Fill `found` with the next combinations a join owes, and their `lifetimes`; return how many.

    `pairs` are heap place and generation of rows, those of port p from `bounds[p]` to
    `bounds[p + 1]`, sorted by (id, generation, new). `state` is the depth of the traversal, -1 at
    first; `walk[:, END]` begins as `bounds[:-1]`. There are no more combinations when fewer are
    returned than there was room for.
    """
    count = 0
    last = walk.shape[0] - 1
    depth = state[0]
    while True:
        if depth < 0:
            if not _next_key(heap, pairs, bounds, walk):
                for port in range(last + 1):
                    walk[port, END] = bounds[port + 1]
                break
            if not _look_ahead(pairs, walk):
                continue
            depth = 0
            walk[0, CURSOR] = walk[0, BEGIN]
        row = walk[depth, CURSOR]
        if row == walk[depth, END]:
            depth -= 1
            if depth >= 0:
                walk[depth, CURSOR] += 1
            continue
        new = pairs[row, GENERATION] & 1 | (walk[depth - 1, NEW] if depth > 0 else 0)
        if not new and not walk[depth, NEWS]:
            walk[depth, CURSOR] = _first_new(pairs, row, walk[depth, END])
            continue
        generation = pairs[row, GENERATION] >> 1
        same = generation
        if depth > 0 and walk[depth - 1, SAME] != generation:
            same = np.int64(MIXED)
        if depth == last and same != MIXED:
            walk[depth, CURSOR] = _leap(pairs, row, walk[depth, END])
            continue
        at = pairs[row, PLACE]
        start = heap[at + LOG_LE]
        stop = heap[at + LOG_RE]
        if depth > 0:
            start = max(start, walk[depth - 1, START])
            stop = min(stop, walk[depth - 1, STOP])
        if start >= stop or (same != MIXED and walk[depth, LATER] == same):
            walk[depth, CURSOR] += 1
            continue
        if depth < last:
            walk[depth, START] = start
            walk[depth, STOP] = stop
            walk[depth, SAME] = same
            walk[depth, NEW] = new
            depth += 1
            walk[depth, CURSOR] = walk[depth, BEGIN]
            continue
        if count == found.shape[0]:
            break
        for port in range(last + 1):
            found[count, port] = pairs[walk[port, CURSOR], PLACE]
        lifetimes[count, 0] = start
        lifetimes[count, 1] = stop
        count += 1
        walk[depth, CURSOR] += 1
    state[0] = depth
    return count
