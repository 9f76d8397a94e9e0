"""A folder of Parquet files with the log of Spark's file sink, written by tasks without the JVM.

Idea: passing rows to the JVM for writing costs more than computing them. Tasks write the same files
themselves, and the driver registers them in the log of Spark's file sink. Readers see the table
that Spark would have written. In an object store this needs no connector of Hadoop.

Invariants:
1. Types and stored schema are those that Spark writes, encodings are such that it reads; where
   types would differ, `ParquetTable.of` returns None
   (`test_oracle_direct_files_have_the_schema_spark_writes`,
   `test_what_only_spark_can_write_is_left_to_spark`).
2. A version is registered once, after its files are durable
   (`test_crash_files_that_were_not_entered_are_not_seen`).

Limits: one query writes to a folder. Folders and object stores; Spark writes elsewhere.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
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

from icestream.runtime.spark.arrow_types import to_arrow_schema
from icestream.runtime.tables.append_table import check_columns, relative
from icestream.runtime.tables.layout import (
    OpenTableFile,
    TableLayout,
    TableTarget,
    can_partition,
)
from icestream.runtime.tables.sink_log import SinkLog
from icestream.runtime.tables.writer import TableWriter
from icestream.state.stores.bucket import store_scheme
from icestream.state.versions.table_files import TableFile

#: codecs by the names of Spark, with the names of pyarrow
_CODECS = {
    "none": "none",
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
}
_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"
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
_ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"


class ParquetTable:
    """A folder of Parquet files with the log of Spark's file sink."""

    def __init__(self, layout: TableLayout, log: SinkLog) -> None:
        """Use a folder that has been checked."""
        self.layout = layout
        self.log = log

    @classmethod
    def of(
        cls, spark: SparkSession, path: str, rows: StructType, target: TableTarget
    ) -> ParquetTable | None:
        """Return the table at a path for such rows; None if only Spark can write it."""
        partition_by = target.partition_by
        chosen = {key.lower(): value for key, value in target.options.items()}
        codec = chosen.pop("compression", str(spark.conf.get(_CODEC))).lower()
        for own in ("path", "targetfilesize", "mergeschema"):
            chosen.pop(own, None)
        inside = StructType([each for each in rows if each.name not in partition_by])
        kinds = list(_leaves(rows))
        int96 = spark.conf.get(_INSTANTS) == "INT96" and any(_is_instant(kind) for kind in kinds)
        schema = to_arrow_schema(rows)
        plain = (
            not chosen
            and codec in _CODECS
            and len(inside)
            and all(_is_alike(kind) for kind in kinds)
            and all(can_partition(schema.field(name).type) for name in partition_by)
            and not any(field.metadata for field in _fields(rows))
            and not (int96 and any(isinstance(kind, TimestampNTZType) for kind in kinds))
            and (int96 or spark.conf.get(_INSTANTS) in ("INT96", "TIMESTAMP_MICROS"))
            and all(str(spark.conf.get(name)) == value for name, value in _AS_WE_DO.items())
        )
        folder = _folder(spark, path)
        if folder is None or not plain or _customised(spark):
            return None
        files = target.files(folder)
        log = SinkLog(files, folder, int(str(spark.conf.get(_INTERVAL))))
        marks = {
            "org.apache.spark.version": spark.version,
            _ROW_METADATA: inside.json(),
        }
        ending = f"{'' if _CODECS[codec] == 'none' else f'.{codec}'}.parquet"
        layout = TableLayout(
            target.view,
            target.writer,
            folder,
            schema,
            _CODECS[codec],
            ending,
            tuple(partition_by),
            metadata=marks,
            int96=int96,
            target=target.file_bytes,
            files=files,
        )
        table = cls(layout, log)
        table.check(inside, merges=target.merges)
        return table

    def check(self, inside: StructType, *, merges: bool = False) -> None:
        """Refuse a folder whose files have other columns, which with `merges` may lack some."""
        for path in reversed(self.log.files()):
            try:
                with OpenTableFile(self.layout.files, path) as file:
                    stored = pq.read_metadata(file).metadata or {}
            except FileNotFoundError:
                continue
            told = stored.get(_ROW_METADATA.encode())
            if told is not None:
                found = StructType.fromJson(json.loads(told))
                check_columns(
                    self.layout.folder,
                    [(each.name, each.dataType.simpleString()) for each in found],
                    [(each.name, each.dataType.simpleString()) for each in inside],
                    merges=merges,
                )
            return

    def picking(self, places: Sequence[tuple[int, ...]]) -> ParquetTable:
        """Return this table for rows from which its columns are picked."""
        return ParquetTable(replace(self.layout, picked=tuple(places)), self.log)

    def latest(self) -> int:
        """Return the last version that was registered, or -1."""
        return self.log.latest

    def add(self, version: int, files: Sequence[TableFile]) -> None:
        """Register the files of a version, unless it was registered before."""
        latest = self.log.latest
        if version <= latest:
            return
        if not files and latest < 0:
            # a reader needs at least one file to find the columns
            writer = TableWriter(self.layout, lambda _: f"part-00000-{uuid.uuid4()}-c000")
            files = writer.empty()
            writer.sync()
        self.log.fill(latest, version)
        self.log.enter(version, files)

    def holds(self, paths: Collection[str]) -> set[str]:
        return {relative(self.layout.folder, path) for path in self.log.files()} & {*paths}


def _folder(spark: SparkSession, path: str) -> str | None:
    """Return a local folder or a store's URI; None if it is elsewhere."""
    if store_scheme(path) is not None:
        return path.rstrip("/")
    given = cast("Any", spark._jvm).org.apache.hadoop.fs.Path(path)
    uri = given.getFileSystem(_hadoop(spark)).makeQualified(given).toUri()
    return str(uri.getPath()) if uri.getScheme() == "file" else None


def _customised(spark: SparkSession) -> bool:
    """Return whether Hadoop's settings change how Parquet is written."""
    return not _hadoop(spark).getPropsWithPrefix("parquet.").isEmpty()


def _hadoop(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().newHadoopConf()


def _fields(kind: DataType) -> Iterable[StructField]:
    if isinstance(kind, ArrayType):
        yield from _fields(kind.elementType)
    elif isinstance(kind, StructType):
        for field in kind:
            yield field
            yield from _fields(field.dataType)


def _leaves(kind: DataType) -> Iterable[DataType]:
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
