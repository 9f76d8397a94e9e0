"""Streams of events and their windows, in PySpark's words.

Idea: a stream wraps a streaming DataFrame and adds what a stream is: which column is the event's time and
how far events may come out of order. Every method returns a new object; `Windowed.agg` builds the
plan, and everything that can be refused is refused there, before a query starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    DataType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from icestream.api.functions import AggregateExpression, shown
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.core.units import parse_interval
from icestream.operators.aggregates import Aggregate
from icestream.operators.panes import Windows
from icestream.plan.nodes import SOURCE, TIME, Plan, Source
from icestream.state.keys import KeyCodec


@dataclass(frozen=True)
class _Part:
    """One DataFrame of a stream, with its own time and slack."""

    frame: DataFrame
    time: str
    source: Source


def stream(
    df: DataFrame,
    time: str,
    slack: str | int = "0 seconds",
    *,
    nulls: str = "error",
    name: str | None = None,
) -> Stream:
    """Make a stream of events from a streaming DataFrame.

    Args:
        df: any streaming DataFrame.
        time: the column with the time of the event, a timestamp.
        slack: how far behind the latest event others may come, as in `withWatermark`.
        nulls: `error` if events without a time are a mistake, `drop` to leave them out.
        name: what to call the stream in messages and plans.
    """
    if not isinstance(df, DataFrame):
        msg = f"ice.stream takes a streaming DataFrame; got {type(df).__name__}"
        raise DefinitionError(msg)
    if not df.isStreaming:
        msg = (
            "ice.stream needs a streaming DataFrame, and this one is a batch: read it with "
            "spark.readStream instead of spark.read"
        )
        raise DefinitionError(msg)
    kind = _type_of_time(df, time)
    if not isinstance(kind, TimestampType | TimestampNTZType):
        msg = (
            f"the time column {time!r} is {kind.simpleString()}, not a timestamp: convert it first, "
            f"for example df.withColumn({time!r}, F.timestamp_millis({time!r}))"
        )
        raise DefinitionError(msg)
    if nulls not in ("error", "drop"):
        msg = f"nulls must be 'error' or 'drop'; got {nulls!r}"
        raise DefinitionError(msg)
    length = parse_interval(slack)
    if length < 0:
        msg = f"slack must not be negative; got {slack!r}"
        raise DefinitionError(msg)
    return Stream((_Part(df, time, Source(name or "stream", length, nulls)),))


def _type_of_time(df: DataFrame, time: str) -> DataType:
    try:
        return df.select(F.col(time)).schema[0].dataType
    except AnalysisException:
        msg = f"there is no column {time!r} for the event time; the columns are {df.columns}"
        raise DefinitionError(msg) from None


@dataclass(frozen=True)
class Stream:
    """Events with a time."""

    _parts: tuple[_Part, ...]

    def where(self, condition: Column | str) -> Stream:
        """Keep the events that fulfil a condition."""
        return self._mapped(lambda frame: frame.where(condition))

    filter = where

    def withColumn(self, name: str, column: Column) -> Stream:
        """Add a column."""
        return self._mapped(lambda frame: frame.withColumn(name, column))

    def union(self, other: Stream) -> Stream:
        """Join two streams with the columns that queries use; the slower one sets the watermark."""
        numbered = [
            replace(part, source=replace(part.source, name=f"{part.source.name} {number}"))
            for number, part in enumerate((*self._parts, *other._parts), start=1)
        ]
        return Stream(tuple(numbered))

    def window(
        self, range: str | int, slide: str | int | None = None, startTime: str | int = 0
    ) -> Windowed:
        """Look at the events of the last `range`, every `slide`; tumbling without a slide."""
        length = parse_interval(range)
        step = length if slide is None else parse_interval(slide)
        return Windowed(self, Windows(length, step, parse_interval(startTime)))

    def _mapped(self, change: object) -> Stream:
        assert callable(change)
        return Stream(tuple(replace(part, frame=change(part.frame)) for part in self._parts))


@dataclass(frozen=True)
class Windowed:
    """A stream seen through windows, by groups."""

    _stream: Stream
    _windows: Windows
    _keys: tuple[Column | str, ...] = ()
    _sets: tuple[tuple[int, ...], ...] | None = None
    _late: str = "drop"

    def groupBy(self, *columns: Column | str) -> Windowed:
        """Compute the aggregates for each value of the columns; a null is a value too."""
        return replace(self, _keys=columns, _sets=None)

    groupby = groupBy

    def groupingSets(
        self, groupingSets: Sequence[Sequence[str]], *columns: Column | str
    ) -> Windowed:
        """Compute several groupings at once, as `DataFrame.groupingSets` does.

        The column `grouping_id` of the result tells the grouping of a row.
        """
        names = [key if isinstance(key, str) else shown(key) for key in columns]
        unknown = [name for chosen in groupingSets for name in chosen if name not in names]
        if unknown:
            msg = f"grouping sets name {unknown}, which are not among the columns {names}"
            raise DefinitionError(msg)
        if not groupingSets:
            msg = "groupingSets needs at least one set of columns; use groupBy for a single one"
            raise DefinitionError(msg)
        sets = tuple(tuple(sorted(names.index(name) for name in chosen)) for chosen in groupingSets)
        return replace(self, _keys=columns, _sets=sets)

    def count(self) -> Result:
        """Count the events of each group and window."""
        return self.agg(AggregateExpression("count", None, "*", "count"))

    def agg(self, *aggregates: AggregateExpression) -> Result:
        """Compute aggregates over each window and group."""
        if not aggregates:
            msg = "agg needs at least one aggregate, for example ice.count()"
            raise DefinitionError(msg)
        for each in aggregates:
            if not isinstance(each, AggregateExpression):
                msg = (
                    f"agg takes Icestream's aggregates (ice.count(), ice.sum('x'), ...); got {each!r}. "
                    "Functions of pyspark.sql.functions belong in the columns they aggregate"
                )
                raise DefinitionError(msg)
        inputs = _distinct_inputs(aggregates)
        frames = [self._project(part, number, inputs) for number, part in enumerate(self._stream._parts)]
        schema = frames[0].schema
        for frame in frames[1:]:
            if [field.dataType for field in frame.schema] != [field.dataType for field in schema]:
                msg = (
                    "the streams of a union must agree in the types of the columns the query uses: "
                    f"{schema.simpleString()} and {frame.schema.simpleString()}"
                )
                raise DefinitionError(msg)
        events = reduce(DataFrame.unionAll, frames)
        plan = self._plan(aggregates, inputs, schema)
        return Result(events, plan, _result_schema(plan, schema))

    def _project(
        self, part: _Part, number: int, inputs: dict[str, Column]
    ) -> DataFrame:
        columns = [F.col(part.time).alias(TIME), F.lit(number).cast("int").alias(SOURCE)]
        for place, key in enumerate(self._keys):
            columns.append((F.col(key) if isinstance(key, str) else key).alias(f"k{place}"))
        columns.extend(column.alias(f"x{place}") for place, column in enumerate(inputs.values()))
        try:
            return part.frame.select(*columns)
        except AnalysisException as error:
            msg = f"{str(error).splitlines()[0]} The columns are {part.frame.columns}"
            raise DefinitionError(msg) from None

    def _plan(
        self,
        aggregates: Sequence[AggregateExpression],
        inputs: dict[str, Column],
        schema: StructType,
    ) -> Plan:
        places = {text: f"x{place}" for place, text in enumerate(inputs)}
        first = 2 + len(self._keys)
        names = [key if isinstance(key, str) else shown_name(key) for key in self._keys]
        outputs = ["window", *names, *(each.name for each in aggregates)]
        twice = sorted({name for name in outputs if outputs.count(name) > 1})
        if twice:
            msg = f"the result would have several columns called {twice}: name them with .alias(...)"
            raise DefinitionError(msg)
        plan = Plan(
            sources=tuple(part.source for part in self._stream._parts),
            windows=self._windows,
            keys=pa.schema(
                [
                    pa.field(name, _arrow_type(field.dataType, name))
                    for name, field in zip(names, schema.fields[2:first], strict=True)
                ]
            ),
            inputs=pa.schema(
                [
                    pa.field(field.name, _arrow_type(field.dataType, text))
                    for text, field in zip(inputs, schema.fields[first:], strict=True)
                ]
            ),
            expressions=tuple(inputs),
            aggregates=tuple(
                Aggregate(each.function, places.get(each.text), each.name) for each in aggregates
            ),
            grouping_sets=self._sets,
            time=_arrow_type(schema[0].dataType, "the time column"),
            late=self._late,
        )
        KeyCodec(plan.group_keys)
        for aggregate in plan.aggregates:
            aggregate.result_type(plan.spec.types)
        return plan


@dataclass(frozen=True)
class Result:
    """What a query computes; start it with `writeStream`."""

    _events: DataFrame
    _plan: Plan
    schema: StructType

    @property
    def columns(self) -> list[str]:
        """Return the names of the result columns."""
        return self.schema.names

    @property
    def writeStream(self) -> StreamWriter:
        """Say where the results go and start the query."""
        return StreamWriter(self._events, self._plan, self.schema)

    def explain(self) -> None:
        """Print what will be computed and how."""
        windows = self._plan.windows
        for name, value in self._plan.describe().items():
            print(f"{name:>14}  {value}")
        print(f"{'panes':>14}  {windows.range_panes} per window, {windows.slide_panes} per slide")
        layout = self._plan.spec.layout
        print(f"{'state':>14}  {8 * layout.entry_width} bytes per group and pane on the log, ")
        print(f"{'':>14}  {8 * layout.group_width} bytes and the key per group in memory")


def _distinct_inputs(aggregates: Sequence[AggregateExpression]) -> dict[str, Column]:
    return {each.text: each.column for each in aggregates if each.column is not None}


def shown_name(key: Column) -> str:
    """Return the name a key column has in the result: its alias, or its text."""
    text = shown(key)
    before, separator, alias = text.rpartition(" AS ")
    return alias.strip("`") if separator and before else text


def _arrow_type(kind: DataType, name: str) -> pa.DataType:
    if isinstance(kind, StringType) and kind.simpleString() != "string":
        msg = f"column {name!r} is {kind.simpleString()}: only strings of the binary collation can be keys"
        raise DefinitionError(msg)
    try:
        return to_arrow_type(kind, timezone="UTC")
    except Exception as error:
        msg = f"column {name!r} of type {kind.simpleString()} cannot be used here: {error}"
        raise DefinitionError(msg) from None


def _result_schema(plan: Plan, events: StructType) -> StructType:
    """Return Spark's types of the result: keys as they came, answers as Spark gives them."""
    time = events[0].dataType
    window = StructType([StructField("start", time), StructField("end", time)])
    fields = [StructField("window", window)]
    for place, key in enumerate(plan.keys):
        fields.append(StructField(key.name, events[2 + place].dataType))
    for field in plan.results:
        if field.name not in ("window", *plan.keys.names):
            fields.append(StructField(field.name, from_arrow_type(field.type)))
    return StructType(fields)
