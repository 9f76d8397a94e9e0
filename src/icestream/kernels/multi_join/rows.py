"""Moves rows of a join: from the heap to the log, back, and their payloads into one array.

Idea: on the log a row is [id_high, id_low, le, re, payload words...], sorted by id_high; in the
    heap
it has the slot of its key instead. Both have their length in the first word of their payload.

Invariants:
1. A packed row has the id, lifetime and payload of the row in the heap
   (`test_parity_rows_listed_packed_and_found_again`).
2. Rows that run past the end, or are empty, are detected
   (`test_parity_rows_of_a_record_that_makes_no_sense`).
3. Gathered payloads are those of the places given, in that order
   (`test_parity_gathered_payloads`).

Cost: one pass over the words copied.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.multi_join.resident import HEAD, KEY, LE, PORT_BITS, RE

#: words of a row on the log before its payload: id, lifetime
LOG_ID_HIGH = 0
LOG_ID_LOW = 1
LOG_LE = 2
LOG_RE = 3
LOG_HEAD = 4


@kernel
def list_rows(
    heap: Ints, begin: int, end: int, keys: Table, places: Ints, ports: Ints, id_high: Ids
) -> int:
    """List the rows of a join between two places of the heap, with port and id_high; count them."""
    count = 0
    at = begin
    while at < end:
        places[count] = at
        ports[count] = heap[at + KEY] & ((1 << PORT_BITS) - 1)
        id_high[count] = np.uint64(keys[heap[at + KEY] >> PORT_BITS, 0])
        count += 1
        at += HEAD + (heap[at + HEAD] >> 32)
    return count


@kernel
def pack_rows(heap: Ints, keys: Table, places: Ints, words: Ints) -> int:
    """Write rows of a join from the heap in the format of the log; return the words written."""
    used = 0
    for i in range(places.size):
        at = places[i]
        slot = heap[at + KEY] >> PORT_BITS
        size = heap[at + HEAD] >> 32
        words[used + LOG_ID_HIGH] = keys[slot, 0]
        words[used + LOG_ID_LOW] = keys[slot, 1]
        words[used + LOG_LE] = heap[at + LE]
        words[used + LOG_RE] = heap[at + RE]
        for word in range(size):
            words[used + LOG_HEAD + word] = heap[at + HEAD + word]
        used += LOG_HEAD + size
    return used


@kernel
def log_starts(words: Ints, starts: Ints) -> int:
    """Fill `starts` with the word at which each row of a join begins on the log; return how many.

    -1 if a row has no payload, or runs past the end of the words.
    """
    at = 0
    count = 0
    while at < words.size:
        if at + LOG_HEAD >= words.size:
            return -1
        size = words[at + LOG_HEAD] >> 32
        if size < 1 or size > words.size - at - LOG_HEAD:
            return -1
        starts[count] = at
        count += 1
        at += LOG_HEAD + size
    return count


@kernel
def gather_payloads(heap: Ints, places: Ints, words: Ints) -> None:
    """Copy the payloads of rows of a join, one after the other."""
    used = 0
    for i in range(places.size):
        at = places[i]
        size = heap[at] >> 32
        for word in range(size):
            words[used + word] = heap[at + word]
        used += size
