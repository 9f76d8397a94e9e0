"""A running query: Spark's handle, extended by Icestream.

Idea: Spark owns sources, offsets and triggers and calls `_batch` for every micro-batch. The driver
computes and commits it; then its rows go to the sink. Where the time of a batch is for serving
keys, a thread of its own hands them over while the next batch is computed, so Spark may count a
batch as done that the sink does not have yet. Errors are raised to the caller unchanged.

Invariants:
1. `stop()` waits for a batch that is being committed (`test_stop_waits_for_the_batch_under_way`),
   even if a callback calls it (`test_a_callback_may_stop_its_query`).
2. A maintenance version that was committed but perhaps not delivered is delivered at the next
   start (`test_crash_a_flush_that_was_committed_is_delivered_after_restart`).
3. No version is committed while the rows of the previous one may not have reached the sink
   (`test_crash_clean_ups_on_demand_that_fail_while_the_query_goes_on`,
   `test_crash_a_clean_up_comes_after_the_batch_that_missed_its_sink`).
4. A version that was on its way to the sink in a crash is delivered at the next start, before any
   other (`test_crash_a_version_on_its_way_to_the_sink_is_delivered_after_restart`). `stop()`, a
   drained query and `processAllAvailable()` wait for it (the same test).
"""

# The names are Spark's.
# ruff: noqa: N802

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from icestream.core.errors import DefinitionError, IcestreamError
from icestream.core.times import MINUS_INFINITY
from icestream.plan.explain import estimate_and_log
from icestream.plan.fuse.running_fusion import Together
from icestream.runtime.driver import Delivery, Driver
from icestream.runtime.spark.failures import SparkFiles
from icestream.runtime.version.end_mark import EndMark
from icestream.runtime.version.history import QueryHistory

#: consecutive batches without work, and seconds between two checks of their number
_SURELY_CALM = 2
_LOOK_AGAIN = 0.02
#: milliseconds after which a batch that begins while the query is stopped fails
_UNTIL_STOPPED = 20_000

Deliver = Callable[[Delivery], None]


