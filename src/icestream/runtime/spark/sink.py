"""Where results go: Spark's own writers, a callback, or a table.

Idea: a sink receives the result files of a committed version as a DataFrame, never recomputed rows.
File formats go through Spark's own file sink with its log of completed batches, numbered by our
versions, so a version that is delivered twice is written once; Parquet is written without the JVM
if the result is the same (`ParquetFiles`). Other sinks are wrapped in `DeliveryMarks`, which
records delivered versions.

Invariants:
1. Versions are delivered in order, without gaps (`test_versions_reach_the_sink_without_gaps`).
2. Delivering a version again changes nothing in a file sink
   (`test_crash_a_version_delivered_again_is_written_once`).
3. After a stop and a restart no sink sees a version twice
   (`test_a_callback_sees_a_version_once_across_restarts`).

Limits: after a crash between a delivery and its mark, a callback, a table or a format without such
a log sees the version a second time; callbacks get its number to detect this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from icestream.core.errors import DefinitionError
from icestream.runtime.driver import Delivery
from icestream.runtime.local import read_rows
from icestream.runtime.spark.parquet_sink import ParquetFiles, SinkLog
from icestream.state.files import Files

#: formats that Spark's file sink writes
FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro")

Callback = Callable[[DataFrame, int], None]


class Sink(Protocol):
    """Receives the rows of one version after the other."""

    @property
    def every_version(self) -> bool:
        """Return whether versions without rows must be delivered too."""
        ...

    @property
    def repeatable(self) -> bool:
        """Return whether a version may be delivered again without harm."""
        ...

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Take the rows of a version; versions count from 0."""
        ...


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
    """The rows of a version: result files, and the user's projection of them."""

    spark: SparkSession
    files: Files
    paths: Sequence[str]
    #: columns in the files
    schema: StructType
    shape: Callable[[DataFrame], DataFrame] = as_they_are
    view: int = 0

    def tables(self) -> list[Iterator[pa.Table]]:
        """Return the tables of each file."""
        return [read_rows(self.files, path, self.view) for path in self.paths]

    def frame(self) -> DataFrame:
        """Return the rows as a DataFrame, one task per file."""
        if not self.paths:
            return self.shape(no_rows(self.spark, self.schema))
        files, paths, view = self.files, self.paths, self.view

        def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    for table in read_rows(files, paths[number], view):
                        yield from table.to_batches()

        numbers = self.spark.range(0, len(paths), 1, len(paths))
        return self.shape(numbers.mapInArrow(read, self.schema))


def hand_out(sink: Sink, rows: ResultRows, delivery: Delivery) -> None:
    """Hand the rows of a version to its sink."""
    if isinstance(sink, NoSink) or (not rows.paths and not sink.every_version):
        return
    version = delivery.commit.version - 1
    if isinstance(sink, FileSink) and sink.writes(rows):
        sink.write(rows, version)
    else:
        sink.deliver(rows.frame(), version)


def once(sink: Sink, files: Files, root: str, view: int = 0) -> Sink:
    """Keep the sink of a view from seeing a version again, except after a crash."""
    return sink if sink.repeatable else DeliveryMarks(sink, files, f"{root}/delivered/{view}")


