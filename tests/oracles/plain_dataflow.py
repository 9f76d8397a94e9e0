"""A dataflow without exchange, log or shards: the slow version that real queries are compared with.

Idea: the steps are those of the query; everything around them is simple: one shard, rows of groups
    in
dictionaries, changes passed from component to component in lists. What the operators themselves
compute is compared with `tests.oracles.lifetimes` in their own tests.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.dataflow.component import (
    ComponentOperator,
    SoleStepComponent,
    StepWithState,
)
from icestream.operators.dataflow.sorted_changes import between, by_group
from icestream.operators.dataflow.spec import ComponentSpec
from icestream.operators.dataflow.steps import regrouped
from icestream.operators.lifetimes.changes import LE, changes_of, column_of
from icestream.operators.protocol import PastVersion, Shard
from icestream.plan.events.dataflow import Dataflow, source_column
from icestream.plan.nodes.queries import SOURCE, TIME
from icestream.runtime.local import Splits
from icestream.state.groups.spec import Groups, Synopsis
from tests.oracles.plain_groups import PlainGroups
from tests.oracles.plain_over import plain_step


class PlainStores:
    """The stores of a component, in dictionaries: one for each operator."""

    took_snapshot = False
    gathered_bytes = 1 << 16
    released: tuple[int, ...] = ()

    def __init__(self, groupings: Sequence[Sequence[Synopsis]]) -> None:
        """Start empty."""
        self.statistics: dict[str, Any] = {"groups": 0, "partitions": 1}
        self._groupings = groupings
        self._made: dict[tuple[int, int], PlainGroups] = {}

    def groups(self, grouping: int, first: int, count: int) -> Groups:
        """Return the synopses of one operator."""
        made = PlainGroups(self._groupings[grouping][first : first + count])
        self._made[grouping, first] = made
        return made

    def begin(self, grouping: int, watermark: Micros) -> None:
        """Begin a chunk of a grouping."""
        for (place, _), groups in self._made.items():
            if place == grouping:
                groups.begin(watermark)

    def chunk_groups(self, grouping: int) -> int:
        """Return how many groups a chunk may access: any number."""
        del grouping
        return sys.maxsize

    def knows(self, grouping: int, id_high: Ids, id_low: Ids) -> Mask:
        """Return which groups an operator knows."""
        made = [groups for (place, _), groups in self._made.items() if place == grouping]
        known: Mask = np.logical_or.reduce([groups.knows(id_high, id_low) for groups in made])
        return known

    def rest(self) -> None:
        """Do nothing: no group is evicted."""

    def end_version(self, watermark: Micros) -> None:
        """Do nothing: there is no log."""

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Refuse: there is no log."""
        msg = "rows in dictionaries cannot be restored"
        raise AssertionError(msg)


def plain_component(spec: ComponentSpec) -> ComponentOperator:
    """Return a component on plain stores."""
    shard = cast("Shard", SimpleNamespace(arena=SimpleNamespace(header={})))
    if spec.sole is not None:
        return SoleStepComponent(
            spec, shard, cast("StepWithState", plain_step(cast("Any", spec.sole)))
        )
    return ComponentOperator(spec, shard, PlainStores(spec.groupings))


class ChangeLists:
    """Changes by edge, as a component reads them."""

    def __init__(self) -> None:
        """Start empty."""
        self.lists: dict[int, list[pa.RecordBatch]] = defaultdict(list)

    def ranges(self, edge: int) -> tuple[Ids, Ints]:
        """Return one range with all changes."""
        return np.zeros(1, dtype=np.uint64), np.ones(1, dtype=np.int64)

    def changes(self, edge: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes of an edge."""
        for changes in self.lists[edge]:
            yield between(by_group(changes), first, last)

    def as_sent(self, edge: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes of an edge as they were sent."""
        yield from self.lists[edge]

    def earliest_sent(self, edge: int) -> Ints:
        """Return the earliest time of each batch."""
        return np.array([column_of(each, LE).min() for each in self.lists[edge]], dtype=np.int64)


class PlainDataflow:
    """Runs a dataflow batch by batch."""

    def __init__(self, plan: Dataflow) -> None:
        """Start before the first event."""
        # groups inside others are entered where they are, not where changes are sent from
        self._plan = plan = replace(plan, inner_ids=False)
        self._components = [plain_component(spec) for spec in plan.specs]
        self._watermark = MINUS_INFINITY
        #: batches and events so far
        self._arrived = [0, 0]
        self._seen: list[Micros | None] = [None] * len(plan.sources)

    def feed(self, splits: Splits) -> list[pa.RecordBatch]:
        """Process a batch and return the rows of the first view."""
        self._arrived = [self._arrived[0] + 1, 0]
        inputs = ChangeLists()
        for split in splits:
            for batch in split:
                self._take(batch, inputs)
        reached = self._plan.watermark(self._watermark, tuple(self._seen))
        return self._run(inputs, reached)

    def flush(self) -> list[pa.RecordBatch]:
        """Return the remaining rows."""
        latest = max((each for each in self._seen if each is not None), default=None)
        if latest is None:
            return []
        return self._run(ChangeLists(), max(self._watermark, self._plan.settled_by(latest)))

    def _take(self, batch: pa.RecordBatch, inputs: ChangeLists) -> None:
        batch = batch.filter(batch.column(TIME).is_valid())
        times = np.asarray(batch.column(TIME).cast(pa.int64()).to_numpy())
        numbers = np.asarray(batch.column(SOURCE).to_numpy())
        for number in np.unique(numbers).tolist():
            latest = int(times[numbers == number].max())
            before = self._seen[number]
            self._seen[number] = latest if before is None else max(before, latest)
            late_before = self._plan.late_before(self._watermark)
            chosen = np.flatnonzero((numbers == number) & (times >= late_before))
            schema = self._plan.columns[number]
            columns = [
                batch.column(source_column(number, place)).take(pa.array(chosen))
                for place in range(len(schema))
            ]
            payload = pa.RecordBatch.from_arrays(columns, schema=schema)
            instants = times[chosen]
            ones = np.ones(len(chosen), dtype=np.int64)
            batch_number = np.full(len(chosen), self._arrived[0], dtype=np.uint64)
            arrival = (self._arrived[1] + chosen).astype(np.uint64)
            events = changes_of(payload, instants, instants + 1, ones, batch_number, arrival)
            for edge_number, edge in enumerate(self._plan.edges):
                if edge.source == number:
                    changes = events
                    for change in edge.maps:
                        changes = change(changes)
                    sent = regrouped(changes, edge.keys, edge.payload)
                    inputs.lists[edge_number].append(sent)
        self._arrived[1] += batch.num_rows

    def _run(self, inputs: ChangeLists, reached: Micros) -> list[pa.RecordBatch]:
        rows = []
        for component in self._components:
            component.on_batch(inputs)
            for view, batch in component.on_watermark(reached):
                if view < 0:
                    inputs.lists[-1 - view].append(batch)
                elif view == 0:
                    rows.append(batch)
        self._watermark = reached
        return rows
