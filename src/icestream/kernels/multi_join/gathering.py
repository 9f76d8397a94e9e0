"""Rows of a join from records of the log into one heap, and there in the order of identities.

Idea: the heap fills from both ends. Rows grow from its begin, as the log has them; from its end
grows a pair for each, its place and its generation with its port. Records come in the order of the
log, so pairs of one identity come in that of generations, and a record is a run in the order of hi:
merging neighbouring runs until one is left, and telling the few identities of one hi apart, puts
all rows in the order of (port, identity, generation).

Invariants:
1. Of a record, exactly the rows of a range that belong to partitions at hand and are not garbage
   are taken, with their generation (`test_parity_rows_taken_from_a_record`).
2. A record whose rows run past its end, or are not in the order of hi, is found out before one of
   them is read (`test_parity_rows_taken_from_a_record`).
3. Nothing is written where rows and pairs would meet, room for ordering included
   (`test_bounded_rows_that_do_not_fit_are_told`).
4. Equal identities stay in the order they came in (`test_parity_pairs_put_in_order`).

Cost: one pass over a record; O(rows x log(records)) to order them, and O(n x m) where n rows of an
identity share their hi with m rows of another.

References: merge sort of runs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.multi_join.resident import PORT_BITS, partition_of
from icestream.kernels.multi_join.rows import LOG_HEAD, LOG_HI, LOG_LO

#: what a pair holds: where the row is in the heap; its generation, with its port below it at first
PLACE = 0
GENERATION = 1
PAIR = 2
#: words that each row takes beside its own: its pair, and as much to put it in order
ORDERING = 2 * PAIR
#: instead of the words in use: the record does not hold rows in order, or does not fit
DAMAGED = -1
FULL = -2


def pairs_of(heap: Ints, first: int, end: int) -> Table:
    """Return the pairs from a first one up to an end, in the order they came in."""
    pairs = heap[heap.size - PAIR * end : heap.size - PAIR * first].reshape(-1, PAIR)
    return pairs[::-1]


@kernel
def take_rows(
    words: Ints,
    port: int,
    epoch: int,
    first: np.uint64,
    last: np.uint64,
    due: npt.NDArray[np.bool_],
    floor: Ints,
    cuts: Table,
    begins: Ints,
    heap: Ints,
    used: int,
    count: int,
) -> tuple[int, int]:
    """Take the rows of a record into a heap of `used` words and `count` pairs; return both anew.

    Rows are taken whose hi is from `first` to `last` and whose partition is `due`, with a `floor`
    before the epoch of the record. `cuts` are sorted, those of partition p begin at `begins[p]`.
    Instead of words come `DAMAGED` or `FULL`.
    """
    at = 0
    before = np.uint64(0)
    partition = np.int64(-1)
    taken = False
    generation = 0
    while at < words.size:
        if at + LOG_HEAD >= words.size:
            return DAMAGED, count
        size = LOG_HEAD + (words[at + LOG_HEAD] >> 32)
        hi = np.uint64(words[at + LOG_HI])
        if size <= LOG_HEAD or size > words.size - at or hi < before:
            return DAMAGED, count
        before = hi
        if first <= hi <= last:
            home = partition_of(words[at + LOG_HI], due.size)
            if home != partition:
                partition = home
                taken = due[home] and floor[home] < epoch
                generation = 0
                for cut in range(begins[home], begins[home + 1]):
                    if cuts[cut, 1] < epoch:
                        generation += 1
            if taken:
                if used + size + ORDERING * (count + 1) > heap.size:
                    return FULL, count
                for word in range(size):
                    heap[used + word] = words[at + word]
                count += 1
                heap[heap.size - PAIR * count + PLACE] = used
                heap[heap.size - PAIR * count + GENERATION] = generation << PORT_BITS | port
                used += size
        at += size
    return used, count


@kernel
def _before(heap: Ints, pairs: Table, one: int, other: int) -> bool:
    """Tell whether a pair must come before another, by port and hi."""
    port = pairs[one, GENERATION] & ((1 << PORT_BITS) - 1)
    other_port = pairs[other, GENERATION] & ((1 << PORT_BITS) - 1)
    if port != other_port:
        return bool(port < other_port)
    hi = np.uint64(heap[pairs[one, PLACE] + LOG_HI])
    return bool(hi < np.uint64(heap[pairs[other, PLACE] + LOG_HI]))


@kernel
def _tell_apart(heap: Ints, pairs: Table) -> None:
    """Put pairs of one port and hi, which hardly ever differ in lo, in the order of lo."""
    for end in range(1, pairs.shape[0]):
        at = end
        while at > 0 and not _before(heap, pairs, at - 1, at):
            lo = np.uint64(heap[pairs[at, PLACE] + LOG_LO])
            if lo >= np.uint64(heap[pairs[at - 1, PLACE] + LOG_LO]):
                break
            for word in range(PAIR):
                pairs[at, word], pairs[at - 1, word] = pairs[at - 1, word], pairs[at, word]
            at -= 1


@kernel
def _merge(heap: Ints, pairs: Table, begin: int, middle: int, end: int, merged: Table) -> None:
    """Merge two runs of pairs that follow each other; either may be empty."""
    one = begin
    other = middle
    for at in range(begin, end):
        if other < end and (one == middle or _before(heap, pairs, other, one)):
            source = other
            other += 1
        else:
            source = one
            one += 1
        merged[at, PLACE] = pairs[source, PLACE]
        merged[at, GENERATION] = pairs[source, GENERATION]


@kernel
def order_pairs(heap: Ints, pairs: Table, spare: Table, bounds: Ints, counts: Ints) -> None:
    """Put pairs in the order of (port, identity), those of one identity as they came.

    Between two `bounds`, which are used up, pairs are in the order of (port, hi); `spare` has as
    many pairs. What is left of a port in a pair is taken away and added to `counts`.
    """
    runs = bounds.size - 1
    total = pairs.shape[0]
    source = pairs
    target = spare
    while runs > 1:
        for run in range(0, runs, 2):
            begin = bounds[run]
            _merge(heap, source, begin, bounds[run + 1], bounds[min(run + 2, runs)], target)
            bounds[run // 2] = begin
        runs = (runs + 1) // 2
        bounds[runs] = total
        source, target = target, source
    _tell_apart(heap, source)
    for at in range(total):
        generation = source[at, GENERATION]
        counts[generation & ((1 << PORT_BITS) - 1)] += 1
        pairs[at, PLACE] = source[at, PLACE]
        pairs[at, GENERATION] = generation >> PORT_BITS
