"""The rows of an n-way join in memory: one heap of rows, one table of keys, chains by key and port.

Idea: a row is [key and port, le, re, next, payload words...] somewhere in a flat heap; the payload
contains its length. A key is [id_high, id_low, head of each port]; an open-addressing index finds
it. Rows of a key and port are chained, newest first. A chunk of rows is combined with the chains of
the other ports by a traversal that stops when the caller's arrays are full and can be continued.

Invariants:
1. A key is found exactly if it was opened (`test_parity_keys_beside_a_dict`).
2. All combinations with a common instant are found, once, whatever the capacity
   (`test_parity_combinations_of_random_rows`).
3. Compaction keeps the live rows of the other partitions, in order, and their chains
   (`test_parity_compacting_beside_a_list`).

Cost: O(1) lookup for each row, then O(rows of the chains visited); compaction is one pass.

References: symmetric hash join of several inputs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels.compile import kernel

Index = npt.NDArray[np.int32]

#: words of a row before its payload: slot of its key and port, lifetime, place of the next, plus 1
KEY = 0
LE = 1
RE = 2
NEXT = 3
HEAD = 4
#: bits of a port below the slot of a key
PORT_BITS = 16
#: words of a key before its heads
HEADS = 2
#: words of a partition: resident bytes; results and rows, including ended ones, of
#: its resident generation; latest end of a row; first begin of a row that is not of its oldest
#: generation; the epoch up to which its rows on the log are garbage; its older generations; the
#: epoch of its last clean-up, and its rows since; epoch and watermark at which it last owed nothing
BYTES = 0
OUTPUTS = 1
MEMBERS = 2
LATEST = 3
FIRST = 4
FLOOR = 5
OLDER = 6
CLEANED = 7
NEWS = 8
SETTLED = 9
PASSED = 10
FACTS = 11


@kernel
def partition_of(id_high: int, partitions: int) -> np.int64:
    """Return the partition of a join that an id belongs to, for resident rows."""
    return np.int64(
        ((np.uint64(id_high) >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)
    )


@kernel
def open_keys(
    index: Index,
    keys: Table,
    used: int,
    id_high: Ids,
    id_low: Ids,
    port: int,
    slots: Ints,
    hits: Ints,
) -> tuple[int, int]:
    """Fill `slots` with the key of each row of a join, resident from now on, and `hits`.

    `hits` are rows whose key has rows on all other ports. Returns the keys in use and the hits.
    """
    mask = index.size - 1
    count = 0
    width = keys.shape[1]
    for i in range(id_high.size):
        place = np.int64(id_low[i] >> np.uint64(20)) & mask
        slot = index[place] - 1
        while slot >= 0 and (
            np.uint64(keys[slot, 0]) != id_high[i] or np.uint64(keys[slot, 1]) != id_low[i]
        ):
            place = (place + 1) & mask
            slot = index[place] - 1
        if slot < 0:
            slot = used
            keys[slot, 0] = np.int64(id_high[i])
            keys[slot, 1] = np.int64(id_low[i])
            for head in range(HEADS, width):
                keys[slot, head] = 0
            used += 1
            index[place] = used
        else:
            whole = True
            for head in range(HEADS, width):
                if keys[slot, head] == 0 and head != HEADS + port:
                    whole = False
            if whole:
                hits[count] = i
                count += 1
        slots[i] = slot
    return used, count


@kernel
def combine(
    heap: Ints,
    keys: Table,
    hits: Ints,
    slots: Ints,
    le: Ints,
    re: Ints,
    others: Ints,
    state: Ints,
    cursors: Ints,
    parts: Table,
    found: Table,
    lifetimes: Table,
) -> int:
    """Fill `found` with the next combinations of a join's resident rows; return how many.

    A combination is a row of the chunk and, for each of the other ports, the place of a resident
    row. `state` is the hit to continue with and the depth in its chains, (0, -1) at first;
    `cursors` and `parts` have a row for each other port. There are no more combinations when fewer
    are returned than there was room for.
    """
    count = 0
    last = others.size - 1
    hit = state[0]
    depth = state[1]
    while hit < hits.size:
        row = hits[hit]
        slot = slots[row]
        if depth < 0:
            depth = 0
            cursors[0] = keys[slot, HEADS + others[0]]
        while depth >= 0:
            if cursors[depth] == 0:
                depth -= 1
                if depth >= 0:
                    cursors[depth] = heap[cursors[depth] - 1 + NEXT]
                continue
            at = cursors[depth] - 1
            start = max(heap[at + LE], le[row] if depth == 0 else parts[depth - 1, 0])
            end = min(heap[at + RE], re[row] if depth == 0 else parts[depth - 1, 1])
            if start >= end:
                cursors[depth] = heap[at + NEXT]
            elif depth < last:
                parts[depth, 0] = start
                parts[depth, 1] = end
                depth += 1
                cursors[depth] = keys[slot, HEADS + others[depth]]
            else:
                if count == found.shape[0]:
                    state[0] = hit
                    state[1] = depth
                    return count
                found[count, 0] = row
                for other in range(others.size):
                    found[count, 1 + other] = cursors[other] - 1
                lifetimes[count, 0] = start
                lifetimes[count, 1] = end
                count += 1
                cursors[depth] = heap[at + NEXT]
        hit += 1
    state[0] = hit
    state[1] = -1
    return count


@kernel
def link(
    heap: Ints,
    used: int,
    keys: Table,
    slots: Ints,
    port: int,
    le: Ints,
    re: Ints,
    words: Ints,
    begins: Ints,
    facts: Table,
    fresh: bool,
) -> int:
    """Add resident rows of a join to the heap and their chains; return where the heap now ends.

    The payload of row i begins at `begins[i]` of `words`. Rows that are not `fresh` were counted
    among the members of their generation before.
    """
    partitions = facts.shape[0]
    key_bytes = 8 * (keys.shape[1] + 1)
    for i in range(slots.size):
        slot = slots[i]
        partition = partition_of(keys[slot, 0], partitions)
        size = words[begins[i]] >> 32
        alone = True
        for head in range(HEADS, keys.shape[1]):
            if keys[slot, head] != 0:
                alone = False
        heap[used + KEY] = slot << PORT_BITS | port
        heap[used + LE] = le[i]
        heap[used + RE] = re[i]
        heap[used + NEXT] = keys[slot, HEADS + port]
        for word in range(size):
            heap[used + HEAD + word] = words[begins[i] + word]
        keys[slot, HEADS + port] = used + 1
        used += HEAD + size
        facts[partition, BYTES] += 8 * (HEAD + size) + (key_bytes if alone else 0)
        if fresh:
            facts[partition, MEMBERS] += 1
            facts[partition, NEWS] += 1
            facts[partition, LATEST] = max(facts[partition, LATEST], re[i])
            if facts[partition, OLDER] > 0:
                facts[partition, FIRST] = min(facts[partition, FIRST], le[i])
    return used


@kernel
def ended_words(heap: Ints, used: int, watermark: int) -> tuple[int, int]:
    """Scan a join's resident rows: words of those ended by a watermark, and the next end."""
    at = 0
    ended = 0
    soonest = 2**63 - 1
    while at < used:
        size = HEAD + (heap[at + HEAD] >> 32)
        if heap[at + RE] <= watermark:
            ended += size
        else:
            soonest = min(soonest, heap[at + RE])
        at += size
    return ended, soonest


