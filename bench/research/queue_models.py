"""Who moves updates before and after a query: the four models of continuous queries.

Idea: a source pushes updates when it has them, or is polled (pull). An application receives results
as soon as there are some (push), or polls for them (pull). A query between them reads from a queue,
and if the application pulls, its results wait in a second one, of which again only the newest of
each key counts.

Invariant: in every model, an application that has received everything has the newest
result of every key (`test_every_model_ends_with_the_newest_results`).

References: Figure 1 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import Micros
from icestream.state.keys import Identity
from icestream.state.queue.queue import UpdateQueue
from icestream.state.queue.reader import Dequeued


@dataclass(frozen=True)
class UpdateArrivals:
    """Updates from a source."""

    id_high: Identity
    id_low: Identity
    arrived: Ints
    rows: pa.RecordBatch


#: maps the rows of dequeued updates to as many rows of results
Query = Callable[[pa.RecordBatch], pa.RecordBatch]
#: returns the time
Clock = Callable[[], Micros]


class Continuous:
    """A query on a queue, run some updates at a time."""

    def __init__(self, queue: UpdateQueue, query: Query, clock: Clock, size: int = 64) -> None:
        """Run a query on the waiting updates of a queue, `size` at a time."""
        self.queue = queue
        self._query = query
        self._clock = clock
        self._size = size

    def push(self, arrivals: UpdateArrivals) -> None:
        """Accept updates from a source that pushes."""
        self.queue.enqueue(arrivals.id_high, arrivals.id_low, arrivals.arrived, arrivals.rows)

    def results(self) -> Iterator[Dequeued]:
        """Process the waiting updates in the order of the schedule; yield results."""
        while len(self.queue):
            served = self.queue.dequeue(self._size, self._clock())
            rows = self._query(served.rows)
            yield Dequeued(served.id_high, served.id_low, served.since, served.arrived, rows)

    def deliver(self, result: Dequeued) -> None:
        """Record that the application has a result."""
        self.queue.delivered(result.id_high, result.id_low, self._clock())


def push_push(
    source: Iterable[UpdateArrivals], work: Continuous, application: Callable[[Dequeued], None]
) -> None:
    """Let a source push, and deliver every result to the application at once."""
    for arrivals in source:
        work.push(arrivals)
        for result in work.results():
            application(result)
            work.deliver(result)


def pull_push(
    ask: Callable[[], UpdateArrivals | None],
    work: Continuous,
    application: Callable[[Dequeued], None],
) -> None:
    """Poll a source whenever nothing waits, until it has no more; deliver results at once."""
    push_push(iter(ask, None), work, application)


class Pulled:
    """Results that wait until the application polls: the newest of every key."""

    def __init__(self, work: Continuous, schema: pa.Schema) -> None:
        """Keep results of a schema."""
        self._work = work
        self._kept = UpdateQueue(schema)

    def work(self) -> None:
        """Process the waiting updates, and store the results."""
        for result in self._work.results():
            self._kept.enqueue(result.id_high, result.id_low, result.arrived, result.rows)

    def take(self, count: int, now: Micros) -> Dequeued:
        """Return up to `count` new results to the application; they are then delivered."""
        taken = self._kept.dequeue(count, now)
        self._work.deliver(taken)
        return taken


def push_pull(
    source: Iterable[UpdateArrivals], work: Continuous, schema: pa.Schema
) -> Iterator[Pulled]:
    """Let a source push; after each push the application may take what it wants."""
    pulled = Pulled(work, schema)
    for arrivals in source:
        work.push(arrivals)
        pulled.work()
        yield pulled


def pull_pull(
    ask: Callable[[], UpdateArrivals | None], work: Continuous, schema: pa.Schema
) -> Callable[[int, Micros], Dequeued]:
    """Do nothing until the application polls; then poll the source, process, and return results."""
    pulled = Pulled(work, schema)

    def take(count: int, now: Micros) -> Dequeued:
        arrivals = ask()
        if arrivals is not None:
            work.push(arrivals)
        pulled.work()
        return pulled.take(count, now)

    return take
