"""Starting a query: where results go, where state is stored, how much memory it may use.

Idea: the names are those of PySpark's `DataStreamWriter`, so a query changes by wrapping its
DataFrame. Icestream adds `memory`, `shards` and `parallelism`, and the options that
`docs/reference/running.md` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from pyspark.sql.types import StructType

from icestream.api.columns import as_spelled
from icestream.api.dataframe_methods import PySparkMethods
from icestream.api.launch import HELD, TABLES, columns_of_refused, launch
from icestream.api.query_settings import OWN_OPTIONS, UPDATES_EVERY, QuerySettings, is_own
from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TYPO, guess
from icestream.core.units import parse_bytes, parse_interval
from icestream.operators.dataflow.results import CHANGE
from icestream.plan.grid import lower
from icestream.runtime.spark.arrow_types import to_arrow_schema
from icestream.runtime.spark.query import Query
from icestream.runtime.spark.sink import (
    Callback,
    CallbackSink,
    FileSink,
    NoSink,
    Sink,
    TableSink,
    UpsertSink,
    as_they_are,
    needed,
)
from icestream.runtime.spark.sink_formats import make_sink, uses_catalog
from icestream.runtime.tables.delta import DeltaUpsertTable
from icestream.runtime.tables.iceberg import IcebergUpsertTable
from icestream.runtime.tables.layout import TableTarget
from icestream.state.versions.table_files import LATE_VIEW

_TRIGGERS = ("processingTime", "availableNow", "once")


@dataclass(frozen=True)
class StreamWriter(QuerySettings, PySparkMethods):
    """Collects the settings of a query; `start` runs it.

    Examples:
        >>> writer = (
        ...     kpis.writeStream.format("parquet")
        ...     .option("path", "out")
        ...     .option("checkpointLocation", "chk")
        ... )
        >>> writer = writer.memory("512 MB").trigger(processingTime="10 seconds")
    """

    _called: ClassVar[str] = "writers"
    _instead: ClassVar[Mapping[str, str]] = {
        "foreach": "foreachBatch(lambda rows, version: ...), with rows.foreach(...) inside",
        "clusterBy": "partitionBy(...)",
    }

    def format(self, source: str) -> StreamWriter:
        """Choose the format of the results.

        Examples:
            >>> writer = kpis.writeStream.format("json")
        """
        return replace(self, _format=source.lower())

    def option(self, key: str, value: Any) -> StreamWriter:
        """Set an option of the sink or of the query; its name is case-insensitive.

        Examples:
            >>> writer = kpis.writeStream.option("checkpointLocation", "chk").option("ui", True)
        """
        own = {name.lower(): name for name in (*OWN_OPTIONS, "path", "targetFileSize")}
        known = key.lower() in own or is_own(key)
        if not known and (hint := guess(key, own.values(), TYPO)):
            msg = f"there is no option {key!r}{hint}"
            raise DefinitionError(msg)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return replace(self, _options={**self._options, own.get(key.lower(), key): text})

    def options(self, **options: Any) -> StreamWriter:
        """Set several options.

        Examples:
            >>> writer = kpis.writeStream.options(path="out", checkpointLocation="chk")
        """
        writer = self
        for key, value in options.items():
            writer = writer.option(key, value)
        return writer

    def outputMode(self, outputMode: str) -> StreamWriter:
        """Choose which rows are written.

        `append`: final rows: all rows of a window once it has closed, and events whose lifetime can
        no longer change. `update`: as in Spark, for each key whose row changed in a batch, the row
        that holds; rows that are never replaced are written once. `now`: the rows that hold, by
        key, as a table that `query.table()` returns; the sink gets the rows of keys that changed,
        with a column `change` that is 1 for a row that replaces that of its key and -1 for a key
        that is deleted. Without a format and a path there is no sink. `complete`: the same table,
        which the sink gets whole with every batch, to replace what it had. `changes`: what changed;
        for windows on a grid, when a window closes, the rows of groups that an event entered or
        left since the previous window (a group without events is emitted a last time, with a count
        of zero); for other windows the rows that `now` writes; for events with lifetimes, every
        change at once, with a column `change` that is 1 for an event that is added and -1 for one
        that is retracted; changes of one batch that cancel out are not written.

        Examples:
            >>> writer = kpis.writeStream.outputMode("now")
        """
        mode = str(outputMode).lower()
        if mode not in ("append", "update", "changes", *TABLES):
            msg = (
                f"output mode {outputMode!r} is not supported: use 'append' for final rows, "
                "'update' for rows that replace those of their key, 'now' for a table of the rows "
                "that hold, 'complete' for all of them with every batch, or 'changes' for what "
                "changed"
            )
            raise DefinitionError(msg)
        if self._own is not None:
            built, shape, schema = self._own
            return replace(self, _built=built, _shape=shape, _schema=schema, _own=None).outputMode(
                mode
            )
        if self._build is not None and (self._statement is None or mode in HELD):
            return self._as_dataflow(mode)
        plan: Any = self._built.plan
        if mode in TABLES:
            self._table_key()
        if plan.has_queue:
            # rows of a table by key have an age
            result: Any = self._result
            timed = result._stamped(mode in TABLES)
            return replace(
                self, _mode=mode, _result=timed, _built=timed._built, _schema=timed.schema
            )
        if mode == "changes" and self._statement is not None and lower.takes_tuples(plan):
            return self._as_dataflow(mode)
        return replace(self, _mode=mode)

    def _as_dataflow(self, mode: str) -> StreamWriter:
        """Return this writer for a query over events, which has all modes."""
        assert self._build is not None
        built = self._build("now" if mode in TABLES else mode)
        columns = [each for each in built.rows[0] if mode not in TABLES or each.name != CHANGE]
        changed = replace(self, _mode=mode, _built=built, _schema=StructType(columns))
        if self._statement is None:
            return changed
        own = self._built, self._shape, self._schema
        return replace(changed, _shape=as_they_are, _own=own)

    def _beside_events(self) -> StreamWriter:
        """Return this writer for a query that has events as well, with final rows of windows."""
        if self._statement is None:
            return self
        if self._mode != "append":
            msg = f"windows that are started with events are in mode 'append', not {self._mode!r}"
            raise DefinitionError(msg)
        return self._as_dataflow(self._mode)

    def trigger(self, **trigger: Any) -> StreamWriter:
        """Choose when batches run, as in PySpark: processingTime, availableNow or once.

        Examples:
            >>> writer = kpis.writeStream.trigger(processingTime="10 seconds")
        """
        if len(trigger) != 1 or not set(trigger) <= set(_TRIGGERS):
            msg = (
                "a stateful query runs in micro-batches: choose one of processingTime, "
                f"availableNow and once; got {trigger}"
            )
            raise DefinitionError(msg)
        ((kind, value),) = trigger.items()
        if kind == "processingTime":
            parse_interval(value)
        elif value is not True:
            msg = f"trigger({kind}=...) takes True; got {value!r}. Leave the trigger out instead"
            raise DefinitionError(msg)
        return replace(self, _trigger=trigger)

    def queryName(self, queryName: str) -> StreamWriter:
        """Name the query.

        Examples:
            >>> writer = kpis.writeStream.queryName("kpis")
        """
        return replace(self, _name=queryName)

    def partitionBy(self, *cols: str) -> StreamWriter:
        """Write files into folders by the values of columns.

        Examples:
            >>> writer = kpis.writeStream.format("parquet").partitionBy("serviceId")
        """
        names = self._schema.names
        found = as_spelled(cols, names)
        unknown = [name for name in found if name not in names]
        if unknown:
            msg = f"partitionBy names {unknown}; the result has the columns {names}"
            raise DefinitionError(msg)
        return replace(self, _partition_by=found)

    def foreachBatch(self, func: Callback) -> StreamWriter:
        """Pass the rows of every version to `func(rows, version)`.

        Examples:
            >>> writer = kpis.writeStream.foreachBatch(lambda rows, version: rows.show())
        """
        given: object = func
        if not callable(given):
            msg = f"foreachBatch takes a function of rows and version; got {given!r}"
            raise DefinitionError(msg)
        return replace(self, _callback=func)

    def memory(self, size: str | int, per: str = "query") -> StreamWriter:
        """Set how many bytes state, buffers and indexes may take, in all or on each host.

        With `per="host"` the query has more memory while its tasks run on more hosts.

        Examples:
            >>> writer = kpis.writeStream.memory("512 MB")
            >>> writer = kpis.writeStream.memory("2 GB", per="host")
        """
        if per not in ("query", "host"):
            msg = f"memory is per 'query' or per 'host'; got {per!r}"
            raise DefinitionError(msg)
        return replace(self, _memory=parse_bytes(size), _memory_per_host=per == "host")

    def disk(self, size: str | int) -> StreamWriter:
        """Set how many bytes log, exchange and caches may take on disk; by default any number.

        A query that needs more stops before it commits, and goes on where it stopped once it is
        started with more.

        Examples:
            >>> writer = kpis.writeStream.memory("512 MB").disk("200 GB")
        """
        return replace(self, _disk=parse_bytes(size))

    def shards(self, count: int) -> StreamWriter:
        """Set the number of shards, the units of state, with which a checkpoint starts.

        It is the upper limit of `parallelism`. `query.rescale(...)` changes it while the query
        runs, and a restart goes on with what the checkpoint has; a program that sets another number
        than at its last start splits or merges the shards.

        By default there are eight if the memory allows 8 MB for each, and more (up to 16, or four
        per core) if it allows 64 MB for each; never fewer than tasks.

        Examples:
            >>> writer = kpis.writeStream.shards(16)
        """
        return replace(self, _shards=_whole("shards", count))

    def parallelism(self, count: int, most: int | None = None) -> StreamWriter:
        """Set the number of tasks that run the shards: all cores by default.

        With two numbers, the load of each batch decides how many tasks run, between `count` and
        `most`; the query starts with `count`. The setting may change at every start and, while the
        query runs, with `query.rescale(...)`.

        Examples:
            >>> writer = kpis.writeStream.parallelism(2, 8)
        """
        least = _whole("parallelism", count)
        return replace(
            self, _parallelism=least if most is None else (least, _whole("parallelism", most))
        )

    def toTable(self, tableName: str) -> Query:
        """Start the query, appending to a table of the catalog.

        Examples:
            >>> writer = kpis.writeStream.option("checkpointLocation", "chk/table").trigger(
            ...     availableNow=True
            ... )
            >>> writer.toTable("kpi_rows").awaitTermination()
        """
        if self._mode in TABLES:
            msg = (
                f"a table only grows: use 'append', or foreachBatch(...) for output mode "
                f"{self._mode!r}; format('delta') with a path follows output mode 'now' by key"
            )
            raise DefinitionError(msg)
        if self._format == "iceberg" and uses_catalog(self._options):
            return self.start(tableName)
        kind = None if self._format == "parquet" and "path" not in self._options else self._format
        self._checkpoint()
        sink = TableSink(tableName, kind, self._partition_by, self._sink_options)
        sink.create(self._spark, self._schema)
        return launch([(self._starting(), sink)])

    def start(self, path: str | None = None) -> Query:
        """Start the query.

        Examples:
            >>> writer = kpis.writeStream.format("noop").option("checkpointLocation", "chk/start")
            >>> writer.trigger(availableNow=True).start().awaitTermination()
        """
        writer = (self if path is None else self.option("path", path))._starting()
        return launch([(writer, writer._sink())])

    def bootstrap(self) -> int:
        """Build the state of a new checkpoint from history; return the number of events.

        The query is defined over a batch DataFrame, with the same checkpoint; starting it over the
        stream then continues where history ended. Rows of windows that close during history are not
        written anywhere. History that exceeds one batch is passed in several calls, oldest first.

        Examples:
            >>> def per_service(df):
            ...     calls = ice.stream(df, time="timestamp", slack="5 seconds")
            ...     kpis = calls.window("1 hour").groupBy("serviceId").count()
            ...     return kpis.writeStream.option("checkpointLocation", "chk/bootstrap")
            >>> history = spark.sql("SELECT TIMESTAMP'2026-02-28' AS timestamp, 'a' AS serviceId")
            >>> per_service(history).bootstrap()
            1
            >>> query = per_service(df).format("noop").trigger(availableNow=True).start()
            >>> query.awaitTermination()
        """
        if self._built.events.isStreaming:
            msg = (
                "bootstrap reads history, but this query is over a stream: define it over a batch "
                "DataFrame (spark.read), then start it over the stream on the same checkpoint"
            )
            raise DefinitionError(msg)
        if self._mode in TABLES:
            msg = (
                f"bootstrap writes no rows, and the table of output mode {self._mode!r} would miss "
                "those of history: let the stream read history first"
            )
            raise DefinitionError(msg)
        checkpoint, paced = self._checkpoint(), self._paced()._starting()
        driver, *_ = paced._driver(self._built, checkpoint, [self._mode])
        try:
            driver.store.make_identity(paced._checkpoint_identity)
            return driver.bootstrap(self._built.events)
        finally:
            driver.close()

    # -- sinks ---------------------------------------------------------------------------------

    def _sink(self, view: int = 0, lead: StreamWriter | None = None) -> Sink:
        """Return the sink of a view of a query, which has the settings of its first writer."""
        lead = lead or self
        lead._checkpoint()
        if self._mode == "now":
            return self._now_sink(lead, view)
        if self._callback is not None:
            return CallbackSink(self._callback)
        if self._mode == "complete" and self._format not in ("console", "noop"):
            msg = (
                f"format({self._format!r}) appends rows, but output mode 'complete' writes all of "
                "them with every batch: use foreachBatch(...) to replace the previous rows, or "
                "output mode 'now', whose rows replace those of their key"
            )
            raise DefinitionError(msg)
        return self._row_sink(lead, view, self._schema)

    def _now_sink(self, lead: StreamWriter, view: int) -> Sink:
        """Return where the rows of keys that changed go."""
        if self._callback is not None:
            return CallbackSink(self._callback)
        columns, options = to_arrow_schema(self._schema), self._sink_options
        target = TableTarget(lead._identity(view), view, self._partition_by, options)
        name = options.get("path", "")
        if self._format == "delta":
            key, merges = self._table_key(), target.merges
            return UpsertSink(DeltaUpsertTable(name, columns, target.writer, key, merges=merges))
        if self._format == "iceberg" and name and uses_catalog(options):
            needed("pyiceberg", "iceberg")
            key = self._table_key()
            return UpsertSink(IcebergUpsertTable(name, columns, target, key, self._storage))
        if self._format == "parquet" and "path" not in self._options:
            return NoSink()
        return self._row_sink(lead, view, self._built.rows[0])

    def _row_sink(self, lead: StreamWriter, view: int, columns: StructType) -> Sink:
        """Return where rows are appended."""
        return make_sink(
            self._spark,
            self._format,
            columns,
            identity=partial(lead._identity, view),
            name=self._name,
            partition_by=self._partition_by,
            options=self._sink_options,
            view=view,
            files=self._table_files,
            storage=self._storage,
        )

    def _late_sink(self) -> FileSink | None:
        """Return the table of refused rows: those that arrived too late, or without a time."""
        folder = self._options.get("lateEvents")
        columns = columns_of_refused(self._built, bad=self._quarantines)
        if folder is None or (self._built.kept is None and not self._quarantines):
            return None
        writer = self._identity("late")
        return FileSink(
            self._spark, "parquet", folder, (), {}, columns, writer, LATE_VIEW, self._table_files
        )

    def _paced(self) -> StreamWriter:
        """Return this writer with the ticker's interval as its trigger."""
        ticker = self._options.get("ticker")
        if ticker is None:
            waits = self._built.plan.has_queue and not self._trigger
            return self.trigger(processingTime=UPDATES_EVERY) if waits else self
        if self._trigger:
            msg = (
                f"option 'ticker' runs a batch every {ticker} and excludes any other trigger; got "
                f"trigger({self._trigger})"
            )
            raise DefinitionError(msg)
        if parse_interval(ticker) <= 0:
            msg = f"option 'ticker' must be a positive interval; got {ticker!r}"
            raise DefinitionError(msg)
        return self.trigger(processingTime=ticker)


def _whole(word: str, given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        msg = f"{word} takes a whole number, 1 or more; got {given!r}"
        raise DefinitionError(msg)
    return given
