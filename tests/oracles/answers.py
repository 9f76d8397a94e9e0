"""The result of every aggregate over a list of events: by Python's exact numbers, and as SQL.

Idea: `answer` reduces events, given in the order of their arrival, with fractions and sorting;
`sql_of` returns the same for DuckDB. Neither knows about windows, fields or merging.

Limits: DuckDB treats NaN in moments and averages of decimals (doubles) differently. For SQL the
events have their time in `__at`, in microseconds, and their position in `__row`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.columns import TIME
from tests.oracles.kernels.double_sums import nearest_reference

Types = Mapping[str, pa.DataType]
Events = Sequence[Mapping[str, Any]]


def answer(aggregate: Aggregate, events: Events, types: Types) -> Any:
    """Return the result of an aggregate over words."""
    function = aggregate.function
    if aggregate.column is None:
        return len(events)
    if function in ("first", "last", "min_by", "max_by"):
        return _choice(aggregate, events)
    if aggregate.others:
        pairs = [tuple(event[name] for name in aggregate.columns) for event in events]
        return _answer_of_pairs(aggregate, [p for p in pairs if None not in p], types)
    values = [v for event in events if (v := event[aggregate.column]) is not None]
    if function in ("count", "count_if"):
        return len(values) if function == "count" else sum(values)
    if not values:
        return None
    if function in ("min", "max", "bool_and", "bool_or"):
        choose = min if function in ("min", "bool_and") else max
        return choose(values, key=_rank)
    if function in ("sum", "avg"):
        total = _total(values)
        return _mean(total, len(values) if function == "avg" else 1, aggregate, types)
    return _moment(function, values)


def _choice(aggregate: Aggregate, events: Events) -> Any:
    """Return the value of one event; events come in the order of their arrival."""
    name = aggregate.columns[0]
    chosen = sorted(events, key=lambda event: event[TIME])
    if aggregate.others:
        ordering = aggregate.others[0]
        chosen = [event for event in chosen if event[ordering] is not None]
        choose = min if aggregate.function == "min_by" else max
        ranked = choose(chosen, key=lambda event: _rank(event[ordering]), default=None)
        return None if ranked is None else ranked[name]
    if aggregate.parameters == (True,):
        chosen = [event for event in chosen if event[name] is not None]
    if not chosen:
        return None
    return chosen[0 if aggregate.function == "first" else -1][name]


def _answer_of_pairs(aggregate: Aggregate, pairs: list[tuple[Any, ...]], types: Types) -> Any:
    if not pairs:
        return None
    if aggregate.function == "weighted_avg":
        return _weighted(aggregate, pairs, types)
    if len(pairs) < 2 and aggregate.function != "covar_pop":
        return None
    if not all(math.isfinite(v) for pair in pairs for v in pair):
        return math.nan
    x, y = ([Fraction(float(pair[i])) for pair in pairs] for i in (0, 1))
    together = _spread(x, y)
    if aggregate.function != "corr":
        return nearest_reference(together / (len(x) - (aggregate.function == "covar_samp")))
    apart = _spread(x, x) * _spread(y, y)
    return None if apart == 0 else _root_ratio(together, apart)


def _spread(x: list[Fraction], y: list[Fraction]) -> Fraction:
    products = sum((a * b for a, b in zip(x, y, strict=True)), Fraction(0))
    return products - sum(x, Fraction(0)) * sum(y, Fraction(0)) / len(x)


def _root_ratio(together: Fraction, apart: Fraction) -> float:
    """Return `together / sqrt(apart)`, whatever their size."""
    root = math.sqrt(float(together * together / apart))
    return root if together > 0 else -root


def _weighted(aggregate: Aggregate, pairs: list[tuple[Any, ...]], types: Types) -> Any:
    if not all(math.isfinite(v) for pair in pairs for v in pair):
        floats = [(float(value), float(weight)) for value, weight in pairs]
        total, weights = _of_products(floats), _of_products([(w, 1.0) for _, w in floats])
        return None if weights == 0 else total / weights
    weight = sum((Fraction(w) for _, w in pairs), Fraction(0))
    if weight == 0:
        return None
    exact = sum((Fraction(v) * Fraction(w) for v, w in pairs), Fraction(0))
    kind = aggregate.result_type(types)
    mean = exact / weight
    return _rounded(mean, kind.scale) if pa.types.is_decimal(kind) else nearest_reference(mean)


def _of_products(pairs: list[tuple[float, float]]) -> float:
    """Return a sum of products; if there are infinities or NaN, they alone determine it."""
    special = [v * w for v, w in pairs if not (math.isfinite(v) and math.isfinite(w))]
    if special:
        return sum(special)
    return nearest_reference(sum((Fraction(v) * Fraction(w) for v, w in pairs), Fraction(0)))


def _rank(value: Any) -> tuple[bool, Any]:
    """Order values as Spark does: NaN is the greatest float."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return (is_nan, 0 if is_nan else value)


