"""Which object function computes which aggregate."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from icestream.core.arrays import Mask
from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.bad_rows import BadRows
from icestream.operators.object_aggregates import choices, sketches, stored_values, user_aggregates
from icestream.operators.object_aggregates.protocol import ObjectFunction, Types

_MAKERS: dict[str, Callable[[Aggregate, Types], ObjectFunction]] = {
    "collect_list": stored_values.CollectList.of,
    "collect_set": stored_values.CollectSet.of,
    "count_distinct": stored_values.CountDistinct.of,
    "percentile": stored_values.Percentile.of,
    "median": stored_values.Percentile.of,
    "mode": stored_values.Mode.of,
    "first": choices.FirstOrLast.of,
    "last": choices.FirstOrLast.of,
    "min": choices.ObjectExtreme.of,
    "max": choices.ObjectExtreme.of,
    "min_by": choices.ExtremeBy.of,
    "max_by": choices.ExtremeBy.of,
    "approx_count_distinct": sketches.ApproxCountDistinct.of,
    "approx_percentile": sketches.ApproxPercentile.of,
    "approx_top_k": sketches.ApproxTopK.of,
    "user": user_aggregates.UserFunction.of,
}
#: functions whose answer may depend on which of two events with equal times came first
ORDERED_FUNCTIONS = frozenset({"collect_list", "first", "last", "min_by", "max_by", "user"})
#: functions that words can compute as well, for types of fixed width
_ALSO_WORDS = ("first", "last", "min", "max", "min_by", "max_by")
#: those of them for which this operator uses words; the others would need arrival numbers
_LEFT_TO_WORDS = ("min", "max")


def is_object(aggregate: Aggregate, types: Types) -> bool:
    """Return whether the function of an aggregate uses an object, not words."""
    if aggregate.function in _LEFT_TO_WORDS:
        return needs_objects(aggregate, types)
    return aggregate.function in _MAKERS


def needs_objects(aggregate: Aggregate, types: Types) -> bool:
    """Return whether the function of an aggregate cannot use words and needs an object."""
    if aggregate.function not in _ALSO_WORDS:
        return aggregate.function in _MAKERS
    try:
        aggregate.fields(types)
    except DefinitionError:
        return True
    return False


def function_of(aggregate: Aggregate, types: Types) -> ObjectFunction:
    """Return the function of an object aggregate; DefinitionError if the types do not fit."""
    return _MAKERS[aggregate.function](aggregate, types)


def failed_rows(
    aggregate: Aggregate,
    function: ObjectFunction,
    rows: pa.RecordBatch,
    chosen: Mask | None = None,
) -> Iterator[BadRows]:
    """Yield the rows of a call on which an object function of the user failed, and forget them.

    `chosen` are the rows that are reported, all by default.
    """
    if isinstance(function, user_aggregates.UserFunction):
        for place, error in function.failures:
            at = min(place, rows.num_rows - 1)
            if chosen is None or chosen[at]:
                yield BadRows(aggregate.text, error, rows.slice(at, 1))
        function.failures.clear()


def result_type(aggregate: Aggregate, types: Types) -> pa.DataType:
    """Return the type of answers of an aggregate's function, object or not."""
    if is_object(aggregate, types):
        return function_of(aggregate, types).result
    return aggregate.result_type(types)
