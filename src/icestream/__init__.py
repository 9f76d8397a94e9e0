"""Icestream: stateful streaming on Spark with state far larger than memory.

    import icestream as ice

    calls = ice.stream(df, time="timestamp", slack="5 seconds")
    kpis = calls.window("24 hours", slide="10 seconds").groupBy("serviceId").agg(ice.count())
    query = kpis.writeStream.option("path", "out").option("checkpointLocation", "chk").start()

The API is in `icestream.api`; its names are imported here on first use, so that the lower layers
work without Spark. Below it: `sql` (SQL text), `plan` (queries as data), `operators` and `kernels`
(what runs), `state` (log and memory), `runtime` (versions on Spark or in one process). `inspect`,
`dashboard`, `cli` and `doctor` are the tools, `demo` is `icestream demo`, and `testing` has what
authors of operators and stores need.

Invariants:
1. `dir(icestream)` lists the API and the loaded sub-packages (`test_dir_lists_the_api`).
2. `icestream.sql` is the function, whatever was imported before
   (`test_sql_is_the_function_whatever_is_imported`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icestream.api.events import Events
    from icestream.api.files import files
    from icestream.api.functions import (
        any_value,
        approx_count_distinct,
        approx_percentile,
        approx_top_k,
        avg,
        bool_and,
        bool_or,
        collect_list,
        collect_set,
        corr,
        count,
        count_distinct,
        count_if,
        covar_pop,
        covar_samp,
        every,
        first,
        lag,
        last,
        max,
        max_by,
        mean,
        median,
        min,
        min_by,
        mode,
        percentile,
        percentile_approx,
        rank,
        row_number,
        some,
        stddev,
        stddev_pop,
        stddev_samp,
        sum,
        user,
        var_pop,
        var_samp,
        variance,
        weighted_avg,
    )
    from icestream.api.jobs import Tuples, job
    from icestream.api.joins import join
    from icestream.api.result import Result, Windowed, rows
    from icestream.api.start import start
    from icestream.api.state import erase_key, read_state, write_state
    from icestream.api.stream import Stream, stream
    from icestream.api.writer import StreamWriter
    from icestream.core.errors import (
        BudgetError,
        CheckpointError,
        DamageError,
        DefinitionError,
        IcestreamError,
        InputError,
        StorageError,
    )
    from icestream.operators.object_aggregates.user_aggregates import UserAggregate
    from icestream.operators.process.declarations import (
        ListState,
        MapState,
        ObjectState,
        TableState,
        ValueState,
        pickled,
    )
    from icestream.operators.process.per_group import StatefulProcessor
    from icestream.operators.process.vectorised import VectorisedProcessor
    from icestream.plan.jobs.building import JobWindow
    from icestream.plan.jobs.windows import JobStatistics
    from icestream.runtime.spark.query import Query
    from icestream.runtime.spark.session import local_session, settings
    from icestream.sql.lowering.query import sql
    from icestream.state.queue.queue import UpdateQueue

#: where the names of the API are defined
_HOMES = {
    "icestream.sql.lowering.query": "sql",
    "icestream.api.events": "Events",
    "icestream.api.files": "files",
    "icestream.api.functions": (
        "any_value approx_count_distinct approx_percentile approx_top_k avg bool_and bool_or "
        "collect_list collect_set corr count count_distinct count_if covar_pop covar_samp "
        "every first lag last max max_by mean median min min_by mode percentile percentile_approx "
        "rank row_number some stddev stddev_pop stddev_samp sum user var_pop var_samp variance "
        "weighted_avg"
    ),
    "icestream.api.jobs": "Tuples job",
    "icestream.api.joins": "join",
    "icestream.api.result": "Result Windowed rows",
    "icestream.api.state": "erase_key read_state write_state",
    "icestream.api.stream": "Stream stream",
    "icestream.api.start": "start",
    "icestream.api.writer": "StreamWriter",
    "icestream.core.errors": (
        "BudgetError CheckpointError DamageError DefinitionError IcestreamError InputError "
        "StorageError"
    ),
    "icestream.operators.object_aggregates.user_aggregates": "UserAggregate",
    "icestream.operators.process.declarations": (
        "ListState MapState ObjectState TableState ValueState pickled"
    ),
    "icestream.operators.process.per_group": "StatefulProcessor",
    "icestream.operators.process.vectorised": "VectorisedProcessor",
    "icestream.plan.jobs.building": "JobWindow",
    "icestream.plan.jobs.windows": "JobStatistics",
    "icestream.runtime.spark.query": "Query",
    "icestream.runtime.spark.session": "local_session settings",
    "icestream.state.queue.queue": "UpdateQueue",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "BudgetError",
    "CheckpointError",
    "DamageError",
    "DefinitionError",
    "Events",
    "IcestreamError",
    "InputError",
    "JobStatistics",
    "JobWindow",
    "ListState",
    "MapState",
    "ObjectState",
    "Query",
    "Result",
    "StatefulProcessor",
    "StorageError",
    "Stream",
    "StreamWriter",
    "TableState",
    "Tuples",
    "UpdateQueue",
    "UserAggregate",
    "ValueState",
    "VectorisedProcessor",
    "Windowed",
    "any_value",
    "approx_count_distinct",
    "approx_percentile",
    "approx_top_k",
    "avg",
    "bool_and",
    "bool_or",
    "collect_list",
    "collect_set",
    "corr",
    "count",
    "count_distinct",
    "count_if",
    "covar_pop",
    "covar_samp",
    "erase_key",
    "every",
    "files",
    "first",
    "job",
    "join",
    "lag",
    "last",
    "local_session",
    "max",
    "max_by",
    "mean",
    "median",
    "min",
    "min_by",
    "mode",
    "percentile",
    "percentile_approx",
    "pickled",
    "rank",
    "read_state",
    "row_number",
    "rows",
    "settings",
    "some",
    "sql",
    "start",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "stream",
    "sum",
    "user",
    "var_pop",
    "var_samp",
    "variance",
    "weighted_avg",
    "write_state",
]


def __getattr__(name: str) -> Any:
    """Import a name of the API on first use."""
    if name not in _HOME_OF:
        msg = f"module 'icestream' has no attribute {name!r}"
        # with a name and an object, Python says which name was meant
        raise AttributeError(msg, name=name, obj=sys.modules[__name__])
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    """List the API and the loaded sub-packages, not the imports of this module."""
    loaded = [name for name, value in globals().items() if _is_child(name, value)]
    return sorted({*__all__, *loaded, *(name for name in globals() if name.startswith("__"))})


def _is_child(name: str, value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__ == f"{__name__}.{name}"


class _Package(ModuleType):
    """A package whose API hides sub-packages of the same name: `icestream.sql` is the function."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, unless it is a sub-package with the name of a function."""
        if not (name in _HOME_OF and _is_child(name, value)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
