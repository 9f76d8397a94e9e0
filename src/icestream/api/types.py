"""Spark's types and Arrow's: what comes in and what goes out."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import DataType, StringType, StructField, StructType

from icestream.core.errors import DefinitionError
from icestream.plan.nodes import Plan


def arrow_schema(names: Sequence[str], fields: Sequence[StructField]) -> pa.Schema:
    """Return Arrow fields of the given names and Spark's types."""
    return pa.schema(
        [
            pa.field(name, arrow_type(field.dataType, name))
            for name, field in zip(names, fields, strict=True)
        ]
    )


def arrow_type(kind: DataType, name: str) -> pa.DataType:
    """Return the Arrow type in which Spark sends a column."""
    if isinstance(kind, StringType) and kind.simpleString() != "string":
        msg = (
            f"column {name!r} is {kind.simpleString()}: only strings of the binary collation can "
            "be used; cast it to string"
        )
        raise DefinitionError(msg)
    try:
        return to_arrow_type(kind, timezone="UTC")
    except PySparkException as error:
        msg = f"column {name!r} of type {kind.simpleString()} cannot be used here: {error}"
        raise DefinitionError(msg) from None


def result_schema(plan: Plan, time: DataType, keys: Sequence[DataType]) -> StructType:
    """Return Spark's types of the rows: keys as they came, answers as Spark gives them."""
    window = StructType([StructField("start", time), StructField("end", time)])
    given = [window, *keys]
    kinds = [*given, *(from_arrow_type(kind) for kind in plan.results.types[len(given) :])]
    return StructType(
        [StructField(name, kind) for name, kind in zip(plan.results.names, kinds, strict=True)]
    )