@dataclass(frozen=True)
class DeliveryMarks:
    """Records delivered versions and skips them when they come again."""

    sink: Sink
    files: Files
    folder: str
    repeatable: bool = True

    @property
    def every_version(self) -> bool:
        """Return what the sink needs."""
        return self.sink.every_version

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Deliver and record a version, unless it is recorded."""
        marks = self.files.list(self.folder)
        mark = f"{version:012d}"
        if mark in marks:
            return
        self.sink.deliver(rows, version)
        self.files.put(f"{self.folder}/{mark}", b"delivered\n")
        for older in marks:
            self.files.unlink(f"{self.folder}/{older}")


class FileSink:
    """Spark's file sink: exactly once, through its log of completed batches, which has no gaps."""

    every_version = True
    repeatable = True

    def __init__(
        self,
        spark: SparkSession,
        kind: str,
        path: str,
        partition_by: Sequence[str],
        options: Mapping[str, str],
        schema: StructType,
    ) -> None:
        """Open or create the folder `path` for rows of a schema."""
        jvm, gateway = jvm_of(spark), gateway_of(spark)
        session = spark._jsparkSession
        given = jvm.org.apache.hadoop.fs.Path(path)
        disk = given.getFileSystem(session.sessionState().newHadoopConf())
        path = str(disk.makeQualified(given).toString())
        plain = kind == "parquet" and not partition_by
        self._direct = ParquetFiles.of(spark, path, options, schema) if plain else None
        self._log = SinkLog(spark, path) if self._direct is None else self._direct.log
        self._is_whole = False
        finder = jvm.org.apache.spark.sql.execution.datasources.DataSource
        no_classes = gateway.new_array(jvm.java.lang.Class, 0)
        no_values = gateway.new_array(jvm.java.lang.Object, 0)

        def instance(of: Any) -> Any:
            return of.getDeclaredConstructor(no_classes).newInstance(no_values)

        source = instance(finder.lookupDataSource(kind, session.sessionState().conf()))
        if hasattr(source, "fallbackFileFormat") and "V2" in source.getClass().getName():
            source = instance(source.fallbackFileFormat())
        self._sink = jvm.org.apache.spark.sql.execution.streaming.sinks.FileStreamSink(
            session,
            path,
            source,
            jvm.PythonUtils.toSeq(list(partition_by)),
            jvm.PythonUtils.toScalaMap({**options, "path": path}),
        )

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Write the rows unless this version was written before."""
        if not self._is_whole:
            self._log.fill(self._log.latest, version)
            self._is_whole = True
        self._sink.addBatch(version, rows._jdf)

    def writes(self, rows: ResultRows) -> bool:
        """Return whether these rows can be written without a Spark job."""
        return self._direct is not None and (rows.shape is as_they_are or not rows.paths)

    def write(self, rows: ResultRows, version: int) -> None:
        """Write the rows as `deliver` does, without a job."""
        if self._direct is not None:
            self._direct.write(rows.tables(), version)


@dataclass(frozen=True)
class CallbackSink:
    """Passes every version to a function of the user."""

    callback: Callback
    every_version: bool = True
    repeatable: bool = False

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Call the user's function with rows and version."""
        self.callback(rows, version)


@dataclass(frozen=True)
class TableSink:
    """Appends to a table of the catalog."""

    table: str
    kind: str | None
    partition_by: tuple[str, ...]
    options: Mapping[str, str]
    every_version: bool = False
    repeatable: bool = False

    def create(self, spark: SparkSession, schema: StructType) -> None:
        """Create an empty table if there is none."""
        if not spark.catalog.tableExists(self.table):
            self.deliver(no_rows(spark, schema), -1)

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Append the rows."""
        writer = rows.write.mode("append").options(**dict(self.options))
        if self.kind is not None:
            writer = writer.format(self.kind)
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.saveAsTable(self.table)


@dataclass(frozen=True)
class WriterSink:
    """Any other batch writer of Spark; Delta gets the version, so that it writes it once."""

    kind: str
    identity: str
    options: Mapping[str, str]
    every_version: bool = False
    repeatable: bool = False

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Append the rows."""
        options = dict(self.options)
        if self.kind == "delta":
            options.update(txnAppId=self.identity, txnVersion=str(version))
        rows.write.format(self.kind).mode("append").options(**options).save()


@dataclass(frozen=True)
class ConsoleSink:
    """Prints the rows of every version that has any."""

    rows: int
    truncate: bool
    every_version: bool = False
    repeatable: bool = True

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Print the first rows."""
        print(f"---- version {version} ----")
        rows.show(self.rows, self.truncate)


class MemorySink:
    """Collects all rows in a temporary view, for viewing small results."""

    every_version = False
    repeatable = True

    def __init__(self, spark: SparkSession, name: str, schema: StructType) -> None:
        """Create an empty view."""
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


class NoSink:
    """Discards the rows; for measuring."""

    every_version = False
    repeatable = True

    def deliver(self, rows: DataFrame, version: int) -> None:
        """Do nothing."""


def make_sink(
    spark: SparkSession,
    kind: str,
    schema: StructType,
    *,
    identity: str,
    name: str | None,
    partition_by: Sequence[str],
    options: Mapping[str, str],
) -> Sink:
    """Return the sink of a format; raise an error if an option is missing."""
    if kind in FILE_FORMATS:
        if "path" not in options:
            msg = f"format {kind!r} needs .option('path', ...) or .start(path)"
            raise DefinitionError(msg)
        return FileSink(spark, kind, options["path"], partition_by, options, schema)
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
    return WriterSink(kind, identity, options)


def jvm_of(spark: SparkSession) -> Any:
    """Return the view of Spark's Java process, for a sink."""
    return spark._jvm


def gateway_of(spark: SparkSession) -> Any:
    """Return the connection to Spark's Java process, for a sink."""
    return spark.sparkContext._gateway
