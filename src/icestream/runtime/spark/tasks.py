"""Running the tasks of a version as Spark jobs.

Idea: ingest is a `mapInArrow` over the micro-batch that returns only reports; a few small files are
read without a job. One RDD job on handles runs the shards, so that they return to the executor of
their arenas. The parcels of ingest
reach the shards as files on a disk that all executors share or, if there is none, as blobs through
Spark's shuffle. Shards of several components send to each other without Spark; then the files are
in the checkpoint's storage.

Invariants:
1. The driver receives reports, never rows, but for those of small files that it reads itself
   (`test_a_few_rows_in_files_are_read_without_a_job`).
2. An error in a task reaches the caller unchanged
   (`test_bad_input_in_a_task_is_the_error_the_user_sees`).
3. All exchanges give the same rows (`test_oracle_rows_equal_those_of_sparks_batch_engine`,
   `test_oracle_components_hand_on_through_the_checkpoints_storage`).
4. Blobs that Spark computes again after it lost an executor are used only if they are the same:
   otherwise the version starts again, from ingest
   (`test_crash_a_source_that_is_not_deterministic_is_read_again_as_a_whole`).
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from pyspark import RDD, SparkConf, StorageLevel, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icestream.core.errors import DefinitionError, IcestreamError
from icestream.core.times import Micros
from icestream.operators.folding.columns import PLACE_BITS
from icestream.operators.latest.serving_ahead import SPARE_TIME
from icestream.runtime.ingest.file_order import FilePlaces, listed_files
from icestream.runtime.ingest.file_splits import pieces_of, shared_out
from icestream.runtime.ingest.reader import FileSource, UnlikeSpark, read
from icestream.runtime.ingest.reception import IngestTask, RereadTask
from icestream.runtime.spark.machine_code import is_local
from icestream.runtime.spark.placement import CachedPartitions, TaskSlots, here, tidy_host
from icestream.runtime.version.parcelling import Parcelling, ParcellingExecutor
from icestream.runtime.version.task import ShardReport, ShardTask, run_all
from icestream.runtime.version.work import BatchChanged, Parcel
from icestream.runtime.work.windows.prefold import Prefold
from icestream.state.files import Files, LocalFiles
from icestream.state.log.reader import SegmentReader
from icestream.state.log.writer import SegmentWriter

_REPORT = pa.schema([("report", pa.binary())])
_PARCEL = pa.schema(
    [("shard", pa.int32()), ("split", pa.int32()), ("report", pa.binary()), ("blob", pa.binary())]
)
#: shard number of the row with a split's report and without a blob
_NO_SHARD = -1
#: bytes of a batch up to which the driver reads its files itself: a job would take longer
LITTLE = 1 << 18
#: executors of dynamic allocation unless it is limited
_UNLIMITED = str(2**31 - 1)
#: places in the order of parcels: those of a second job follow the first
_PLACES = 1 << PLACE_BITS


class _SparkExecutor(ParcellingExecutor):
    """What runs tasks on Spark, whatever they exchange."""

    def __init__(
        self, spark: SparkSession, files: Files, root: str, codec: str | None, parcel_files: Files
    ) -> None:
        super().__init__(files, root, parcel_files, codec)
        self._spark = spark
        self._handles = CachedPartitions(spark)
        self._prefold = Prefold()
        self._thread = ThreadPoolExecutor(1, "icestream-later")
        self._later: deque[Future[None]] = deque()
        self.cores_to_come = cores_to_come(spark.sparkContext.getConf())
        context = spark.sparkContext
        #: the cores, where they stay the same
        self._cores = context.defaultParallelism if is_local(context) else None
        self._numbers: dict[int, RDD[int]] = {}

    @property
    def parallel(self) -> int:
        return self._cores or self._spark.sparkContext.defaultParallelism

    def numbers(self, count: int) -> RDD[int]:
        """Return the numbers of so many tasks, one in each partition; made once."""
        if count not in self._numbers:
            self._numbers[count] = self._spark.sparkContext.parallelize(range(count), count)
        return self._numbers[count]

    def each(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do pieces of work, one task each; an error is raised as it was in the task."""
        done = self._spark.sparkContext.parallelize(work, len(work)).map(_tried).collect()
        return [_value(outcome) for outcome in done]

    def later(self, work: Callable[[], None]) -> None:
        """Do something while Spark ends this batch and plans the next."""
        self._later.append(self._thread.submit(work))

    def await_later(self) -> None:
        while self._later:
            self._later.popleft().result()


