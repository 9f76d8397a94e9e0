"""Types of Spark as those of Arrow, and back, alike in all releases of PySpark.

Idea: instants are UTC, and local times stay local. Releases differ in the names and defaults of
the arguments that say so: older ones know no time zone but UTC, and make instants of local times
unless told otherwise.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas import types
from pyspark.sql.types import DataType, StructType

_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(types.to_arrow_type).parameters else {}
)


def to_arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type in which Spark sends a type of its own."""
    return types.to_arrow_type(kind, **_UTC)


def to_arrow_schema(columns: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark sends rows."""
    return types.to_arrow_schema(columns, **_UTC)


def from_arrow_type(kind: pa.DataType) -> DataType:
    """Return the type of Spark for one of Arrow."""
    return types.from_arrow_type(kind, prefer_timestamp_ntz=True)


def from_arrow_schema(columns: pa.Schema) -> StructType:
    """Return the schema of Spark for one of Arrow."""
    return types.from_arrow_schema(columns, prefer_timestamp_ntz=True)
