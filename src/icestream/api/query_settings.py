"""What a query needs besides its plan: folders, files, settings, tasks, the driver.

Idea: a writer collects options as text; here each is read, checked and turned into what runs.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa
import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from icestream.api.query_warnings import warn_of_change
from icestream.api.shared_plan import BuiltQuery, Statement
from icestream.core.errors import CheckpointError, DefinitionError
from icestream.core.units import parse_bytes, parse_interval
from icestream.inspect.evolve import evolve
from icestream.operators.dataflow.stores import ColdOptions
from icestream.operators.grid.operator import PANES
from icestream.plan.computation import Computation
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.grid import lower
from icestream.plan.nodes.queries import SOURCE
from icestream.plan.nodes.updates import Updates
from icestream.runtime.driver import Driver
from icestream.runtime.exchange.refused_rows import refused_columns
from icestream.runtime.ingest.reception import KEPT
from icestream.runtime.ingest.source import sources_of
from icestream.runtime.spark.arrow_types import to_arrow_schema
from icestream.runtime.spark.machine_code import is_local, send_to_executors
from icestream.runtime.spark.remote import EXCLUSIVE, RemoteFiles
from icestream.runtime.spark.sink import Callback
from icestream.runtime.spark.tasks import SparkExecutor
from icestream.runtime.tables.append_table import AppendTable
from icestream.runtime.tables.layout import TableFiles
from icestream.runtime.version.disk_use import COPIES
from icestream.runtime.version.lease import Lease
from icestream.runtime.version.quotas import least_quota
from icestream.runtime.version.scaling import spare_shards
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.work import Executor
from icestream.state.files import Files, LocalFiles
from icestream.state.groups.cold.manager import Policy
from icestream.state.groups.options import StoreOptions
from icestream.state.stores.bucket import SCHEMES, store_scheme
from icestream.state.stores.copies import LIMIT
from icestream.state.stores.store_files import StoreFiles
from icestream.state.versions.commits import VersionStore

#: memory of a query by default
DEFAULT_MEMORY = "512 MB"

OWN_OPTIONS = (
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
#: time between batches of an update stream by default
UPDATES_EVERY = "1 second"

#: source number of rows that are not events
_TICK = -1


@dataclass(frozen=True)
class QuerySettings:
    """What was set for a query, and what runs by these settings."""

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
    _together: Callable[[Sequence[object], Sequence[str]], BuiltQuery[Computation]] | None = None
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
    _memory_per_host: bool = False
    #: bytes of disk; None for any number
    _disk: int | None = None
    _shards: int | None = None
    _parallelism: int | tuple[int, int] | None = None
    _callback: Callback | None = None
    #: the identity of the checkpoint; a new one is written once nothing refuses the query
    _checkpoint_identity: str = ""

    @property
    def _spark(self) -> SparkSession:
        return self._built.events.sparkSession

    @property
    def _sink_options(self) -> dict[str, str]:
        return {key: value for key, value in self._options.items() if not is_own(key)}

    def _starting(self) -> Self:
        """Return these settings for one start, with the identity of the checkpoint."""
        state = self._state_location(self._checkpoint())
        store = VersionStore(self._files(state), f"{state}/icestream")
        return replace(self, _checkpoint_identity=store.identity(uuid.uuid4().hex))

    def _identity(self, view: int | str) -> str:
        """Return the name under which a table knows this query: it moves with the checkpoint."""
        return f"{self._checkpoint_identity}-{view}"

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

    def _table_files(self, place: str) -> Files:
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
            return self._choice("exchange", "files", "storage")
        return "files" if is_local(self._spark.sparkContext) else "storage"

    def _number_of_shards(self, files: Files, root: str) -> int:
        if self._shards is not None:
            return self._shards
        last = VersionStore(files, root).latest()
        if last is None:
            cores, plan = self._spark.sparkContext.defaultParallelism, self._built.plan
            tasks = self._most_tasks or cores
            least = plan.jobs * least_quota(plan)
            return spare_shards(self._memory, plan.jobs, least, tasks=tasks, cores=cores)
        return max(self._most_tasks or 1, len(last.arenas) // self._built.plan.jobs)

    @property
    def _most_tasks(self) -> int | None:
        return max(self._parallelism) if isinstance(self._parallelism, tuple) else self._parallelism

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
            per_host=self._memory_per_host,
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
        plain = self._choice("input", "auto", "rows") == "auto"
        sources = sources_of(events) if plain else None
        return SparkExecutor(
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
        if store_scheme(state) is None and files.exists(f"{state}/metadata"):
            msg = (
                f"the checkpoint at {state} is that of a query of Spark's own, which cannot be "
                "continued: choose a new folder, and read events as old as the longest window again"
            )
            raise CheckpointError(msg)
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


def is_own(option: str) -> bool:
    """Return whether an option is a setting of the query itself, not one of the sink."""
    return option in OWN_OPTIONS or option.startswith((_STORAGE, _CLASSIFIER))
