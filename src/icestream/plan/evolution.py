"""What of a query may change while its checkpoint goes on, and what is refused by name.

Idea: state belongs to operators, not to the text of a query. Two queries are compared by what they
store: keys, windows, fields of aggregates, tables by group. What stores nothing (filters and
expressions on the way from the sources, sinks, slack, names of columns) may always change; the rows
from before stay as they were computed. Windows on a grid, sessions and tables by key also go on
with other aggregates: a field that the state has is carried over, a new one begins empty.
Everything else would answer wrongly, and is refused with the reason.

Invariants:
1. Whatever is accepted goes on as a query that had applied both definitions to their own events
   (`test_oracle_windows_go_on_with_other_aggregates`, `test_oracle_a_filter_changes_at_a_restart`).
2. Whatever changes the identity of groups or the bounds of windows is refused
   (`test_what_would_answer_wrongly_is_refused_by_name`).

References: `docs/decisions/0070-state-belongs-to-operators-not-to-the-text-of-a-query.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from icestream.core.errors import CheckpointError
from icestream.core.units import format_interval
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.fields import ROWS, Field, Layout
from icestream.operators.lifetimes.lift import Lifting
from icestream.operators.object_aggregates.functions import is_object, needs_objects
from icestream.plan.computation import Computation
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.grid.parts import parts_of
from icestream.plan.nodes.queries import Plan, View, differences
from icestream.plan.state_schema import (
    AggregateSchema,
    ComponentSchema,
    DataflowSchema,
    NoSchema,
    UpdateSchema,
    read,
    state_schema_of,
    written,
)
from icestream.plan.windows.grid import Cumulative, Grid, Windows


#: the number of a component, and its state before and after
OtherAggregates = tuple[int, ComponentSchema, ComponentSchema]


@dataclass(frozen=True)
class Evolution:
    """How a query differs from the one whose state a checkpoint has."""

    #: what the checkpoint and the query have, for people
    differences: tuple[str, ...]
    #: the plans of windows before and after, if stored state has to be written anew
    windows: tuple[Plan, Plan] | None = None
    #: the components of a dataflow before and after whose aggregates have to be written anew
    aggregates: tuple[OtherAggregates, ...] = ()


def evolution(
    root: str,
    stored: Mapping[str, Any],
    schema: Mapping[str, Any] | None,
    plan: Computation,
) -> Evolution | None:
    """Compare a query with the stored plan; None if it is the same, CheckpointError if it may not.

    Args:
        root: the checkpoint, for the message.
        stored: the description of the plan that the checkpoint has.
        schema: its state schema.
        plan: the plan of the query that starts.
    """
    described = plan.as_stored(stored).describe()
    found = differences(stored, described)
    if not found:
        return None
    before, after = None if schema is None else read(schema), read(written(state_schema_of(plan)))
    windows: tuple[Plan, Plan] | None = None
    aggregates: tuple[OtherAggregates, ...] = ()
    match before, after:
        case Plan(), Plan():
            change = WindowChange(before, replace(after, key_groups=before.key_groups))
            refused = list(change.refused())
            windows = (change.before, change.after) if not refused and change.rewrites else None
        case DataflowSchema(), DataflowSchema():
            aggregates = tuple(_other_aggregates(before, after, plan))
            changed = frozenset(number for number, _, _ in aggregates)
            flows = Flow(stored, before, changed), Flow(described, after, changed)
            refused = list(_refused_in_dataflow(*flows))
            refused += [why for _, *pair in aggregates for why in _refused_words(*pair)]
        case UpdateSchema(), UpdateSchema():
            alike = replace(before, text="") == replace(after, text="")
            refused = [] if alike else ["the values that wait have other columns, keys or windows"]
        case (None | NoSchema(), _) | (_, NoSchema()):
            refused = ["without a state schema nothing but sinks and late events may change"]
        case _:
            refused = ["queries of another kind have other state"]
    if refused:
        msg = (
            f"the checkpoint at {root} belongs to another query. {'; '.join(found)}. Its state "
            f"cannot go on: {'; '.join(refused)}. Give this query its own checkpoint location "
            "(writer.bootstrap fills it from history), or undo the change"
        )
        raise CheckpointError(msg)
    return Evolution(tuple(found), windows, aggregates)


# -- windows ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowChange:
    """Two plans of windows, the second of which shall go on with the state of the first."""

    before: Plan
    after: Plan

    def refused(self) -> Iterator[str]:
        """Yield why the state of one plan is of no use to the other."""
        before, after = self.before, self.after
        if len(before.sources) != len(after.sources):
            yield "the progress of each source is stored: their number is fixed"
        if before.time != after.time:
            yield f"times are stored as {before.time}, and now are {after.time}"
        if _named(before.keys) != _named(after.keys):
            yield f"keys identify groups: ({_named(before.keys)}) became ({_named(after.keys)})"
            return
        lost, added = (
            [_text(each) for each in one.views if matching(each, other) is None]
            for one, other in ((before, after), (after, before))
        )
        if lost and added:
            yield f"windows have state of their own: {', '.join(lost)} became {', '.join(added)}"
            return
        yield from self._refused_types()
        if self.rewrites:
            yield from self._unwritable()
            yield from self._mixed()

    def _mixed(self) -> Iterator[str]:
        """Yield the aggregates whose fields would not all be of the same events."""
        if any(part.framed for part in parts_of(self.after)):
            return
        carried = carried_fields(self.before, self.after)
        texts = dict(zip(self.after.inputs.names, self.after.expressions, strict=True))
        for each in words_of(self.after):
            text = ", ".join(texts[name] for name in each.columns)
            yield from _mixed(each, text, each.fields(self.after.types), carried)

    def _refused_types(self) -> Iterator[str]:
        """Yield the inputs of aggregates whose type has changed to one that is not wider."""
        before, after = self.before, self.after
        for view in after.views:
            for each in view.aggregates:
                same = continued(each, matching(view, before))
                for a, b in () if same is None else zip(same.columns, each.columns, strict=True):
                    if not _is_wider(before.types[a], after.types[b]):
                        yield (
                            f"{each.alias!r} aggregated {before.types[a]}, and now "
                            f"{after.types[b]}: types of inputs may only become wider. An "
                            "aggregate with another name begins empty"
                        )

    @property
    def rewrites(self) -> bool:
        """Return whether the plans store different things."""
        before, after = parts_of(self.before), parts_of(self.after)
        return len(before) != len(after) or not all(
            map(_is_stored_alike, (each.plan for each in before), (each.plan for each in after))
        )

    def _unwritable(self) -> Iterator[str]:
        """Yield why state cannot be written anew."""
        before, after = parts_of(self.before), parts_of(self.after)
        if any(part.framed for part in (*before, *after)):
            yield (
                "windows that move with events store the columns that their aggregates read, so "
                "their aggregates are fixed"
            )
        elif len(before) > 1 or len(after) > 1:
            yield (
                "windows of several kinds, or with and without collections, are in one query: "
                "their aggregates, groupings and number are fixed"
            )
        elif moved := [each.alias for each in self._changing_form()]:
            yield (
                f"next to collections {', '.join(moved)} would be stored in another form: start "
                "collections as a query of their own"
            )
        elif self.before.one_grouping != self.after.one_grouping:
            yield "groups are identified by keys and grouping: a query has one grouping, or sets"
        elif any(view.mode == "update" for view in self.after.views):
            yield (
                "in update mode the state includes the last rows of windows, which have the old "
                "columns: write output mode append or now"
            )
        elif (was := grid_of(self.before)) != (grid := grid_of(self.after)):
            assert was is not None
            assert grid is not None
            length, other = format_interval(was.pane), format_interval(grid.pane)
            yield f"windows consist of panes of {length}, and would consist of panes of {other}"

    def _changing_form(self) -> Iterator[Aggregate]:
        """Yield aggregates that go on, as words where they were objects or the other way."""
        before, after = words_of(self.before), words_of(self.after)
        for view in self.after.views:
            for each in view.aggregates:
                same = continued(each, matching(view, self.before))
                if same is not None and (same in before) != (each in after):
                    yield each


def matching(view: View, plan: Plan) -> View | None:
    """Return the view of a plan with the windows and keys of another one; None if there is none."""
    alike = [
        each
        for each in plan.views
        if (each.windows, each.keys, each.tells_grouping)
        == (view.windows, view.keys, view.tells_grouping)
    ]
    several = [each for each in alike if set(each.groupings) & set(view.groupings)]
    aliases = {each.alias for each in view.aggregates}
    return max(
        several,
        key=lambda each: len(aliases & {every.alias for every in each.aggregates}),
        default=None,
    )


def continued(aggregate: Aggregate, view: View | None) -> Aggregate | None:
    """Return the aggregate of a view that another one goes on with: same name, same function."""
    for each in () if view is None else view.aggregates:
        if each.alias == aggregate.alias and _call(each) == _call(aggregate):
            return each
    return None


def carried_fields(before: Plan, after: Plan) -> dict[Field, Field | None]:
    """Return the old field that each field of a changed plan goes on with; None if it is new.

    These are fields of the same expression or, where an aggregate has another expression than
    before, those of the old expression.
    """
    named = [
        dict(zip(plan.inputs.names, plan.expressions, strict=True)) for plan in (before, after)
    ]

    def text(field: Field, which: int) -> tuple[str, ...]:
        return (field.kind, *(named[which][name] for name in field.columns))

    known = {text(field, 0): field for field in fields_of(before)}
    found: dict[Field, Field | None] = {
        field: known.get(text(field, 1)) for field in fields_of(after)
    }
    for view in after.views:
        for each in view.aggregates:
            same = continued(each, matching(view, before))
            if same is None or each not in words_of(after) or same not in words_of(before):
                continue
            for new, old in zip(each.fields(after.types), same.fields(before.types), strict=True):
                if found[new] is None:
                    # of integers and of wider ones, sums have other kinds
                    found[new] = old
    return found


def fields_of(plan: Plan) -> tuple[Field, ...]:
    """Return the fields that windows of one kind fold events into."""
    return Layout.of(field for each in words_of(plan) for field in each.fields(plan.types)).fields


def words_of(plan: Plan) -> list[Aggregate]:
    """Return the aggregates of windows of one kind whose state is a row of words."""
    every = [each for view in plan.views for each in view.aggregates]
    if not any(needs_objects(each, plan.types) for each in every):
        return every
    return [each for each in every if not is_object(each, plan.types)]


def grid_of(plan: Plan) -> Grid | None:
    """Return the panes of the windows of a plan; None if they are not on a grid."""
    kinds = [view.windows for view in plan.views]
    on_grid = [each for each in kinds if isinstance(each, Windows | Cumulative)]
    return Grid.of(on_grid) if len(on_grid) == len(kinds) else None


def _is_stored_alike(before: Plan, after: Plan) -> bool:
    """Return whether two plans of one part keep the same words in the same places."""
    if before.types != after.types or len(before.views) != len(after.views):
        return False
    texts = [
        dict(zip(plan.inputs.names, plan.expressions, strict=True)) for plan in (before, after)
    ]
    for old, new in zip(before.views, after.views, strict=True):
        if replace(old, aggregates=()) != replace(new, aggregates=()):
            return False
        if len(old.aggregates) != len(new.aggregates):
            return False
        for a, b in zip(old.aggregates, new.aggregates, strict=True):
            read_alike = [texts[0][each] for each in a.columns] == [
                texts[1][each] for each in b.columns
            ]
            if (_call(a), a.columns) != (_call(b), b.columns):
                return False
            if a.alias != b.alias and not read_alike:
                return False
    return True


def _call(aggregate: Aggregate) -> tuple[Any, ...]:
    return aggregate.function, len(aggregate.columns), aggregate.parameters


def _is_wider(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether values of one type are stored as the same words in another one."""
    if before == after:
        return True
    if pa.types.is_signed_integer(before) and pa.types.is_signed_integer(after):
        return bool(before.bit_width < after.bit_width)
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        return bool(before.scale == after.scale and before.precision < after.precision)
    return (before, after) == (pa.float32(), pa.float64())


