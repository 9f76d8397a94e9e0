"""Starting a query: where results go, where state is kept, how much memory it may take.

Idea: the names are those of PySpark's `DataStreamWriter`, so a query changes by wrapping its
DataFrame. `memory` and `shards` are what Icestream adds, and these options:

- `flush`: with `availableNow`, close every window at the end.
- `ticker`: an interval; call for work that remains also when no events arrive, that often.
- `lateEvents`: a folder of Parquet files for the events that came too late.
- `exchange`: `files` or `shuffle`, how tasks hand entries on; files where all share a disk.
- `input`: `rows` to take events from the JVM also where tasks could read the files themselves.
- `localDir`: a folder on the local disk of each host for what need not survive.
- `compression.log`: `lz4` or `zstd`, for segments of the log.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from icestream.core.errors import DefinitionError
from icestream.core.units import parse_bytes, parse_interval
from icestream.plan.nodes import SOURCE, Plan
from icestream.runtime.direct import file_columns
from icestream.runtime.driver import Delivery, Driver, Executor, Settings
from icestream.runtime.query import Query
from icestream.runtime.remote import RemoteFiles
from icestream.runtime.sink import (
    Callback,
    CallbackSink,
    FileSink,
    Sink,
    TableSink,
    hand_out,
    make_sink,
    once,
    rows_of,
)
from icestream.runtime.spark import FileExchangeExecutor, ShuffleExchangeExecutor
from icestream.state.files import Files, LocalFiles
from icestream.state.versions import VersionStore

#: memory of a query that says nothing
DEFAULT_MEMORY = "512 MB"

_OWN_OPTIONS = (
    "checkpointLocation",
    "compression.log",
    "exchange",
    "flush",
    "input",
    "lateEvents",
    "localDir",
    "ticker",
)
_TRIGGERS = ("processingTime", "availableNow", "once")

#: source number of rows that are no events
_TICK = -1


@dataclass(frozen=True)
class Output:
    """The rows of a query on their way out."""

    #: columns of the windows' rows
    rows: StructType
    #: what the user does to them
    shape: Callable[[DataFrame], DataFrame]
    #: columns after that
    schema: StructType
    #: the user's name of the time column
    time: str


@dataclass(frozen=True)
class StreamWriter:
    """Collects how a query is to run; `start` runs it."""

    _events: DataFrame
    _plan: Plan
    _output: Output
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
        return replace(self, _format=source.lower())

    def option(self, key: str, value: Any) -> StreamWriter:
        """Set an option of the sink or of the query; case does not matter in its name."""
        own = {name.lower(): name for name in (*_OWN_OPTIONS, "path")}
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return replace(self, _options={**self._options, own.get(key.lower(), key): text})

    def options(self, **options: Any) -> StreamWriter:
        """Set several options."""
        writer = self
        for key, value in options.items():
            writer = writer.option(key, value)
        return writer

    def outputMode(self, outputMode: str) -> StreamWriter:
        """Choose the output mode: `append`, a window's rows once it has closed."""
        if outputMode.lower() != "append":
            msg = (
                f"output mode {outputMode!r} is not supported: windows are emitted once, when they "
                "close; use 'append'"
            )
            raise DefinitionError(msg)
        return self

    def trigger(self, **trigger: Any) -> StreamWriter:
        """Choose when batches are taken, as in PySpark: processingTime, availableNow or once."""
        if len(trigger) != 1 or not set(trigger) <= set(_TRIGGERS):
            msg = (
                "a stateful query runs in micro-batches: choose one of processingTime, "
                f"availableNow and once; got {trigger}"
            )
            raise DefinitionError(msg)
        return replace(self, _trigger=trigger)

    def queryName(self, queryName: str) -> StreamWriter:
        """Name the query."""
        return replace(self, _name=queryName)

    def partitionBy(self, *cols: str) -> StreamWriter:
        """Lay files out in folders by the values of columns."""
        names = self._output.schema.names
        unknown = [name for name in cols if name not in names]
        if unknown:
            msg = f"partitionBy names {unknown}; the result has the columns {names}"
            raise DefinitionError(msg)
        return replace(self, _partition_by=cols)

    def foreachBatch(self, func: Callback) -> StreamWriter:
        """Hand the rows of every version to `func(rows, version)`."""
        return replace(self, _callback=func)

    def memory(self, size: str | int) -> StreamWriter:
        """Set the bytes that state, buffers and indexes may take on a host."""
        return replace(self, _memory=parse_bytes(size))

    def shards(self, count: int) -> StreamWriter:
        """Set the number of shards; all cores by default, then what the checkpoint has."""
        return replace(self, _shards=count)

    def toTable(self, tableName: str) -> Query:
        """Start the query, appending to a table of the catalog."""
        kind = None if self._format == "parquet" and "path" not in self._options else self._format
        self._checkpoint()
        sink = TableSink(tableName, kind, self._partition_by, self._sink_options)
        sink.create(self._spark, self._output.schema)
        return self._start(sink)

    def start(self, path: str | None = None) -> Query:
        """Start the query."""
        writer = self if path is None else self.option("path", path)
        return writer._start(writer._sink())

    # -- what was chosen -------------------------------------------------------------------

    @property
    def _spark(self) -> SparkSession:
        return self._events.sparkSession

    @property
    def _sink_options(self) -> dict[str, str]:
        return {key: value for key, value in self._options.items() if key not in _OWN_OPTIONS}

    def _sink(self) -> Sink:
        checkpoint = self._checkpoint()
        if self._callback is not None:
            return CallbackSink(self._callback)
        return make_sink(
            self._spark,
            self._format,
            self._output.schema,
            identity=checkpoint,
            name=self._name,
            partition_by=self._partition_by,
            options=self._sink_options,
        )

    def _checkpoint(self) -> str:
        """Return the folder of the query, chosen by option or under Spark's common folder."""
        chosen = self._options.get("checkpointLocation")
        common = self._spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if chosen is None and common is not None and self._name is not None:
            chosen = f"{common}/{self._name}"
        if not chosen:
            msg = (
                "a query needs a place for its state: .option('checkpointLocation', ...), a folder "
                "of its own that survives restarts"
            )
            raise DefinitionError(msg)
        return _location(chosen)

    def _flushes(self) -> bool:
        flush = self._options.get("flush", "false").lower() == "true"
        if flush and not ({"availableNow", "once"} & set(self._trigger)):
            msg = (
                "option 'flush' closes all windows at the end: it needs trigger(availableNow=True)"
            )
            raise DefinitionError(msg)
        return flush

    def _paced(self) -> StreamWriter:
        """Return this writer with the ticker's interval as its trigger."""
        ticker = self._options.get("ticker")
        if ticker is None:
            return self
        if self._trigger:
            msg = (
                f"option 'ticker' takes batches every {ticker}: it goes with no other trigger; "
                f"got trigger({self._trigger})"
            )
            raise DefinitionError(msg)
        if parse_interval(ticker) <= 0:
            msg = f"option 'ticker' must be a positive interval; got {ticker!r}"
            raise DefinitionError(msg)
        return self.trigger(processingTime=ticker)

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

    def _number_of_shards(self, files: Files, root: str) -> int:
        if self._shards is not None:
            return self._shards
        last = VersionStore(files, root).latest()
        return len(last.arenas) if last else self._spark.sparkContext.defaultParallelism

    # -- starting --------------------------------------------------------------------------

    def _start(self, sink: Sink) -> Query:
        checkpoint, flush, paced = self._checkpoint(), self._flushes(), self._paced()
        late = self._options.get("lateEvents")
        plan = self._plan if late is None else replace(self._plan, late="keep")
        spark, files, root = self._spark, _files_at(checkpoint), f"{checkpoint}/icestream"
        settings = Settings(
            root=root,
            local=self._local_folder(checkpoint),
            budget=self._memory,
            shards=self._number_of_shards(files, root),
            codec=self._options.get("compression.log"),
            ticker="ticker" in self._options,
        )
        driver: Driver[DataFrame] = Driver(plan, settings, files, self._executor(files, settings))
        safe = once(sink, files, root)
        late_sink = None if late is None else FileSink(spark, "parquet", late, (), {})

        def deliver(delivery: Delivery) -> None:
            rows = rows_of(spark, files, delivery.results, self._output.rows)
            hand_out(safe, self._output.shape(rows), delivery)
            if late_sink is not None:
                events = rows_of(spark, files, delivery.late, self._events.schema)
                late_sink.deliver(self._named(events), delivery.commit.version - 1)

        return Query(driver, deliver, flush=flush).start(
            lambda batch: paced._begin(batch, f"{_for_spark(checkpoint)}/spark")
        )

    def _executor(self, files: Files, settings: Settings) -> Executor[DataFrame]:
        spark, root, shards = self._spark, settings.root, settings.shards
        if not self._shares_a_disk():
            return ShuffleExchangeExecutor(spark, files, root, shards)
        chosen = self._options.get("input", "auto")
        if chosen not in ("auto", "rows"):
            msg = f"option 'input' must be 'auto' or 'rows'; got {chosen!r}"
            raise DefinitionError(msg)
        plain = chosen == "auto" and not settings.ticker
        columns = file_columns(self._events) if plain else None
        return FileExchangeExecutor(spark, files, root, shards, columns)

    def _begin(self, batch: Callable[[DataFrame, int], None], checkpoint: str) -> StreamingQuery:
        events = self._events
        if "ticker" in self._options:
            events, batch = _with_ticks(events), _without_ticks(batch)
        writer = events.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint)
        if self._name is not None:
            writer = writer.queryName(self._name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        return writer.start()

    def _named(self, events: DataFrame) -> DataFrame:
        """Give the columns of events the names the user knows, each once."""
        names = [self._output.time, "source", *self._plan.keys.names, *self._plan.expressions]
        chosen: dict[str, str] = {}
        for column, name in zip(events.columns, names, strict=True):
            if name.lower() not in (each.lower() for each in chosen):
                chosen[name] = column
        return events.select(*(sf.col(column).alias(name) for name, column in chosen.items()))


def _with_ticks(events: DataFrame) -> DataFrame:
    """Add a row to every trigger, so that Spark calls on idle ones too."""
    ticks = events.sparkSession.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
    columns = [
        sf.lit(_TICK if field.name == SOURCE else None).cast(field.dataType).alias(field.name)
        for field in events.schema
    ]
    return events.unionAll(ticks.load().select(*columns))


def _without_ticks(batch: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    return lambda rows, number: batch(rows.where(sf.col(SOURCE) != _TICK), number)


def _location(chosen: str) -> str:
    """Return a URI as it is, and anything else as an absolute path of the local file system."""
    if chosen.startswith("file:"):
        return "/" + chosen[5:].lstrip("/")
    return chosen.rstrip("/") if "://" in chosen else os.path.abspath(chosen)


def _files_at(location: str) -> Files:
    return RemoteFiles() if "://" in location else LocalFiles()


def _for_spark(location: str) -> str:
    return location if "://" in location else f"file://{location}"
