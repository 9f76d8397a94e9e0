"""Queues of windows in virtual time, and the append queues they are compared with.

Idea: `run_updates` drives the kernels of the window queue, tuple by tuple, with one operator of a
fixed cost per tuple. `run_append` is an append queue before an operator that opens every window it
has to deliver: a tuple costs once for each open window that contains it, tuples leave in order, and
a window is delivered with the tuple that makes it full. Windows that are shed at random are never
opened.

Invariants:
1. An append queue delivers at the times of the obvious simulation
   (`test_oracle_append_windows_beside_a_queue_of_tuples`).
2. Runs are functions of their arguments (`test_runs_repeat`).

References: section 6.3 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.research import window_simulation_kernels as kernels
from bench.research.window_staleness import Ramps, application_ramps, average
from icestream.core.arrays import Ints, Table
from icestream.kernels.queue.windows import zones as z
from icestream.kernels.queue.windows.tuple_batches import blank_cell
from icestream.state.queue.windows.queue import WindowArrays
from icestream.state.queue.windows.spec import UpdateWindows

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Input:
    """Tuples in the order of arrival; keys are numbers from 0 on."""

    keys: Ints
    #: times used by windows; those of a key increase
    times: Ints
    arrived: Ints

    @classmethod
    def of(cls, keys: Ints, *, own_time: bool) -> Input:
        """Return one tuple at every time from 1 on.

        With `own_time` the tuples of a key have times 1, 2, 3, ..., so that windows have as
        many tuples as they are long; otherwise windows use the time of arrival.
        """
        arrived = np.arange(1, len(keys) + 1, dtype=np.int64)
        if not own_time:
            return cls(keys, arrived, arrived)
        order = np.argsort(keys, kind="stable")
        sizes = np.bincount(keys)
        ranks = np.empty(len(keys), dtype=np.int64)
        ranks[order] = np.arange(len(keys)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
        return cls(keys, ranks, arrived)

    @property
    def key_count(self) -> int:
        """Return the number of keys."""
        return int(self.keys.max()) + 1

    @property
    def until(self) -> int:
        """Return when the last tuple came."""
        return int(self.arrived[-1])


@dataclass(frozen=True)
class WindowQueueRun:
    """The result of a run."""

    windows: UpdateWindows
    given: Input
    #: key, window and time of each delivery
    deliveries: Table
    #: key, window, time and start of the key's wait of each commit; none in an append queue
    commits: Table
    #: of each tuple: 1 an update of a key that did not wait, 2 of one that did, 0 none
    kinds: Ints

    def application(self, key: int) -> Ramps:
        """Return the staleness of a key's results until the last tuple came."""
        of_key = self.given.keys == key
        delivered = self.deliveries[self.deliveries[:, 0] == key][:, 1:]
        return application_ramps(
            self.windows,
            self.given.times[of_key],
            self.given.arrived[of_key],
            delivered,
            self.given.until,
        )

    @property
    def staleness(self) -> float:
        """Return the application's staleness on average over keys and time."""
        keys = np.unique(self.given.keys).tolist()
        return average([self.application(key) for key in keys], self.given.until)


def run_updates(
    windows: UpdateWindows, given: Input, cost: int, *, fifo: bool = False
) -> WindowQueueRun:
    """Run tuples through a window queue and one operator."""
    arrays = WindowArrays(windows.size, windows.slide, eager=windows.eager, fifo=fifo, width=0)
    arrays.reserve_cells(given.key_count)
    for cell in range(given.key_count):
        blank_cell(arrays.cells, cell)
    most = 2 * windows.size + windows.slide
    arrays.reserve_zones(given.key_count * (most // int(arrays.facts[z.ROWS]) + 3))
    rows = len(given.keys)
    kinds = np.zeros(rows, dtype=np.int64)
    commits = np.zeros((rows, kernels.COMMIT), dtype=np.int64)
    deliveries = np.zeros((rows, kernels.DELIVERY), dtype=np.int64)
    _, committed, delivered = kernels.run_windows(
        arrays.kernel, given.keys, given.times, given.arrived, cost, kinds, commits, deliveries
    )
    return WindowQueueRun(windows, given, deliveries[:delivered], commits[:committed], kinds)


def run_append(
    windows: UpdateWindows, given: Input, cost: int, *, keep: float = 1.0, seed: int = 0
) -> WindowQueueRun:
    """Run tuples through an append queue; each window is delivered with probability `keep`."""
    random = np.random.default_rng(seed)
    work = np.zeros(len(given.keys), dtype=np.int64)
    closers: list[Table] = []
    for key in np.unique(given.keys).tolist():
        rows = np.flatnonzero(given.keys == key)
        times = given.times[rows]
        first, last = int(times[0]) // windows.slide, int(times[-1]) // windows.slide
        numbers: Ints = np.arange(first, last + 1, dtype=np.int64)
        opened = random.random(len(numbers)) < keep
        starts, ends = numbers * windows.slide, numbers * windows.slide + windows.size - 1
        filled = np.searchsorted(times, starts) < np.searchsorted(times, ends, "right")
        opened &= filled
        before = np.concatenate([[0], np.cumsum(opened)])
        oldest = np.maximum(-((windows.size - 1 - times) // windows.slide), first)
        work[rows] = before[times // windows.slide - first + 1] - before[oldest - first]
        closed = np.searchsorted(times, ends)
        full = opened & (closed < len(times))
        closers.append(np.stack([np.full(full.sum(), key), numbers[full], rows[closed[full]]], 1))
    done = departures(given.arrived, work * cost)
    deliveries = np.concatenate(closers)
    deliveries[:, 2] = done[deliveries[:, 2]]
    deliveries = deliveries[np.lexsort((deliveries[:, 1], deliveries[:, 2]))]
    nothing = np.zeros((0, kernels.COMMIT), dtype=np.int64)
    return WindowQueueRun(
        windows, given, deliveries, nothing, np.zeros(len(given.keys), dtype=np.int64)
    )


def departures(arrived: Ints, service: Ints) -> Ints:
    """Return completion times of services in order of arrival, one at a time."""
    total = np.cumsum(service)
    begun = np.maximum.accumulate(arrived - (total - service))
    done: Ints = begun + total
    return done
