"""Aggregates whose state is an object, the slow and obvious way: over lists of all events.

Idea: `ObviousObjects` stores every event of every open window, as `ObviousWindows` does, and
    computes
object functions over the whole list: sorting it, counting it, feeding it to one sketch.

Rows are compared after `settled`: lists become tuples and every NaN the same value, so that equal
means equal.

Limits: sketches are compared exactly, which holds for distinct counts always, and for percentiles
and frequent items as long as the sketch is not full.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import datasketches as ds

from icestream.core.times import Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.functions import is_object
from icestream.operators.object_aggregates.sketches import ITEMS, LG_K
from icestream.plan.nodes.queries import TIME
from tests.oracles.answers import answer
from tests.oracles.arrivals import Row
from tests.oracles.grid import ObviousWindows

Events = list[dict[str, Any]]


class ObviousObjects(ObviousWindows):
    """The rows that a query with object aggregates must emit, batch by batch."""

    def _row(self, window: tuple[Micros, Micros], key: Row, events: Events) -> Row:
        types = self._plan.types
        answers = [
            obvious_answer(each, events) if is_object(each, types) else answer(each, events, types)
            for each in self._view.aggregates
        ]
        return (*window, *key, *answers)


def obvious_answer(aggregate: Aggregate, events: Events) -> Any:
    """Return the result of an object function over events in the order of their arrival."""
    ordered = sorted(events, key=lambda event: event[TIME])
    rows = [tuple(event[name] for name in aggregate.columns) for event in ordered]
    if aggregate.function == "user":
        return _user(aggregate.parameters[0], rows)
    if aggregate.function in ("first", "last"):
        return _edge(aggregate, [row[0] for row in rows])
    if aggregate.function in ("min_by", "max_by"):
        return _chosen_by(aggregate.function, rows)
    if aggregate.function == "percentile" and aggregate.others:
        values = [value for value, times in rows if value is not None for _ in range(times or 0)]
    elif len(aggregate.columns) > 1:
        values = [row for row in rows if None not in row]
    else:
        values = [row[0] for row in rows if row[0] is not None]
    return _over_values(aggregate, values)


def _over_values(aggregate: Aggregate, values: list[Any]) -> Any:
    """Return the result over the values that are not null."""
    collected: dict[str, Callable[[], Any]] = {
        "collect_list": lambda: values,
        "collect_set": lambda: _distinct(values),
        "count_distinct": lambda: len(_distinct(values)),
        "approx_count_distinct": lambda: _estimate(_distinct(values), aggregate),
        "approx_top_k": lambda: _frequent(values, aggregate),
    }
    if aggregate.function in collected:
        return collected[aggregate.function]()
    if not values:
        return None
    if aggregate.function in ("min", "max"):
        return _distinct(values)[0 if aggregate.function == "min" else -1]
    if aggregate.function == "mode":
        counts = Counter(_same(value) for value in values)
        return min(counts, key=lambda value: (-counts[value], rank(value)))
    return _percentiles(aggregate, sorted((float(value) for value in values), key=rank))


def _percentiles(aggregate: Aggregate, ranked: list[float]) -> Any:
    pick = _interpolated
    if aggregate.function == "approx_percentile":
        pick = _nearest
        ranked = [value for value in ranked if not math.isnan(value)]
    if not ranked:
        return None
    wanted = 0.5 if aggregate.function == "median" else aggregate.parameters[0]
    if isinstance(wanted, tuple | list):
        return [pick(ranked, each) for each in wanted]
    return pick(ranked, wanted)


def rank(value: Any) -> Any:
    """Order values as Spark does: NaN is the greatest float."""
    if isinstance(value, tuple):
        return tuple(rank(each) for each in value)
    is_nan = isinstance(value, float) and math.isnan(value)
    return (is_nan, 0 if is_nan else value)


def _same(value: Any) -> Any:
    """Map values that are equal for Spark to equal values."""
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value + 0.0
    return tuple(_same(each) for each in value) if isinstance(value, tuple) else value


def _distinct(values: list[Any]) -> list[Any]:
    return sorted({rank(_same(value)): _same(value) for value in values}.values(), key=rank)


def _interpolated(ranked: list[float], fraction: float) -> float:
    position = (len(ranked) - 1) * fraction
    low, high = ranked[math.floor(position)], ranked[math.ceil(position)]
    if low == high or position == math.floor(position):
        return low
    return low + (high - low) * (position - math.floor(position))


def _nearest(ranked: list[float], fraction: float) -> float:
    return ranked[max(0, math.ceil(fraction * len(ranked)) - 1)]


def _estimate(distinct: list[Any], aggregate: Aggregate) -> int:
    union = ds.hll_union(aggregate.parameters[0] if aggregate.parameters else LG_K)
    sketch = ds.hll_sketch(union.lg_config_k)
    for value in distinct:
        sketch.update(value)
    union.update(sketch)
    union.update(sketch)
    estimate: float = union.get_estimate()
    return round(estimate)


def _frequent(values: list[Any], aggregate: Aggregate) -> list[dict[str, Any]]:
    most = aggregate.parameters[0] if aggregate.parameters else ITEMS
    counts = Counter(_same(value) for value in values)
    ranked = sorted(counts, key=lambda value: (-counts[value], str(value)))
    return [{"item": value, "count": counts[value]} for value in ranked[:most]]


def _edge(aggregate: Aggregate, values: list[Any]) -> Any:
    if aggregate.parameters and aggregate.parameters[0]:
        values = [value for value in values if value is not None]
    if not values:
        return None
    return values[0 if aggregate.function == "first" else -1]


def _chosen_by(function: str, rows: list[Row]) -> Any:
    some = [row for row in rows if row[1] is not None]
    if not some:
        return None
    extreme = (min if function == "min_by" else max)(rank(_same(row[1])) for row in some)
    return next(row[0] for row in some if rank(_same(row[1])) == extreme)


def _user(aggregate: Any, rows: list[Row]) -> Any:
    states = [state for row in rows if (state := aggregate.lift(*row)) is not None]
    return aggregate.lower(reduce(aggregate.combine, states)) if states else None


def settled(rows: Iterable[Row]) -> list[Row]:
    """Return rows in which lists are tuples and NaN equals NaN."""
    return [(*row[:2], *(_settled(value) for value in row[2:])) for row in rows]


def _settled(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_inner(each) for each in value)
    return value


def _inner(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _inner(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(_inner(each) for each in value)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
