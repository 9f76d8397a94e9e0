"""Which sink a format is, and what a format refuses before a query starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, MapType, StructType

from icestream.core.errors import DefinitionError
from icestream.runtime.spark.arrow_types import to_arrow_schema
from icestream.runtime.spark.sink import (
    FILE_FORMATS,
    ConsoleSink,
    FileSink,
    LakeSink,
    MemorySink,
    NoSink,
    Sink,
    WriterSink,
    jvm_of,
    needed,
)
from icestream.runtime.tables.append_table import PickingTable
from icestream.runtime.tables.delta import DeltaAppendTable
from icestream.runtime.tables.iceberg import CATALOG, IcebergAppendTable
from icestream.runtime.tables.layout import TableTarget, table_storage
from icestream.state.files import Files
from icestream.state.stores.bucket import store_scheme

#: formats of tables with a log of their own
_LAKES = ("delta", "iceberg")


def make_sink(
    spark: SparkSession,
    kind: str,
    schema: StructType,
    *,
    identity: Callable[[], str],
    name: str | None,
    partition_by: Sequence[str],
    options: Mapping[str, str],
    view: int = 0,
    files: Callable[[str], Files] = table_storage,
    storage: Mapping[str, str] | None = None,
) -> Sink:
    """Return the sink of a format; raise an error if an option is missing.

    `files` returns the storage of a table, and `storage` are the options of an object store.
    """
    if kind in (*FILE_FORMATS, *_LAKES) and "path" not in options:
        msg = f"format {kind!r} needs .option('path', ...) or .start(path)"
        raise DefinitionError(msg)
    if kind == "csv":
        _check_flat(schema)
    if kind in FILE_FORMATS:
        path = options["path"]
        return FileSink(spark, kind, path, partition_by, options, schema, identity(), view, files)
    if kind == "console":
        truncate = options.get("truncate", "false").lower() == "true"
        return ConsoleSink(int(options.get("numRows", "20")), truncate)
    if kind == "memory":
        if not name:
            msg = "format 'memory' needs .queryName(...): the name of the view to fill"
            raise DefinitionError(msg)
        return MemorySink(spark, name, schema)
    if kind == "noop":
        return NoSink()
    if kind not in _LAKES:
        _check_format(spark, kind)
        return WriterSink(kind, "", options)
    target = TableTarget(identity(), view, partition_by, options, files)
    table = _lake_table(kind, schema, target, storage or {})
    return WriterSink(kind, identity(), options) if table is None else LakeSink(table)


def _check_flat(schema: StructType) -> None:
    """Refuse columns with parts, which CSV cannot store."""
    parts = (StructType, ArrayType, MapType)
    nested = next((each for each in schema if isinstance(each.dataType, parts)), None)
    if nested is None:
        return
    if isinstance(nested.dataType, StructType):
        fields = [f"{nested.name}.{name}" for name in nested.dataType.names]
        remedy = f"select its fields, result.select({', '.join(map(repr, fields))}, ...)"
    else:
        remedy = f"make text of it, result.selectExpr('to_json({nested.name})', ...)"
    msg = f"format 'csv' has no column for {nested.name!r}, which has parts: {remedy}"
    raise DefinitionError(msg)


def _check_format(spark: SparkSession, kind: str) -> None:
    """Refuse a format that Spark has no writer for."""
    session: Any = spark._jsparkSession.sessionState()
    known = jvm_of(spark).org.apache.spark.sql.execution.datasources.DataSource
    try:
        if not session.dataSourceManager().dataSourceExists(kind):
            known.lookupDataSource(kind, session.conf())
    except Py4JJavaError:
        msg = (
            f"Spark knows no format {kind!r}: use parquet, json, csv, orc, text, delta, iceberg, "
            "console, memory or noop, or add the package of that format to spark.jars.packages"
        )
        raise DefinitionError(msg) from None


def _lake_table(
    kind: str, schema: StructType, target: TableTarget, storage: Mapping[str, str]
) -> PickingTable | None:
    """Return a Delta or Iceberg table that tasks can write; None if Spark's own writer must."""
    options = target.options
    if kind == "iceberg" and not uses_catalog(options):
        return None
    place, columns = options["path"], to_arrow_schema(schema)
    if kind == "iceberg":
        needed("pyiceberg", "iceberg")
        return IcebergAppendTable(place, columns, target, storage)
    known = {*options} <= {"path", "targetFileSize", "mergeSchema"}
    folder = place.removeprefix("file://")
    in_store = store_scheme(folder) is not None
    if not known or ("://" in folder and not in_store) or find_spec("deltalake") is None:
        return None
    return DeltaAppendTable(folder if in_store else os.path.abspath(folder), columns, target)


def uses_catalog(options: Mapping[str, str]) -> bool:
    """Return whether options of a sink name an Iceberg catalogue of `pyiceberg`."""
    return any(key == CATALOG or key.startswith(f"{CATALOG}.") for key in options)