@kernel
def rows_by_port(heap: Ints, used: int, counts: Ints) -> None:
    """Add the number of a join's resident rows of each port to `counts`."""
    at = 0
    while at < used:
        counts[heap[at + KEY] & ((1 << PORT_BITS) - 1)] += 1
        at += HEAD + (heap[at + HEAD] >> 32)


@kernel
def compact(
    heap: Ints,
    used: int,
    keys: Table,
    keys_used: int,
    doomed: npt.NDArray[np.bool_],
    watermark: int,
    facts: Table,
) -> tuple[int, int]:
    """Drop a join's resident rows that ended or are of doomed partitions; return words and keys.

    Rows and keys are moved together, in order; the index must be rebuilt.
    """
    partitions = facts.shape[0]
    facts[:, BYTES] = 0
    for slot in range(keys_used):
        keys[slot, HEADS] = 0
    at = 0
    while at < used:
        if heap[at + RE] > watermark:
            slot = heap[at + KEY] >> PORT_BITS
            if not doomed[partition_of(keys[slot, 0], partitions)]:
                keys[slot, HEADS] = 1
        at += HEAD + (heap[at + HEAD] >> 32)
    kept_keys = 0
    for slot in range(keys_used):
        if keys[slot, HEADS] != 0:
            kept_keys += 1
            keys[slot, HEADS] = kept_keys
    at = 0
    kept = 0
    while at < used:
        size = HEAD + (heap[at + HEAD] >> 32)
        slot = keys[heap[at + KEY] >> PORT_BITS, HEADS] - 1
        if slot >= 0 and heap[at + RE] > watermark:
            port = heap[at + KEY] & ((1 << PORT_BITS) - 1)
            for word in range(size):
                heap[kept + word] = heap[at + word]
            heap[kept + KEY] = slot << PORT_BITS | port
            kept += size
        at += size
    for slot in range(keys_used):
        target = keys[slot, HEADS] - 1
        if target >= 0:
            keys[target, 0] = keys[slot, 0]
            keys[target, 1] = keys[slot, 1]
    keys[:kept_keys, HEADS:] = 0
    key_bytes = 8 * (keys.shape[1] + 1)
    for slot in range(kept_keys):
        facts[partition_of(keys[slot, 0], partitions), BYTES] += key_bytes
    at = 0
    while at < kept:
        slot = heap[at + KEY] >> PORT_BITS
        head = HEADS + (heap[at + KEY] & ((1 << PORT_BITS) - 1))
        size = HEAD + (heap[at + HEAD] >> 32)
        heap[at + NEXT] = keys[slot, head]
        keys[slot, head] = at + 1
        facts[partition_of(keys[slot, 0], partitions), BYTES] += 8 * size
        at += size
    return kept, kept_keys


@kernel
def index_keys(index: Index, keys: Table, used: int) -> None:
    """Insert all keys of a join's resident rows into an index of zeros."""
    mask = index.size - 1
    for slot in range(used):
        place = np.int64(np.uint64(keys[slot, 1]) >> np.uint64(20)) & mask
        while index[place] != 0:
            place = (place + 1) & mask
        index[place] = slot + 1
