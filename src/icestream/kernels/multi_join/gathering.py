"""Reads rows of a join from records of the log into one heap, and sorts them by id.

Idea: the heap fills from both ends. Rows grow from its start, as they are on the log; from its end
grow pairs, one per row: its place, and its generation with its port. Records come in log order, so
pairs of one id come in the order of generations, and a record is a run sorted by id_high. Merging
neighbouring runs until one is left, and then separating the few ids with equal id_high, sorts all
rows by (port, id, generation).

Invariants:
1. Of a record, exactly the rows of a range are taken that belong to the partitions wanted and are
   not garbage, with their generation (`test_parity_rows_taken_from_a_record`).
2. A record whose rows run past its end, or are not sorted by id_high, is detected before one of
   them is read (`test_parity_rows_taken_from_a_record`).
3. Nothing is written if rows, pairs and room for sorting would overlap
   (`test_bounded_rows_that_do_not_fit_are_reported`).
4. Equal ids keep their order (`test_parity_pairs_put_in_order`).

Cost: one pass over a record; O(rows x log(records)) to sort them, and O(n x m) if n rows of an id
share their id_high with m rows of another.

References: merge sort of runs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.multi_join.resident import PORT_BITS, partition_of
from icestream.kernels.multi_join.rows import LOG_HEAD, LOG_ID_HIGH, LOG_ID_LOW

#: words of a pair: the row's place in the heap; its generation and, in the last bit, whether it
#: came after the last clean-up, at first with its port below
PLACE = 0
GENERATION = 1
PAIR = 2
#: words per row in addition to its own: its pair, and as much for sorting
ORDERING = 2 * PAIR
#: returned instead of the words in use: the record is not sorted, or does not fit
DAMAGED = -1
FULL = -2


def pairs_of(heap: Ints, first: int, end: int) -> Table:
    """Return the pairs that a join gathered from a first one up to an end, in that order."""
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
    cleaned: Ints,
    cuts: Table,
    begins: Ints,
    heap: Ints,
    used: int,
    count: int,
) -> tuple[int, int]:
    """Gather the rows of a join's record into a heap of `used` words, `count` pairs; return both.

    Rows are taken whose id_high is from `first` to `last` and whose partition is `due`, with a
    `floor` before the epoch of the record; they are new after the epoch `cleaned`. `cuts` are
    sorted, those of partition p begin at `begins[p]`. `DAMAGED` or `FULL` is returned instead of
    words.
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
        id_high = np.uint64(words[at + LOG_ID_HIGH])
        if size <= LOG_HEAD or size > words.size - at or id_high < before:
            return DAMAGED, count
        before = id_high
        if first <= id_high <= last:
            home = partition_of(words[at + LOG_ID_HIGH], due.size)
            if home != partition:
                partition = home
                taken = due[home] and floor[home] < epoch
                generation = 0
                for cut in range(begins[home], begins[home + 1]):
                    if cuts[cut, 1] < epoch:
                        generation += 1
                generation = 2 * generation + (epoch > cleaned[home])
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
    """Return whether a pair must come before another, by port and id_high."""
    port = pairs[one, GENERATION] & ((1 << PORT_BITS) - 1)
    other_port = pairs[other, GENERATION] & ((1 << PORT_BITS) - 1)
    if port != other_port:
        return bool(port < other_port)
    id_high = np.uint64(heap[pairs[one, PLACE] + LOG_ID_HIGH])
    return bool(id_high < np.uint64(heap[pairs[other, PLACE] + LOG_ID_HIGH]))


@kernel
def _tell_apart(heap: Ints, pairs: Table) -> None:
    """Sort pairs of one port and id_high, which hardly ever differ in id_low, by id_low."""
    for end in range(1, pairs.shape[0]):
        at = end
        while at > 0 and not _before(heap, pairs, at - 1, at):
            id_low = np.uint64(heap[pairs[at, PLACE] + LOG_ID_LOW])
            if id_low >= np.uint64(heap[pairs[at - 1, PLACE] + LOG_ID_LOW]):
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
    """Sort the pairs that a join gathered by (port, id); those of one id keep their order.

    Between two `bounds`, which are overwritten, pairs are sorted by (port, id_high); `spare` has as
    many pairs. The port is removed from each pair and added to `counts`.
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