def _text(view: View) -> str:
    return " ".join(map(str, view.windows.describe().values()))


def _named(keys: pa.Schema) -> str:
    return ", ".join(f"{key.name} {key.type}" for key in keys)


# -- dataflows -------------------------------------------------------------------------------

#: maps that may change if nothing behind them was ever taken back
_MAPS = ("where ", "select ", "allow nulls")
_STEP = re.compile(r"(?P<number>\d+): (?P<what>.*?)(?: of (?P<inputs>\d+(?:, \d+)*))?", re.DOTALL)
_EDGE = re.compile(r"(?:receive edge|send by .* on edge) (\d+)")


@dataclass(frozen=True)
class Flow:
    """The description of a dataflow, with the state of its components."""

    described: Mapping[str, Any]
    schema: DataflowSchema
    #: components whose aggregates may differ
    changed: frozenset[int] = frozenset()

    @cached_property
    def steps(self) -> dict[tuple[int, int], tuple[str, tuple[int, ...]]]:
        """Return text and inputs of each step, by component and number."""
        found = {}
        for component, lines in enumerate(self.described["components"]):
            for line in lines:
                step = _STEP.fullmatch(line)
                assert step is not None
                inputs = (
                    tuple(map(int, (step["inputs"] or "").split(", "))) if step["inputs"] else ()
                )
                found[component, int(step["number"])] = (step["what"], inputs)
        return found

    @cached_property
    def _senders(self) -> dict[int, tuple[int, int]]:
        """Return the step that sends on each edge between components."""
        sends = ((at, _EDGE.fullmatch(what)) for at, (what, _) in self.steps.items())
        return {
            int(edge[1]): at
            for at, edge in sends
            if edge is not None and not edge[0].startswith("receive")
        }

    def _before(self, at: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the steps whose output a step reads."""
        what, inputs = self.steps[at]
        edge = _EDGE.fullmatch(what)
        if what.startswith("receive") and edge is not None:
            sender = self._senders.get(int(edge[1]))
            return [] if sender is None else [sender]
        return [(at[0], each) for each in inputs]

    def _has_state(self, at: tuple[int, int]) -> bool:
        component, what = self.schema.components[at[0]], self.steps[at][0]
        if component.join is None and not any(each.synopses for each in component.groupings):
            return not what.startswith(("receive", "send by", "emit", "union", *_MAPS))
        stateful = {step for grouping in component.groupings for step in grouping.steps}
        join = component.join
        return what in stateful or (join is not None and what == f"{join.text}, join {join.number}")

    def _is_raw(self, at: tuple[int, int]) -> bool:
        """Return whether a step sees events of sources that nothing has computed with."""
        return not self._has_state(at) and all(map(self._is_raw, self._before(at)))

    def _outline(self, at: tuple[int, int]) -> tuple[Any, ...]:
        """Return a step with all before it, without maps that may change."""
        what = self.steps[at][0]
        before = [self._outline(each) for each in self._before(at)]
        if what.startswith(_MAPS) and self._is_raw(at):
            return before[0]
        return ("aggregate" if self._is_other_aggregate(at) else what, *before)

    def _is_other_aggregate(self, at: tuple[int, int]) -> bool:
        if at[0] not in self.changed:
            return False
        aggregate = self.schema.components[at[0]].groupings[0].aggregate
        return aggregate is not None and self.steps[at][0] == aggregate.text

    @property
    def outline(self) -> list[tuple[Any, ...]]:
        """Return what leads to each output and to all state."""
        return [
            self._outline(at)
            for at, (what, _) in self.steps.items()
            if what.startswith("emit") or self._has_state(at)
        ]

    @property
    def streams(self) -> list[tuple[Any, ...]]:
        """Return the ends and keys of all edges; their maps read events of sources."""
        return [
            (each["from"], each["to"], each["by"], _lifetimes(each["after"]))
            for each in self.described["edges"]
        ]


def _lifetimes(maps: list[str]) -> list[str]:
    """Return the maps in front of an edge that give events their lifetimes or windows."""
    return [each for each in maps if not each.startswith(_MAPS)]


def _refused_in_dataflow(before: Flow, after: Flow) -> Iterator[str]:
    """Yield why the state of one dataflow is of no use to another."""
    old, new = before.described, after.described
    for name in ("time", "durability", "spilling", "inner identities"):
        if old.get(name) != new.get(name):
            yield f"{name} is fixed"
    if len(old["sources"]) != len(new["sources"]):
        yield "the progress of each source is stored: their number is fixed"
    modes = [[(each["mode"], each.get("key")) for each in flow["views"]] for flow in (old, new)]
    if modes[0] != modes[1]:
        yield "output modes of events with lifetimes have state of their own"
    if len(old["components"]) != len(new["components"]):
        yield "there are other operators, whose state would begin in the middle"
        return
    pairs = zip(before.schema.components, after.schema.components, strict=True)
    for number, (mine, other) in enumerate(pairs):
        if number not in before.changed:
            yield from _refused_state(mine, other)
    if before.streams != after.streams:
        yield "keys and lifetimes of events are part of the state"
    elif before.outline != after.outline:
        yield (
            "filters and columns behind an operator with state are fixed, because it may take back "
            "rows from before the change: change them in front of it"
        )


def _refused_state(before: ComponentSchema, after: ComponentSchema) -> Iterator[str]:
    if _without_calls(before) == _without_calls(after):
        return
    texts = (
        ", ".join(step for grouping in each.groupings for step in dict.fromkeys(grouping.steps))
        or (each.join.text if each.join else "nothing")
        for each in (before, after)
    )
    yield f"other rows would be stored: of {' instead of '.join(reversed(list(texts)))}"


def _without_calls(component: ComponentSchema) -> ComponentSchema:
    """Return what a component stores, without the calls that checkpoints may not have."""
    groupings = tuple(replace(each, aggregate=None) for each in component.groupings)
    return replace(component, groupings=groupings)


# -- aggregates over events that live for ever -------------------------------------------------


def _other_aggregates(
    before: DataflowSchema, after: DataflowSchema, plan: Computation
) -> Iterator[OtherAggregates]:
    """Yield components that differ in the aggregates of a table of what holds, and may."""
    # events that end would leave rows that hold in the future, with answers of their own
    for_ever = isinstance(plan, Dataflow) and plan.forgets_past and plan.reach == 0
    if not for_ever or before.options.durability != "log":
        return
    pairs = zip(before.components, after.components, strict=False)
    for number, (old, new) in enumerate(pairs):
        differs = _without_calls(old) != _without_calls(new)
        if differs and all(map(_is_a_table_of_sums, (old, new))):
            keys = [each.groupings[0].keys for each in (old, new)]
            if _named(keys[0]) == _named(keys[1]):
                yield number, old, new


def _is_a_table_of_sums(component: ComponentSchema) -> bool:
    """Return whether a component has aggregates by key, in words, and holds their answers."""
    match component.groupings:
        case [summed, held] if summed.aggregate is not None:
            names = tuple(tuple(each.name for each in part.synopses) for part in (summed, held))
        case _:
            return False
    shown = [*summed.keys.names, *(each.alias for each in summed.aggregate.aggregates)]
    return (
        names in _TABLES
        and summed.keys.names == held.keys.names
        and held.synopses[0].schema.names[_LIFETIMES:] == shown
    )


def carried_words(before: ComponentSchema, after: ComponentSchema) -> dict[Field, Field | None]:
    """Return the old field that each field of changed aggregates goes on with; None if it is new.

    A field is known by its kind and the text of what its aggregate reads, or by an aggregate of the
    same name and function that read something else.
    """
    old, new = before.groupings[0].aggregate, after.groupings[0].aggregate
    assert old is not None
    assert new is not None
    known = {(text, field.kind): field for _, text, fields in _calls(old) for field in fields}
    by_name = {(each.alias, _call(each)): fields for each, _, fields in _calls(old)}
    found: dict[Field, Field | None] = {ROWS: ROWS}
    for each, text, fields in _calls(new):
        named = by_name.get((each.alias, _call(each)), ())
        for place, field in enumerate(fields):
            own = named[place] if named and named[place].op == field.op else None
            found[field] = found.get(field) or known.get((text, field.kind), own)
    return found


def _refused_words(before: ComponentSchema, after: ComponentSchema) -> Iterator[str]:
    """Yield the aggregates over lifetimes that would answer wrongly after a change."""
    new = after.groupings[0].aggregate
    assert new is not None
    carried = carried_words(before, after)
    for each, text, fields in _calls(new):
        yield from _mixed(each, text, fields, carried)


def _mixed(
    aggregate: Aggregate,
    text: str,
    fields: tuple[Field, ...],
    carried: Mapping[Field, Field | None],
) -> Iterator[str]:
    """Yield the reason if some fields of an aggregate would be older than others."""
    began = {carried[field] is None for field in fields if field != ROWS}
    if len(began) > 1:
        yield (
            f"{aggregate.alias!r} would mix what is known of {text} with values since the change: "
            f"write the values in another way, such as {text} + 0, and it begins empty"
        )


def _calls(schema: AggregateSchema) -> Iterator[tuple[Aggregate, str, tuple[Field, ...]]]:
    """Yield the aggregates of a schema, with the text of what each reads and its fields."""
    lifting, rest = Lifting(schema.payload, schema.aggregates), schema.text
    for each, fields in zip(schema.aggregates, lifting.fields, strict=True):
        call, end = f"{each.function}(", f") as {each.alias}"
        begin = rest.find(call)
        stop = rest.find(end, begin)
        text = rest[begin + len(call) : stop] if 0 <= begin < stop else ", ".join(each.columns)
        rest = rest[stop + len(end) :] if 0 <= begin < stop else rest
        yield each, text, fields


#: tables by group: of aggregates with and without an inverse, and of the rows that hold
_TABLES = ((("edges",), ("now",)), (("alive", "shown"), ("now",)))
#: columns of held rows in front of their payload
_LIFETIMES = 3
