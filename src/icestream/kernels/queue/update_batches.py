"""Batches of an update queue: find or create cells, and add, take or deliver updates.

Idea: one update after the other, by the operations of `kernels.queue.queue`. What the next few
will touch is asked for first, so that a scattered million of keys costs one wait for many.

Invariant: a batch has the effect of its updates one by one, whatever its size
(`test_oracle_any_sequence_follows_the_schedule`).

Cost: see `kernels.queue.queue`.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels import hash_index
from icestream.kernels.compile import kernel, lean_kernel
from icestream.kernels.prefetch import prefetch, prefetch_word
from icestream.kernels.queue.order import (
    FIFO,
    HEAD,
    LINKS,
    NEXT,
    PREVIOUS,
    SCHEDULE,
    SINCE,
    ReaderArrays,
    blank_key,
)
from icestream.kernels.queue.queue import (
    ADDRESS,
    ARRIVED,
    CELL_WORDS,
    CELLS_SEEN,
    COUNT,
    FREE_CELL,
    FREE_CELLS,
    ID_HIGH,
    ID_LOW,
    SIZE,
    WAITED_FOR,
    CellArrays,
    Readers,
    deliver_one,
    enqueue_one,
    free_value,
    is_linked,
    leave_order,
    put_value,
    release_one,
    send_value,
)
from icestream.kernels.queue.staleness import NONE
from icestream.kernels.queue.unit_chains import read_row, units_of

#: updates whose rows are prefetched before the first is processed
AT_ONCE = 32


@lean_kernel
def add_keys(
    store: CellArrays, readers: Readers, id_high: Ids, id_low: Ids, slots: Ints, start: int
) -> int:
    """Give a cell to every new id of a batch of updates; return the first without room."""
    facts, cells, index = store.facts, store.cells, store.places
    mask = index.size - 1
    for i in range(start, id_high.size):
        if slots[i] >= 0:
            continue
        place = np.int64(id_low[i] >> np.uint64(20)) & mask
        while index[place] != 0:
            at = index[place] - 1
            if (
                np.uint64(cells[at, ID_HIGH]) == id_high[i]
                and np.uint64(cells[at, ID_LOW]) == id_low[i]
            ):
                slots[i] = at
                break
            place = (place + 1) & mask
        if slots[i] >= 0:
            continue
        cell = facts[FREE_CELL] - 1
        if cell >= 0:
            facts[FREE_CELL] = cells[cell, ARRIVED]
            facts[FREE_CELLS] -= 1
        else:
            cell = facts[CELLS_SEEN]
            if cell == cells.shape[0]:
                return i
            facts[CELLS_SEEN] += 1
        for word in range(CELL_WORDS):
            cells[cell, word] = 0
        cells[cell, ID_HIGH] = np.int64(id_high[i])
        cells[cell, ID_LOW] = np.int64(id_low[i])
        cells[cell, ADDRESS] = -1
        index[place] = cell + 1
        slots[i] = cell
        for reader in readers:
            blank_key(reader, cell)
    return int(id_high.size)


@lean_kernel
def drop_keys(store: CellArrays, slots: Ints) -> None:
    """Forget a batch of keys for which no reader waits; their cells become free."""
    facts, cells = store.facts, store.cells
    for k in range(slots.size):
        cell = slots[k]
        hash_index.remove(store.places, cells, cell)
        if cells[cell, ADDRESS] >= 0:
            free_value(store, cell)
        cells[cell, COUNT] = -1
        cells[cell, ARRIVED] = facts[FREE_CELL]
        facts[FREE_CELL] = cell + 1
        facts[FREE_CELLS] += 1


@lean_kernel
def copy_values(store: CellArrays, slots: Ints, offsets: Ints, out: Ints) -> None:
    """Copy the values of a batch of keys to `out`, each to its offset."""
    linked = is_linked(store)
    for first in range(0, slots.size, AT_ONCE):
        last = min(first + AT_ONCE, slots.size)
        for k in range(first, last):
            prefetch_word(store.pool.words, store.cells[slots[k], ADDRESS])
        for k in range(first, last):
            address, begin, end = store.cells[slots[k], ADDRESS], offsets[k], offsets[k + 1]
            read_row(store.pool, store.space, address, int(linked), linked, out, begin, end)


@kernel
def units_wanted(store: CellArrays, slots: Ints, offsets: Ints) -> int:
    """Return the most units that a batch of updates needs besides those of its keys."""
    cells = store.cells
    linked = is_linked(store)
    before = np.empty((slots.size, 2), np.int64)
    wanted = 0
    # a key seen before in this batch counts with its largest row so far
    for k in range(slots.size):
        cell = slots[k]
        before[k, 0] = cells[cell, SIZE]
        before[k, 1] = cells[cell, ADDRESS]
        size = offsets[k + 1] - offsets[k]
        held = 0
        if cells[cell, ADDRESS] != -1:
            held = units_of(store.space, int(linked), linked, cells[cell, SIZE])
        needs = units_of(store.space, int(linked), linked, size)
        if needs > held:
            wanted += needs - held
            cells[cell, SIZE] = size
            cells[cell, ADDRESS] = 0
    for k in range(slots.size - 1, -1, -1):
        cells[slots[k], SIZE] = before[k, 0]
        cells[slots[k], ADDRESS] = before[k, 1]
    return int(wanted)


@lean_kernel
def ask_for_rows(store: CellArrays, readers: Readers, slots: Ints, first: int, last: int) -> None:
    """Prefetch everything that a batch of updates will touch, all at once."""
    cells = store.cells
    for k in range(first, last):
        cell = slots[k]
        address = cells[cell, ADDRESS]
        if address >= 0:
            prefetch_word(store.pool.words, address)
        for reader in readers:
            if cells[cell, WAITED_FOR] == 0 or reader.facts[SCHEDULE] == FIFO:
                prefetch(reader.keys, cell, LINKS)


@lean_kernel
def ask_for_neighbours(readers: Readers, slots: Ints, first: int, last: int) -> None:
    """Prefetch the neighbours of rows that a batch of updates will move."""
    for reader in readers:
        if reader.facts[SCHEDULE] != FIFO:
            continue
        for k in range(first, last):
            if reader.keys[slots[k], SINCE] != NONE:
                prefetch(reader.keys, max(reader.links[slots[k], NEXT] - 1, 0), LINKS)
                prefetch(reader.keys, max(reader.links[slots[k], PREVIOUS] - 1, 0), LINKS)


@lean_kernel
def enqueue_batch(
    store: CellArrays,
    readers: Readers,
    slots: Ints,
    arrived: Ints,
    turns: Ints,
    folded: Table,
    words: Ints,
    offsets: Ints,
) -> None:
    """Add a batch of updates to a queue; there must be room for all their values.

    `folded` has `more` and `span` of each (`accept_one`).
    """
    size = slots.size
    for first in range(-2 * AT_ONCE, size, AT_ONCE):
        second, third = first + AT_ONCE, first + 2 * AT_ONCE
        for k in range(third, min(third + AT_ONCE, size)):
            prefetch(store.cells, slots[k], ID_HIGH)
        ask_for_rows(store, readers, slots, max(second, 0), min(third, size))
        ask_for_neighbours(readers, slots, max(first, 0), min(second, size))
        for k in range(max(first, 0), min(second, size)):
            more, span = folded[k, 0], folded[k, 1]
            if enqueue_one(store, readers, slots[k], arrived[k], turns[k], more, span):
                put_value(store, slots[k], words, offsets[k], offsets[k + 1])


@lean_kernel
def take_batch(
    store: CellArrays, reader: ReaderArrays, now: int, slots: Ints, since: Ints, arrived: Ints
) -> int:
    """Take a batch of keys, as `slots` has room for, from a reader's order; return how many."""
    count = 0
    while count < slots.size:
        first = count
        while count < min(first + AT_ONCE, slots.size):
            cell = reader.facts[HEAD] - 1
            if cell < 0:
                break
            prefetch(store.cells, cell, ID_HIGH)
            slots[count] = cell
            since[count] = reader.keys[cell, SINCE]
            leave_order(reader, cell, now)
            count += 1
        for k in range(first, count):
            arrived[k] = store.cells[slots[k], ARRIVED]
            send_value(store, reader, slots[k])
        if count == first:
            break
    return count


@lean_kernel
def release_batch(store: CellArrays, slots: Ints) -> None:
    """Free the locations of a batch of keys for which no reader waits any more."""
    for k in range(slots.size):
        release_one(store, slots[k])


@lean_kernel
def deliver_batch(reader: ReaderArrays, slots: Ints, since: Ints, arrived: Ints, at: Ints) -> None:
    """Deliver a batch of updates, in order; slots of unknown keys are negative."""
    for k in range(slots.size):
        if slots[k] >= 0:
            deliver_one(reader, slots[k], since[k], arrived[k], at[k])


@lean_kernel
def blank_keys(reader: ReaderArrays, cells_seen: int) -> None:
    """Initialise the whole batch of rows of a reader that joins a queue with keys."""
    for cell in range(cells_seen):
        blank_key(reader, cell)
