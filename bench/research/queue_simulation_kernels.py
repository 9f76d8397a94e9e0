"""One server and a queue in virtual time: arrivals, services and deliveries, to the end.

Idea: whenever the server is free, all updates that have arrived by then are enqueued, the next key
    in
the queue's order is taken, and its value is delivered after its cost; an idle server waits for the
next arrival. The queues are the real ones: `enqueue_one`, `take_one`, `append_one`, `leave_one`,
and `deliver_one` are also used by batches, so a simulation measures the structures themselves.

Invariants:
1. An update that arrives at the time a key is taken comes before it
   (`test_oracle_services_are_those_of_the_plain_model`).
2. The server never idles while a key waits, and serves one key at a time (same test).

Cost: O(1) per arrival and service, or O(waiting keys) per service for INDEX.
"""

from __future__ import annotations

from bench.research.append_queue_kernels import (
    AT,
    BEGUN,
    CELL,
    LineArrays,
    append_one,
    leave_one,
)
from bench.research.index_schedule_kernels import (
    IndexArrays,
    best_key,
    note_service,
    note_update,
)
from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.queue.order import HEAD, SINCE, ReaderArrays
from icestream.kernels.queue.queue import (
    ARRIVED,
    CellArrays,
    begin_measuring,
    deliver_one,
    enqueue_one,
    release_one,
    take_one,
)
from icestream.kernels.queue.unit_chains import free_row

#: columns of the log of services: cell, oldest update it represents, arrival of the value, time
#: it was taken and time it was delivered
SERVED = 0
FIRST_UPDATE = 1
VALUE = 2
TAKEN = 3
DELIVERED = 4
LOG_WORDS = 5


@kernel
def run_updates(
    store: CellArrays,
    reader: ReaderArrays,
    index: IndexArrays,
    by_index: bool,
    cells: Ints,
    arrived: Ints,
    costs: Ints,
    warm_up: int,
    until: int,
    log: Table,
) -> int:
    """Simulate from 0 until a time; return how many services began before it.

    `costs` has the cost of each cell; INDEX chooses keys if `by_index`. Staleness is measured from
    the first time the server is free at or after `warm_up`. `log` has room for a row for each
    arrival.
    """
    readers = (reader,)
    now = 0
    arrivals = 0
    services = 0
    is_warm = False
    while now < until:
        if not is_warm and now >= warm_up:
            begin_measuring(reader, costs.size, now)
            is_warm = True
        while arrivals < arrived.size and arrived[arrivals] <= now:
            if by_index:
                note_update(index, store, cells[arrivals], arrived[arrivals])
            enqueue_one(store, readers, cells[arrivals], arrived[arrivals], arrivals, 0, 0)
            arrivals += 1
        cell = best_key(index, store, reader, now) if by_index else reader.facts[HEAD] - 1
        if cell < 0:
            if arrivals == arrived.size:
                break
            now = arrived[arrivals]
            continue
        log[services, SERVED] = cell
        log[services, FIRST_UPDATE] = reader.keys[cell, SINCE]
        log[services, VALUE] = store.cells[cell, ARRIVED]
        log[services, TAKEN] = now
        if by_index:
            note_service(index, store, reader, cell, now)
        take_one(store, reader, cell, now)
        release_one(store, cell)
        done = now + costs[cell]
        while arrivals < arrived.size and arrived[arrivals] < done:
            if by_index:
                note_update(index, store, cells[arrivals], arrived[arrivals])
            enqueue_one(store, readers, cells[arrivals], arrived[arrivals], arrivals, 0, 0)
            arrivals += 1
        if done <= until:
            since, value = log[services, FIRST_UPDATE], log[services, VALUE]
            deliver_one(reader, cell, since, value, done)
        log[services, DELIVERED] = done
        services += 1
        now = done
    while arrivals < arrived.size and arrived[arrivals] < until:
        enqueue_one(store, readers, cells[arrivals], arrived[arrivals], arrivals, 0, 0)
        arrivals += 1
    return services


@kernel
def run_appends(
    store: CellArrays,
    reader: ReaderArrays,
    line: LineArrays,
    cells: Ints,
    arrived: Ints,
    costs: Ints,
    warm_up: int,
    until: int,
    log: Table,
) -> int:
    """Simulate like `run_updates`, with a queue that keeps every update it does not shed.

    Values have a fixed size, and there is room for an entry of every update.
    """
    words = store.pool.words
    now = 0
    arrivals = 0
    services = 0
    is_warm = False
    while now < until:
        if not is_warm and now >= warm_up:
            begin_measuring(reader, costs.size, now)
            is_warm = True
        while arrivals < arrived.size and arrived[arrivals] <= now:
            append_one(store, reader, line, cells[arrivals], arrived[arrivals])
            arrivals += 1
        entry = leave_one(store, reader, line, now)
        if entry < 0:
            if arrivals == arrived.size:
                break
            now = arrived[arrivals]
            continue
        cell, since, value = words[entry + CELL], words[entry + BEGUN], words[entry + AT]
        free_row(store.pool, store.space, entry, False)
        log[services, SERVED] = cell
        log[services, FIRST_UPDATE] = since
        log[services, VALUE] = value
        log[services, TAKEN] = now
        done = now + costs[cell]
        while arrivals < arrived.size and arrived[arrivals] < done:
            append_one(store, reader, line, cells[arrivals], arrived[arrivals])
            arrivals += 1
        if done <= until:
            deliver_one(reader, cell, since, value, done)
        log[services, DELIVERED] = done
        services += 1
        now = done
    while arrivals < arrived.size and arrived[arrivals] < until:
        append_one(store, reader, line, cells[arrivals], arrived[arrivals])
        arrivals += 1
    return services