def cores_to_come(settings: SparkConf) -> int:
    """Return the cores that dynamic allocation may have; Spark asks for them if tasks wait."""
    if settings.get("spark.dynamicAllocation.enabled", "false") != "true":
        return 0
    executors = int(settings.get("spark.dynamicAllocation.maxExecutors", _UNLIMITED))
    return executors * int(settings.get("spark.executor.cores", "1"))


class FileExchangeExecutor(_SparkExecutor):
    """Runs tasks that exchange files: on a shared disk, or in the checkpoint's storage."""

    def __init__(
        self,
        spark: SparkSession,
        files: Files,
        root: str,
        sources: tuple[FileSource, ...] | None = None,
        codec: str | None = None,
        *,
        in_storage: bool = False,
        kept: pa.Schema | None = None,
    ) -> None:
        """Create the executor; with `sources`, tasks read the files of a batch themselves.

        Their rows have the columns `kept` too, if refused rows are stored whole.
        """
        super().__init__(spark, files, root, codec, files if in_storage else LocalFiles())
        self._kept = kept
        self._hosts_apart = in_storage
        self._sources = sources
        #: whether tasks find the parcels that this process writes
        self._shares_disk = in_storage or str(spark.sparkContext.master).startswith("local")

    def ingest(self, ingest: IngestTask, batch: DataFrame, folder: str) -> list[Parcel]:
        """Fold the micro-batch into one parcel per split."""
        parcels = self.parcelling(ingest.version, folder)
        outcomes = self._from_files(ingest, batch, parcels)
        if outcomes is None:
            outcomes = self._from_rows(ingest, batch, parcels)
        return [parcel for _, parcel in sorted(outcomes, key=lambda each: each[0])]

    def _from_files(
        self, ingest: IngestTask, batch: DataFrame, parcels: Parcelling
    ) -> list[tuple[int, Parcel]] | None:
        """Let the tasks read the files of the batch; None if only Spark can."""
        sources, schema = self._sources, ingest.plan.batch_schema
        for column in self._kept or ():
            schema = schema.append(column)
        if sources is None:
            return None
        owners = [each.has for each in sources]
        pieces = pieces_of(batch, owners, listed_files(self._spark))
        if pieces is None:
            return None
        shares = shared_out(pieces, self.parallel)
        now = _time_of(batch, sources)

        def fold(split: int) -> tuple[int, Parcel]:
            return parcels.fold(split, read(shares[split], sources, schema, now), ingest)

        def one(split: int, numbers: Iterable[int]) -> Iterator[bytes]:
            _exhaust(numbers)
            yield pickle.dumps(_tried(lambda: fold(split)))

        try:
            if self._shares_disk and sum(piece.length for piece in pieces) <= LITTLE:
                return [fold(split) for split in range(len(shares))]
            splits = self.numbers(len(shares)).mapPartitionsWithIndex(one)
            return [_unpacked(data) for data in splits.collect()]
        except UnlikeSpark:
            self._sources = None
            return None

    def _from_rows(
        self, ingest: IngestTask, batch: DataFrame, parcels: Parcelling
    ) -> list[tuple[int, Parcel]]:
        """Take the rows of the batch from the JVM, folded there if that pays."""
        source, task = self._prefold.choose(ingest, batch)
        places = FilePlaces.of(source, self._spark, len(ingest.plan.sources))

        def one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            split = TaskContext.get().partitionId()  # type: ignore[union-attr]
            for place, rows in _placed_rows(places, split, batches):
                done = _tried(partial(parcels.fold, place, rows, task))
                yield _packed(_REPORT, [pickle.dumps(done)])

        rows = source.mapInArrow(one, "report binary").collect()
        outcomes: list[tuple[int, Parcel]] = [_unpacked(row["report"]) for row in rows]
        self._prefold.learn([parcel.report for _, parcel in outcomes])
        return outcomes

    def reread(self, task: RereadTask, folder: str) -> list[Parcel]:
        """Read the log; each task reads a part of its segments."""
        parcels = self.parcelling(task.version, folder)
        parts = min(self.parallel, len(task.segments))

        def one(part: int, numbers: Iterable[int]) -> Iterator[bytes]:
            _exhaust(numbers)
            yield pickle.dumps(_tried(lambda: parcels.reread(part, parts, task)))

        done = self.numbers(parts).mapPartitionsWithIndex(one).collect()
        return [parcel for _, parcel in sorted(map(_unpacked, done), key=lambda each: each[0])]

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        slots, apart = self._handles.get(_places(tasks)), self._hosts_apart
        groups = _task_groups(tasks, slots)

        def one(partition: int, handle: Iterable[Any]) -> Iterator[_Done]:
            _exhaust(handle)
            mine = [tasks[number] for number in groups[partition]]
            yield groups[partition], here(), pickle.dumps(_in_task(lambda: run_all(mine)))
            if apart:
                tidy_host(tasks[0].arenas, tasks[0].version, tasks[0].named)

        done = slots.handles.mapPartitionsWithIndex(one).collect()
        return _placed(self._handles, tasks, done)


