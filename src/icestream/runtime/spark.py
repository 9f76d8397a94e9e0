"""Running the tasks of a version as Spark jobs.

Idea: ingest is a `mapInArrow` over the micro-batch that returns reports only; shards are one RDD job on
cached handles, so that a shard comes back to the executor that has its arena. What ingest wrote
reaches the shards as files on a disk that all executors share, or, where they share none, as blobs
through Spark's shuffle.

Invariants:
1. Rows never come back to the driver, only reports.
2. An error in a task reaches the caller as the error it was
   (`test_bad_input_in_a_task_is_the_error_the_user_sees`).
3. Both exchanges give the same rows (`test_oracle_both_exchanges_give_sparks_rows`).
"""

from __future__ import annotations

import os
import pickle
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import RDD, StorageLevel, TaskContext
from pyspark.sql import DataFrame, SparkSession

from icestream.core.errors import IcestreamError
from icestream.runtime.driver import Parcel
from icestream.runtime.exchange import ExchangeWriter
from icestream.runtime.ingest import Ingest
from icestream.runtime.prefold import Prefold
from icestream.runtime.shard import ShardReport, ShardTask
from icestream.state.files import Files, LocalFiles
from icestream.state.versions import RESULTS

_REPORT = pa.schema([("report", pa.binary())])
_PARCEL = pa.schema(
    [("shard", pa.int32()), ("split", pa.int32()), ("report", pa.binary()), ("blob", pa.binary())]
)
#: shard number of the row that carries a split's report and no blob
_NO_SHARD = -1


class FileExchangeExecutor:
    """Runs tasks on executors that share a disk with the driver."""

    def __init__(self, spark: SparkSession, files: Files, root: str, shards: int) -> None:
        """Make one handle per shard."""
        self._spark = spark
        self._files = files
        self._root = root
        self._handles = _handles(spark, shards)
        self._prefold = Prefold()

    def ingest(self, ingest: Ingest, batch: DataFrame, folder: str) -> list[Parcel]:
        """Fold the micro-batch into one parcel per split."""
        source, task = self._prefold.choose(ingest, batch)
        files, root = self._files, self._root

        def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            split = TaskContext.get().partitionId()  # type: ignore[union-attr]
            name = f"{split:06d}-{uuid.uuid4().hex[:16]}"
            path = os.path.join(folder, f"{name}.parcel")
            late = f"{root}/{RESULTS}/{ingest.version:012d}-late-{name}.rows"
            out = ExchangeWriter(LocalFiles(), path, files, late)

            def run() -> tuple[int, Parcel]:
                report = task.run(batches, out)
                return split, Parcel(path, out.finish()[1], report)

            yield _packed(_REPORT, [_attempted(run)])

        rows = source.mapInArrow(fold, "report binary").collect()
        parcels = sorted((_unpacked(row["report"]) for row in rows), key=lambda each: each[0])
        self._prefold.learn([parcel.report for _, parcel in parcels])
        return [parcel for _, parcel in parcels]

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Run one task per shard where its handle is."""

        def one(shard: int, _: Iterator[int]) -> Iterator[bytes]:
            yield _attempted(tasks[shard].run)

        return [_unpacked(data) for data in self._handles.mapPartitionsWithIndex(one).collect()]


class ShuffleExchangeExecutor:
    """Runs tasks on executors that share nothing but the checkpoint's storage."""

    def __init__(self, spark: SparkSession, files: Files, root: str, shards: int) -> None:
        """Keep what tasks need."""
        self._spark = spark
        self._files = files
        self._root = root
        self._shards = shards
        self._prefold = Prefold()
        self._parcels: DataFrame | None = None

    def ingest(self, ingest: Ingest, batch: DataFrame, folder: str) -> list[Parcel]:
        """Fold the micro-batch into one blob per split and shard, kept by the executors."""
        source, task = self._prefold.choose(ingest, batch)
        files, root, shards = self._files, self._root, self._shards

        def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            split = TaskContext.get().partitionId()  # type: ignore[union-attr]
            late = f"{root}/{RESULTS}/{ingest.version:012d}-late-{split:06d}-{uuid.uuid4().hex[:16]}.rows"
            with tempfile.TemporaryDirectory(prefix="icestream-") as local:
                path = os.path.join(local, "parcel")
                out = ExchangeWriter(LocalFiles(), path, files, late)

                def run() -> tuple[int, Parcel]:
                    report = task.run(batches, out)
                    return split, Parcel(f"{split:06d}", out.finish()[1], report)

                outcome = _attempted(run)
                yield _packed(_PARCEL, [_NO_SHARD], [split], [outcome], [b""])
                if os.path.exists(path):
                    blob = LocalFiles().read(path)
                    for shard in range(shards):
                        yield _packed(_PARCEL, [shard], [split], [b""], [blob])

        schema = "shard int, split int, report binary, blob binary"
        parcels = source.mapInArrow(fold, schema).persist(StorageLevel.MEMORY_AND_DISK)
        self._parcels = parcels
        rows = parcels.where(f"shard = {_NO_SHARD}").select("report").collect()
        done = sorted((_unpacked(row["report"]) for row in rows), key=lambda each: each[0])
        self._prefold.learn([parcel.report for _, parcel in done])
        return [parcel for _, parcel in done]

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Bring the blobs of each shard to one task and run it there."""

        def one(blobs: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            shard = TaskContext.get().partitionId()  # type: ignore[union-attr]
            with tempfile.TemporaryDirectory(prefix="icestream-") as local:
                paths = sorted(_stored(blobs, local))
                task = replace(tasks[shard], parcels=tuple(paths))
                yield _packed(_REPORT, [_attempted(task.run)])

        parcels = self._parcels
        if parcels is None:
            parcels = self._spark.createDataFrame([], _PARCEL_DDL)
        try:
            reports = (
                parcels.where(f"shard <> {_NO_SHARD}")
                .mapInArrow(_as_it_is, _PARCEL_DDL)
                .repartitionById(len(tasks), "shard")
                .mapInArrow(one, "report binary")
                .collect()
            )
        finally:
            parcels.unpersist()
            self._parcels = None
        done: list[ShardReport] = [_unpacked(row["report"]) for row in reports]
        return sorted(done, key=lambda report: report.shard)


_PARCEL_DDL = "shard int, split int, report binary, blob binary"


@dataclass(frozen=True)
class _Outcome:
    """What a task came to: a value, or the error the user should see."""

    value: Any
    error: IcestreamError | None


def _attempted(run: Callable[[], Any]) -> bytes:
    try:
        outcome = _Outcome(run(), None)
    except IcestreamError as error:
        outcome = _Outcome(None, error)
    return pickle.dumps(outcome)


def _unpacked(data: bytes) -> Any:
    outcome: _Outcome = pickle.loads(data)
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def _packed(schema: pa.Schema, *columns: list[Any]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _stored(blobs: Iterator[pa.RecordBatch], folder: str) -> Iterator[str]:
    """Write the blobs of a shard to local files named by split."""
    for batch in blobs:
        for row in batch.to_pylist():
            path = os.path.join(folder, f"{row['split']:06d}.parcel")
            with open(path, "wb") as file:
                file.write(row["blob"])
            yield path


def _as_it_is(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _handles(spark: SparkSession, shards: int) -> RDD[int]:
    """Return one cached partition per shard; a task on it prefers the executor that caches it."""
    handles = spark.sparkContext.parallelize(range(shards), shards).map(lambda shard: shard)
    handles.persist(StorageLevel.MEMORY_ONLY)
    handles.count()
    return handles


