"""Where results go: tables that tasks write, Spark's own writers, a callback.

Idea: where tasks can write the files of a table (`runtime.tables`), delivering a version means to
add its files to the table. Every other sink receives the result files of a committed version as a
DataFrame, never recomputed rows. Other file formats go through Spark's own file sink with its log
of completed batches, numbered by our versions, so a version that is delivered twice is written
once. What has no such log is wrapped in `DeliveryMarks`, which records delivered versions.

Invariants:
1. Versions are delivered in order, without gaps (`test_versions_reach_the_sink_without_gaps`).
2. Delivering a version again changes nothing in a file sink
   (`test_crash_a_version_delivered_again_is_written_once`).
3. After a stop and a restart no sink sees a version twice
   (`test_a_callback_sees_a_version_once_across_restarts`).
4. Rows that were committed for one sink reach another that the query is restarted with
   (`test_rows_of_a_table_reach_the_sink_that_replaces_it`).

Limits: after a crash between a delivery and its mark, a callback, a table or a format without such
a log sees the version a second time; callbacks get its number to detect this.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from icestream.core.clock import SystemClock
from icestream.core.errors import DefinitionError
from icestream.runtime.driver import Delivery
from icestream.runtime.ingest.scans import items
from icestream.runtime.local import read_rows
from icestream.runtime.spark.arrow_types import to_arrow_schema
from icestream.runtime.spark.parquet_sink import ParquetTable
from icestream.runtime.tables.append_table import AppendTable, PickingTable
from icestream.runtime.tables.current_table import CurrentTable
from icestream.runtime.tables.layout import TableLayout, TableTarget, table_storage
from icestream.runtime.tables.sink_log import LOG
from icestream.runtime.tables.upsert_table import UpsertTable
from icestream.runtime.tables.writer import TableWriter, read_back, with_columns
from icestream.runtime.version.end_mark import MARK
from icestream.state.files import Files
from icestream.state.stores.bucket import store_scheme
from icestream.state.versions.table_files import TableFile

#: formats that Spark's file sink writes
FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro")

#: times that a table is read which others replace meanwhile
_TRIES = 3

Callback = Callable[[DataFrame, int], None]


class Sink(ABC):
    """Receives the rows of one version after the other."""

    #: whether versions without rows must be delivered too
    every_version = False
    #: whether a version may be delivered again without harm
    repeatable = True

    @abstractmethod
    def deliver(self, rows: DataFrame, version: int) -> None:
        """Take the rows of a version; versions count from 0."""


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty DataFrame for a sink that runs no task when it is read."""
    session = spark._jsparkSession
    kind = session.parseDataType(schema.json())
    return DataFrame(session.createDataFrame(jvm_of(spark).java.util.ArrayList(), kind), spark)


def as_they_are(rows: DataFrame) -> DataFrame:
    """Return the rows of a version for a sink unchanged."""
    return rows


@dataclass(frozen=True)
class ResultRows:
    """The rows of a version: files, and the user's projection of them."""

    spark: SparkSession
    files: Files
    paths: Sequence[str]
    #: columns in the files
    schema: StructType
    shape: Callable[[DataFrame], DataFrame] = as_they_are
    view: int = 0
    #: files that were written for a table
    tables: Sequence[TableFile] = ()
    #: returns the storage of a table
    storage: Callable[[str], Files] = table_storage

    def readers(self, *, but: str | None = None) -> list[Callable[[], Iterator[pa.Table]]]:
        """Return functions that read one file each, except those of one table."""
        columns = to_arrow_schema(self.schema)
        others = [each for each in self.tables if each.table != but]
        return [
            *(partial(_rows_in_file, self.files, path, self.view, columns) for path in self.paths),
            *(partial(_one, read_back, f, columns, self.storage(f.table)) for f in others),
        ]

    def frame(self) -> DataFrame:
        """Return the rows as a DataFrame."""
        return self.shape(_frame(self.spark, self.readers(), self.schema))

    def files_for(self, layout: TableLayout) -> list[TableFile]:
        """Return the files of a table, also of rows that were committed for another sink."""
        own = [each for each in self.tables if each.table == layout.folder]
        readers = self.readers(but=layout.folder)
        if readers:
            own += write_files(layout, (table for read in readers for table in read()))
        return own


