"""Streams of events and their windows, named as in PySpark.

Idea: a stream wraps a streaming DataFrame and adds which column holds the event time and how far
events may arrive out of order. Every method returns a new object. `Windowed.agg` builds the
statement and refuses every query that cannot run, before it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast, overload

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import IntegralType, StructType, TimestampNTZType, TimestampType

from icestream.api.columns import as_spelled, column_names, named_column, resolving, spark_columns
from icestream.api.events import Events, events_of
from icestream.api.query_warnings import warn_of_linecutting
from icestream.api.result import Result, WindowWords, listed_columns, result_of
from icestream.api.shared_plan import StreamInput
from icestream.api.update_result import StepWords, UpdateResult
from icestream.api.updates import LatestBy, key_names, latest_by
from icestream.core.errors import DefinitionError
from icestream.core.units import parse_interval
from icestream.plan.nodes.updates import Latest


@overload
def stream(
    df: DataFrame,
    time: str = "",
    slack: str | int | None = None,
    *,
    nulls: str = "error",
    name: str = "stream",
    idle: str | int | None = None,
) -> Stream: ...


@overload
def stream(df: Events) -> Result: ...


def stream(
    df: DataFrame | Events,
    time: str = "",
    slack: str | int | None = None,
    *,
    nulls: str = "error",
    name: str = "stream",
    idle: str | int | None = None,
) -> Stream | Result:
    """Create a stream of events from a streaming DataFrame, or of the rows of events.

    Rows of events have their time already: that at which they begin, or become final.

    Args:
        df: any streaming DataFrame, or a batch of history for `bootstrap`; or events, such as those
            of a join, whose rows are to be in windows.
        time: the column with the time of the event, a timestamp; by default that of
            `df.withWatermark(time, ...)`.
        slack: how far an event may lag behind the latest one. By default it is that of
            `df.withWatermark(time, ...)`, and 0 without a watermark. Spark ignores the watermark
            of a batch: give the slack if the query is also built from history.
        nulls: `error` to fail on events without a time, `drop` to ignore them.
        name: the name of the stream in messages and plans.
        idle: how long the stream may be without events before it no longer holds back the watermark
            of a query that reads other streams as well; by default it always does. Events that it
            sends later, behind the watermark, are late. Windows behind `latestBy` end by the clock
            once all streams are idle.

    Examples:
        >>> orders = ice.stream(df, time="timestamp", slack="5 seconds", idle="1 minute")
        >>> orders.window("1 hour").count().columns
        ['window', 'count']
    """
    if isinstance(df, Events):
        return result_of(df)
    given: object = df
    if not isinstance(given, DataFrame):
        msg = f"ice.stream takes a DataFrame; got {type(df).__name__}"
        raise DefinitionError(msg)
    named = column_names(time, "time")
    (time,) = as_spelled(named if any(named) else _watermarked(df), df.columns)
    _check_time(df, time)
    if nulls not in ("error", "drop"):
        msg = f"nulls must be 'error' or 'drop'; got {nulls!r}"
        raise DefinitionError(msg)
    length = _watermark_delay(df, time) if slack is None else parse_interval(slack)
    if length < 0:
        msg = f"slack must not be negative; got {slack!r}"
        raise DefinitionError(msg)
    silent = None if idle is None else parse_interval(idle)
    if silent is not None and silent <= 0:
        msg = f"idle must be a positive interval; got {idle!r}"
        raise DefinitionError(msg)
    return Stream((StreamInput(df, time, length, nulls, name, silent),))


def _watermarked(df: DataFrame) -> tuple[str]:
    """Return the column on which a DataFrame has a watermark; no name without one."""
    found = [each.name for each in df.schema if "spark.watermarkDelayMs" in (each.metadata or {})]
    return (found[0] if len(found) == 1 else "",)


def _watermark_delay(df: DataFrame, time: str) -> int:
    """Return the delay of the watermark that a DataFrame has on a column; 0 without one."""
    metadata = df.select(named_column(df, time)).schema[0].metadata or {}
    return 1000 * int(metadata.get("spark.watermarkDelayMs", 0))


def _check_time(df: DataFrame, time: str, advice: str = "ice.stream(df, time=...)") -> None:
    try:
        with resolving(df.columns):
            kind = df.select(named_column(df, time)).schema[0].dataType
    except DefinitionError:
        asked = f"there is no column {time!r} for the event time" if time else "name the event time"
        msg = f"{asked}, {advice}; the columns are {df.columns}"
        raise DefinitionError(msg) from None
    if not isinstance(kind, TimestampType | TimestampNTZType):
        convert = "timestamp_millis" if isinstance(kind, IntegralType) else "to_timestamp"
        msg = (
            f"the time column {time!r} is {kind.simpleString()}, not a timestamp: convert it "
            f"first, for example df.withColumn({time!r}, sf.{convert}({time!r}))"
        )
        raise DefinitionError(msg)


@dataclass(frozen=True)
class Stream(WindowWords, StepWords):
    """Events with an event time.

    Examples:
        >>> calls.where("busyTime > 60").window("1 hour").groupBy("agent").count().columns
        ['window', 'agent', 'count']
    """

    _called: ClassVar[str] = "streams"
    _instead: ClassVar[Mapping[str, str]] = {
        "agg": "groupBy(...).agg(...), or window(...).agg(...)",
        "orderBy": "events().groupBy('key').apply(lambda group: group.top(n, by=...))",
        "limit": "events().groupBy('key').apply(lambda group: group.top(n, by=...))",
        "withWatermark": "ice.stream(df, time=..., slack=...)",
        "show": "writeStream.format('console').start() of a result",
        "writeStream": "df.writeStream for events as they are, or that of a result: groupBy(...)",
    }
    _parts: tuple[StreamInput, ...]

    @property
    def schema(self) -> StructType:
        return self._parts[0].frame.schema

    @property
    def _windowed(self) -> tuple[StreamInput, ...]:
        return self._parts

    def select(self, *cols: Column | str) -> Stream:
        """Select columns, or expressions over them; the event time must stay.

        Examples:
            >>> calls.select("timestamp", "busyTime / 60 AS minutes").columns
            ['timestamp', 'minutes']
        """
        return self._mapped(lambda frame: frame.select(*spark_columns(frame, cols)))

    def where(self, condition: Column | str) -> Stream:
        """Keep the events that satisfy a condition.

        Examples:
            >>> long_calls = calls.where("busyTime > 600")
        """
        return self._mapped(lambda frame: frame.where(condition))

    def withColumnRenamed(self, existing: str, new: str) -> Stream:
        """Give a column another name; the event time keeps its meaning.

        Examples:
            >>> calls.withColumnRenamed("timestamp", "at").columns[0]
            'at'
        """
        parts = [
            replace(
                part,
                frame=part.frame.withColumnRenamed(existing, new),
                time=new if as_spelled([existing], [part.time]) == (part.time,) else part.time,
            )
            for part in self._parts
        ]
        return Stream(tuple(parts))

    def union(self, other: Stream) -> Stream:  # type: ignore[override]
        """Return the events of both streams; the stream that lags behind sets the watermark.

        With a result or events instead of a stream, it returns events.

        Examples:
            >>> both = calls.union(
            ...     ice.stream(df, time="timestamp", slack="1 minute", name="branch")
            ... )
        """
        given: Any = other
        if isinstance(given, Stream):
            return Stream(self._parts + given._parts)
        made: Stream = cast("Any", super().union(given))
        return made

    def events(self) -> Events:
        """Return the stream as events with lifetimes, for grouped sub-queries, joins and user code.

        Each event lives for the instant of its time, until `window`, `forever` or `alterLifetime`
        sets another lifetime.

        Examples:
            >>> calls.events().select("agent", "busyTime").columns
            ['agent', 'busyTime']
        """
        return events_of(self._parts)

    def latestBy(
        self,
        *keys: Column | str | Sequence[Column | str],
        schedule: str = "inplace",
        budget: str | int | None = None,
        forgetAfter: str | int | None = None,
        under: str = "always",
    ) -> LatestBy:
        """Return the stream as updates: an event replaces the previous one of the same key.

        The step that follows (`apply`, `applyInPandas`, `map`) processes only the newest event of a
        key, for as many keys as fit into the time of a batch. The other keys wait with their newest
        value.

        Args:
            *keys: the key columns, one by one or as a list; without any, each event replaces the
                previous one.
            schedule: the order in which keys are served: `inplace`, the key that waits longest
                first; `fifo`, where an update moves its key to the end; `linecutting`, where keys
                with rare updates come first and others may never be served.
            budget: how long a batch may serve keys; by default the trigger's interval, less the
                time that the rest of a batch takes.
            forgetAfter: forget keys without an update for this long; an older update of such a key
                then counts as new. By default keys are never forgotten.
            under: `always` processes only the newest event; `load` processes every event while
                there is time for all of them.

        Examples:
            >>> calls.latestBy("symbol").map(
            ...     lambda row: {"symbol": row["symbol"]}, "symbol string"
            ... ).columns
            ['symbol']
        """
        length = None if forgetAfter is None else parse_interval(forgetAfter)
        names = key_names(self, listed_columns(keys))
        latest = Latest(names, schedule, length, under)
        warn_of_linecutting(schedule, 2)
        return latest_by(self, latest, budget)

    def _served(
        self, function: Any, schema: str | pa.Schema, form: str, retries: int
    ) -> UpdateResult:
        return LatestBy(self._parts, None)._served(function, schema, form, retries)

    def _with_batch(self, batch: DataFrame, on: Any, how: str) -> Stream:
        return self._mapped(lambda frame: frame.join(batch, on, how))

    def _mapped(self, change: Callable[[DataFrame], DataFrame]) -> Stream:
        parts = []
        for part in self._parts:
            with resolving(part.frame.columns):
                frame = change(part.frame)
            _check_time(
                frame, part.time, "which must stay: select it too, or use events().select(...)"
            )
            parts.append(replace(part, frame=frame))
        return Stream(tuple(parts))
