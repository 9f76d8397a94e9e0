"""Conversion between the types of Spark and of Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import DataType, StringType, StructField, StructType

from icestream.core.errors import DefinitionError
from icestream.plan.nodes.queries import Plan, View


def arrow_schema(names: Sequence[str], fields: Sequence[StructField]) -> pa.Schema:
    """Return fields of Spark's types as Arrow fields with the given names."""
    return pa.schema(
        [
            pa.field(name, arrow_type(field.dataType, name))
            for name, field in zip(names, fields, strict=True)
        ]
    )


def arrow_type(kind: DataType, name: str) -> pa.DataType:
    """Return the Arrow type in which Spark sends a column of its type."""
    if isinstance(kind, StringType) and kind.simpleString() != "string":
        msg = (
            f"column {name!r} is {kind.simpleString()}: strings must have the binary collation; "
            "cast it to string"
        )
        raise DefinitionError(msg)
    try:
        return to_arrow_type(kind, timezone="UTC")
    except PySparkException as error:
        msg = f"column {name!r} of type {kind.simpleString()} cannot be used here: {error}"
        raise DefinitionError(msg) from None


def result_schema(plan: Plan, view: View, time: DataType, keys: Sequence[DataType]) -> StructType:
    """Return Spark's types of a view's rows: keys as they arrived, aggregates as in Spark."""
    columns = plan.results(view)
    heading: DataType = time
    if pa.types.is_struct(columns.field(0).type):
        heading = StructType([StructField("start", time), StructField("end", time)])
    given = [heading, *(keys[place] for place in view.keys)]
    kinds = [*given, *(from_arrow_type(kind) for kind in columns.types[len(given) :])]
    return StructType(
        [StructField(name, kind) for name, kind in zip(columns.names, kinds, strict=True)]
    )
