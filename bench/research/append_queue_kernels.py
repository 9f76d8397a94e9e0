"""Queues that keep every update, or shed some of them at random, in order of arrival.

Idea: an entry is a unit of a page: the next entry, the next one of its key, its cell, the first
update it represents, its arrival, the words of its value; then the value. A key's oldest pending
update is that of its first entry. An update that is shed stays pending: the next entry of its key
represents it too, and until there is one, it is not delivered.

Invariants:
1. Entries leave in the order they came, with their values (`test_oracle_append_is_a_list`).
2. A shed update is pending until a later one of its key leaves
   (`test_oracle_staleness_counts_what_was_shed`).

Cost: O(1) per update.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icestream.core.arrays import Floats, Ints
from icestream.kernels.compile import lean_kernel
from icestream.kernels.hashing import mix_high
from icestream.kernels.queue.order import (
    FLYING,
    LACKS,
    NEXT,
    PREVIOUS,
    QUEUE_STALENESS,
    SINCE,
    TURN,
    ReaderArrays,
)
from icestream.kernels.queue.queue import CellArrays, accept_one, is_linked
from icestream.kernels.queue.staleness import NONE, settle
from icestream.kernels.queue.unit_chains import free_row, read_row, take_row, write_row

#: word of a key that has no turn here: its oldest update shed since the last that was kept
DROPPED = TURN

#: words of an entry before its value, after the link of its unit if it has one
AFTER = 0
OF_KEY = 1
CELL = 2
BEGUN = 3
AT = 4
WORDS = 5
ENTRY_WORDS = 6

#: facts of a queue: address of its first and last entry plus one, entries, updates shed, draws
#: made, seed of the draws
HEAD = 0
TAIL = 1
ENTRIES = 2
SHED = 3
DRAWS = 4
SEED = 5
LINE_FACTS = 8

_UNIT = 1.0 / 2.0**64


class LineArrays(NamedTuple):
    """The arrays of a queue of entries."""

    facts: Ints
    #: the fraction of updates that is shed
    shedding: Floats


@lean_kernel
def is_shed(line: LineArrays) -> bool:
    """Decide at random whether an update is shed."""
    if line.shedding[0] <= 0.0:
        return False
    facts = line.facts
    facts[DRAWS] += 1
    return bool(mix_high(np.uint64(facts[SEED] + facts[DRAWS])) * _UNIT < line.shedding[0])


@lean_kernel
def append_one(
    store: CellArrays, reader: ReaderArrays, line: LineArrays, cell: int, arrived: int
) -> int:
    """Add an update; return the address of its entry, -1 if it is shed or goes back in time.

    There must be room for an entry.
    """
    if not accept_one(store.facts, store.cells, store.reals, cell, arrived, 0, 0):
        return -1
    keys = reader.keys
    if keys[cell, LACKS] == NONE:
        keys[cell, LACKS] = arrived
    if keys[cell, SINCE] == NONE:
        keys[cell, SINCE] = arrived
    if keys[cell, DROPPED] == NONE:
        keys[cell, DROPPED] = arrived
    facts = line.facts
    if is_shed(line):
        facts[SHED] += 1
        return -1
    linked = is_linked(store)
    words = store.pool.words
    address = take_row(store.pool, store.space, linked)
    head = address + int(linked)
    words[head + AFTER] = 0
    words[head + OF_KEY] = 0
    words[head + CELL] = cell
    words[head + BEGUN] = keys[cell, DROPPED]
    words[head + AT] = arrived
    words[head + WORDS] = 0
    keys[cell, DROPPED] = NONE
    if facts[TAIL]:
        words[facts[TAIL] - 1 + int(linked) + AFTER] = address + 1
    else:
        facts[HEAD] = address + 1
    facts[TAIL] = address + 1
    links = reader.links
    if links[cell, PREVIOUS]:
        words[links[cell, PREVIOUS] - 1 + int(linked) + OF_KEY] = address + 1
    else:
        links[cell, NEXT] = address + 1
    links[cell, PREVIOUS] = address + 1
    facts[ENTRIES] += 1
    return address


@lean_kernel
def leave_one(store: CellArrays, reader: ReaderArrays, line: LineArrays, now: int) -> int:
    """Remove the first entry; return its address, not yet freed, -1 if none waits."""
    facts, words, keys = line.facts, store.pool.words, reader.keys
    address = facts[HEAD] - 1
    if address < 0:
        return -1
    linked = int(is_linked(store))
    head = address + linked
    cell = words[head + CELL]
    facts[HEAD] = words[head + AFTER]
    if facts[HEAD] == 0:
        facts[TAIL] = 0
    facts[ENTRIES] -= 1
    settle(keys, reader.reals, reader.queue_profile, cell, QUEUE_STALENESS, keys[cell, SINCE], now)
    following = words[head + OF_KEY]
    reader.links[cell, NEXT] = following
    if following:
        keys[cell, SINCE] = words[following - 1 + linked + BEGUN]
    else:
        reader.links[cell, PREVIOUS] = 0
        keys[cell, SINCE] = keys[cell, DROPPED]
    keys[cell, FLYING] = words[head + AT]
    return int(address)


@lean_kernel
def append_batch(
    store: CellArrays,
    reader: ReaderArrays,
    line: LineArrays,
    slots: Ints,
    arrived: Ints,
    words: Ints,
    offsets: Ints,
) -> None:
    """Add updates one after the other; there must be room for all their entries."""
    linked = is_linked(store)
    first = int(linked) + ENTRY_WORDS
    for k in range(slots.size):
        address = append_one(store, reader, line, slots[k], arrived[k])
        if address >= 0:
            begin, end = offsets[k], offsets[k + 1]
            store.pool.words[address + int(linked) + WORDS] = end - begin
            write_row(store.pool, store.space, address, first, linked, words, begin, end)


@lean_kernel
def leave_batch(
    store: CellArrays, reader: ReaderArrays, line: LineArrays, now: int, entries: Ints
) -> int:
    """Remove as many entries as there is room for; return how many."""
    for k in range(entries.size):
        entries[k] = leave_one(store, reader, line, now)
        if entries[k] < 0:
            return k
    return int(entries.size)


@lean_kernel
def first_entries(store: CellArrays, line: LineArrays, entries: Ints) -> int:
    """Fill in the addresses of the first entries; return how many."""
    linked = int(is_linked(store))
    at = line.facts[HEAD]
    for k in range(entries.size):
        if at == 0:
            return k
        entries[k] = at - 1
        at = store.pool.words[at - 1 + linked + AFTER]
    return int(entries.size)


@lean_kernel
def copy_entries(store: CellArrays, entries: Ints, offsets: Ints, out: Ints) -> None:
    """Copy the values of entries to `out`, each to its offset."""
    linked = is_linked(store)
    first = int(linked) + ENTRY_WORDS
    for k in range(entries.size):
        begin, end = offsets[k], offsets[k + 1]
        read_row(store.pool, store.space, entries[k], first, linked, out, begin, end)


@lean_kernel
def free_entries(store: CellArrays, entries: Ints) -> None:
    """Free the entries that were removed."""
    linked = is_linked(store)
    for k in range(entries.size):
        free_row(store.pool, store.space, entries[k], linked)
