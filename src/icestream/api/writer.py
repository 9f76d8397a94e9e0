"""Starting a query: where results go, where state is stored, how much memory it may use.

Idea: the names are those of PySpark's `DataStreamWriter`, so a query changes by wrapping its
DataFrame. Icestream adds `memory`, `shards` and `parallelism`, and the options that
`docs/reference/running.md` lists.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from icestream.api.launch import TABLES, columns_of_refused, launch
from icestream.api.query_warnings import warn_of_change
from icestream.api.shared_plan import BuiltQuery, Statement
from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TYPO, guess
from icestream.core.units import parse_bytes, parse_interval
from icestream.inspect.evolve import evolve
from icestream.operators.dataflow.results import CHANGE
from icestream.operators.dataflow.stores import ColdOptions
from icestream.operators.grid.operator import PANES
from icestream.plan import lower
from icestream.plan.computation import Computation
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.nodes.queries import SOURCE, Plan
from icestream.plan.nodes.updates import Updates
from icestream.runtime.driver import Driver
from icestream.runtime.exchange.refused_rows import refused_columns
from icestream.runtime.ingest.reception import KEPT
from icestream.runtime.ingest.source import sources_of
from icestream.runtime.spark.arrow_types import to_arrow_schema
from icestream.runtime.spark.machine_code import is_local, send_to_executors
from icestream.runtime.spark.query import Query
from icestream.runtime.spark.remote import EXCLUSIVE, RemoteFiles
from icestream.runtime.spark.sink import (
    Callback,
    CallbackSink,
    FileSink,
    NoSink,
    Sink,
    TableSink,
    UpsertSink,
    as_they_are,
    make_sink,
    needed,
    uses_catalog,
)
from icestream.runtime.spark.tasks import FileExchangeExecutor, ShuffleExchangeExecutor
from icestream.runtime.tables.append_table import AppendTable
from icestream.runtime.tables.delta import DeltaUpsertTable
from icestream.runtime.tables.iceberg import IcebergUpsertTable
from icestream.runtime.tables.layout import TableFiles, TableStorage, TableTarget
from icestream.runtime.version.disk_use import COPIES
from icestream.runtime.version.lease import Lease
from icestream.runtime.version.scaling import spare_shards
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.work import Executor
from icestream.runtime.work.choice import least_memory
from icestream.state.files import Files, LocalFiles
from icestream.state.groups.cold.manager import Policy
from icestream.state.groups.options import StoreOptions
from icestream.state.stores.bucket import SCHEMES
from icestream.state.stores.copies import LIMIT
from icestream.state.stores.files import StoreFiles, store_scheme
from icestream.state.versions.commits import VersionStore
from icestream.state.versions.table_files import LATE_VIEW

#: memory of a query by default
DEFAULT_MEMORY = "512 MB"

_OWN_OPTIONS = (
    "checkpointLocation",
    "cold.classifier",
    "compression.log",
    "durability",
    "exchange",
    "flush",
    "input",
    "lateEvents",
    "localDir",
    "onBadRow",
    "plan",
    "rebalance",
    "stateLocation",
    "takeOver",
    "ticker",
    "ui",
)
#: start of the options of an object store, and of those of the classifier of one sub-query
_STORAGE = "storage."
_CLASSIFIER = "cold.classifier."
_TRIGGERS = ("processingTime", "availableNow", "once")
#: time between batches of an update stream by default
UPDATES_EVERY = "1 second"

#: source number of rows that are not events
_TICK = -1


@dataclass(frozen=True)
class StreamWriter:
    """Collects the settings of a query; `start` runs it.

    Examples:
        >>> writer = (
        ...     kpis.writeStream.format("parquet")
        ...     .option("path", "out")
        ...     .option("checkpointLocation", "chk")
        ... )
        >>> writer = writer.memory("512 MB").trigger(processingTime="10 seconds")
    """

    #: the statement about windows that is written; None for events with lifetimes
    _statement: Statement | None
    #: sources and plan of the result alone
    _built: BuiltQuery[Computation]
    #: the user's projection of the rows
    _shape: Callable[[DataFrame], DataFrame]
    #: columns of the rows after that
    _schema: StructType
    #: makes the plan for an output mode, where the plan depends on it
    _build: Callable[[str], BuiltQuery[Computation]] | None = None
    #: the result, where several of its kind can be one query, and the function that combines them
    _result: object = None
    _together: Callable[[Sequence[object]], BuiltQuery[Computation]] | None = None
    #: plan, projection and columns of windows that another output mode has replaced
    _own: tuple[BuiltQuery[Computation], Callable[[DataFrame], DataFrame], StructType] | None = None
    _format: str = "parquet"
    _mode: str = "append"
    #: some are secrets
    _options: dict[str, str] = field(default_factory=dict, repr=False)
    _name: str | None = None
    _trigger: dict[str, Any] = field(default_factory=dict)
    _partition_by: tuple[str, ...] = ()
    _memory: int = parse_bytes(DEFAULT_MEMORY)
    #: bytes of disk; None for any number
    _disk: int | None = None
    _shards: int | None = None
    _parallelism: int | tuple[int, int] | None = None
    _callback: Callback | None = None

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
        own = {name.lower(): name for name in (*_OWN_OPTIONS, "path", "targetFileSize")}
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
        no longer change. `update`: for windows on a grid, when a window closes, the rows of groups
        that an event entered or left since the previous window (a group without events is emitted a
        last time, with a count of zero); for events with lifetimes, every change at once, with a
        column `change` that is 1 for an event that is added and -1 for one that is retracted;
        changes of one batch that cancel out are not written. `now`: the rows that hold, by key, as
        a table that `query.table()` returns; the sink gets the rows of keys that changed, with a
        column `change` that is 1 for a row that replaces that of its key and -1 for a key that is
        deleted. Without a format and a path there is no sink. `complete`: the same table, which the
        sink gets whole with every batch, to replace what it had.

        Examples:
            >>> writer = kpis.writeStream.outputMode("now")
        """
        mode = str(outputMode).lower()
        if mode not in ("append", "update", *TABLES):
            msg = (
                f"output mode {outputMode!r} is not supported: use 'append' for final rows, "
                "'update' for changed rows, 'now' for a table of the rows that hold, or 'complete' "
                "for all of them with every batch"
            )
            raise DefinitionError(msg)
        if self._own is not None:
            built, shape, schema = self._own
            return replace(self, _built=built, _shape=shape, _schema=schema, _own=None).outputMode(
                mode
            )
        if self._build is not None and (self._statement is None or mode in TABLES):
            return self._as_dataflow(mode)
        plan = self._built.plan
        if mode in TABLES:
            self._table_key()
        if plan.has_queue:
            # rows of a table by key have an age
            result: Any = self._result
            timed = result._stamped(mode in TABLES)
            return replace(
                self, _mode=mode, _result=timed, _built=timed._built, _schema=timed.schema
            )
        if mode == "update" and isinstance(plan, Plan) and lower.takes_tuples(plan):
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
        unknown = [name for name in cols if name not in names]
        if unknown:
            msg = f"partitionBy names {unknown}; the result has the columns {names}"
            raise DefinitionError(msg)
        return replace(self, _partition_by=cols)

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

    def memory(self, size: str | int) -> StreamWriter:
        """Set how many bytes state, buffers and indexes may take on a host.

        Examples:
            >>> writer = kpis.writeStream.memory("512 MB")
        """
        return replace(self, _memory=parse_bytes(size))

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
                f"a table only grows: use 'update', or foreachBatch(...) for output mode "
                f"{self._mode!r}; format('delta') with a path follows output mode 'now' by key"
            )
            raise DefinitionError(msg)
        if self._format == "iceberg" and uses_catalog(self._options):
            return self.start(tableName)
        kind = None if self._format == "parquet" and "path" not in self._options else self._format
        self._checkpoint()
        sink = TableSink(tableName, kind, self._partition_by, self._sink_options)
        sink.create(self._spark, self._schema)
        return launch([(self, sink)])

    def start(self, path: str | None = None) -> Query:
        """Start the query.

        Examples:
            >>> writer = kpis.writeStream.format("noop").option("checkpointLocation", "chk/start")
            >>> writer.trigger(availableNow=True).start().awaitTermination()
        """
        writer = self if path is None else self.option("path", path)
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
        checkpoint, paced = self._checkpoint(), self._paced()
        driver, *_ = paced._driver(self._built, checkpoint, [self._mode])
        try:
            return driver.bootstrap(self._built.events)
        finally:
            driver.close()

    # -- settings --------------------------------------------------------------------------

    @property
    def _spark(self) -> SparkSession:
        return self._built.events.sparkSession

    @property
    def _sink_options(self) -> dict[str, str]:
        return {key: value for key, value in self._options.items() if not is_own(key)}

    def _identity(self, view: int | str) -> str:
        """Return the name under which a table knows this query: it moves with the checkpoint."""
        state = self._state_location(self._checkpoint())
        store = VersionStore(self._files(state), f"{state}/icestream")
        return f"{store.identity()}-{view}"

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

    def _table_key(self) -> tuple[str, ...]:
        """Return the columns that identify rows in output mode `now`."""
        key = self._built.plan.held_key
        if key is None:
            msg = (
                "output mode 'now' holds one row for each key, and this query has none: name the "
                "key, latestBy('key'), or compute windows or groups, groupBy('key').agg(...)"
            )
            raise DefinitionError(msg)
        missing = [name for name in key if name not in self._schema.names]
        if missing:
            msg = f"output mode 'now' keeps a row by key: let the step return {missing} as well"
            raise DefinitionError(msg)
        return key

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

    @property
    def _quarantines(self) -> bool:
        """Return whether bad rows are stored; by default they end the query."""
        chosen = self._choice("onBadRow", "fail", "quarantine")
        if chosen == "quarantine" and "lateEvents" not in self._options:
            msg = (
                "option 'onBadRow' is 'quarantine', but there is no folder for bad rows: set "
                ".option('lateEvents', <folder>)"
            )
            raise DefinitionError(msg)
        return chosen == "quarantine"

    def _checkpoint(self) -> str:
        """Return the folder of the query: an option, or a subfolder of Spark's default location."""
        chosen = self._options.get("checkpointLocation")
        common = self._spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if chosen is None and common is not None and self._name is not None:
            chosen = f"{common}/{self._name}"
        if not chosen:
            msg = (
                "a query needs a place for its state: set .option('checkpointLocation', ...) to a "
                "folder of its own that survives restarts"
            )
            raise DefinitionError(msg)
        return _location(chosen)

    @property
    def _ticks(self) -> bool:
        """Return whether batches run even if no events arrive."""
        # also with availableNow, which may continue a checkpoint that other triggers began
        return "ticker" in self._options or self._built.plan.has_queue

    def _flushes(self) -> bool:
        if self._built.plan.has_queue and {"availableNow", "once"} & set(self._trigger):
            return True
        flush = self._is_set("flush")
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

    def _local_folder(self, state: str) -> str:
        base = self._options.get("localDir") or os.path.join(
            tempfile.gettempdir(), f"icestream-{os.getuid()}"
        )
        return os.path.join(base, xxhash.xxh3_64_hexdigest(state.encode()))

    def _state_location(self, checkpoint: str) -> str:
        """Return where the state is: an option, or the checkpoint."""
        return _location(self._options.get("stateLocation", checkpoint))

    @property
    def _storage(self) -> dict[str, str]:
        """Return the options of an object store."""
        own = {k[len(_STORAGE) :]: v for k, v in self._options.items() if k.startswith(_STORAGE)}
        own.pop("cache", None)
        return own

    def _table_files(self, place: str) -> TableStorage:
        """Return the files of a table; what is written there need not be kept on the local disk."""
        if store_scheme(place) is None:
            return TableFiles()
        return StoreFiles(self._storage, f"{self._local_folder(place)}{COPIES}", 0)

    def _files(self, state: str) -> Files:
        """Return the files at a location."""
        limit = parse_bytes(self._options.get(f"{_STORAGE}cache", LIMIT))
        if store_scheme(state) is not None:
            # copies leave room on the disk for what must be there
            most = limit if self._disk is None else min(limit, self._disk // 4)
            return StoreFiles(self._storage, f"{self._local_folder(state)}{COPIES}", most)
        places = [state, *(self._options.get(name, "") for name in ("path", "lateEvents"))]
        if self._storage and self._format != "iceberg" and not any(map(store_scheme, places)):
            msg = f"options 'storage.*' are for object stores, but the state is at {state}"
            raise DefinitionError(msg)
        scheme = state.partition("://")[0] if "://" in state else None
        if scheme is not None and scheme not in EXCLUSIVE:
            known = ", ".join(f"{each}://" for each in (*SCHEMES, *EXCLUSIVE, "file"))
            msg = f"state cannot be stored on {scheme}://; choose one of {known}"
            raise DefinitionError(msg)
        return LocalFiles() if scheme is None else RemoteFiles()

    def _choice(self, option: str, *choices: str) -> str:
        """Return the value of an option: one of the choices, the first by default."""
        chosen = self._options.get(option, choices[0])
        if chosen not in choices:
            *others, last = map(repr, choices)
            msg = f"option {option!r} must be {', '.join(others)} or {last}; got {chosen!r}"
            raise DefinitionError(msg)
        return chosen

    def _is_set(self, option: str, default: str = "false") -> bool:
        chosen = self._options.get(option, default)
        if chosen.lower() not in ("true", "false"):
            msg = f"option {option!r} must be true or false; got {chosen!r}"
            raise DefinitionError(msg)
        return chosen.lower() == "true"

    def _exchange(self) -> str:
        if "exchange" in self._options:
            return self._choice("exchange", "files", "shuffle", "storage")
        if is_local(self._spark.sparkContext):
            return "files"
        return "shuffle" if self._built.plan.jobs == 1 else "storage"

    def _number_of_shards(self, files: Files, root: str) -> int:
        if self._shards is not None:
            return self._shards
        last = VersionStore(files, root).latest()
        if last is None:
            cores, plan = self._spark.sparkContext.defaultParallelism, self._built.plan
            tasks = self._most_tasks or cores
            return spare_shards(
                self._memory, plan.jobs, least_memory(plan), tasks=tasks, cores=cores
            )
        return max(self._most_tasks or 1, len(last.arenas) // self._built.plan.jobs)

    @property
    def _most_tasks(self) -> int | None:
        return max(self._parallelism) if isinstance(self._parallelism, tuple) else self._parallelism

    # -- starting --------------------------------------------------------------------------

    def _settings(self, files: Files, state: str) -> Settings:
        root = f"{state}/icestream"
        compressed = "compression.log" in self._options
        codec = self._choice("compression.log", "lz4", "zstd") if compressed else None
        rebalance = self._choice("rebalance", "auto", "off")
        shards = self._number_of_shards(files, root)
        every = self._trigger.get("processingTime")
        tasks = min(shards, self._spark.sparkContext.defaultParallelism)
        return Settings(
            root=root,
            local=self._local_folder(state),
            budget=self._memory,
            shards=shards,
            disk=self._disk,
            parallelism=tasks if self._parallelism is None else self._parallelism,
            interval=None if not every else parse_interval(every) / 1_000_000 or None,
            rebalance=rebalance == "auto",
            codec=codec,
            ticker=self._ticks,
            exchange_in_storage=self._exchange() == "storage",
            refused=refused_columns(self._kept_columns()) if self._quarantines else None,
        )

    def _kept_columns(self, *, numbered: bool = False) -> pa.Schema | None:
        """Return all columns of the sources, if they are read; under the names of ingest."""
        if self._built.kept is None:
            return None
        columns = to_arrow_schema(self._built.kept)
        named = [each.with_name(f"{KEPT}{place}") for place, each in enumerate(columns)]
        return pa.schema(named) if numbered else columns

    def _planned(self, plan: Computation, modes: Sequence[str]) -> Computation:
        """Return a plan with the options applied to it."""
        late = "keep" if "lateEvents" in self._options else plan.late
        if isinstance(plan, Dataflow):
            return replace(plan, late=late, cold=self._cold_options())
        if isinstance(plan, Updates):
            every = self._trigger.get("processingTime")
            return replace(plan, interval=None if every is None else parse_interval(every) or None)
        store = self._choice("plan", lower.AUTO, PANES, lower.TUPLES)
        views = tuple(
            replace(view, mode=mode) for view, mode in zip(plan.views, modes, strict=True)
        )
        chosen = replace(plan, views=views, late=late, store=store)
        lower.check(chosen)
        return chosen

    def _cold_options(self) -> ColdOptions:
        """Return the options for cold state."""
        durability: Any = self._options.get("durability", "log")
        single = {
            name.removeprefix(_CLASSIFIER): choice
            for name, choice in self._options.items()
            if name.startswith(_CLASSIFIER)
        }
        usual = self._options.get("cold.classifier", "clock")
        policy = Policy(classifier=usual, classifiers=single)
        return ColdOptions(StoreOptions(durability=durability), policy)

    def _executor(self, events: DataFrame, files: Files, settings: Settings) -> Executor[DataFrame]:
        spark, root = self._spark, settings.root
        send_to_executors(spark.sparkContext)
        if self._exchange() == "shuffle":
            return ShuffleExchangeExecutor(spark, files, root, settings.codec)
        plain = self._choice("input", "auto", "rows") == "auto"
        sources = sources_of(events) if plain else None
        return FileExchangeExecutor(
            spark,
            files,
            root,
            sources,
            settings.codec,
            in_storage=settings.exchange_in_storage,
            kept=self._kept_columns(numbered=True),
        )

    def _driver(
        self,
        built: BuiltQuery[Computation],
        checkpoint: str,
        modes: Sequence[str],
        tables: Sequence[AppendTable] = (),
    ) -> tuple[Driver[DataFrame], Computation, Settings, Files]:
        """Open the checkpoint for a plan."""
        plan = self._planned(built.plan, modes)
        state = self._state_location(checkpoint)
        files = self._files(state)
        settings = self._settings(files, state)
        executor = self._executor(built.events, files, settings)
        lease = Lease(files, settings.root)
        if not self._is_set("takeOver"):
            lease.check()
        changed = evolve(settings.root, plan, files, self._memory)
        if changed is not None:
            warn_of_change(changed.differences, checkpoint)
        driver = Driver(
            plan,
            settings,
            files,
            executor,
            application=self._application(),
            lease=lease,
            tables=tables,
        )
        return driver, plan, settings, files

    def _application(self) -> str:
        """Return the name of this program, for the owner that loses the checkpoint to it."""
        context = self._spark.sparkContext
        query = "a query" if self._name is None else f"query {self._name!r}"
        return f"{query} of {context.appName!r} ({context.applicationId})"

    def _begin(
        self, events: DataFrame, batch: Callable[[DataFrame, int], None], checkpoint: str
    ) -> StreamingQuery:
        def without_ticks(rows: DataFrame, number: int) -> None:
            batch(rows.where(sf.col(SOURCE) != _TICK), number)

        if self._ticks:
            events = _with_ticks(events)
        called = without_ticks if self._ticks else batch
        writer = events.writeStream.foreachBatch(called).option("checkpointLocation", checkpoint)
        if self._name is not None:
            writer = writer.queryName(self._name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        return writer.start()


def _with_ticks(events: DataFrame) -> DataFrame:
    """Add a row to every trigger, so that Spark also calls back on idle ones."""
    ticks = events.sparkSession.readStream.format("rate-micro-batch")
    ticks = ticks.option("rowsPerBatch", 1).option("numPartitions", 1)
    columns = [
        sf.lit(_TICK if field.name == SOURCE else None).cast(field.dataType).alias(field.name)
        for field in events.schema
    ]
    return events.unionAll(ticks.load().select(*columns))


def _location(chosen: str) -> str:
    """Return a URI unchanged, and anything else as an absolute path of the local file system."""
    if chosen.startswith("file:"):
        return "/" + chosen[5:].lstrip("/")
    return chosen.rstrip("/") if "://" in chosen else os.path.abspath(chosen)


def _whole(word: str, given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        msg = f"{word} takes a whole number; got {given!r}"
        raise DefinitionError(msg)
    return given


def is_own(option: str) -> bool:
    """Return whether an option of a writer is not one of the sink."""
    return option in _OWN_OPTIONS or option.startswith((_STORAGE, _CLASSIFIER))
