"""Small plans over update streams, with an update queue on any arc.

Idea: operators are nodes, and an arc leads rows from an input or a node to a port of another node.
Rows pass a plain arc at once. On an arc with a queue only the newest row of each key waits, until
the caller asks to serve some keys; so the costly part of a plan can be put behind a queue, wherever
it begins. A window aggregate is its own queue: its arc waits by windows.

Invariants:
1. With every queue served at once, a plan delivers what it delivers without queues
   (`test_oracle_queues_served_at_once_change_nothing`).
2. However queues are served, a key's newest row at the end is that of the plan without queues
   if nothing is filtered, and times of a key never decrease
   (`test_oracle_the_newest_rows_do_not_depend_on_the_service`).

Cost: that of the operators and queues.

Limits: a filter behind a queue sees only what is served: a row that would have passed may have been
superseded by one that does not.

References: section 7 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.operators.latest.update_stream import UpdateOperator, UpdateStream
from icestream.operators.latest.window_aggregate import WindowedUpdates
from icestream.state.queue.queue import UpdateQueue

#: rows delivered by the plan's output nodes, by name
Delivered = dict[str, list[pa.RecordBatch]]


@dataclass(frozen=True)
class _Arc:
    node: str
    port: int
    queue: UpdateQueue | None


@dataclass
class UpdatePlan:
    """Operators over update streams, connected by arcs."""

    _streams: dict[str, UpdateStream] = field(default_factory=dict)
    _operators: dict[str, UpdateOperator | WindowedUpdates] = field(default_factory=dict)
    _arcs: dict[str, list[_Arc]] = field(default_factory=dict)

    def add_input(self, name: str, stream: UpdateStream) -> None:
        """Add a named input."""
        self._enter(name, stream)

    def add(
        self,
        name: str,
        operator: UpdateOperator | WindowedUpdates,
        sources: Sequence[str],
        *,
        queues: Mapping[int, str] | None = None,
    ) -> None:
        """Add an operator behind inputs or other operators.

        Args:
            name: name of the node.
            operator: the operator of the node.
            sources: the nodes or inputs of its ports 0, 1, ...
            queues: schedule of the queue on the arc to a port, for arcs that have one.
        """
        unknown = [source for source in sources if source not in self._streams]
        if unknown or not sources:
            msg = f"node {name!r} needs sources that were added earlier; got {list(sources)}"
            raise DefinitionError(msg)
        schedules = dict(queues or {})
        if not set(schedules) <= set(range(len(sources))):
            msg = f"node {name!r} has ports 0 to {len(sources) - 1}; got queues for {schedules}"
            raise DefinitionError(msg)
        if schedules and isinstance(operator, WindowedUpdates):
            msg = f"{name!r} aggregates over windows, which is a queue itself: remove its queue"
            raise DefinitionError(msg)
        self._enter(name, operator.result)
        self._operators[name] = operator
        for port, source in enumerate(sources):
            queue = None
            if port in schedules:
                schema = self._streams[source].schema
                queue = UpdateQueue(schema, schedule=schedules[port])
            self._arcs[source].append(_Arc(name, port, queue))

    def _enter(self, name: str, stream: UpdateStream) -> None:
        if name in self._streams:
            msg = f"the plan has a {name!r} already; give nodes distinct names"
            raise DefinitionError(msg)
        self._streams[name] = stream
        self._arcs[name] = []

    def waiting(self) -> dict[tuple[str, int], int]:
        """Return how many keys wait on each arc with a queue, by node and port."""
        counts = {
            (arc.node, arc.port): len(arc.queue)
            for arcs in self._arcs.values()
            for arc in arcs
            if arc.queue is not None
        }
        for name, operator in self._operators.items():
            if isinstance(operator, WindowedUpdates):
                counts[name, 0] = operator.facts["waiting"]
        return counts

    def push(self, name: str, rows: pa.RecordBatch) -> Delivered:
        """Feed rows to an input; return what is delivered without passing a queue."""
        if name in self._operators or name not in self._streams:
            msg = f"the plan has no input {name!r}; add it with add_input"
            raise DefinitionError(msg)
        delivered: Delivered = {}
        self._flow(name, rows, delivered)
        return delivered

    def serve(self, node: str, count: int, now: Micros, *, port: int = 0) -> Delivered:
        """Serve up to `count` keys (tuples of windows) that wait before a node.

        `now` is the current instant, for schedules and staleness; the results count as delivered
        then.
        """
        delivered: Delivered = {}
        operator = self._operators.get(node)
        if isinstance(operator, WindowedUpdates):
            self._flow(node, operator.serve(count), delivered)
            return delivered
        queues = [
            arc.queue
            for arcs in self._arcs.values()
            for arc in arcs
            if (arc.node, arc.port) == (node, port)
        ]
        if operator is None or queues[:1] in ([], [None]):
            msg = f"no queue is before port {port} of {node!r}; there are {list(self.waiting())}"
            raise DefinitionError(msg)
        queue = queues[0]
        if queue is not None:
            served = queue.dequeue(count, now)
            self._flow(node, operator.on_rows(port, served.rows), delivered)
            queue.delivered(served.hi, served.lo, now)
        return delivered

    def _flow(self, name: str, rows: pa.RecordBatch, delivered: Delivered) -> None:
        if not rows.num_rows:
            return
        stream = self._streams[name]
        if not self._arcs[name]:
            delivered.setdefault(name, []).append(rows)
        for arc in self._arcs[name]:
            operator = self._operators[arc.node]
            if isinstance(operator, WindowedUpdates):
                operator.enqueue(rows, stream.times(rows))
            elif arc.queue is not None:
                arc.queue.enqueue(*stream.identify(rows), stream.times(rows), rows)
            else:
                self._flow(arc.node, operator.on_rows(arc.port, rows), delivered)
