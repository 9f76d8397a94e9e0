"""Joins of two streams of events: by their lifetimes, or by match within a bound on their times.

Idea: by lifetimes, a pair is there at the instants at which both events live. By match, each event
of the kept side is a *point*, and the events of the other side live for the instants of the points
that they match. A point has one instant, so it has a row for each partner, or exactly one without.
It stands where no partner can come any more; its *delay* is subtracted again when rows are written.

    b.time - a.time BETWEEN low AND high     a  t ----------- |      a point at t + high
                                             b     t' |----------|   from t' to t' + high - low

A condition on pairs is that of the pairs: an event is alone if no pair has its columns. Where only
final rows are wanted, one operator makes the same rows without retracting any (`match_join`).

Invariants:
1. Rows are those of SQL's joins with BETWEEN, each event without a partner once
   (`test_oracle_joins_by_match_equal_sql`).
2. A null equals nothing, and an event without a key is alone (the same test).

Limits: where changes are wanted, sides are kept twice, by `full` joins and with a condition.
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column

from icestream.api.column_text import sql_text
from icestream.api.columns import column_names
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import parse_interval
from icestream.operators.dataflow.steps import Padding
from icestream.operators.lifetimes.difference import StreamDifference
from icestream.operators.lifetimes.join import StreamJoin
from icestream.operators.lifetimes.match_join import MatchJoin
from icestream.plan.joins.multi_join import Equal, check_comparable, joined
from icestream.plan.nodes.events import Applied, Matched
from icestream.plan.nodes.spilling import Spilling
from icestream.plan.windows.lifetimes import Point, WindowLifetime
from icestream.sql.expressions.compile import Predicate, text_in_zone
from icestream.sql.expressions.tree import quoted

if TYPE_CHECKING:
    from icestream.api.events import Events

On = str | Sequence[Equal]
#: how far apart events are: at most so far, or later than the other side's by at least and at most
Within = str | int | tuple[str | int, str | int]
Bounds = tuple[Micros, Micros]

#: kinds of joins by their names in PySpark, without underscores
_KINDS = {
    "inner": "inner",
    **dict.fromkeys(("left", "leftouter"), "left"),
    **dict.fromkeys(("right", "rightouter"), "right"),
    **dict.fromkeys(("full", "fullouter", "outer"), "full"),
    **dict.fromkeys(("semi", "leftsemi"), "semi"),
    **dict.fromkeys(("anti", "leftanti"), "anti"),
}
#: column that keeps events without a key from matching each other
_ALONE = "without a key"


def equal_columns(on: object) -> On:
    """Return the columns that a join compares, as names."""
    if isinstance(on, str | Column):
        return column_names(on, "on")
    if not isinstance(on, Sequence):
        msg = f"a join compares columns: on='k', or on=[('a', 'b')]; got on={on!r}"
        raise DefinitionError(msg)
    return [each if isinstance(each, tuple) else column_names(each, "on")[0] for each in on]


def compared(streams: Sequence[Events], on: object) -> tuple[list[Events], On]:
    """Return streams with the columns that a join compares, and their names, as one spells them.

    A name alone stands for a column of each stream: it is spelled as in the first one.
    """
    same = equal_columns(on)
    named: list[Equal] = []
    for each in (same,) if isinstance(same, str) else same:
        if isinstance(each, str):
            (name,) = streams[0]._columns_named([each], "join")
            streams = [stream._renamed([name], "join") for stream in streams]
            named.append(name)
        elif len(each) == len(streams):
            pairs = zip(streams, each, strict=True)
            named.append(tuple(stream._columns_named([n], "join")[0] for stream, n in pairs))
        else:
            named.append(each)
    return list(streams), named


def condition_on(streams: Sequence[Events], where: object) -> str | None:
    """Return the condition of a join as text; it may be a column of Spark."""
    fields = {field.name: field for each in streams for field in each._node.payload}
    return None if where is None else sql_text(where, pa.schema(fields.values()), "where")


def kind_of_join(how: str) -> str:
    """Return the kind of a join of events by its name."""
    kind = _KINDS.get(how.lower().replace("_", ""))
    if kind is None:
        msg = f"how={how!r} is not a kind of join: use inner, left, right, full, semi or anti"
        raise DefinitionError(msg)
    return kind


def bounds_of(within: Within) -> Bounds:
    """Return by how much the other side of a join may be later: at least, and at most."""
    if not isinstance(within, tuple):
        length = parse_interval(within)
        if length < 0:
            msg = f"within={within!r} is negative: give two bounds, within=('-5 minutes', '1 hour')"
            raise DefinitionError(msg)
        return -length, length
    bounds = [parse_interval(each) for each in within]
    if len(bounds) != 2:
        msg = f"within={within!r} must have two bounds: within=('-5 minutes', '1 hour')"
        raise DefinitionError(msg)
    low, high = bounds
    if low > high:
        msg = f"within={within!r}: no time is both; write the lower bound first"
        raise DefinitionError(msg)
    return low, high


# -- pairs ---------------------------------------------------------------------------------


def near(streams: Sequence[Events], bounds: Bounds) -> list[Events]:
    """Return sides of a join with lifetimes that overlap if their times are within bounds."""
    first, *others = streams
    low, high = bounds
    ways = [(first, low, high), *((each, -high, -low) for each in others)]
    return [
        each._moved(max(begin, 0), each._node.delay)._altered(
            WindowLifetime(max(end, 0) - max(begin, 0) + 1)
        )
        for each, begin, end in ways
    ]


def paired(left: Events, right: Events, on: On | None, where: str | None) -> Events:
    """Return an inner join by lifetimes that fetches the state that it needs."""
    if on is not None:
        mine, theirs, keys = _with_shared_keys(left, right, on)
        return mine.groupApply(keys, lambda a, b: paired(a, b, None, where), theirs)
    operator, residual = _joining(left, right, where)
    text = (
        "join" if residual is None else text_in_zone(f"join where {residual.text}", residual.bound)
    )
    grows = left._node.grows and right._node.grows
    return left._applied(operator, text, grows=grows, other=right)


def _joining(left: Events, right: Events, where: str | None) -> tuple[StreamJoin, Predicate | None]:
    """Return the operator that pairs two streams of a group, and its condition."""
    scope = left._scope("join", "join(other, on=...)")
    ours, others = left._node.payload, right._node.payload
    names = [*ours.names, *(_twin(n) if n in scope.keys else n for n in others.names)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"both sides of the join have {twice}: rename them with select('x AS y')"
        raise DefinitionError(msg)
    pairs = pa.schema([f.with_name(n) for f, n in zip([*ours, *others], names, strict=True)])
    residual = None if where is None else Predicate.bind(pairs, where, zone=left._zone)
    operator = StreamJoin(
        ours,
        others,
        names,
        None if residual is None else residual.mask,
        hidden=[_twin(key) for key in scope.keys],
    )
    return operator, residual


def may_defer(streams: Sequence[Events], on: On | None) -> bool:
    """Return whether a join of streams can defer results."""
    whole = on is not None and streams[0]._node.scope is None
    return whole and all(stream._node.grows for stream in streams)


def deferred(
    streams: Sequence[Events], on: On | None, where: str | None, spilling: Spilling
) -> Events:
    """Return a join whose state may be spilled and whose results may then come later."""
    if on is None or streams[0]._node.scope is not None:
        msg = "onPressure='defer' joins whole streams by columns: join(other, on=...)"
        raise DefinitionError(msg)
    if not all(stream._node.grows for stream in streams):
        msg = (
            "onPressure='defer' joins events that never change, not results that may be "
            "retracted: use onPressure='fetch'"
        )
        raise DefinitionError(msg)
    node = joined([stream._node for stream in streams], on, where, spilling)
    return streams[0]._of(node, streams)


# -- pairs and what has no partner ----------------------------------------------------------


def matched(
    left: Events,
    right: Events,
    on: On | None,
    kind: str,
    where: str | None,
    bounds: Bounds | None,
    spilling: Spilling | None = None,
) -> Events:
    """Return a join of any kind, by lifetimes or by match; with `spilling` it defers results.

    By match, rows have the time of the left event, or of the right one if there is no left one.
    """
    if kind == "right":
        mirrored = None if bounds is None else _negative(bounds)
        flipped = matched(right, left, _flipped(on), "left", where, mirrored, spilling)
        return flipped._selected(*map(quoted, _pair_columns(left, right, on)))
    sides = (left, right) if bounds is None else _anchored(left, right, bounds)
    if kind == "inner":
        return paired(sides[0], sides[1], on, where)
    if kind == "full" and bounds is not None:
        sides += _anchored(right, left, _negative(bounds))[::-1]
    if spilling is not None:
        by_pairs = partial(_deferred_pair, on, where, spilling)
        sides = tuple(sides[0]._together(sides[1:], "join"))
        return _with_alone(kind, by_pairs, bounds is not None, *sides)
    added: set[str] = set()
    delays = left._node.delay, right._node.delay
    if bounds is not None:
        sides = tuple(sides[0]._together([*sides[1:], left, right], "join"))
    apply = partial(_of_group, kind, where, bounds, delays)
    if on is None:
        return apply(*sides)
    sides, keys, added = _grouped_apart(sides, on)
    made = sides[0].groupApply(keys, apply, *sides[1:])
    return made._selected(*(quoted(name) for name in made.columns if name not in added))


def _of_group(
    kind: str, where: str | None, bounds: Bounds | None, delays: Bounds, *sides: Events
) -> Events:
    """Return the rows of a join in a group; by match, the last two sides have its times."""
    if bounds is None:
        return _with_alone(kind, where, False, *sides)
    left, right = sides[-2:]
    made = _with_alone(kind, where, True, *sides[:-2])
    if kind == "semi":
        return made
    early = left._node.delay - delays[0], right._node.delay - delays[1]
    return _once(made, left, right, kind, where, bounds, early)


def _once(
    made: Events,
    left: Events,
    right: Events,
    kind: str,
    where: str | None = None,
    bounds: Bounds = (0, 0),
    early: Bounds = (0, 0),
) -> Events:
    """Return rows of a join by match that one operator can make too, without retracting any."""
    pairs, residual = None, None
    if kind != "anti" or where is not None:
        pairs, residual = _joining(left, right, where)
    operator = MatchJoin(left._node.payload, right._node.payload, pairs, kind, bounds, early)
    text = f"{kind} join {bounds[0]} to {bounds[1]}"
    if residual is not None:
        text = text_in_zone(f"{text} where {where}", residual.bound)
    once = left._applied(operator, text, grows=True, other=right)._node
    assert isinstance(once, Applied)
    node = made._node
    fields = node.payload, node.scope, node.grows, node.reach, node.delay
    return replace(made, _node=Matched(*fields, parts=(node,), once=once))


def _deferred_pair(
    on: On | None, where: str | None, spilling: Spilling, left: Events, right: Events
) -> Events:
    return deferred((left, right), on, where, spilling)


def _anchored(point: Events, other: Events, bounds: Bounds) -> tuple[Events, ...]:
    """Return a stream as points, and another that lives at the points within bounds."""
    ahead = other._node.delay - point._node.delay
    low, high = (bound + ahead for bound in bounds)
    wait = max(high, 0)
    delay = point._node.delay + wait
    return (
        point._moved(wait, delay)._altered(Point()),
        other._moved(wait - high, delay)._altered(WindowLifetime(high - low + 1)),
    )


def _with_alone(
    kind: str,
    condition: str | Callable[[Events, Events], Events] | None,
    by_match: bool,
    left: Events,
    right: Events,
    living_left: Events | None = None,
    right_points: Events | None = None,
) -> Events:
    """Return the rows of a join: pairs, and events without a partner, or only these.

    The streams are those of a group, unless the condition says how they are paired. By match, right
    events without a partner are found by their own points.
    """
    pair = condition if callable(condition) else partial(paired, on=None, where=condition)
    filtered = partial(_filtered, by_match=by_match)
    if condition is None and kind in ("semi", "anti"):
        left._scope("join", "join(other, on=...)")
        return filtered(left, right, None, present=kind == "semi")
    pairs = pair(left, right)
    by_pairs = None if condition is None else pairs
    if kind in ("semi", "anti"):
        return filtered(left, right, by_pairs, present=kind == "semi")
    alone = [filtered(left, right, by_pairs, present=False)]
    if kind == "full":
        mine, theirs = living_left or left, right_points or right
        if condition is not None and right_points is not None:
            by_pairs = pair(mine, theirs)
        alone.append(filtered(theirs, mine, by_pairs, present=False))
    columns = pa.schema([each.with_nullable(True) for each in pairs._node.payload])
    padded = [each._mapped(Padding(columns), columns, "with nulls") for each in alone]
    return reduce(type(left).union, padded, pairs)


def _filtered(
    events: Events, others: Events, pairs: Events | None, *, by_match: bool, present: bool
) -> Events:
    """Keep the events of a group that have a partner, or those that have none.

    With pairs, only these count: an event has a partner if a pair has its columns at its instant.
    """
    if pairs is not None:
        names = events.columns
        partners = pairs._selected(*map(quoted, names))

        def among(mine: Events, theirs: Events) -> Events:
            made = _filtered(mine, theirs, None, by_match=by_match, present=present)
            return _once(made, mine, theirs, "anti") if by_match and not present else made

        return events.groupApply(names, among, partners)
    operator = StreamDifference(events._node.payload, present=present)
    text = "semi join" if present else "difference"
    grows = present and by_match and events._node.grows and others._node.grows
    return events._applied(operator, text, grows=grows, other=others)


# -- columns -------------------------------------------------------------------------------


def _grouped_apart(
    sides: tuple[Events, ...], on: On
) -> tuple[tuple[Events, ...], tuple[str, ...], set[str]]:
    """Return left and right streams with key columns, their names, and those that were added.

    Columns with one name are the key themselves, and in the result that of either side. A further
    column separates rows with all keys from the other rows of either stream.
    """
    left, right = sides[:2]
    pairs = _equal_columns(left, right, on)
    keys = [name if name == twin else f"{name} = {twin}" for name, twin in pairs]
    added = {key for key, (name, twin) in zip(keys, pairs, strict=True) if name != twin}
    nullable = any(
        stream._node.payload.field(pair[place]).nullable
        for place, stream in enumerate((left, right))
        for pair in pairs
    )
    if nullable:
        added.add(_ALONE)
    widened = set[str]()
    for key, (name, twin) in zip(keys, pairs, strict=True):
        mine, theirs = left._node.payload.field(name), right._node.payload.field(twin)
        if name != twin and mine.type != theirs.type:
            widened.add(key)
        if name == twin and mine.type != theirs.type:
            msg = (
                f"both sides of the join have {key!r}, as {mine.type} and as {theirs.type}: cast "
                f"one of them with withColumn({key!r}, 'cast({key} AS ...)')"
            )
            raise DefinitionError(msg)

    def with_keys(number: int, stream: Events) -> Events:
        names = [pair[number % 2] for pair in pairs]
        for key, name in zip(keys, names, strict=True):
            if key in added:
                value = quoted(name)
                stream = stream.withColumn(
                    key, f"cast({value} AS bigint)" if key in widened else value
                )
        if not nullable:
            return stream
        missing = " OR ".join(f"{quoted(name)} IS NULL" for name in names)
        return stream.withColumn(_ALONE, f"CASE WHEN {missing} THEN {1 + number % 2} ELSE 0 END")

    made = tuple(with_keys(number, stream) for number, stream in enumerate(sides))
    return made, (*keys, _ALONE) if nullable else tuple(keys), added


def _with_shared_keys(left: Events, right: Events, on: On) -> tuple[Events, Events, list[str]]:
    """Return the events that have keys, with the names of the left side for keys of both."""
    pairs = _equal_columns(left, right, on)
    mine, theirs = (list(names) for names in zip(*pairs, strict=True))
    left, right = left._with_keys(mine), right._with_keys(theirs)
    for name, twin in pairs:
        if name != twin and name in right.columns:
            msg = f"both sides of the join have {name!r}: rename it with select('x AS y')"
            raise DefinitionError(msg)
        if name != twin:
            right = right.withColumn(name, quoted(twin))
    return left, right, mine


def _equal_columns(left: Events, right: Events, on: On) -> list[tuple[str, str]]:
    """Return the columns of both sides that are compared."""
    pairs: list[tuple[str, str]] = []
    for each in (on,) if isinstance(on, str) else on:
        name, *twins = (each, each) if isinstance(each, str) else each
        if len(twins) != 1:
            msg = f"on={tuple(each)} must name a column of each of the two streams"
            raise DefinitionError(msg)
        pairs.append((name, twins[0]))
    if not pairs:
        msg = "a join needs columns with equal values: on='k', or on=[('a', 'b')]"
        raise DefinitionError(msg)
    for name, twin in pairs:
        check_comparable([left._node.payload.field(name), right._node.payload.field(twin)])
    return pairs


def _pair_columns(left: Events, right: Events, on: On | None) -> list[str]:
    """Return the columns of pairs: those of both, but join columns with one name once."""
    scope = left._node.scope
    shared = set(scope.keys if scope is not None else ())
    if on is not None:
        shared |= {name for name, twin in _equal_columns(left, right, on) if name == twin}
    return [*left.columns, *(name for name in right.columns if name not in shared)]


def _flipped(on: On | None) -> On | None:
    if on is None or isinstance(on, str):
        return on
    return [each if isinstance(each, str) else tuple(reversed(each)) for each in on]


def _negative(bounds: Bounds) -> Bounds:
    low, high = bounds
    return -high, -low


def _twin(name: str) -> str:
    """Return the name of a key on the other side of a join."""
    return f"{name} of the other side"
