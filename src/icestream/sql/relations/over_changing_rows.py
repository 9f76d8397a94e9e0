"""Functions over frames of rows that may still be taken back, in terms of other relations.

Idea: number the rows of each partition by their order. The frame of row b that reaches back n rows
consists of the rows numbered b - n to b, so each row is copied to the frames that it is in, with
its distance from their row, and a frame is a group:

    rank    rows 2 PRECEDING                        LEAD(v)
    1  a    frame 1: a                              frame 1: b at distance -1
    2  b    frame 2: a at distance 1, b             frame 2: c at distance -1
    3  c    frame 3: a at 2, b at 1, c at 0         frame 3: none

What a frame is about, its own row, is the one at distance 0. Everything is taken back and computed
again when rows come, go or change places, as it is for any group.

Cost: n + 1 copies of a row; a row that enters before others moves all of these.

Limits: frames of up to 100 rows; nothing bounds the state.
"""

from __future__ import annotations

from sqlglot import exp

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan
from icestream.sql.relations.names import reference
from icestream.sql.relations.tree import (
    ALL_ROWS,
    Filter,
    Grouped,
    Over,
    OverCall,
    Project,
    Relation,
    SortKey,
    Top,
    UnionAll,
    columns_in,
)
from icestream.sql.statements.aggregates import AggregateCall
from icestream.sql.statements.dialect import Cql

_FARTHEST = 100
_FRAME, _DISTANCE, _ITSELF = "c0_frame", "c0_distance", "c0_itself"


def needs_later_rows(over: Over) -> bool:
    """Return whether a row depends on later ones, so that it changes when they come."""
    return any(each.call.function == "lead" for each in over.calls.values())


def over_changing(over: Over) -> Relation:
    """Return the rows of an `Over` whose input may change."""
    first = next(iter(over.calls.values()))
    for call in over.calls.values():
        if (call.partition, call.order) != (first.partition, first.order):
            msg = "functions over rows that may change share one PARTITION BY and ORDER BY"
            raise DefinitionError(msg)
    reaches = [_reach(call) for call in over.calls.values()]
    order = (SortKey(reference(first.order), descending=False, nulls_first=True),)
    ranked = Top(over.input, ALL_ROWS, first.partition, order, "c0_rank")
    parts = {f"c0_part{at}": each for at, each in enumerate(first.partition)}
    carried = [name for name in over.input.columns if not _is_part(name, first)]
    read = sorted({*carried, *(c for each in over.calls.values() for c in columns_in(each.call))})
    copies = []
    for distance in range(-max(-low for low, _ in reaches), max(high for _, high in reaches) + 1):
        items = {**parts, **{name: reference(name) for name in read}}
        items[_FRAME] = _parsed(f"c0_rank + {distance}")
        items[_DISTANCE] = _parsed(str(distance))
        copies.append(Project(ranked, items))
    frames = UnionAll(tuple(copies), copies[0].columns)
    place = first.call.place
    calls = {f"{name}_own": _of_row(name, 0, place) for name in carried}
    calls[_ITSELF] = AggregateCall("count_if", (f"{_DISTANCE} = 0",), place=place)
    made: dict[str, exp.Expr] = {name: reference(f"{name}_own") for name in carried}
    for name, each in over.calls.items():
        made[name] = _result(name, each, calls)
    for name, node in zip(parts, first.partition, strict=True):
        if isinstance(node, exp.Column):
            made[node.name] = reference(name)
    keys = {name: reference(name) for name in (*parts, _FRAME)}
    groups = Filter(Grouped(frames, keys, calls), (_parsed(f"{_ITSELF} > 0"),))
    return Project(groups, {name: made[name] for name in over.columns})


def _reach(over: OverCall) -> tuple[int, int]:
    """Return the least and the greatest distance of the rows that a function reads."""
    function, parameters = over.call.function, over.call.parameters
    if function in ("lag", "lead"):
        offset = int(parameters[0])
        low, high = (-offset, 0) if function == "lead" else (0, offset)
    elif function == "row_number":
        low, high = 0, 0
    elif function not in ("rank", "dense_rank") and over.kind == "rows" and over.before is not None:
        low, high = 0, over.before
    else:
        msg = (
            "rows of a join, an aggregate or a top may change, and over these a frame has a number "
            "of rows: ROWS BETWEEN 10 PRECEDING AND CURRENT ROW, LAG, LEAD or ROW_NUMBER"
        )
        raise DefinitionError(msg)
    if max(-low, high) > _FARTHEST:
        msg = f"a frame of rows that may change reaches at most {_FARTHEST} rows"
        raise DefinitionError(msg)
    return low, high


def _result(name: str, over: OverCall, calls: dict[str, AggregateCall]) -> exp.Expr:
    """Return the value of a function, adding what it is computed from."""
    call, function = over.call, over.call.function
    if function == "row_number":
        return reference(_FRAME)
    if function in ("lag", "lead"):
        offset, default = call.parameters
        distance = offset if function == "lag" else -offset
        calls[name] = _of_row(call.arguments[0], distance, call.place)
        if default is None:
            return reference(name)
        calls[f"{name}_found"] = AggregateCall(
            "count_if", (f"{_DISTANCE} = {distance}",), place=call.place
        )
        calls[f"{name}_default"] = _of_row(default, 0, call.place)
        return _parsed(f"CASE WHEN {name}_found > 0 THEN {name} ELSE {name}_default END")
    inside = f"{_DISTANCE} BETWEEN 0 AND {over.before}"
    arguments = tuple(f"CASE WHEN {inside} THEN {each} END" for each in call.arguments)
    if function == "count" and not arguments:
        function, arguments = "count_if", (inside,)
    calls[name] = AggregateCall(function, arguments, call.parameters, call.is_users, call.place)
    return reference(name)


def _of_row(value: str, distance: int, place: TextSpan) -> AggregateCall:
    """Return the value of the one row at a distance."""
    text = f"CASE WHEN {_DISTANCE} = {distance} THEN {value} END"
    return AggregateCall("max", (text,), place=place)


def _is_part(name: str, over: OverCall) -> bool:
    return any(isinstance(each, exp.Column) and each.name == name for each in over.partition)


def _parsed(text: str) -> exp.Expr:
    select = Cql().parse(f"SELECT {text}")[0]
    assert isinstance(select, exp.Select)
    found: exp.Expr = select.expressions[0]
    return found
