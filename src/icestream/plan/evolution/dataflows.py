"""What of events with lifetimes may change: maps of sources, and aggregates of tables by key.

Idea: the identity of their state is the tables by group, the edges with their keys, and what gives
events lifetimes. Filters and columns may change where only events of sources pass, because nothing
there is ever taken back. Behind an operator with state they are fixed: a retraction that meets
another filter than the row it retracts would leave the row behind for good.

Aggregates over events that live for ever, whose rows are held by key, are two tables, which can be
written anew together.

Invariants: those of `plan.evolution.rules`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.fields import ROWS, Field
from icestream.operators.lifetimes.lift import Lifting
from icestream.plan.computation import Computation
from icestream.plan.evolution.windows import call_of, mixed, named
from icestream.plan.nodes.queries import mode_of
from icestream.plan.state_schema import AggregateSchema, ComponentSchema, DataflowSchema

#: the number of a component, and its state before and after
OtherAggregates = tuple[int, ComponentSchema, ComponentSchema]

#: maps that may change if nothing behind them was ever taken back
_MAPS = ("where ", "select ", "allow nulls")
#: the map of an earlier release in front of open windows
_COPIES = ("copies Windows", "copies Cumulative")
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


def refused_in_dataflow(before: Flow, after: Flow) -> Iterator[str]:
    """Yield why the state of one dataflow is of no use to another."""
    old, new = before.described, after.described
    for name in ("time", "durability", "spilling", "inner identities"):
        if old.get(name) != new.get(name):
            yield f"{name} is fixed"
    if len(old["sources"]) != len(new["sources"]):
        yield "the progress of each source is stored: their number is fixed"
    modes = [[(mode_of(each), each.get("key")) for each in flow["views"]] for flow in (old, new)]
    if modes[0] != modes[1]:
        yield "output modes of events with lifetimes have state of their own"
    if len(old["components"]) != len(new["components"]):
        yield "there are other operators, whose state would begin in the middle"
        return
    pairs = zip(before.schema.components, after.schema.components, strict=True)
    for number, (mine, other) in enumerate(pairs):
        if number not in before.changed:
            yield from _refused_state(mine, other)
    if any(each.startswith(_COPIES) for edge in old["edges"] for each in edge["after"]):
        yield "the release that began it copied events into open windows"
    elif before.streams != after.streams:
        yield "keys and lifetimes of events are part of the state"
    elif before.outline != after.outline:
        yield (
            "filters and columns behind an operator with state are fixed, because it may take back "
            "rows from before the change: change them in front of it"
        )


def _refused_state(before: ComponentSchema, after: ComponentSchema) -> Iterator[str]:
    if _without_calls(before) == _without_calls(after):
        return
    yield f"other rows would be stored: of {_stored(after)} instead of {_stored(before)}"


def _stored(component: ComponentSchema) -> str:
    """Return what a component stores rows of."""
    if component.windows is not None:
        (view,) = component.windows.plan.views
        return f"windows {view.windows.describe()}"
    if component.join is not None:
        return component.join.text
    steps = (step for grouping in component.groupings for step in dict.fromkeys(grouping.steps))
    return ", ".join(steps) or "nothing"


def _without_calls(component: ComponentSchema) -> ComponentSchema:
    """Return what a component stores, without the calls that checkpoints may not have."""
    groupings = tuple(replace(each, aggregate=None) for each in component.groupings)
    return replace(component, groupings=groupings)


# -- aggregates over events that live for ever -------------------------------------------------


def other_aggregates(
    before: DataflowSchema, after: DataflowSchema, plan: Computation
) -> Iterator[OtherAggregates]:
    """Yield components of two dataflows that differ in the aggregates of what holds, and may."""
    # events that end would leave rows that hold in the future, with answers of their own
    if not plan.forgets_past or plan.reach > 0 or before.options.durability != "log":
        return
    pairs = zip(before.components, after.components, strict=False)
    for number, (old, new) in enumerate(pairs):
        differs = _without_calls(old) != _without_calls(new)
        if differs and all(map(_is_a_table_of_sums, (old, new))):
            keys = [each.groupings[0].keys for each in (old, new)]
            if named(keys[0]) == named(keys[1]):
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
    by_name = {(each.alias, call_of(each)): fields for each, _, fields in _calls(old)}
    found: dict[Field, Field | None] = {ROWS: ROWS}
    for each, text, fields in _calls(new):
        named = by_name.get((each.alias, call_of(each)), ())
        for place, field in enumerate(fields):
            own = named[place] if named and named[place].op == field.op else None
            found[field] = found.get(field) or known.get((text, field.kind), own)
    return found


def refused_words(before: ComponentSchema, after: ComponentSchema) -> Iterator[str]:
    """Yield the aggregates over lifetimes that would answer wrongly after a change."""
    new = after.groupings[0].aggregate
    assert new is not None
    carried = carried_words(before, after)
    for each, text, fields in _calls(new):
        yield from mixed(each, text, fields, carried)


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
