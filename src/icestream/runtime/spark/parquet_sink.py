"""Writes result files as the Parquet files that Spark's file sink would write, without a job.

Idea: if the driver is the only executor, passing rows to the JVM for writing costs more than
computing them. The driver writes the same table itself, one file per result file, and registers the
files in the log of Spark's file sink through Spark's own class, which reads, compacts and cleans
that log. Readers see the table that Spark would have written.

Invariants:
1. Types, encodings and stored schema are those that Spark writes; where they would differ,
   `ParquetFiles.of` returns None
   (`test_oracle_direct_files_have_the_schema_spark_writes`,
   `test_what_only_spark_can_write_is_left_to_spark`).
2. A version is registered once, after its files are durable
   (`test_crash_files_that_were_not_entered_are_not_seen`).
3. Spark can continue the log where we stopped, and we where Spark stopped
   (`test_spark_and_direct_writing_take_turns`).

Cost: a thread per result file, each with the memory of a row group.

Limits: files of an attempt that failed before it registered them stay in the folder, invisible to
Spark, as do those of Spark's own failed attempts.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from icestream.core.errors import StorageError
from icestream.state.files import LocalFiles

#: codecs by the names of Spark, with the names of pyarrow
_CODECS = {
    "none": "none",
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
}
_CODEC = "spark.sql.parquet.compression.codec"
_INSTANTS = "spark.sql.parquet.outputTimestampType"
#: settings that change what Spark writes, each with the value that we support
_AS_WE_DO = {
    "spark.sql.files.maxRecordsPerFile": "0",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
#: types that pyarrow stores as Spark does
_ALIKE = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
_FLOATS = (DoubleType, FloatType)


@dataclass(frozen=True)
class ParquetFiles:
    """A folder of Parquet files with the log of Spark's file sink."""

    folder: str
    codec: str
    schema: pa.Schema
    #: the schema that Spark stores in the metadata
    marks: Mapping[str, str]
    #: whether timestamps are stored in 96 bits
    int96: bool
    #: columns that are worth a dictionary: all but floats
    repeated: tuple[str, ...]
    log: SinkLog

    @classmethod
    def of(
        cls, spark: SparkSession, path: str, options: Mapping[str, str], rows: StructType
    ) -> ParquetFiles | None:
        """Return a writer of such rows to the folder; None if only Spark can write it."""
        chosen = {key.lower(): value for key, value in options.items() if key.lower() != "path"}
        codec = chosen.pop("compression", str(spark.conf.get(_CODEC))).lower()
        kinds = list(_leaves(rows))
        int96 = spark.conf.get(_INSTANTS) == "INT96" and any(_is_instant(kind) for kind in kinds)
        plain = (
            not chosen
            and codec in _CODECS
            and all(_is_alike(kind) for kind in kinds)
            and not any(field.metadata for field in _fields(rows))
            and not (int96 and any(isinstance(kind, TimestampNTZType) for kind in kinds))
            and (int96 or spark.conf.get(_INSTANTS) in ("INT96", "TIMESTAMP_MICROS"))
            and all(str(spark.conf.get(name)) == value for name, value in _AS_WE_DO.items())
            and is_alone(spark)
        )
        log = SinkLog(spark, path) if plain else None
        if log is None or log.folder is None or log.customised:
            return None
        marks = {
            "org.apache.spark.version": spark.version,
            "org.apache.spark.sql.parquet.row.metadata": rows.json(),
        }
        schema = to_arrow_schema(rows, timezone="UTC")
        repeated = tuple(f.name for f in rows if not isinstance(f.dataType, _FLOATS))
        return cls(log.folder, codec, schema, marks, int96, repeated, log)

    def write(self, results: Sequence[Iterable[pa.Table]], version: int) -> None:
        """Write the rows of a version, one file per result file, unless it was written before."""
        latest = self.log.latest
        if version <= latest:
            return
        # a reader needs at least one file to find the columns
        parts = results or ([[]] if latest < 0 else [])
        with ThreadPoolExecutor(max(1, len(parts))) as pool:
            paths = list(pool.map(self._write_one, parts, range(len(parts))))
        if paths:
            LocalFiles().sync_folder(self.folder)
        self.log.fill(latest, version)
        self.log.enter(version, paths)

    def _write_one(self, tables: Iterable[pa.Table], number: int) -> str:
        extension = "" if _CODECS[self.codec] == "none" else f".{self.codec}"
        name = f"part-{number:05d}-{uuid.uuid4()}-c000{extension}.parquet"
        path = os.path.join(self.folder, name)
        os.makedirs(self.folder, exist_ok=True)
        with pq.ParquetWriter(
            path,
            self.schema,
            compression=_CODECS[self.codec],
            use_dictionary=list(self.repeated),
            use_deprecated_int96_timestamps=self.int96,
            store_decimal_as_integer=True,
            store_schema=False,
        ) as writer:
            for table in tables:
                writer.write_table(table.cast(self.schema))
            writer.add_key_value_metadata(dict(self.marks))
        _sync(path)
        return path


