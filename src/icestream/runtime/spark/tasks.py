"""Running the tasks of a version as Spark jobs.

Idea: ingest is a `mapInArrow` over the micro-batch that returns only reports; a few small files are
read without a job. One RDD job on handles runs the shards, so that they return to the executor of
their arenas. What ingest and shards send to shards are files on a disk that all executors share or,
if there is none, in the checkpoint's storage: no job waits for Spark's shuffle, and what was read
of a source is not read again if an executor is lost.

Invariants:
1. The driver receives reports, never rows, but for those of small files that it reads itself
   (`test_a_few_rows_in_files_are_read_without_a_job`).
2. An error in a task reaches the caller unchanged
   (`test_bad_input_in_a_task_is_the_error_the_user_sees`).
3. All exchanges give the same rows (`test_oracle_rows_equal_those_of_sparks_batch_engine`,
   `test_oracle_components_hand_on_through_the_checkpoints_storage`).
4. A batch is read once in a version, whatever executors are lost after that
   (`test_crash_a_source_that_is_not_deterministic_is_read_once`).
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import SparkConf, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from icestream.core.errors import IcestreamError
from icestream.core.times import Micros
from icestream.operators.latest.serving_ahead import SPARE_TIME
from icestream.runtime.ingest.file_order import FilePlaces, listed_files
from icestream.runtime.ingest.file_splits import pieces_of, shared_out
from icestream.runtime.ingest.reader import FileSource, UnlikeSpark, read
from icestream.runtime.ingest.reception import IngestTask, RereadTask
from icestream.runtime.ingest.scans import items
from icestream.runtime.spark.placement import CachedPartitions, TaskSlots, here, tidy_host
from icestream.runtime.version.parcelling import Parcelling, ParcellingExecutor
from icestream.runtime.version.task import ShardReport, ShardTask, run_all
from icestream.runtime.version.work import Parcel
from icestream.runtime.work.windows.prefold import Prefold
from icestream.state.files import Files, LocalFiles

_REPORT = pa.schema([("report", pa.binary())])
#: bytes of a batch up to which the driver reads its files itself: a job would take longer
LITTLE = 1 << 18
#: executors of dynamic allocation unless it is limited
_UNLIMITED = str(2**31 - 1)


class SparkExecutor(ParcellingExecutor):
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
        super().__init__(files, root, files if in_storage else LocalFiles(), codec)
        self._spark = spark
        self._handles = CachedPartitions(spark)
        self._prefold = Prefold()
        self._thread = ThreadPoolExecutor(1, "icestream-later")
        self._later: deque[Future[None]] = deque()
        self.cores_to_come = cores_to_come(spark.sparkContext.getConf())
        self._kept = kept
        self._hosts_apart = in_storage
        self._sources = sources
        #: whether tasks find the parcels that this process writes
        self._shares_disk = in_storage or str(spark.sparkContext.master).startswith("local")

    @property
    def parallel(self) -> int:
        return self._spark.sparkContext.defaultParallelism

    @property
    def hosts(self) -> int:
        return len(self._handles.hosts)

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
        context = self._spark.sparkContext
        shares = shared_out(pieces, context.defaultParallelism)
        now = _time_of(batch, sources)

        def fold(split: int) -> tuple[int, Parcel]:
            return parcels.fold(split, read(shares[split], sources, schema, now), ingest)

        def one(split: int, numbers: Iterable[int]) -> Iterator[bytes]:
            _exhaust(numbers)
            yield pickle.dumps(_tried(lambda: fold(split)))

        try:
            if self._shares_disk and sum(piece.length for piece in pieces) <= LITTLE:
                return [fold(split) for split in range(len(shares))]
            splits = context.parallelize(range(len(shares)), len(shares))
            return [_unpacked(data) for data in splits.mapPartitionsWithIndex(one).collect()]
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
        context = self._spark.sparkContext
        parts = min(context.defaultParallelism, len(task.segments))

        def one(part: int, numbers: Iterable[int]) -> Iterator[bytes]:
            _exhaust(numbers)
            yield pickle.dumps(_tried(lambda: parcels.reread(part, parts, task)))

        done = context.parallelize(range(parts), parts).mapPartitionsWithIndex(one).collect()
        return [parcel for _, parcel in sorted(map(_unpacked, done), key=lambda each: each[0])]

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        slots, apart = self._handles.get(tasks[0].places), self._hosts_apart
        groups = _task_groups(tasks, slots)

        def one(partition: int, handle: Iterable[Any]) -> Iterator[_Done]:
            _exhaust(handle)
            mine = [tasks[number] for number in groups[partition]]
            yield groups[partition], here(), pickle.dumps(_in_task(lambda: run_all(mine)))
            if apart:
                tidy_host(tasks[0].arenas, tasks[0].version, tasks[0].named)

        done = slots.handles.mapPartitionsWithIndex(one).collect()
        return _placed(self._handles, slots, tasks, done)


def cores_to_come(settings: SparkConf) -> int:
    """Return the cores that dynamic allocation may have; Spark asks for them if tasks wait."""
    if settings.get("spark.dynamicAllocation.enabled", "false") != "true":
        return 0
    executors = int(settings.get("spark.dynamicAllocation.maxExecutors", _UNLIMITED))
    return executors * int(settings.get("spark.executor.cores", "1"))


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
    """Return the processing time of a batch, as Spark gives it to rows; None if none has it.

    It is a constant of Spark's optimised plan; a job finds it where it is not.
    """
    timed = next(filter(None, (each.timed for each in sources)), None)
    if timed is None:
        return None
    micros = batch.select(sf.unix_micros(timed))
    [column, *_] = items(micros._jdf.queryExecution().optimizedPlan().expressions())
    value = column.child() if column.getClass().getSimpleName() == "Alias" else column
    if value.getClass().getSimpleName() == "Literal":
        return int(value.value())
    first = micros.head(1)
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


def _task_groups(tasks: Sequence[ShardTask], slots: TaskSlots) -> list[list[int]]:
    """Return the numbers of the tasks that run on each partition."""
    groups: list[list[int]] = [[] for _ in slots.partitions]
    for number, task in enumerate(tasks):
        groups[slots.partitions[task.place]].append(number)
    return groups


def _placed(
    handles: CachedPartitions, slots: TaskSlots, tasks: Sequence[ShardTask], done: list[_Done]
) -> list[ShardReport]:
    """Return the reports in the order of the tasks; record the executors in handles and reports."""
    ran = [executor for _, executor, _ in done]
    handles.note({place: ran[partition] for place, partition in enumerate(slots.partitions)})
    found: dict[int, ShardReport] = {}
    for group, executor, data in sorted(done, key=lambda each: each[0]):
        for number, report in zip(group, _unpacked(data), strict=True):
            for each in (report, *report.others):
                each.statistics["executor"] = executor
            found[number] = report
    return [found[number] for number in range(len(tasks))]
