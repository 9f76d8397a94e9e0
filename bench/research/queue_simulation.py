"""Staleness under a schedule, by running the real queue in virtual time.

Idea: a workload is fed to an `UpdateQueue` (or an `AppendQueue`) and one server that takes a key
whenever it is free. Time is simulated, so a day of updates takes a second, and every result is a
function of workload, schedule and seed.

Invariants:
1. Equal arguments give equal results (`test_a_simulation_is_a_function_of_its_arguments`).
2. Between two deliveries of a key, application staleness exceeds queue staleness by between
   wait * cost and wait * cost + cost**2 / 2
   (`test_the_two_kinds_of_staleness_stay_in_their_bound`).
3. Services and staleness are those of the definition
   (`test_oracle_services_are_those_of_the_plain_model`).

Cost: a million arrivals and services per second or more; 40 bytes per update in memory.

Limits: one server; a key's cost does not change. Rates are *estimated* by the queue from the gaps
it has seen, unless they are given: then the queue *knows* them.

References: section 5 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bench.research.append_queue import AppendQueue
from bench.research.index_schedule_kernels import IndexArrays
from bench.research.queue_simulation_kernels import (
    DELIVERED,
    FIRST_UPDATE,
    LOG_WORDS,
    SERVED,
    TAKEN,
    VALUE,
    run_appends,
    run_updates,
)
from bench.research.service_price import COST, PRICE_WORDS
from bench.research.workloads import UpdateWorkload
from icestream.core.arrays import Floats, Ints
from icestream.core.errors import DefinitionError
from icestream.kernels.queue import queue as queue_words
from icestream.state.queue.order import SCHEDULES
from icestream.state.queue.queue import UpdateQueue
from icestream.state.queue.reader import QueueReader
from icestream.state.queue.staleness import Staleness

#: schedules that `simulate` can run
ALL_SCHEDULES = ("append", "shedding", *SCHEDULES, "index")
#: the load left after random shedding
SHED_LOAD = 0.95
#: a given rate counts like one learnt from this many updates
_CERTAIN = 1 << 40
_VALUE = pa.schema([("update", pa.int64())])


@dataclass(frozen=True)
class Services:
    """Every service of a simulation, in order."""

    key: Ints
    #: arrival of the oldest update that it represents
    since: Ints
    #: arrival of the value itself
    value: Ints
    taken: Ints
    delivered: Ints

    @property
    def wait(self) -> Ints:
        """Microseconds each key waited."""
        return np.asarray(self.taken - self.since)

    @property
    def cost(self) -> Ints:
        """Microseconds each service took."""
        return np.asarray(self.delivered - self.taken)


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation."""

    schedule: str
    queue: Staleness
    application: Staleness
    #: mean staleness of each key in the queue and in the application, microseconds
    queue_of_key: Floats
    application_of_key: Floats
    services: Services
    #: start and end of the staleness measurement
    began: int
    until: int


def simulate(
    workload: UpdateWorkload,
    cost: int | Ints,
    schedule: str = "inplace",
    *,
    rates: Floats | None = None,
    importance: Floats | None = None,
    warm_up: int = 0,
    until: int | None = None,
    seed: int = 0,
) -> Outcome:
    """Serve a workload with one server, a key whenever it is free.

    Args:
        workload: the updates.
        cost: microseconds per service; one for all keys, or one for each.
        schedule: fifo, inplace, linecutting, index; or append, which serves every update in order,
            or shedding, which does so with a random part of them, leaving a load of `SHED_LOAD`.
        rates: updates per microsecond of each key if the queue is to know them; by default it
            learns them from the gaps between updates.
        importance: weight of a key's staleness, relative to 1, for the schedule index.
        warm_up: microseconds that are simulated and not measured.
        until: when to stop; by default at the end of the workload.
        seed: seed of the shedding.
    """
    if schedule not in ALL_SCHEDULES:
        msg = f"there is no schedule {schedule!r}; choose one of: {', '.join(ALL_SCHEDULES)}"
        raise DefinitionError(msg)
    costs = np.broadcast_to(np.asarray(cost, np.int64), workload.key_count).copy()
    if (costs <= 0).any():
        msg = "the cost of a service must be a whole number of microseconds > 0"
        raise DefinitionError(msg)
    end = workload.until if until is None else until
    queue = _queue(schedule, workload, costs, seed)
    number = np.arange(workload.key_count, dtype=np.uint64)
    # ids spread over the directory like hashes
    id_high, id_low = number, number * np.uint64(0x9E3779B97F4A7C15)
    cells = queue.cells.register(id_high, id_low)
    if rates is not None:
        _tell_rates(queue, cells, rates)
    queue.measure_from(0)
    log = np.empty((len(workload), LOG_WORDS), dtype=np.int64)
    by_cell = np.empty(len(costs), dtype=np.int64)
    by_cell[cells] = costs
    store, reader = queue.cells.kernel, queue.order.kernel
    stream = (cells[workload.keys], workload.times, by_cell, warm_up, end, log)
    if isinstance(queue, AppendQueue):
        served = run_appends(store, reader, queue.line, *stream)
    else:
        index = _index(cells, costs, importance)
        served = run_updates(store, reader, index, schedule == "index", *stream)
    log = log[:served]
    report = queue.staleness(end)
    key_of = np.empty(len(cells), dtype=np.int64)
    key_of[cells] = np.arange(len(cells))
    in_queue, in_application = queue.staleness_of(id_high, id_low, end)
    return Outcome(
        schedule,
        report.queue,
        report.application,
        in_queue,
        in_application,
        Services(
            key_of[log[:, SERVED]],
            log[:, FIRST_UPDATE],
            log[:, VALUE],
            log[:, TAKEN],
            log[:, DELIVERED],
        ),
        report.began,
        end,
    )


def _queue(
    schedule: str, workload: UpdateWorkload, costs: Ints, seed: int
) -> UpdateQueue | AppendQueue:
    """Create the queue, with room for everything it may have to hold."""
    if schedule in (*SCHEDULES, "index"):
        cost = round(float(costs.mean()))
        order = "inplace" if schedule == "index" else schedule
        update_queue = UpdateQueue(_VALUE, schedule=order, cost=cost, capacity=workload.key_count)
        update_queue.pages.reserve(workload.key_count)
        return update_queue
    load = float(costs[workload.keys].sum()) / max(workload.until, 1)
    shed = max(0.0, 1.0 - SHED_LOAD / load) if schedule == "shedding" and load else 0.0
    append_queue = AppendQueue(_VALUE, shed=shed, seed=seed, capacity=workload.key_count)
    append_queue.pages.reserve(len(workload))
    return append_queue


def _index(cells: Ints, costs: Ints, importance: Floats | None) -> IndexArrays:
    """Return what INDEX knows of the keys before the first update."""
    price = np.zeros(PRICE_WORDS)
    price[COST] = round(float(costs.mean()))
    weights = np.empty(len(cells))
    weights[cells] = (1.0 if importance is None else importance) / (costs / costs.mean())
    return IndexArrays(price, weights, np.ones(len(cells)), np.zeros(len(cells), dtype=np.int64))


def _tell_rates(queue: QueueReader, cells: Ints, rates: Floats) -> None:
    """Set the queue's mean gaps so firmly that updates do not change them."""
    store = queue.cells.kernel
    known = rates > 0
    store.reals[cells[known], queue_words.GAP] = 1.0 / rates[known]
    store.cells[cells[known], queue_words.COUNT] = _CERTAIN
    store.facts[queue_words.SMOOTHING] = _CERTAIN
