"""Queues that keep only the newest update of every key: arrival, service and delivery.

Idea: a *store* has a cell for every key: its identity, the address of its waiting value, and what
was learnt of its rate. A *reader* (one query) has a row for every key: where it stands in the
reader's order and how stale it is. An arrival overwrites the value of its cell and enters the key
into the order of every reader that does not already wait for it; a value that all readers took
leaves its page. Batches and simulations run the same `enqueue_one`, `take_one` and `deliver_one`.

Invariants:
1. A reader receives the newest value of every key that changed since its last one
   (`test_oracle_any_sequence_follows_the_schedule`).
2. Memory holds one value of each key some reader waits for (`test_oracle_pages_hold_what_waits`).
3. Staleness is exact (`test_oracle_staleness_is_the_integral_of_the_definition`).

Cost: an arrival of a waiting key touches its cell and its value; others also a reader's row and a
neighbour's. Serving is O(1).

Limits: of several values of a key being delivered to one application, only the newest counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import lean_kernel
from icestream.kernels.fold import Index
from icestream.kernels.queue.order import (
    APPLICATION,
    APPLICATION_STALENESS,
    BEGAN,
    BIT,
    COST,
    FIFO,
    FLYING,
    LACKS,
    LARGEST,
    LINECUTTING,
    QUEUE,
    QUEUE_STALENESS,
    SCHEDULE,
    SINCE,
    WAITING,
    ReaderArrays,
    is_first,
    link,
    unlink,
)
from icestream.kernels.queue.pages import PoolArrays
from icestream.kernels.queue.staleness import AREA, FROM, NONE, RealTable, settle
from icestream.kernels.queue.unit_chains import free_row, take_row, write_row

#: words of a cell: id, address of its value (-1 for none), newest arrival, mean gap between
#: updates (a float), updates seen, a bit for every reader that waits for the value, its words
ID_HIGH = 0
ID_LOW = 1
ADDRESS = 2
ARRIVED = 3
GAP = 4
COUNT = 5
WAITED_FOR = 6
SIZE = 7
CELL_WORDS = 8

#: facts of a store: cells ever used, first free cell plus one, free cells, first arrival of all,
#: newest of all, updates accepted, replaced before a reader took them, dropped because they went
#: back in time, gaps that are averaged, words of a value (0 if they differ), the next turn
CELLS_SEEN = 0
FREE_CELL = 1
FREE_CELLS = 2
FIRST = 3
NEWEST = 4
ACCEPTED = 5
SUPERSEDED = 6
LATE = 7
SMOOTHING = 8
WIDTH = 9
NEXT_TURN = 10
STORE_FACTS = 12


class CellArrays(NamedTuple):
    """The arrays of a store of cells and of the pages their values are in."""

    facts: Ints
    #: one row for each key, as integers and as floats
    cells: Table
    reals: RealTable
    places: Index
    space: Ints
    pool: PoolArrays


Readers = tuple[ReaderArrays, ...]


@lean_kernel
def accept_one(
    facts: Ints, cells: Table, reals: RealTable, cell: int, arrived: int, more: int, span: int
) -> bool:
    """Record one update of a queue in its cell; False if it goes back in time and is dropped.

    If `more` is not 0, it stands for so many updates, evenly spread over the `span` microseconds
    since the one before it.
    """
    count = cells[cell, COUNT]
    if count == 0:
        if facts[ACCEPTED] == 0 or arrived < facts[FIRST]:
            facts[FIRST] = arrived
        reals[cell, GAP] = arrived - facts[FIRST]
        more = 1
    else:
        gap = arrived - cells[cell, ARRIVED]
        if gap < 0:
            facts[LATE] += 1
            return False
        if cells[cell, WAITED_FOR] and (more == 0 or gap != span):
            facts[SUPERSEDED] += 1
        more = more if gap == span and more > 0 else 1
        smoothing = facts[SMOOTHING]
        averaged = min(count + more, max(count, smoothing))
        kept = count / averaged * (1 - 1 / smoothing) ** (count + more - averaged)
        reals[cell, GAP] = gap / more + (reals[cell, GAP] - gap / more) * kept
    cells[cell, COUNT] = count + more
    cells[cell, ARRIVED] = arrived
    if facts[ACCEPTED] == 0 or arrived > facts[NEWEST]:
        facts[NEWEST] = arrived
    facts[ACCEPTED] += 1
    return True


@lean_kernel
def admit_one(store: CellArrays, reader: ReaderArrays, cell: int, arrived: int, turn: int) -> None:
    """Insert a key of an update queue into a reader's order, or move it, by the schedule."""
    facts, keys = reader.facts, reader.keys
    schedule = facts[SCHEDULE]
    bit = np.int64(1) << facts[BIT]
    gap = store.reals[cell, GAP]
    is_slow = schedule == LINECUTTING and gap > reader.settings[COST] * facts[WAITING]
    if store.cells[cell, WAITED_FOR] & bit == 0:
        store.cells[cell, WAITED_FOR] |= bit
        facts[WAITING] += 1
        keys[cell, SINCE] = arrived
        if keys[cell, LACKS] == NONE:
            keys[cell, LACKS] = arrived
    elif schedule == FIFO or (is_slow and not is_first(reader, cell)):
        unlink(reader, cell)
    else:
        return
    link(reader, cell, is_slow, turn)


