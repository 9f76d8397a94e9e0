"""Which streams of files the tasks can read themselves.

Idea: the analysed plan of a stream is a scan of files with projections above. If every projection
only chooses and renames columns, each column of the stream is a column of the files.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from icestream.plan.nodes import SOURCE
from icestream.runtime.direct.arrow import ARROW_ROWS, ArrowReader
from icestream.runtime.direct.csv import CsvReader
from icestream.runtime.direct.parquet import ParquetReader
from icestream.runtime.direct.pieces import items
from icestream.runtime.direct.reader import FileSource, Reader

_SETTINGS = (
    "spark.sql.columnNameOfCorruptRecord",
    "spark.sql.csv.parser.columnPruning.enabled",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.session.timeZone",
)


def source_of(events: DataFrame) -> FileSource | None:
    """Return how to read the files behind the events; None if they need Spark's reader."""
    plan = events._jdf.queryExecution().analyzed()
    found = _resolve(plan, events.sparkSession)
    if found is None:
        return None
    reader, names = found
    columns: dict[str, str] = {}
    for attribute in items(plan.output()):
        name = names.get(attribute.exprId().id())
        if name is not None:
            columns[attribute.name()] = name
        elif attribute.name() != SOURCE:
            return None
    return FileSource(reader, columns)


def _resolve(plan: Any, spark: SparkSession) -> tuple[Reader, dict[int, str]] | None:
    """Return the reader, and the file column of each expression id, below plain projections."""
    kind = plan.getClass().getSimpleName()
    if kind in ("StreamingRelation", "MapInArrow"):
        reader = _reader_of(plan, spark) if kind == "StreamingRelation" else _arrow_reader(plan)
        return None if reader is None else (reader, _named(plan))
    if kind != "Project":
        return None
    below = _resolve(plan.children().apply(0), spark)
    if below is None:
        return None
    reader, names = below
    above: dict[int, str] = {}
    for expression in items(plan.projectList()):
        inner = expression.child() if _is(expression, "Alias") else expression
        if _is(inner, "AttributeReference") and inner.exprId().id() in names:
            above[expression.exprId().id()] = names[inner.exprId().id()]
    return reader, above


def _reader_of(relation: Any, spark: SparkSession) -> Reader | None:
    source = relation.dataSource()
    kind = source.className().lower()
    if kind == "parquet":
        return ParquetReader()
    if kind == "csv":
        names = tuple(attribute.name() for attribute in items(relation.output()))
        options = {pair._1(): pair._2() for pair in items(source.options().toSeq())}
        conf = {name: str(spark.conf.get(name)) for name in _SETTINGS}
        return CsvReader.of(names, options, conf)
    return None


def _arrow_reader(plan: Any) -> Reader | None:
    return ArrowReader() if plan.functionExpr().name() == ARROW_ROWS else None


def _named(plan: Any) -> dict[int, str]:
    return {attribute.exprId().id(): attribute.name() for attribute in items(plan.output())}


def _is(expression: Any, kind: str) -> bool:
    return bool(expression.getClass().getSimpleName() == kind)
