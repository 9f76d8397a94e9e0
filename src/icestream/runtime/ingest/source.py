"""Which streams of files the tasks can read themselves.

Idea: the analysed plan of a stream is a scan of files with projections above it. If every
projection only selects and renames columns, each column of the stream is a column of the files. The
current time is a column too: Spark's is one instant for a batch, which its log of offsets has, so
that a batch that runs again gets the same.

Invariant: rows of files that tasks read have the instants that Spark would give them
(`test_oracle_processing_times_of_files_that_tasks_read_are_sparks`).

Limits: of several streams, none may have a column of the current time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from icestream.plan.nodes.queries import SOURCE
from icestream.runtime.ingest.arrow import ARROW_ROWS, ArrowReader
from icestream.runtime.ingest.csv import CsvReader
from icestream.runtime.ingest.file_splits import local_path
from icestream.runtime.ingest.parquet import ParquetReader
from icestream.runtime.ingest.reader import BATCH_TIME, FileSource, FormatReader
from icestream.runtime.ingest.scans import items

_SETTINGS = (
    "spark.sql.columnNameOfCorruptRecord",
    "spark.sql.csv.parser.columnPruning.enabled",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.session.timeZone",
)
#: expressions that are one instant in all rows of a batch
_INSTANTS = ("CurrentTimestamp", "Now")


def sources_of(events: DataFrame) -> tuple[FileSource, ...] | None:
    """Return the file sources of the events of several streams; None if Spark must read.

    Several sources are distinguished by the folders of their files.
    """
    parts = list(_united(events._jdf.queryExecution().analyzed()))
    if len(parts) == 1:
        only = source_of(events)
        return None if only is None else (only,)
    found = []
    for plan in parts:
        source, folder = _source(plan, events.sparkSession, alone=False), _folder(plan)
        number = _constants(plan).get(SOURCE)
        if source is None or folder is None or not isinstance(number, int):
            return None
        found.append(replace(source, number=number, folder=folder))
    apart = not any(
        one is not other and f"{one.folder}/".startswith(f"{other.folder}/")
        for one in found
        for other in found
    )
    return tuple(found) if apart else None


def source_of(events: DataFrame) -> FileSource | None:
    """Return the file source of the events of a stream; None if Spark must read it."""
    return _source(events._jdf.queryExecution().analyzed(), events.sparkSession, alone=True)


def _source(plan: Any, spark: SparkSession, *, alone: bool) -> FileSource | None:
    """Return how to read the files of one source; if alone, rows have no columns of others."""
    found = _resolve(plan, spark)
    if found is None:
        return None
    reader, names = found
    constants = _constants(plan)
    columns: dict[str, str] = {}
    for attribute in items(plan.output()):
        name = names.get(attribute.exprId().id())
        if name == BATCH_TIME and not alone:
            return None
        if name is not None:
            columns[attribute.name()] = name
        elif attribute.name() != SOURCE and (
            alone or constants.get(attribute.name(), "") is not None
        ):
            return None
    return FileSource(reader, columns)


def _united(plan: Any) -> Iterator[Any]:
    """Yield the plans of a union, in their order."""
    if _is(plan, "Union"):
        for child in items(plan.children()):
            yield from _united(child)
    else:
        yield plan


def _constants(plan: Any) -> dict[str, Any]:
    """Return the values of columns that are constant."""
    found: dict[str, Any] = {}
    for expression in items(plan.projectList()) if _is(plan, "Project") else ():
        inner = expression.child() if _is(expression, "Alias") else expression
        while _is(inner, "Cast"):
            inner = inner.child()
        if _is(inner, "Literal"):
            found[expression.name()] = inner.value()
    return found


def _folder(plan: Any) -> str | None:
    """Return the one local folder that a stream of files reads; None if it reads anything else."""
    leaves = list(items(plan.collectLeaves()))
    if len(leaves) != 1 or not _is(leaves[0], "StreamingRelation"):
        return None
    options = {p._1(): p._2() for p in items(leaves[0].dataSource().options().toSeq())}
    path = local_path(options.get("path", "").rstrip("/"))
    return path if path.startswith("/") and not set(path) & set("*?[]{}") else None


def _resolve(plan: Any, spark: SparkSession) -> tuple[FormatReader, dict[int, str]] | None:
    """Return the reader, and the file column of each expression id, below plain projections.

    A column of the current time is one, `BATCH_TIME`.
    """
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
        elif inner.getClass().getSimpleName() in _INSTANTS:
            above[expression.exprId().id()] = BATCH_TIME
    return reader, above


def _reader_of(relation: Any, spark: SparkSession) -> FormatReader | None:
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


def _arrow_reader(plan: Any) -> FormatReader | None:
    return ArrowReader() if plan.functionExpr().name() == ARROW_ROWS else None


def _named(plan: Any) -> dict[int, str]:
    return {attribute.exprId().id(): attribute.name() for attribute in items(plan.output())}


def _is(expression: Any, kind: str) -> bool:
    return bool(expression.getClass().getSimpleName() == kind)
