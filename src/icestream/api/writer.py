"""Starting a query: where results go, where state is kept, how much memory it may take.

Idea: the names are those of PySpark's `DataStreamWriter`, so a query changes by wrapping its
DataFrame. `memory` and `shards` are what Icestream adds.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from icestream.core.errors import DefinitionError
from icestream.core.units import parse_bytes
from icestream.plan.nodes import Plan
from icestream.runtime.driver import Delivery, Driver, Settings
from icestream.runtime.query import Query
from icestream.runtime.sink import (
    Callback,
    CallbackSink,
    FileSink,
    Sink,
    TableSink,
    deliver,
    make_sink,
    rows_of,
)
from icestream.runtime.spark import FileExchangeExecutor, ShuffleExchangeExecutor
from icestream.state.files import LocalFiles

#: memory of a query that says nothing
DEFAULT_MEMORY = "512 MB"

_OWN_OPTIONS = ("checkpointLocation", "flush", "localDir", "exchange", "lateEvents", "compression.log")


@dataclass(frozen=True)
class StreamWriter:
    """Collects how a query is to run; `start` runs it."""

    _events: DataFrame
    _plan: Plan
    _schema: StructType
    _format: str = "parquet"
    _options: dict[str, str] = field(default_factory=dict)
    _name: str | None = None
    _trigger: dict[str, Any] = field(default_factory=dict)
    _partition_by: tuple[str, ...] = ()
    _memory: int = parse_bytes(DEFAULT_MEMORY)
    _shards: int | None = None
    _callback: Callback | None = None

    def format(self, source: str) -> StreamWriter:
        """Choose the format of the results."""
        return replace(self, _format=source)

    def option(self, key: str, value: Any) -> StreamWriter:
        """Set an option of the sink or of the query."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return replace(self, _options={**self._options, key: text})

    def options(self, **options: Any) -> StreamWriter:
        """Set several options."""
        writer = self
        for key, value in options.items():
            writer = writer.option(key, value)
        return writer

    def outputMode(self, outputMode: str) -> StreamWriter:
        """Choose the output mode: `append`, a window's rows once it has closed."""
        if outputMode != "append":
            msg = (
                f"output mode {outputMode!r} is not supported: windows are emitted once, when they "
                "close; use 'append'"
            )
            raise DefinitionError(msg)
        return self

    def trigger(self, **trigger: Any) -> StreamWriter:
        """Choose when batches are taken, as in PySpark: processingTime, availableNow or once."""
        if "continuous" in trigger or "realTime" in trigger:
            msg = "a stateful query runs in micro-batches: use processingTime, availableNow or once"
            raise DefinitionError(msg)
        return replace(self, _trigger=trigger)

    def queryName(self, queryName: str) -> StreamWriter:
        """Name the query."""
        return replace(self, _name=queryName)

    def partitionBy(self, *cols: str) -> StreamWriter:
        """Lay files out in folders by the values of columns."""
        return replace(self, _partition_by=cols)

    def foreachBatch(self, func: Callback) -> StreamWriter:
        """Hand the rows of every version to `func(rows, version)`."""
        return replace(self, _callback=func)

    def memory(self, size: str | int) -> StreamWriter:
        """Set the bytes that state, buffers and indexes may take on a host."""
        return replace(self, _memory=parse_bytes(size))

    def shards(self, count: int) -> StreamWriter:
        """Set the number of shards; all cores of the cluster by default."""
        return replace(self, _shards=count)

    def toTable(self, tableName: str) -> Query:
        """Start the query, appending to a table of the catalog."""
        kind = None if self._format == "parquet" and "path" not in self._options else self._format
        sink = TableSink(tableName, kind, self._partition_by, self._sink_options)
        return self._start(sink)

    def start(self, path: str | None = None) -> Query:
        """Start the query."""
        writer = self if path is None else self.option("path", path)
        return writer._start(writer._sink())

    @property
    def _spark(self) -> Any:
        return self._events.sparkSession

    @property
    def _sink_options(self) -> dict[str, str]:
        return {key: value for key, value in self._options.items() if key not in _OWN_OPTIONS}

    def _sink(self) -> Sink:
        if self._callback is not None:
            return CallbackSink(self._callback)
        return make_sink(
            self._spark,
            self._format,
            self._schema,
            identity=self._checkpoint(),
            name=self._name,
            partition_by=self._partition_by,
            options=self._sink_options,
        )

    def _checkpoint(self) -> str:
        chosen = self._options.get("checkpointLocation") or self._spark.conf.get(
            "spark.sql.streaming.checkpointLocation", None
        )
        if not chosen:
            msg = (
                "a query needs a place for its state: .option('checkpointLocation', ...), a folder "
                "of its own that survives restarts"
            )
            raise DefinitionError(msg)
        return str(chosen)

    def _start(self, sink: Sink) -> Query:
        checkpoint = _local_path(self._checkpoint())
        flush = self._options.get("flush", "false") == "true"
        if flush and not ({"availableNow", "once"} & set(self._trigger)):
            msg = "option 'flush' closes all windows at the end: it needs trigger(availableNow=True)"
            raise DefinitionError(msg)
        late = self._options.get("lateEvents")
        plan = self._plan if late is None else replace(self._plan, late="keep")
        spark, files = self._spark, LocalFiles()
        settings = Settings(
            root=f"{checkpoint}/icestream",
            local=self._local_folder(checkpoint),
            budget=self._memory,
            shards=self._shards or spark.sparkContext.defaultParallelism,
            codec=self._options.get("compression.log"),
        )
        kind = FileExchangeExecutor if self._shares_a_disk() else ShuffleExchangeExecutor
        executor = kind(spark, files, settings.root, settings.shards)
        driver: Driver[DataFrame] = Driver(plan, settings, files, executor)
        late_sink = None if late is None else FileSink(spark, "parquet", late, (), {})
        late_schema = self._events.schema

        def hand_out(delivery: Delivery) -> None:
            deliver(spark, files, sink, delivery, self._schema)
            if late_sink is not None:
                rows = rows_of(spark, files, delivery.late, late_schema)
                late_sink.deliver(rows, delivery.commit.version - 1)

        return Query(driver, hand_out, flush=flush).start(
            lambda batch: self._begin(batch, f"{checkpoint}/spark")
        )

    def _begin(
        self, batch: Callable[[DataFrame, int], None], checkpoint: str
    ) -> StreamingQuery:
        writer = self._events.writeStream.foreachBatch(batch).option(
            "checkpointLocation", checkpoint
        )
        if self._name is not None:
            writer = writer.queryName(self._name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        return writer.start()

    def _local_folder(self, checkpoint: str) -> str:
        base = self._options.get("localDir") or os.path.join(
            tempfile.gettempdir(), f"icestream-{os.getuid()}"
        )
        return os.path.join(base, xxhash.xxh3_64_hexdigest(checkpoint.encode()))

    def _shares_a_disk(self) -> bool:
        chosen = self._options.get("exchange")
        if chosen not in (None, "files", "shuffle"):
            msg = f"option 'exchange' must be 'files' or 'shuffle'; got {chosen!r}"
            raise DefinitionError(msg)
        if chosen is not None:
            return chosen == "files"
        master = str(self._spark.sparkContext.master)
        return master.startswith("local") and not master.startswith("local-cluster")


def _local_path(location: str) -> str:
    """Return a path of the local file system."""
    if location.startswith("file:"):
        return "/" + location[5:].lstrip("/")
    if "://" in location:
        msg = f"checkpoints must be on a mounted file system; got {location!r}"
        raise DefinitionError(msg)
    return os.path.abspath(location)


