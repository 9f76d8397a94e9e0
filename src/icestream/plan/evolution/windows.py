"""What of windows may change: aggregates, types of inputs, groupings, views over the same panes.

Idea: the identity of their state is time, keys, kinds of windows and the fields of aggregates. A
field is known by its kind and the texts of its expressions, or by an aggregate of the same name and
function that read another expression.

Invariants: those of `plan.evolution.rules`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from icestream.core.units import format_interval
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.fields import ROWS, Field, Layout
from icestream.operators.object_aggregates.functions import is_object, needs_objects
from icestream.plan.grid.parts import parts_of
from icestream.plan.nodes.queries import Plan, View
from icestream.plan.windows.grid import Cumulative, Grid, Windows


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
        if named(before.keys) != named(after.keys):
            yield f"keys identify groups: ({named(before.keys)}) became ({named(after.keys)})"
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
            yield from mixed(each, text, each.fields(self.after.types), carried)

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
        elif any(view.mode == "changes" for view in self.after.views):
            yield (
                "in mode 'changes' the state includes the last rows of windows, which have the old "
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
    """Return the aggregate of windows that another goes on with: same name, same function."""
    for each in () if view is None else view.aggregates:
        if each.alias == aggregate.alias and call_of(each) == call_of(aggregate):
            return each
    return None


def carried_fields(before: Plan, after: Plan) -> dict[Field, Field | None]:
    """Return the old field that each field of changed windows goes on with; None if it is new.

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
            if (call_of(a), a.columns) != (call_of(b), b.columns):
                return False
            if a.alias != b.alias and not read_alike:
                return False
    return True


def call_of(aggregate: Aggregate) -> tuple[Any, ...]:
    """Return what makes an aggregate of the same name the same aggregate after a change."""
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


def named(keys: pa.Schema) -> str:
    """Return names and types of the keys of windows, which identify groups before and after."""
    return ", ".join(f"{key.name} {key.type}" for key in keys)


def mixed(
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