class ShuffleExchangeExecutor(_SparkExecutor):
    """Runs tasks on executors that share only the checkpoint's storage."""

    def __init__(
        self, spark: SparkSession, files: Files, root: str, codec: str | None = None
    ) -> None:
        super().__init__(spark, files, root, codec, LocalFiles())
        #: blobs that executors store for the tasks that run next
        self._parcels: list[DataFrame] = []
        #: their checksums
        self._sent: _Digests = {}

    def ingest(self, ingest: IngestTask, batch: DataFrame, folder: str) -> list[Parcel]:
        """Fold the micro-batch into one blob per split and shard, stored on the executors."""
        self._forget()
        source, task = self._prefold.choose(ingest, batch)
        places = FilePlaces.of(source, self._spark, len(ingest.plan.sources))

        def fold(
            parcels: Parcelling, split: int, batches: Iterator[pa.RecordBatch]
        ) -> Iterator[tuple[int, _Outcome]]:
            for place, rows in _placed_rows(places, split, batches):
                yield place, _tried(partial(parcels.fold, place, rows, task))

        done = self._blobs_of(source, ingest.version, fold)
        self._prefold.learn([parcel.report for parcel in done])
        return done

    def reread(self, task: RereadTask, folder: str) -> list[Parcel]:
        """Read the log into one blob per part and shard."""
        parts = min(self.parallel, len(task.segments))

        def fold(
            parcels: Parcelling, part: int, numbers: Iterator[pa.RecordBatch]
        ) -> Iterator[tuple[int, _Outcome]]:
            _exhaust(numbers)
            yield part, _tried(lambda: parcels.reread(part, parts, task))

        return self._blobs_of(self._spark.range(0, parts, 1, parts), task.version, fold)

    def _blobs_of(
        self,
        source: DataFrame,
        version: int,
        fold: Callable[[Parcelling, int, Iterator[pa.RecordBatch]], Iterator[tuple[int, _Outcome]]],
    ) -> list[Parcel]:
        """Let tasks fold their part of a source and store blobs; return the parcels' reports."""
        wave, parcelling = len(self._parcels), self.parcelling(version, "")

        def one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            number = TaskContext.get().partitionId()  # type: ignore[union-attr]
            with tempfile.TemporaryDirectory(prefix="icestream-") as local:
                parcels = replace(parcelling, folder=local)
                for local_place, outcome in fold(parcels, number, batches):
                    place = _PLACES * wave + local_place
                    sent: _Digests = {}
                    for shard, blob in cut(outcome.value[1].path) if outcome.value else ():
                        sent[shard, place] = xxhash.xxh3_64_intdigest(blob)
                        yield _packed(_PARCEL, [shard], [place], [b""], [blob])
                    report = pickle.dumps((outcome, sent))
                    yield _packed(_PARCEL, [_NO_SHARD], [place], [report], [b""])

        blobs = source.mapInArrow(one, _PARCEL_DDL).persist(StorageLevel.MEMORY_AND_DISK)
        self._parcels.append(blobs)
        rows = blobs.where(f"shard = {_NO_SHARD}").select("report").collect()
        found = [pickle.loads(row["report"]) for row in rows]
        for _, sent in found:
            self._sent.update(sent)
        done = sorted((_value(outcome) for outcome, _ in found), key=lambda each: each[0])
        return [parcel for _, parcel in done]

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Send the blobs of each shard to its place and run it there."""
        sends = tasks[0].sends
        if sends is not None and any(sends.targets):
            msg = (
                "a query of several components sends changes between its shards through files: set "
                ".option('exchange', 'storage'), or 'files' if all executors share a disk"
            )
            raise DefinitionError(msg)

        slots, sent = self._handles.get(_places(tasks)), self._sent
        groups = _task_groups(tasks, slots)

        def one(partition: int, blobs: Iterable[Any]) -> Iterator[_Done]:
            with tempfile.TemporaryDirectory(prefix="icestream-") as local:
                mine = [tasks[number] for number in groups[partition]]
                shards = {task.shard for task in mine}
                stored, received = _stored(blobs, local)

                def run() -> list[ShardReport]:
                    if received != {each: sent[each] for each in sent if each[0] in shards}:
                        raise BatchChanged
                    return run_all(
                        [
                            replace(task, parcels=tuple(sorted(stored.get(task.shard, ()))))
                            for task in mine
                        ]
                    )

                yield groups[partition], here(), pickle.dumps(_in_task(run))
                tidy_host(tasks[0].arenas, tasks[0].version, tasks[0].named)

        try:
            partitions = {task.shard: slots.partitions[task.place] for task in tasks}
            blobs = self._blobs(partitions, slots)
            return _placed(self._handles, tasks, blobs.mapPartitionsWithIndex(one).collect())
        finally:
            self._forget()

    def _blobs(self, partitions: Mapping[int, int], slots: TaskSlots) -> RDD[Any]:
        """Return the partitions with their blobs, given the partition of each shard."""
        if not self._parcels:
            return slots.handles
        blobs = reduce(DataFrame.unionAll, self._parcels)
        rows = blobs.where(f"shard <> {_NO_SHARD}").select("shard", "split", "blob").rdd
        parts = rows.map(lambda row: (partitions[row[0]], (row[0], row[1], bytes(row[2]))))
        return slots.beside(parts)

    def _forget(self) -> None:
        """Let the executors drop their blobs."""
        for blobs in self._parcels:
            blobs.unpersist()
        self._parcels, self._sent = [], {}


#: checksum of each blob, by shard and place
_Digests = dict[tuple[int, int], int]
_PARCEL_DDL = "shard int, split int, report binary, blob binary"


@dataclass(frozen=True)
class _Outcome:
    """The result of a task: a value, or the error that the user should see."""

    value: Any
    error: IcestreamError | None


def _tried(run: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(run(), None)
    except IcestreamError as error:
        return _Outcome(None, error)


def _in_task(run: Callable[[], Any]) -> _Outcome:
    """Run shards; what they offer is done until this process has the next task of shards."""
    SPARE_TIME.end()
    try:
        return _tried(run)
    finally:
        SPARE_TIME.begin()


def _exhaust(values: Iterable[Any]) -> None:
    """Read all input: Spark kills a Python worker that leaves some unread."""
    deque(values, maxlen=0)


def _time_of(batch: DataFrame, sources: Sequence[FileSource]) -> Micros | None:
    """Return the processing time of a batch, as Spark gives it to rows; None if none has it."""
    timed = next(filter(None, (each.timed for each in sources)), None)
    first = [] if timed is None else batch.select(sf.unix_micros(timed)).head(1)
    return first[0][0] if first else None


def _placed_rows(
    places: FilePlaces | None, split: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield the parts of a split with their places: its pieces of files, or the whole split."""
    batches = map(_in_utc, batches)
    if places is None:
        yield split, batches
    else:
        yield from places.cut(batches, split)


