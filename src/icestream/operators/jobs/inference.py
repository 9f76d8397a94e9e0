"""Finds the output columns of functions by calling them once with sample tuples.

Idea: a function for many tuples is called with none; Arrow then knows the types of the result. A
function for one row is called with a row of zeros, ones and short texts. If that fails, users
declare the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.jobs.batches import TS1, TS2
from icestream.operators.jobs.mapping import ROW, several


def map_columns(
    function: Callable[..., Any],
    name: str,
    payload: pa.Schema,
    *,
    vectorised: bool,
) -> pa.Schema:
    """Infer the columns that a map returns for tuples with a payload."""
    try:
        made = _of_none(function, payload) if vectorised else _of_one(function, payload)
    except Exception as error:
        msg = (
            f"the output of {name} could not be inferred by a trial call ({type(error).__name__}: "
            f"{error}): declare it, for example output='rate double'"
        )
        raise DefinitionError(msg) from error
    return pa.schema([each for each in made if each.name not in {TS1, TS2, ROW}])


def state_columns(initial: Mapping[str, Any]) -> pa.Schema:
    """Infer the columns of a state from its initial values."""
    return pa.schema([(name, _type(value)) for name, value in initial.items()])


def initial_of(state: pa.Schema, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Infer the values of a new state: zero for numbers and null otherwise, unless given."""
    found = {each.name: _zero(each.type) for each in state}
    unknown = sorted(set(given or {}) - found.keys())
    if unknown:
        msg = f"initial has {unknown}, but the state has {state.names}"
        raise DefinitionError(msg)
    return found | dict(given or {})


def _of_none(function: Callable[..., Any], payload: pa.Schema) -> pa.Schema:
    span = [pa.field(TS1, pa.int64()), pa.field(TS2, pa.int64())]
    made = function(pa.RecordBatch.from_pylist([], schema=pa.schema([*payload, *span])))
    if isinstance(made, pa.RecordBatch):
        return made.schema
    return pa.schema([(name, pa.array(column).type) for name, column in made.items()])


def _of_one(function: Callable[..., Any], payload: pa.Schema) -> pa.Schema:
    row = {each.name: _example(each.type) for each in payload}
    made = several(function({**row, TS1: 0, TS2: 1}))
    if not made:
        msg = "it returned nothing for a sample row"
        raise DefinitionError(msg)
    return pa.schema([(name, _type(value)) for name, value in made[0].items()])


def _type(value: Any) -> pa.DataType:
    kind = pa.scalar(value).type
    if pa.types.is_null(kind):
        msg = "a value was None"
        raise DefinitionError(msg)
    return kind


def _zero(kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return False
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return kind.to_pandas_dtype()(0).item() if number else None


def _example(kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return "a"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return kind.to_pandas_dtype()(1).item()
    if pa.types.is_boolean(kind):
        return True
    return pa.array(np.ones(1, dtype=np.int64)).cast(kind)[0].as_py()
