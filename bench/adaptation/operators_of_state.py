"""One query for every operator with state, over the same stream of keys and values.

Idea: a claim about all state must be shown for each kind of it. The queries are small, and their
    rows
do not depend on the order of arrival inside a batch, so that two runs can be compared by a sum of
hashes. The rows of update streams depend on the time available to a batch; only the last row of
each key is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import icestream as ice

#: columns of the stream
SCHEMA = "ts timestamp, key bigint, value bigint"


@dataclass(frozen=True)
class StatefulQuery:
    """A query, its options, and how its rows are compared."""

    query: Callable[[Any], Any]
    options: Mapping[str, str] = field(default_factory=dict)
    #: whether only the last row of each key, the first column, is deterministic
    last_rows: bool = False


def _stream(frame: Any) -> Any:
    return ice.stream(frame, time="ts", slack="1 second")


def _windows(frame: Any) -> Any:
    windows = _stream(frame).window("1 minute", slide="2 seconds")
    return windows.groupBy("key").agg(ice.count().alias("n"), ice.max("value").alias("top"))


def _tuples(frame: Any) -> Any:
    windows = _stream(frame).window("20 seconds", slide="2 seconds")
    return windows.groupBy("key").agg(ice.count().alias("n"), ice.sum("value").alias("total"))


def _medians(frame: Any) -> Any:
    return _stream(frame).window("8 seconds").groupBy("key").agg(ice.median("value").alias("m"))


def _row_per_event(frame: Any) -> Any:
    windows = _stream(frame).window("6 seconds", slide="event")
    return windows.groupBy("key").agg(ice.sum("value").alias("total"))


def _rows(frame: Any) -> Any:
    return _stream(frame).rows(20, slide=5, partitionBy="key").agg(ice.sum("value").alias("total"))


def _sessions(frame: Any) -> Any:
    sessions = _stream(frame).session("1 second")
    return sessions.groupBy("key").agg(ice.count().alias("n"), ice.sum("value").alias("total"))


def _aggregates(frame: Any) -> Any:
    events = _stream(frame).events().last("10 seconds")
    return events.groupApply("key", lambda g: g.agg(ice.sum("value").alias("total")))


def _top(frame: Any) -> Any:
    events = _stream(frame).events().last("4 seconds").select("key", "value")
    return events.groupApply("key", lambda g: g.top(2, by="value"))


def _pairs(frame: Any) -> Any:
    events = _stream(frame).events()
    even = events.where("value % 2 = 0").select("key", "value AS even")
    odd = events.where("value % 2 = 1").select("key", "value AS odd")
    return even.join(odd, on="key", within="500 milliseconds")


def _difference(frame: Any) -> Any:
    events = _stream(frame).events().select("key", "value")
    often = events.where("value % 3 > 0").alterLifetime("4 seconds")
    return often.difference(events.where("value % 3 = 0").alterLifetime("1 second"), on="key")


class Counting(ice.VectorisedProcessor):
    """Counts and adds up the events of each key."""

    state = {"totals": ice.ValueState("n long, total long")}  # noqa: RUF012 - declared by users so
    output = "key long, n long, total long"

    def process(self, batch: Any, state: Any) -> list[Any]:
        """Process the events of many keys."""
        old = state.totals.numpy()
        n = old["n"] + batch.sizes
        total = old["total"] + batch.reduce(np.add, "value")
        state.totals.set([n, total])
        return [batch.keys["key"], n, total]


def _own_code(frame: Any) -> Any:
    return _stream(frame).events().groupApply("key", lambda g: g.process(Counting()))


def _thirds(frame: Any, pressure: str) -> Any:
    events = _stream(frame).events()
    thirds = [
        events.where(f"value % 3 = {third}").select("key", f"value AS value{third}")
        for third in range(3)
    ]
    return ice.join(*thirds, on="key", within="300 milliseconds", onPressure=pressure)


def _fetching(frame: Any) -> Any:
    return _thirds(frame, "fetch")


def _deferring(frame: Any) -> Any:
    return _thirds(frame, "defer")


def _same(rows: Any) -> Any:
    return rows.select(["key", "value"])


def _updates(frame: Any) -> Any:
    values = ice.stream(frame, time="ts").latestBy("key")
    return values.apply(_same, "key bigint, value bigint")


def _update_windows(frame: Any) -> Any:
    newest = ice.stream(frame, time="ts").latestBy("key").window("4 seconds")
    return newest.agg(ice.sum("value").alias("total"))


def _added(state: dict[str, Any], tuples: Any) -> list[Any]:
    return [state["n"] + tuples.sizes, state["total"] + tuples.reduce(np.add, "value")]


def _merged(partials: Any) -> list[Any]:
    return [partials.reduce(np.add, "n"), partials.reduce(np.add, "total")]


def _job(frame: Any) -> Any:
    partials = ice.job(_stream(frame)).compute(
        _added, key="key", initial={"n": 0, "total": 0}, window="2 seconds", vectorised=True
    )
    return partials.consolidate(_merged, windows=("6 seconds", "10 seconds"), vectorised=True)


#: a query for every operator of windows, cold state, joins of many, update streams and jobs
OPERATORS: Mapping[str, StatefulQuery] = {
    "windows of panes": StatefulQuery(_windows),
    "windows of events": StatefulQuery(_tuples, {"plan": "tuples"}),
    "windows of objects": StatefulQuery(_medians),
    "row per event": StatefulQuery(_row_per_event),
    "last rows of a key": StatefulQuery(_rows),
    "sessions": StatefulQuery(_sessions),
    "groups: aggregate": StatefulQuery(_aggregates),
    "groups: top": StatefulQuery(_top),
    "groups: join": StatefulQuery(_pairs),
    "groups: difference": StatefulQuery(_difference),
    "groups: own code": StatefulQuery(_own_code),
    "multi-join, fetch": StatefulQuery(_fetching),
    "multi-join, defer": StatefulQuery(_deferring),
    "updates": StatefulQuery(_updates, last_rows=True),
    "update windows": StatefulQuery(_update_windows, last_rows=True),
    "job": StatefulQuery(_job),
}