def _in_utc(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of Spark, whose instants have the zone of the session, with types of the plan."""
    schema = pa.schema([field.with_type(_type_in_utc(field.type)) for field in rows.schema])
    return rows if schema.equals(rows.schema) else rows.cast(schema)


def _type_in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_utc(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_type_in_utc(kind.key_type), _type_in_utc(kind.item_type))
    return kind


def _unpacked(data: bytes) -> Any:
    return _value(pickle.loads(data))


def _value(outcome: _Outcome) -> Any:
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def _packed(schema: pa.Schema, *columns: list[Any]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


#: numbers of tasks that ran together, the executor that ran them, and their result
_Done = tuple[list[int], str, bytes]


def _places(tasks: Sequence[ShardTask]) -> int:
    return 1 + max(task.place for task in tasks)


def _task_groups(tasks: Sequence[ShardTask], slots: TaskSlots) -> list[list[int]]:
    """Return the numbers of the tasks that run on each partition."""
    groups: list[list[int]] = [[] for _ in slots.partitions]
    for number, task in enumerate(tasks):
        groups[slots.partitions[task.place]].append(number)
    return groups


def _placed(
    handles: CachedPartitions, tasks: Sequence[ShardTask], done: list[_Done]
) -> list[ShardReport]:
    """Return the reports in the order of the tasks; record the executors in handles and reports."""
    handles.note({tasks[number].place: executor for group, executor, _ in done for number in group})
    found: dict[int, ShardReport] = {}
    for group, executor, data in sorted(done, key=lambda each: each[0]):
        for number, report in zip(group, _unpacked(data), strict=True):
            for each in (report, *report.others):
                each.statistics["executor"] = executor
            found[number] = report
    return [found[number] for number in range(len(tasks))]


def cut(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield each shard with its own parcel for its Spark task, cut from a split's parcel."""
    reader = SegmentReader(LocalFiles(), path)
    groups = reader.directory["group"]
    for shard in np.unique(groups).tolist():
        part = f"{path}-{shard}"
        writer = SegmentWriter(LocalFiles(), part, 0)
        for record in reader.read_many(reader.directory["marker"][groups == shard]):
            writer.append(
                record.payload,
                operator=record.operator,
                synopsis=record.synopsis,
                group=record.group,
                rows=record.rows,
                expiry=record.expiry,
                back=record.back,
            )
        writer.finish(sync=False)
        yield shard, LocalFiles().read(part)
        LocalFiles().unlink(part)
    reader.close()


def _stored(
    blobs: Iterable[tuple[int, tuple[int, int, bytes]]], folder: str
) -> tuple[dict[int, list[str]], _Digests]:
    """Write blobs to local files named by shard and split; return paths by shard, and checksums."""
    paths: dict[int, list[str]] = {}
    received: _Digests = {}
    for _, (shard, split, blob) in blobs:
        path = os.path.join(folder, f"{shard:06d}-{split:09d}.parcel")
        with open(path, "wb") as file:
            file.write(blob)
        paths.setdefault(shard, []).append(path)
        received[shard, split] = xxhash.xxh3_64_intdigest(blob)
    return paths, received