def _rows_in_file(files: Files, path: str, view: int, columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a result file; a query that has changed since may have other columns."""
    for table in read_rows(files, path, view):
        same = table.column_names == columns.names
        yield table if same else with_columns(table, columns)


def _frame(
    spark: SparkSession, readers: Sequence[Callable[[], Iterator[pa.Table]]], schema: StructType
) -> DataFrame:
    """Return what functions read as a DataFrame, in order, in as many tasks as there are cores."""
    if not readers:
        return no_rows(spark, schema)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for table in readers[number]():
                    yield from table.to_batches()

    tasks = min(len(readers), spark.sparkContext.defaultParallelism)
    return spark.range(0, len(readers), 1, tasks).mapInArrow(read, schema)


def current_frame(
    spark: SparkSession,
    table: CurrentTable,
    schema: StructType,
    shape: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Return the rows that a sink of mode `now` holds: a copy, because the table moves on."""
    for tries in range(_TRIES):
        manifest = table.manifest()
        readers: list[Callable[[], Iterator[pa.Table]]] = []
        if manifest is not None:
            now, ranges = SystemClock().now(), table.ranges(manifest)
            # a task opens a file once, however many ranges it reads
            share = -(-len(ranges) // spark.sparkContext.defaultParallelism)
            parts = (ranges[at : at + share] for at in range(0, len(ranges), share))
            columns = to_arrow_schema(schema)
            readers = [
                partial(_filled, columns, partial(table.rows, manifest, now, each))
                for each in parts
            ]
        try:
            return shape(_frame(spark, readers, schema)).localCheckpoint()
        except PySparkException:
            if tries == _TRIES - 1 or table.manifest() == manifest:
                for name in manifest.names if manifest else ():
                    table.check(name)
                raise
    raise AssertionError


def _filled(columns: pa.Schema, read: Callable[[], Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """Yield rows with nulls in columns that the query has had since after they were written."""
    for rows in read():
        there = rows.column_names
        found = {
            each.name: rows[each.name] if each.name in there else pa.nulls(len(rows), each.type)
            for each in columns
        }
        yield pa.table(found)


def _one(read: Callable[..., pa.Table], *what: Any) -> Iterator[pa.Table]:
    yield read(*what)


def table_of(
    sink: Sink,
    shape: Callable[[DataFrame], DataFrame],
    spark: SparkSession,
    schema: StructType,
) -> AppendTable | None:
    """Return the table of a sink whose files tasks write; None if Spark must change the rows."""
    table: PickingTable | None = None
    if isinstance(sink, FileSink | LakeSink):
        table = sink.direct
    if table is None or shape is as_they_are:
        return table
    places = _places(shape(no_rows(spark, schema))._jdf.queryExecution().analyzed())
    return None if places is None else table.picking([*places.values()])


def _places(plan: Any) -> dict[int, tuple[int, ...]] | None:
    """Return where the columns of a plan are in its only leaf; None if some are computed."""
    children = list(items(plan.children()))
    if not children:
        columns = enumerate(items(plan.output()))
        return {each.exprId().id(): (place,) for place, each in columns}
    below = _places(children[0]) if plan.getClass().getSimpleName() == "Project" else None
    if below is None:
        return None
    found: dict[int, tuple[int, ...]] = {}
    for each in items(plan.projectList()):
        inner = each
        fields: list[int] = []
        kind = inner.getClass().getSimpleName()
        while kind in ("Alias", "GetStructField"):
            if kind == "GetStructField":
                fields.insert(0, inner.ordinal())
            inner = inner.child()
            kind = inner.getClass().getSimpleName()
        if kind != "AttributeReference":
            return None
        found[each.exprId().id()] = (*below[inner.exprId().id()], *fields)
    return found


def write_files(layout: TableLayout, rows: Iterable[pa.Table | pa.RecordBatch]) -> list[TableFile]:
    """Write durable files for a sink outside a version; a sweep leaves them alone."""
    run = uuid.uuid4()
    writer = TableWriter(layout, lambda number: f"part-{number:05d}-{run}-c000")
    for each in rows:
        writer.write(each)
    files = writer.finish()
    writer.sync()
    return files


def hand_out(sink: Sink, rows: ResultRows, delivery: Delivery, table: AppendTable | None) -> None:
    """Hand the rows of a version to its sink, or add the files that tasks wrote to its table."""
    exist = bool(rows.paths or rows.tables)
    if isinstance(sink, NoSink) or not (exist or sink.every_version):
        return
    version = delivery.commit.version - 1
    if table is None:
        sink.deliver(rows.frame(), version)
    elif not rows.readers(but=table.layout.folder) or version > table.latest():
        table.add(version, rows.files_for(table.layout))


def once(sink: Sink, files: Files, root: str, view: int = 0) -> Sink:
    """Keep the sink of a view from seeing a version again, except after a crash."""
    return sink if sink.repeatable else DeliveryMarks(sink, files, f"{root}/delivered/{view}")


class DeliveryMarks(Sink):
    """Records delivered versions and skips them when they come again."""

    def __init__(self, sink: Sink, files: Files, folder: str) -> None:
        self.sink, self.files, self.folder = sink, files, folder
        self.every_version = sink.every_version

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Deliver and record a version, unless it is recorded."""
        marks = self.files.list(self.folder)
        mark = f"{version:012d}"
        if mark in marks:
            return
        self.sink.deliver(rows, version)
        self.files.put(f"{self.folder}/{mark}", MARK)
        for older in marks:
            self.files.unlink(f"{self.folder}/{older}")


class FileSink(Sink):
    """Spark's file sink: exactly once, through its log of completed batches, which has no gaps."""

    every_version = True

    def __init__(
        self,
        spark: SparkSession,
        kind: str,
        path: str,
        partition_by: Sequence[str],
        options: Mapping[str, str],
        schema: StructType,
        writer: str = f"{'0' * 32}-0",
        view: int = 0,
        files: Callable[[str], Files] = table_storage,
    ) -> None:
        """Open or create the folder `path` for rows of a schema."""
        self._spark = spark
        self._kind = kind
        self._path = path
        self._partition_by = partition_by
        self._options = options
        self.direct: ParquetTable | None = None
        if kind == "parquet":
            target = TableTarget(writer, view, partition_by, options, files)
            self.direct = ParquetTable.of(spark, path, schema, target)
        self._is_whole = False
        if self.direct is None:
            self._sink  # noqa: B018 - what Spark cannot write is refused at the start

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Write the rows unless this version was written before."""
        if self.direct is not None and store_scheme(self._path) is not None:
            deliver_by_tasks(self.direct, rows, version)
            return
        if not self._is_whole:
            self._fill(version)
            self._is_whole = True
        # partitions are sorted by a plan that belongs to the session of its thread
        session = self._spark._jsparkSession
        jvm_of(self._spark).org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
        self._sink.addBatch(version, rows._jdf)

    @cached_property
    def _sink(self) -> Any:
        """Return Spark's own sink."""
        jvm, gateway = jvm_of(self._spark), gateway_of(self._spark)
        session, path = self._spark._jsparkSession, self._qualified()
        finder = jvm.org.apache.spark.sql.execution.datasources.DataSource
        no_classes = gateway.new_array(jvm.java.lang.Class, 0)
        no_values = gateway.new_array(jvm.java.lang.Object, 0)

        def instance(of: Any) -> Any:
            return of.getDeclaredConstructor(no_classes).newInstance(no_values)

        source = instance(finder.lookupDataSource(self._kind, session.sessionState().conf()))
        if hasattr(source, "fallbackFileFormat") and "V2" in source.getClass().getName():
            source = instance(source.fallbackFileFormat())
        return jvm.org.apache.spark.sql.execution.streaming.sinks.FileStreamSink(
            session,
            path,
            source,
            jvm.PythonUtils.toSeq(list(self._partition_by)),
            jvm.PythonUtils.toScalaMap({**self._options, "path": path}),
        )

    def _fill(self, version: int) -> None:
        """Enter empty batches for missing numbers into the log that Spark's sink continues."""
        jvm = jvm_of(self._spark)
        sinks = jvm.org.apache.spark.sql.execution.streaming.sinks
        kind, place = sinks.FileStreamSinkLog, f"{self._qualified()}/{LOG}"
        none = jvm.scala.Option.empty()
        log = kind(kind.VERSION(), self._spark._jsparkSession, place, none)
        found = log.getLatestBatchId()
        for missing in range(found.get() + 1 if found.isDefined() else 0, version):
            log.add(missing, gateway_of(self._spark).new_array(sinks.SinkFileStatus, 0))

    def _qualified(self) -> str:
        given = jvm_of(self._spark).org.apache.hadoop.fs.Path(self._path)
        state = self._spark._jsparkSession.sessionState()
        return str(given.getFileSystem(state.newHadoopConf()).makeQualified(given).toString())


@dataclass(frozen=True)
class LakeSink(Sink):
    """A Delta or Iceberg table: exactly once, by the version in the table's own log."""

    direct: PickingTable

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Add rows that the user's expressions changed."""
        deliver_by_tasks(self.direct, rows, version)


def deliver_by_tasks(table: AppendTable, rows: DataFrame, version: int) -> None:
    """Let Spark's tasks write the rows of a sink as files of a table, then add the files."""
    if version <= table.latest():
        return
    layout = table.layout

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = [json.dumps(each.to_json()) for each in write_files(layout, batches)]
        yield pa.record_batch([pa.array(files, pa.string())], ["file"])

    written = [json.loads(row["file"]) for row in rows.mapInArrow(write, "file string").collect()]
    table.add(version, [TableFile.from_json(each) for each in written])


@dataclass(frozen=True)
class UpsertSink(Sink):
    """A table that holds the newest row of each key: exactly once, by the version."""

    table: UpsertTable

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Merge the rows of keys that changed."""
        self.table.merge(version, rows.toArrow())


@dataclass(frozen=True)
class CallbackSink(Sink):
    """Passes every version to a function of the user."""

    callback: Callback
    every_version = True
    repeatable = False

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Call the user's function with rows and version."""
        self.callback(rows, version)


@dataclass(frozen=True)
class TableSink(Sink):
    """Appends to a table of the catalog."""

    table: str
    kind: str | None
    partition_by: tuple[str, ...]
    options: Mapping[str, str]
    repeatable = False

    def create(self, spark: SparkSession, schema: StructType) -> None:
        if not spark.catalog.tableExists(self.table):
            self.deliver(no_rows(spark, schema), -1)

    def deliver(self, rows: DataFrame, version: int) -> None:
        writer = rows.write.mode("append").options(**dict(self.options))
        if self.kind is not None:
            writer = writer.format(self.kind)
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.saveAsTable(self.table)


@dataclass(frozen=True)
class WriterSink(Sink):
    """Any other batch writer of Spark; Delta gets identity and version, to write it once."""

    kind: str
    identity: str
    options: Mapping[str, str]
    repeatable = False

    def deliver(self, rows: DataFrame, version: int) -> None:
        options = dict(self.options)
        if self.kind == "delta":
            options.update(txnAppId=self.identity, txnVersion=str(version))
        rows.write.format(self.kind).mode("append").options(**options).save()


@dataclass(frozen=True)
class ConsoleSink(Sink):
    """Prints the rows of every version that has any."""

    rows: int
    truncate: bool

    def deliver(self, rows: DataFrame, version: int) -> None:
        print(f"---- version {version} ----")
        rows.show(self.rows, self.truncate)


class MemorySink(Sink):
    """Collects all rows in a temporary view, for viewing small results."""

    def __init__(self, spark: SparkSession, name: str, schema: StructType) -> None:
        self._name = name
        self._rows = no_rows(spark, schema)
        self._delivered = -1
        self._rows.createOrReplaceTempView(name)

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Add the rows unless they were added before."""
        if version <= self._delivered:
            return
        self._rows = self._rows.union(rows.localCheckpoint())
        self._delivered = version
        self._rows.createOrReplaceTempView(self._name)


class NoSink(Sink):
    """Discards the rows; for measuring."""

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Do nothing."""


def needed(module: str, extra: str) -> None:
    """Refuse a sink whose library is not installed."""
    if find_spec(module) is None:
        msg = f"this sink needs {module}: pip install 'icestream[{extra}]'"
        raise DefinitionError(msg)


def jvm_of(spark: SparkSession) -> Any:
    """Return the view of Spark's Java process, for a sink."""
    return spark._jvm


def gateway_of(spark: SparkSession) -> Any:
    """Return the connection to Spark's Java process, for a sink."""
    return spark.sparkContext._gateway
