"""The state schema of a checkpoint: what its state consists of, readable without the query's code.

Idea: the description of a plan is for people; readers of state need the types behind it. A state
schema is that part of a plan as pure data: windows and aggregates, or the stored tables of
groupings, the inputs of joins, the waiting values. It is written once, next to the plan, as JSON
that names classes of a small set; other names are refused, so reading runs no code.

Invariants:
1. A schema reads back as it was written (`test_a_state_schema_reads_back_as_it_was_written`).
2. Only the classes listed here are created, whatever the file contains
   (`test_a_state_schema_names_only_classes_of_the_list`).

Limits: a plan with a user-defined aggregate has no state schema, because the states of such
aggregates are pickled: reading them would run code from the file.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow.spec import ComponentSpec
from icestream.operators.dataflow.steps import JoinMany, Receive, Regroup, Stateful
from icestream.operators.latest.pre_queue import (
    PreQueueFilter,
    PreQueueInput,
    PreQueueJoin,
    PreQueueMap,
    PreQueueNode,
    PreQueueUnion,
)
from icestream.operators.latest.update_stream import UpdateStream
from icestream.operators.latest.window_serving import WindowedBy
from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.plan.computation import Computation
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.pane_windows import PaneWindows
from icestream.plan.nodes.queries import Plan, Source, View, mode_of
from icestream.plan.nodes.updates import Updates
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from icestream.state.groups.options import StoreOptions
from icestream.state.groups.spec import Synopsis
from icestream.state.queue.windows.spec import UpdateWindows


@dataclass(frozen=True)
class AggregateSchema:
    """Aggregates over lifetimes that are rows of words: the events they read, and the calls."""

    payload: pa.Schema
    aggregates: tuple[Aggregate, ...]
    text: str


@dataclass(frozen=True)
class GroupingSchema:
    """One grouping of a component: its key columns and the state of each group."""

    keys: pa.Schema
    synopses: tuple[Synopsis, ...]
    #: the step that owns each table of a group, as text
    steps: tuple[str, ...]
    #: what the groups aggregate, if nothing else has state; not in checkpoints of earlier releases
    aggregate: AggregateSchema | None = None


@dataclass(frozen=True)
class JoinSchema:
    """A join that may defer results: the rows of each port, and their key columns."""

    number: int
    text: str
    inputs: tuple[pa.Schema, ...]
    keys: tuple[tuple[str, ...], ...]
    partitions: int


@dataclass(frozen=True)
class PaneSchema:
    """Windows on a grid inside of a dataflow, over events that live later than meant."""

    plan: Plan
    delay: Micros


@dataclass(frozen=True)
class ComponentSchema:
    """One component of a dataflow: groupings, one join, or windows; none of these for frames."""

    groupings: tuple[GroupingSchema, ...]
    join: JoinSchema | None
    lifetimes: tuple[str, ...]
    #: not in checkpoints of earlier releases
    windows: PaneSchema | None = None

    @property
    def is_sole(self) -> bool:
        """Return whether one operator keeps state of its own, not in tables by group."""
        return not self.groupings and self.join is None


@dataclass(frozen=True)
class DataflowSchema:
    """The state of a dataflow."""

    components: tuple[ComponentSchema, ...]
    options: StoreOptions


@dataclass(frozen=True)
class UpdateSchema:
    """The state of an update stream: the newest value of every waiting key."""

    payload: pa.Schema
    keys: tuple[str, ...]
    text: str
    #: steps that share the queue
    readers: int = 1
    #: operators on the sources in front of the queue
    front: PreQueueNode | None = None
    #: windows whose newest is the update of a key
    windowed: WindowedBy | None = None


@dataclass(frozen=True)
class NoSchema:
    """No state, or none that can be read, with the reason."""

    why: str


StateSchema = Plan | DataflowSchema | UpdateSchema | NoSchema

#: classes that may be stored, by their tag in checkpoints
_CLASSES: Mapping[str, type] = {
    "Aggregate": Aggregate,
    "Aggregated": AggregateSchema,
    "Arriving": PreQueueInput,
    "Component": ComponentSchema,
    "Cumulative": Cumulative,
    "Filtered": PreQueueFilter,
    "Frame": Frame,
    "Grouping": GroupingSchema,
    "Groups": DataflowSchema,
    "Join": JoinSchema,
    "Joined": PreQueueJoin,
    "Mapped": PreQueueMap,
    "Merged": PreQueueUnion,
    "Nothing": NoSchema,
    "Panes": PaneSchema,
    "Plan": Plan,
    "RowsSlide": RowsSlide,
    "Session": Session,
    "Source": Source,
    "StoreOptions": StoreOptions,
    "Synopsis": Synopsis,
    "UpdateStream": UpdateStream,
    "UpdateWindows": UpdateWindows,
    "View": View,
    "Waiting": UpdateSchema,
    "WindowedBy": WindowedBy,
    "Windows": Windows,
}
_TAGS = {made: tag for tag, made in _CLASSES.items()}


class _Unspeakable(Exception):
    """A value that a state schema cannot contain."""


def state_schema_of(plan: Computation) -> StateSchema:
    """Return the state schema of a plan."""
    if isinstance(plan, Dataflow):
        return _groups(plan)
    if isinstance(plan, Updates):
        if plan.latest is None:
            return NoSchema(
                "every event is served in its own batch, so there is no state between batches"
            )
        steps = plan.newest.values()
        text = "; ".join(step.text for step in steps)
        return UpdateSchema(
            plan.waits, plan.latest.keys, text, len(steps), plan.front, plan.windowed
        )
    pickled = _pickled(plan)
    if pickled is not None:
        return NoSchema(
            f"{pickled!r} is a user-defined aggregate with pickled states: reading them "
            "would run code from the file"
        )
    return plan


def _pickled(plan: Plan) -> str | None:
    """Return the name of a user-defined aggregate of windows, if there is one."""
    every = (aggregate for view in plan.views for aggregate in view.aggregates)
    return next((each.alias for each in every if each.function == "user"), None)


def written(state_schema: StateSchema) -> dict[str, Any]:
    """Return a state schema as JSON; one that cannot be written gives the reason instead."""
    try:
        value = _encoded(state_schema)
    except _Unspeakable as unspeakable:
        value = _encoded(NoSchema(f"its plan has {unspeakable}, which cannot be stored"))
    assert isinstance(value, dict)
    return value


def read(value: Any) -> StateSchema:
    """Return the state schema that `written` wrote; ValueError for anything else."""
    state_schema = _decoded(value)
    if not isinstance(state_schema, Plan | DataflowSchema | UpdateSchema | NoSchema):
        msg = "this is not a state schema"
        raise ValueError(msg)  # noqa: TRY004 - a file is wrong, not a program
    return state_schema


# -- the state of a dataflow ----------------------------------------------------------------


def _groups(plan: Dataflow) -> DataflowSchema:
    return DataflowSchema(
        tuple(_component(plan, number, spec) for number, spec in enumerate(plan.specs)),
        plan.cold.store,
    )


def _component(plan: Dataflow, number: int, spec: ComponentSpec) -> ComponentSchema:
    join = None
    for step in spec.steps:
        if isinstance(step, JoinMany):
            inputs = step.spec.inputs
            keys = tuple(_keys_of_port(plan, spec, port) for port in step.inputs)
            join = JoinSchema(step.spec.number, step.spec.text, inputs, keys, step.spec.partitions)
    if join is not None or spec.sole is not None:
        windows = None
        if isinstance(spec.sole, PaneWindows) and _pickled(spec.sole.plan) is None:
            windows = PaneSchema(spec.sole.plan, spec.sole.delay)
        return ComponentSchema((), join, spec.lifetimes, windows)
    groupings = tuple(
        GroupingSchema(
            _keys_of_grouping(plan, number, spec, grouping),
            synopses,
            tuple(
                step.text
                for step in spec.steps
                if isinstance(step, Stateful) and step.grouping == grouping
                for _ in step.operator.synopses
            ),
            _aggregate(spec, grouping),
        )
        for grouping, synopses in enumerate(spec.groupings)
    )
    return ComponentSchema(groupings, None, spec.lifetimes)


def _aggregate(spec: ComponentSpec, grouping: int) -> AggregateSchema | None:
    """Return what the groups of a grouping aggregate, if that is all, in words."""
    own = [each for each in spec.steps if isinstance(each, Stateful) and each.grouping == grouping]
    operator = own[0].operator if len(own) == 1 else None
    if not isinstance(operator, LifetimeAggregate) or operator.answers.objects.results:
        return None
    return AggregateSchema(operator.answers.payload, operator.answers.aggregates, own[0].text)


def _keys_of_port(plan: Dataflow, spec: ComponentSpec, step: int) -> tuple[str, ...]:
    """Return the key columns of the input of a step."""
    while not isinstance(found := spec.steps[step], Receive):
        step = found.inputs[0]
    return plan.edges[found.edge].keys


def _keys_of_grouping(plan: Dataflow, number: int, spec: ComponentSpec, grouping: int) -> pa.Schema:
    """Return the columns that identify the groups of a grouping, with their types."""
    names: tuple[str, ...] = ()
    payload = pa.schema([])
    for step in spec.steps:
        if step.grouping == grouping and isinstance(step, Regroup):
            names, payload = step.keys, step.payload
        elif step.grouping == grouping and isinstance(step, Receive):
            names, payload = plan.edges[step.edge].keys, step.payload
    return pa.schema([payload.field(name) for name in names])


# -- JSON ----------------------------------------------------------------------------------


def _encoded(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_encoded(each) for each in value]
    if isinstance(value, pa.Schema):
        return {"$schema": base64.b64encode(value.serialize()).decode()}
    if isinstance(value, pa.DataType):
        return {"$type": _encoded(pa.schema([pa.field("", value)]))["$schema"]}
    if type(value) in _TAGS:
        described = [field.name for field in fields(value) if field.compare]
        encoded = {name: _encoded(getattr(value, name)) for name in described}
        return {"is": _TAGS[type(value)], **encoded}
    raise _Unspeakable(repr(value)[:80])


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(each) for each in value)
    if not isinstance(value, dict):
        return value
    try:
        if "$schema" in value:
            return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["$schema"])))
        if "$type" in value:
            return _decoded({"$schema": value["$type"]}).field(0).type
        made = _CLASSES[value["is"]]
        if made is View:
            value = {**value, "mode": mode_of(value)}
        return made(**{name: _decoded(each) for name, each in value.items() if name != "is"})
    except (
        LookupError,
        TypeError,
        AttributeError,
        pa.ArrowException,
        OSError,
        DefinitionError,
    ) as error:
        msg = f"not a part of a state schema: {error}"
        raise ValueError(msg) from error
