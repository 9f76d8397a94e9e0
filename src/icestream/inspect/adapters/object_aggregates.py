"""State of windows with object aggregates: the states of each group and pane.

Idea: the operator of a shard is restored and yields the states of its panes: aggregates of fixed
size in the columns of panes, followed by the state of each object aggregate (a list of values with
their times or counts, the bytes of a sketch) as the log stores it. They are read only if requested
by name.

Invariant: the state shown for a group and a pane is that of its events, each pair once
(`test_oracle_states_of_panes_are_those_of_their_events`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.inspect.access.adapter_protocol import ReadRequest, StateRows, StateTable
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.fields import FieldColumns
from icestream.inspect.adapters.panes import PANE
from icestream.operators.grid.operator import PANES
from icestream.operators.object_aggregates.operator import ObjectOperator
from icestream.operators.object_aggregates.states import ObjectSpec, States
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.grid import Grid
from icestream.state.versions.commits import Commit


class ObjectAggregateState:
    """The panes of a plan that has only windows with object aggregates."""

    def __init__(self, plan: Plan, spec: ObjectSpec, commit: Commit) -> None:
        """Read the columns from a plan with a single part."""
        self.plan, self.spec = plan, spec
        self.states = States(spec)
        self.grid = Grid.of([spec.windows])
        self.fields = FieldColumns.of(self.states.layout, spec.types, plan)
        #: columns with states of object aggregates
        self.objects = [
            pa.field(f"__state({aggregate.alias})", kind) for aggregate, kind in self.states.objects
        ]
        pane = pa.field(PANE, plan.time, nullable=False)
        keys = plan.group_keys
        self.table = StateTable(
            "windows",
            PANES,
            "states of each group and pane",
            keys,
            pa.schema([pane, *keys, *self.fields.schema, *self.objects]),
            range(len(commit.bases)),
            by_name=True,
        )

    def first(self, watermark: Micros) -> int | None:
        """Return the first pane that some window still needs; None for all."""
        if watermark == MINUS_INFINITY:
            return None
        return self.spec.windows.on(self.grid).first_open(watermark)

    def read(self, source: ScratchShard, asked: ReadRequest) -> Iterator[StateRows]:
        for panes, states in source.operator(ObjectOperator, self.plan).panes():
            id_high, id_low = self.states.identities(states)
            rows = self._rows(panes, states)
            yield asked.chosen(self.table, source.shard, rows, id_high, id_low)

    def _rows(self, panes: Ints, states: pa.RecordBatch) -> pa.RecordBatch:
        instants = pa.array(panes * self.grid.pane + self.grid.origin).view(self.plan.time)
        fields = self.fields.shown(self.states.entries(states))
        shown = [instants, *self.states.keys(states), *fields, *self.states.of_objects(states)]
        return pa.RecordBatch.from_arrays(shown, schema=self.table.columns)