@lean_kernel
def enqueue_one(
    store: CellArrays, readers: Readers, cell: int, arrived: int, turn: int, more: int, span: int
) -> bool:
    """Add one update to an update queue; the caller then writes its value to the address.

    False if it goes back in time and is dropped. There must be room for one more location. Turns
    ascend; `accept_one` explains `more` and `span`.
    """
    if not accept_one(store.facts, store.cells, store.reals, cell, arrived, more, span):
        return False
    if store.cells[cell, ADDRESS] < 0:
        store.cells[cell, ADDRESS] = take_row(store.pool, store.space, is_linked(store))
    for reader in readers:
        admit_one(store, reader, cell, arrived, turn)
    return True


@lean_kernel
def leave_order(reader: ReaderArrays, cell: int, now: int) -> None:
    """Remove a waiting key of an update queue from a reader's order."""
    keys = reader.keys
    unlink(reader, cell)
    since = keys[cell, SINCE]
    end = settle(keys, reader.reals, reader.queue_profile, cell, QUEUE_STALENESS, since, now)
    reader.facts[LARGEST + QUEUE] = max(reader.facts[LARGEST + QUEUE], end)
    keys[cell, SINCE] = NONE
    reader.facts[WAITING] -= 1


@lean_kernel
def send_value(store: CellArrays, reader: ReaderArrays, cell: int) -> None:
    """Record that an update queue is delivering the value of a key to a reader's application."""
    reader.keys[cell, FLYING] = store.cells[cell, ARRIVED]
    store.cells[cell, WAITED_FOR] &= ~(np.int64(1) << reader.facts[BIT])


@lean_kernel
def take_one(store: CellArrays, reader: ReaderArrays, cell: int, now: int) -> None:
    """Take one waiting key of an update queue from a reader's order; its value stays in place."""
    leave_order(reader, cell, now)
    send_value(store, reader, cell)


@lean_kernel
def release_one(store: CellArrays, cell: int) -> None:
    """Free the location of one key of an update queue for which no reader waits any more."""
    if store.cells[cell, WAITED_FOR] == 0:
        free_value(store, cell)


@lean_kernel
def deliver_one(reader: ReaderArrays, cell: int, since: int, arrived: int, at: int) -> None:
    """Record that the application has one update of a queue, that of `arrived`, from `at` on.

    `since` is the oldest update it represents; NONE for the oldest one the application lacks. Of
    several values of a key being delivered, the last must be reported last.
    """
    keys = reader.keys
    flying = keys[cell, FLYING]
    if flying == NONE:
        return
    begun = keys[cell, LACKS] if since == NONE else since
    profile, most = reader.application_profile, LARGEST + APPLICATION
    end = settle(keys, reader.reals, profile, cell, APPLICATION_STALENESS, begun, at)
    reader.facts[most] = max(reader.facts[most], end)
    if arrived >= flying:
        keys[cell, LACKS] = keys[cell, SINCE]
        keys[cell, FLYING] = NONE
    else:
        keys[cell, LACKS] = max(keys[cell, LACKS], arrived)


@lean_kernel
def is_linked(store: CellArrays) -> bool:
    """Return whether the values of an update queue differ in length, and so are linked."""
    return bool(store.facts[WIDTH] == 0)


@lean_kernel
def put_value(store: CellArrays, cell: int, words: Ints, begin: int, end: int) -> None:
    """Write the value of a key of an update queue, replacing the one there."""
    linked = is_linked(store)
    address = store.cells[cell, ADDRESS]
    store.cells[cell, SIZE] = end - begin
    write_row(store.pool, store.space, address, int(linked), linked, words, begin, end)


@lean_kernel
def free_value(store: CellArrays, cell: int) -> None:
    """Free the value of a key of an update queue, all of it."""
    free_row(store.pool, store.space, store.cells[cell, ADDRESS], is_linked(store))
    store.cells[cell, ADDRESS] = -1


@lean_kernel
def begin_measuring(reader: ReaderArrays, cells_seen: int, at: int) -> None:
    """Discard the staleness of all keys of an update queue before a time."""
    reader.facts[BEGAN] = at
    reader.facts[LARGEST] = reader.facts[LARGEST + 1] = 0
    for cell in range(cells_seen):
        for totals in (QUEUE_STALENESS, APPLICATION_STALENESS):
            reader.reals[cell, totals + AREA] = 0.0
            reader.keys[cell, totals + FROM] = at
    reader.queue_profile[:] = 0.0
    reader.application_profile[:] = 0.0