def _total(values: list[Any]) -> Any:
    if isinstance(values[0], Decimal):
        return sum((Fraction(v) for v in values), Fraction(0))
    if isinstance(values[0], int):
        return sum(values)
    infinities = {v for v in values if math.isinf(v)}
    if any(math.isnan(v) for v in values) or len(infinities) == 2:
        return math.nan
    if infinities:
        return infinities.pop()
    return sum(map(Fraction, values), Fraction(0))


def _mean(total: Any, count: int, aggregate: Aggregate, types: Types) -> Any:
    if not isinstance(total, Fraction):
        return total / count if aggregate.function == "avg" else total
    if not pa.types.is_decimal(aggregate.result_type(types)):
        return nearest_reference(total / count)
    if aggregate.function == "sum":
        return total
    return _rounded(total / count, aggregate.result_type(types).scale)


def _rounded(mean: Fraction, scale: int) -> Fraction:
    places = Context(prec=60, rounding=ROUND_HALF_UP)
    exact = places.divide(Decimal(mean.numerator), Decimal(mean.denominator))
    return Fraction(exact.quantize(Decimal(1).scaleb(-scale), context=places))


def _moment(function: str, values: list[Any]) -> float | None:
    sample = function.endswith("samp")
    if sample and len(values) < 2:
        return None
    if not all(math.isfinite(v) for v in values):
        return math.nan
    exact = [Fraction(float(v)) for v in values]
    mean = sum(exact, Fraction(0)) / len(exact)
    spread = sum(((v - mean) ** 2 for v in exact), Fraction(0))
    variance = nearest_reference(spread / (len(exact) - 1 if sample else len(exact)))
    return math.sqrt(variance) if function.startswith("stddev") else variance


def sql_of(aggregate: Aggregate, types: Types) -> str:
    """Return an aggregate over words as an expression of DuckDB."""
    if aggregate.column is None:
        return "count(*)"
    if aggregate.function in ("first", "last", "min_by", "max_by", "corr", "weighted_avg"):
        return _sql_of_choice_or_pair(aggregate)
    if aggregate.function == "count_if":
        return f'coalesce(count_if("{aggregate.column}"), 0)'
    if aggregate.others:
        return f"{aggregate.function}({', '.join(_sql_floats(aggregate))})"
    call = f'{aggregate.function}("{aggregate.column}")'
    kind = aggregate.result_type(types)
    if aggregate.function == "sum" and pa.types.is_decimal(kind):
        return f"CAST({call} AS DECIMAL({kind.precision}, {kind.scale}))"
    if aggregate.function == "sum" and pa.types.is_integer(kind):
        return f"CAST({call} AS BIGINT)"
    return call


def _sql_floats(aggregate: Aggregate) -> list[str]:
    return [f'CAST("{name}" AS DOUBLE)' for name in aggregate.columns]


def _sql_of_choice_or_pair(aggregate: Aggregate) -> str:
    """Return the SQL of functions that DuckDB names differently or that treat nulls differently."""
    names = [f'"{name}"' for name in aggregate.columns]
    if aggregate.function in ("first", "last"):
        order = {"first": "ASC", "last": "DESC"}[aggregate.function]
        there = f" FILTER (WHERE {names[0]} IS NOT NULL)" if aggregate.parameters == (True,) else ""
        return f"first({names[0]} ORDER BY __at {order}, __row {order}){there}"
    if aggregate.function in ("min_by", "max_by"):
        order = {"min_by": "ASC", "max_by": "DESC"}[aggregate.function]
        there = f"FILTER (WHERE {names[1]} IS NOT NULL)"
        return f"first({names[0]} ORDER BY {names[1]} {order}, __at ASC, __row ASC) {there}"
    x, y = _sql_floats(aggregate)
    if aggregate.function == "corr":
        call = f"corr({x}, {y})"
        return f"CASE WHEN regr_sxx({y}, {x}) * regr_syy({y}, {x}) > 0 THEN {call} END"
    there = f"FILTER (WHERE {x} IS NOT NULL)"
    return f"sum({x} * {y}) / nullif(sum({y}) {there}, 0)"
