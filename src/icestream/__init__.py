"""Icestream: stateful streams on Spark whose state is far larger than memory.

    import icestream as ice

    calls = ice.stream(df, time="timestamp", slack="5 seconds")
    kpis = calls.window("24 hours", slide="10 seconds").groupBy("serviceId").agg(ice.count())
    query = kpis.writeStream.option("path", "out").option("checkpointLocation", "chk").start()

The names below are loaded when they are first used, so that the layers under the API work
without Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icestream.api.functions import (
        avg,
        count,
        max,
        mean,
        min,
        stddev,
        stddev_pop,
        stddev_samp,
        sum,
        var_pop,
        var_samp,
        variance,
    )
    from icestream.api.result import Result
    from icestream.api.stream import Stream, Windowed, stream
    from icestream.api.writer import StreamWriter
    from icestream.runtime.query import Query
    from icestream.runtime.session import local_session, settings

_HOMES = {
    "icestream.api.functions": (
        "avg",
        "count",
        "max",
        "mean",
        "min",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "sum",
        "var_pop",
        "var_samp",
        "variance",
    ),
    "icestream.api.result": ("Result",),
    "icestream.api.stream": ("Stream", "Windowed", "stream"),
    "icestream.api.writer": ("StreamWriter",),
    "icestream.runtime.query": ("Query",),
    "icestream.runtime.session": ("local_session", "settings"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Query",
    "Result",
    "Stream",
    "StreamWriter",
    "Windowed",
    "avg",
    "count",
    "local_session",
    "max",
    "mean",
    "min",
    "settings",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "stream",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
]


def __getattr__(name: str) -> Any:
    """Load a name of the API when it is first used."""
    if name not in _HOME_OF:
        msg = f"module 'icestream' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(_HOME_OF[name]), name)