class Query:
    """The handle of a running query; behaves like Spark's `StreamingQuery`.

    Examples:
        >>> query.processAllAvailable()
        >>> query.lastProgress["icestream"]["lateEvents"]
        0
    """

    def __init__(
        self,
        driver: Driver[DataFrame],
        deliver: Deliver,
        history: QueryHistory,
        spark_files: SparkFiles,
        *,
        flush: bool,
        tables: Mapping[int, Callable[[], DataFrame]] | None = None,
        end_mark: EndMark | None = None,
    ) -> None:
        """Prepare the query; `start` runs it.

        `tables` read what holds of each view. With an `end_mark` the sink may trail by one version.
        """
        self._tables = tables or {}
        #: the address of the query's dashboard; None without `option("ui", True)`
        self.uiWebUrl: str | None = None
        self._history = history
        self._spark_files = spark_files
        self._driver = driver
        self._deliver = deliver
        self._flush = flush
        self._busy = threading.Lock()
        self._stopping = False
        #: the thread that runs a batch or a flush
        self._worker: int | None = None
        #: the thread that hands a version to the sink
        self._carrier: int | None = None
        self._error: BaseException | None = None
        self._progress: deque[dict[str, Any]] = deque(maxlen=100)
        self._ended = threading.Event()
        #: whether a batch of this run, and so all that Spark knows of, has reached the sink
        self._begun = False
        #: whether something has failed since, perhaps between a commit and the sink
        self._unsure = False
        #: consecutive batches that brought nothing and left nothing waiting
        self._calm = 0
        self._spark_query: StreamingQuery | None = None
        self._end_mark = end_mark
        #: hands versions to the sink, one at a time, while the next one is computed
        self._courier: ThreadPoolExecutor | None = None
        self._on_the_way: Future[None] | None = None
        if end_mark is not None:
            self._courier = ThreadPoolExecutor(1, "icestream-sink")
            driver.await_sink = self._await_sink

    def start(self, begin: Callable[[Callable[[DataFrame, int], None]], StreamingQuery]) -> Query:
        """Deliver what the last run may not have delivered, then let Spark run batches."""
        again = [self._driver.redeliver(commit) for commit in self._driver.maintained()]
        if self._end_mark is not None and not again:
            had = self._end_mark.take()
            again = [each for each in self._driver.last_again() if each.commit.version > had]
        for delivery in again:
            self._deliver(delivery)
        self._history.start()
        try:
            self._spark_query = begin(self._batch)
        except BaseException as error:
            self._history.end(error)
            raise self._spark_files.translated(error, begins=True) from error
        threading.Thread(target=self._finish, name="icestream-query", daemon=True).start()
        return self

    # -- Spark's names ---------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Return the id that the checkpoint keeps across restarts.

        Examples:
            >>> identity = query.id
        """
        return str(self._query.id)

    @property
    def runId(self) -> str:
        """Return the id of this run.

        Examples:
            >>> run = query.runId
        """
        return str(self._query.runId)

    @property
    def name(self) -> str | None:
        """Return the name given with `queryName`.

        Examples:
            >>> query.name
            'kpis'
        """
        return self._query.name

    @property
    def isActive(self) -> bool:
        """Return whether the query is still running, its last flush included.

        Examples:
            >>> query.isActive
            True
        """
        return not self._ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """Return the current activity of the query.

        Examples:
            >>> sorted(query.status)
            ['isDataAvailable', 'isTriggerActive', 'message']
        """
        return self._query.status

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """Return the progress of the last version.

        Examples:
            >>> query.lastProgress["icestream"]["watermark"]
            '2026-03-01T11:59:55.000000Z'
        """
        recent = self.recentProgress
        return recent[-1] if recent else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        """Return the progress of the last hundred versions.

        Examples:
            >>> query.recentProgress[0]["version"]
            1
        """
        triggers = {each["batchId"]: each["durationMs"] for each in self._query.recentProgress}
        return [_with_trigger(each, triggers.get(each["batchId"])) for each in list(self._progress)]

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends; raise the error if it failed.

        With a timeout in seconds, return whether it ended in that time.

        Examples:
            >>> query.awaitTermination(timeout=0.1)
            False
        """
        ended = self._ended.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:
        """Wait until all available data has been processed, and no work is pending.

        Examples:
            >>> query.processAllAvailable()
        """
        if self._driver.ticks:
            self._await_calm()
            return
        try:
            self._query.processAllAvailable()
        except StreamingQueryException:
            self._ended.wait()
            if self._error is not None:
                raise self._error from None
            raise

    def stop(self) -> None:
        """Stop after the current batch; a callback inside the batch does not wait for it.

        Examples:
            >>> short = (
            ...     kpis.writeStream.format("noop").option("checkpointLocation", "chk/stop").start()
            ... )
            >>> short.stop()
            >>> short.isActive
            False
        """
        if threading.get_ident() in (self._worker, self._carrier):
            threading.Thread(target=self.stop, name="icestream-stop", daemon=True).start()
            return
        with self._busy:
            self._stopping = True
        self._query.stop()
        self._ended.wait()

    def rescale(self, *parallelism: int | str, shards: int | None = None) -> None:
        """Set the number of tasks that run the query's shards, from the next batch on.

        With two numbers, the load of each batch decides how many tasks run between them; the word
        "auto" before them may say so.
        State stays where it is: shards change tasks, and their arenas are used in place or, on
        another machine's disk, rebuilt from the log.

        If there are fewer shards than tasks, or `shards` is another number than there are, shards
        are split or merged: new ones are prepared while batches go on, from snapshots that the next
        batch takes if some merge, and read the segments of the old. There can be as many shards as
        key groups (4,096), if the memory is enough for them. The checkpoint keeps their number.

        Examples:
            >>> query.rescale(1)
            >>> query.rescale("auto", 1, 2)
            >>> query.rescale(2, shards=4)
        """
        auto = parallelism[:1] == ("auto",)
        numbers = [each for each in parallelism[auto:] if isinstance(each, int)]
        if len(numbers) != len(parallelism) - auto or not 1 + auto <= len(numbers) <= 2:
            msg = (
                "rescale takes a number of tasks, as in rescale(4), or the least and the most, as "
                f'in rescale("auto", 2, 8); got {parallelism}'
            )
            raise DefinitionError(msg)
        self._driver.rescale(numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1]), shards)

    def fuse(self, together: Together) -> None:
        """Run some operators of a job in one task from the next batch on, all others separately.

        Inside a task tuples are passed in memory; between tasks they are written and read. All
        state stays where it is. Fused operators must be partitioned by the same attributes, and
        must be separate components when the job starts: `fused("none")` or `fused("measured")`.

        Args:
            together: lists of names of operators; `none`; or `auto`, which fuses operators while
                many tuples flow between them.

        Examples:
            >>> counted = ice.job(calls).compute(
            ...     lambda state, call: {"n": state["n"] + 1},
            ...     key="agent",
            ...     initial={"n": 0},
            ...     window="1 hour",
            ... )
            >>> writer = counted.fused("none").writeStream.format("noop").memory("64 MB")
            >>> counting = writer.option("checkpointLocation", "chk/counting").start()
            >>> counting.fuse("auto")
            >>> counting.stop()
        """
        self._driver.fuse(together)

    def cleanUp(self) -> None:
        """Let joins with `onPressure="defer"` emit all deferred results, after the current batch.

        These go to the sink as a version of their own. Does nothing if no results are deferred.

        Examples:
            >>> query.cleanUp()
        """
        with self._at_work():
            self._settle(sure=self._begun)
            self._begun = True
            for delivery in self._driver.clean_up():
                self._hand_out(delivery)

    def exception(self) -> BaseException | None:
        """Return the error that made the query fail, or None.

        Examples:
            >>> query.exception() is None
            True
        """
        return self._error

    def explain(self, extended: bool = False) -> None:
        """Print the estimated and actual size of the log, and Spark's plan of the sources.

        Examples:
            >>> query.explain()
            log of panes: estimated ...
            == Physical Plan ==
            ...
        """
        last = self.lastProgress
        held = None if last is None else estimate_and_log(last["icestream"])
        if held is not None:
            print(held)
        self._query.explain(extended)

    def table(self, view: int = 0) -> DataFrame:
        """Return the rows that hold after the last version; the query runs in output mode `now`.

        Args:
            view: the number of the result, if several were started together.

        Examples:
            >>> writer = hourly.count().writeStream.outputMode("now")
            >>> writer = writer.option("checkpointLocation", "chk/now").memory("64 MB")
            >>> asked = writer.trigger(availableNow=True).start()
            >>> asked.awaitTermination()
            >>> asked.table().columns
            ['window', 'serviceId', 'count']
        """
        if view not in self._tables:
            msg = "only a query in outputMode('now') keeps a table of the rows that hold"
            raise DefinitionError(msg)
        return self._tables[view]()

    # -- inside ----------------------------------------------------------------------------

    @property
    def _query(self) -> StreamingQuery:
        if self._spark_query is None:
            msg = "the query has not been started"
            raise RuntimeError(msg)
        return self._spark_query

    def _batch(self, batch: DataFrame, number: int) -> None:
        with self._at_work():
            if self._stopping:
                # this runs in Spark's thread: being interrupted there is its way to end quietly
                jvm: Any = batch.sparkSession._jvm
                jvm.java.lang.Thread.sleep(_UNTIL_STOPPED)
                msg = "the query is stopping; this batch will run again at the next start"
                raise IcestreamError(msg)
            try:
                if self._driver.paced:
                    self._driver.trigger = self._last_trigger()
                # Spark repeats a batch unless it knows that the batch reached the sink
                self._settle(sure=True)
                deliveries = self._driver.batch(number, batch)
                if not deliveries:
                    self._await_sink()
                for delivery in deliveries:
                    self._hand_on(delivery)
                self._begun = True
                self._calm = 0 if deliveries else self._calm + 1
            except BaseException as error:
                self._error = self._error or self._spark_files.translated(error)
                raise

    def _await_calm(self) -> None:
        """Wait for a batch that starts from now on, brings nothing and leaves nothing waiting."""
        # the current batch may have started earlier: wait for two in a row
        self._calm = 0
        while self._calm < _SURELY_CALM and not self._ended.wait(_LOOK_AGAIN):
            pass
        if self._ended.is_set() and self._error is not None:
            raise self._error

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._busy:
            self._worker = threading.get_ident()
            try:
                yield
            except BaseException:
                self._unsure = True
                raise
            finally:
                self._worker = None

    def _settle(self, *, sure: bool) -> None:
        """Deliver the last version again unless its rows are certain to have reached the sink."""
        if self._unsure or not sure:
            for delivery in self._driver.last_again():
                self._deliver(delivery)
        self._unsure = False

    def _hand_on(self, delivery: Delivery) -> None:
        """Hand a version to the sink, or let that be done while the next one is computed."""
        if self._courier is None:
            self._hand_out(delivery)
        else:
            self._await_sink()
            self._on_the_way = self._courier.submit(self._carry, delivery)

    def _carry(self, delivery: Delivery) -> None:
        self._carrier = threading.get_ident()
        try:
            self._hand_out(delivery)
        except BaseException as error:
            self._error = self._error or error
            raise
        finally:
            self._carrier = None

    def _await_sink(self) -> None:
        """Wait until the sink has the version on its way; raise the error if that failed."""
        if self._on_the_way is not None:
            self._on_the_way.result()

    def _hand_out(self, delivery: Delivery) -> None:
        started = time.monotonic()
        try:
            self._deliver(delivery)
        except Exception:
            self._driver.tell_if_taken_over()
            raise
        self._driver.delivered()
        if delivery.progress:
            took = round(1000 * (time.monotonic() - started))
            self._progress.append(self._report(delivery.progress, took))
            self._history.progress(self._progress[-1])

    def _last_trigger(self) -> tuple[int, float] | None:
        """Return the last batch and the seconds that Spark reports for it."""
        last = None if self._spark_query is None else self._spark_query.lastProgress
        took = None if last is None else last["durationMs"].get("triggerExecution")
        return None if last is None or took is None else (last["batchId"], took / 1000)

    def _report(self, progress: dict[str, Any], sink: int) -> dict[str, Any]:
        phases = {**progress["durationMs"], "sink": sink}
        phases["triggerExecution"] += sink if self._courier is None else 0
        seconds = max(phases["triggerExecution"], 1) / 1000
        own = progress["icestream"]
        spark = self._spark_query
        return {
            "id": str(spark.id) if spark else None,
            "runId": str(spark.runId) if spark else None,
            "name": spark.name if spark else None,
            "timestamp": datetime.now(UTC).isoformat(),
            **progress,
            "processedRowsPerSecond": progress["numInputRows"] / seconds,
            "inputRowsPerSecond": progress["numInputRows"] / seconds,
            "durationMs": phases,
            "icestream": {
                **own,
                "watermark": _shown(own["watermark"]),
                "latestEventTime": _shown(own["latestEventTime"]),
            },
        }

    def _finish(self) -> None:
        try:
            self._query.awaitTermination()
            self._await_sink()
            if self._flush and not self._stopping:
                with self._at_work():
                    self._settle(sure=True)
                    for delivery in self._driver.flush():
                        self._hand_out(delivery)
        except StreamingQueryException as failure:
            if not self._stopping:
                self._error = self._error or self._spark_files.translated(failure, begins=True)
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._mark_end()
            self._driver.close()
            self._history.end(self._error)
            self._ended.set()

    def _mark_end(self) -> None:
        """Wait for the sink, and mark that it has all versions unless something failed."""
        if self._courier is None or self._end_mark is None:
            return
        self._courier.shutdown()
        if self._error is None and self._driver.last is not None:
            try:
                self._end_mark.put(self._driver.last.version)
            except BaseException as error:
                self._error = error


def _with_trigger(progress: dict[str, Any], spark: dict[str, int] | None) -> dict[str, Any]:
    """Add the time that Spark spends around a version, once Spark has reported it."""
    if spark is None or "triggerExecution" not in spark:
        return progress
    phases = {**spark, **progress["durationMs"], "triggerExecution": spark["triggerExecution"]}
    rate = progress["numInputRows"] / max(phases["triggerExecution"], 1) * 1000
    return {
        **progress,
        "durationMs": phases,
        "processedRowsPerSecond": rate,
        "inputRowsPerSecond": rate,
    }


def _shown(instant: int | None) -> str | None:
    if instant is None or instant == MINUS_INFINITY:
        return None
    return f"{np.datetime64(instant, 'us')}Z"