class SinkLog:
    """Spark's log of the files that completed batches wrote."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Open or create the log of a folder."""
        session, jvm = spark._jsparkSession, cast("Any", spark._jvm)
        self._gateway: Any = spark.sparkContext._gateway
        self._path = jvm.org.apache.hadoop.fs.Path
        hadoop = session.sessionState().newHadoopConf()
        given = self._path(path)
        self._disk = given.getFileSystem(hadoop)
        whole = self._disk.makeQualified(given)
        uri = whole.toUri()
        #: the folder on the local disk; None if it is elsewhere
        self.folder = str(uri.getPath()) if uri.getScheme() == "file" else None
        #: whether Hadoop's settings change how Parquet is written
        self.customised = not hadoop.getPropsWithPrefix("parquet.").isEmpty()
        sinks = jvm.org.apache.spark.sql.execution.streaming.sinks
        self._entry = sinks.SinkFileStatus
        place = sinks.FileStreamSink.getMetadataLogPath(
            self._disk, whole, session.sessionState().conf()
        )
        log = sinks.FileStreamSinkLog
        self._log = log(log.VERSION(), session, place.toString(), jvm.scala.Option.empty())

    @property
    def latest(self) -> int:
        """Return the last completed batch, or -1."""
        found = self._log.getLatestBatchId()
        return int(found.get()) if found.isDefined() else -1

    def fill(self, latest: int, batch: int) -> None:
        """Register empty batches for missing numbers, because a log with gaps cannot be read.

        Numbers are missing if a query started with history, or wrote elsewhere before.
        """
        for missing in range(latest + 1, batch):
            self.enter(missing, ())

    def enter(self, batch: int, paths: Sequence[str]) -> None:
        """Register a batch with its files."""
        entries = self._gateway.new_array(self._entry, len(paths))
        for number, path in enumerate(paths):
            status = self._disk.getFileStatus(self._path(f"file://{path}"))
            entries[number] = self._entry.apply(status)
        if not self._log.add(batch, entries):
            msg = (
                f"another query wrote batch {batch} to the log of {self.folder} at the same time: "
                "only one query may write to a folder"
            )
            raise StorageError(msg)


def is_alone(spark: SparkSession) -> bool:
    """Return whether the driver, with the Parquet sink, is the only executor."""
    master = str(spark.sparkContext.master)
    return master.startswith("local") and not master.startswith("local-cluster")


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fields(kind: DataType) -> Iterable[StructField]:
    """Yield the fields of all structs in a type."""
    if isinstance(kind, ArrayType):
        yield from _fields(kind.elementType)
    elif isinstance(kind, StructType):
        for field in kind:
            yield field
            yield from _fields(field.dataType)


def _leaves(kind: DataType) -> Iterable[DataType]:
    """Yield the leaf types of a type."""
    if isinstance(kind, ArrayType):
        yield from _leaves(kind.elementType)
    elif isinstance(kind, StructType):
        for field in kind:
            yield from _leaves(field.dataType)
    else:
        yield kind


def _is_alike(kind: DataType) -> bool:
    collated = isinstance(kind, StringType) and kind.simpleString() != "string"
    return isinstance(kind, _ALIKE) and not collated


def _is_instant(kind: DataType) -> bool:
    return isinstance(kind, TimestampType)
