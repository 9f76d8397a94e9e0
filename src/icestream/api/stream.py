"""Streams of events and their windows, in PySpark's words.

Idea: a stream wraps a streaming DataFrame and adds what a stream is: which column is the event's
time and how far events may come out of order. Every method returns a new object; `Windowed.agg`
builds the plan, and everything that can be refused is refused there, before a query starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StructType, TimestampNTZType, TimestampType

from icestream.api.functions import AggregateExpression, as_column
from icestream.api.result import Result
from icestream.api.types import arrow_schema, arrow_type, result_schema
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
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
    slack: Micros
    nulls: str
    name: str


def stream(
    df: DataFrame,
    time: str,
    slack: str | int = "0 seconds",
    *,
    nulls: str = "error",
    name: str = "stream",
) -> Stream:
    """Make a stream of events from a streaming DataFrame.

    Args:
        df: any streaming DataFrame.
        time: the column with the time of the event, a timestamp.
        slack: how far behind the latest event others may come, as in `withWatermark`.
        nulls: `error` if events without a time are a mistake, `drop` to leave them out.
        name: what to call the stream in messages and plans.
    """
    _check_streaming(df)
    _check_time(df, time)
    if nulls not in ("error", "drop"):
        msg = f"nulls must be 'error' or 'drop'; got {nulls!r}"
        raise DefinitionError(msg)
    length = parse_interval(slack)
    if length < 0:
        msg = f"slack must not be negative; got {slack!r}"
        raise DefinitionError(msg)
    return Stream((_Part(df, time, length, nulls, name),))


def _check_streaming(df: object) -> None:
    if not isinstance(df, DataFrame):
        msg = f"ice.stream takes a streaming DataFrame; got {type(df).__name__}"
        raise DefinitionError(msg)
    if not df.isStreaming:
        msg = (
            "ice.stream needs a streaming DataFrame, and this one is a batch: read it with "
            "spark.readStream instead of spark.read"
        )
        raise DefinitionError(msg)


def _check_time(df: DataFrame, time: str) -> None:
    try:
        kind = df.select(sf.col(time)).schema[0].dataType
    except AnalysisException:
        msg = f"there is no column {time!r} for the event time; the columns are {df.columns}"
        raise DefinitionError(msg) from None
    if not isinstance(kind, TimestampType | TimestampNTZType):
        msg = (
            f"the time column {time!r} is {kind.simpleString()}, not a timestamp: convert it "
            f"first, for example df.withColumn({time!r}, sf.timestamp_millis({time!r}))"
        )
        raise DefinitionError(msg)


@dataclass(frozen=True)
class Stream:
    """Events with a time."""

    _parts: tuple[_Part, ...]

    def where(self, condition: Column | str) -> Stream:
        """Keep the events that fulfil a condition."""
        return self._mapped(lambda frame: frame.where(condition))

    filter = where

    def withColumn(self, colName: str, col: Column) -> Stream:
        """Add a column, or replace the one of that name."""
        return self._mapped(lambda frame: frame.withColumn(colName, col))

    def union(self, other: Stream) -> Stream:
        """Take the events of both streams; the one that is further behind sets the watermark."""
        return Stream(self._parts + other._parts)

    def window(
        self, range: str | int, slide: str | int | None = None, startTime: str | int = 0
    ) -> Windowed:
        """Look at the events of the last `range`, every `slide`; tumbling without a slide."""
        length = parse_interval(range)
        step = length if slide is None else parse_interval(slide)
        return Windowed(self, Windows(length, step, parse_interval(startTime)))

    @property
    def _sources(self) -> tuple[Source, ...]:
        """Return the sources under names that tell them apart."""
        names = [part.name for part in self._parts]
        return tuple(
            Source(
                part.name if names.count(part.name) == 1 else f"{part.name} {number}",
                part.slack,
                part.nulls,
            )
            for number, part in enumerate(self._parts, start=1)
        )

    def _mapped(self, change: Callable[[DataFrame], DataFrame]) -> Stream:
        parts = []
        for part in self._parts:
            try:
                frame = change(part.frame)
            except AnalysisException as error:
                raise _refusal(error, part.frame) from None
            _check_time(frame, part.time)
            parts.append(replace(part, frame=frame))
        return Stream(tuple(parts))


@dataclass(frozen=True)
class Windowed:
    """A stream seen through windows, by groups."""

    _stream: Stream
    _windows: Windows
    _keys: tuple[Column | str, ...] = ()
    _sets: tuple[tuple[int, ...], ...] | None = None

    def groupBy(self, *cols: Column | str | Sequence[Column | str]) -> Windowed:
        """Compute the aggregates for each value of the columns; a null is a value too."""
        return replace(self, _keys=_listed(cols), _sets=None)

    groupby = groupBy

    def groupingSets(
        self,
        groupingSets: Sequence[Sequence[Column | str]],
        *cols: Column | str | Sequence[Column | str],
    ) -> Windowed:
        """Compute several groupings at once, as `DataFrame.groupingSets` does.

        The column `grouping_id` of the result tells the grouping of a row.
        """
        keys = _listed(cols)
        names = [str(as_column(key)) for key in keys]
        asked = [[str(as_column(column)) for column in chosen] for chosen in groupingSets]
        unknown = sorted({name for chosen in asked for name in chosen} - set(names))
        if unknown:
            msg = f"grouping sets name {unknown}, which are not among the columns {names}"
            raise DefinitionError(msg)
        if not asked:
            msg = "groupingSets needs at least one set of columns; use groupBy for a single one"
            raise DefinitionError(msg)
        sets = tuple(tuple(sorted({names.index(name) for name in chosen})) for chosen in asked)
        if len(set(sets)) < len(sets):
            msg = f"each grouping set can be asked for once; got {asked}"
            raise DefinitionError(msg)
        return replace(self, _keys=keys, _sets=sets)

    def count(self) -> Result:
        """Count the events of each group and window."""
        return self.agg(AggregateExpression("count", None, "count", "count"))

    def agg(self, *aggregates: AggregateExpression) -> Result:
        """Compute aggregates over each window and group."""
        _check_aggregates(aggregates)
        sources, first = self._stream._sources, self._stream._parts[0]
        keys = [as_column(key) for key in self._keys]
        names = [_name_in(first.frame, key) for key in keys]
        answers = [each.name or _name_in(first.frame, each.in_spark) for each in aggregates]
        _check_names(["window", *names, *answers], self._sets)
        inputs = _distinct_inputs(first.frame, aggregates)
        frames = [
            _projected(part, number, keys, inputs)
            for number, part in enumerate(self._stream._parts)
        ]
        schema = frames[0].schema
        _check_union(frames)
        key_fields = schema.fields[2 : 2 + len(keys)]
        plan = Plan(
            sources=sources,
            windows=self._windows,
            keys=arrow_schema(names, key_fields),
            inputs=arrow_schema(
                [f"x{place}" for place in range(len(inputs.columns))],
                schema.fields[2 + len(keys) :],
            ),
            expressions=inputs.texts,
            aggregates=tuple(
                Aggregate(each.function, None if place is None else f"x{place}", name)
                for each, name, place in zip(aggregates, answers, inputs.places, strict=True)
            ),
            grouping_sets=self._sets,
            time=arrow_type(schema[0].dataType, first.time),
        )
        KeyCodec(plan.group_keys)
        rows = result_schema(plan, schema[0].dataType, [field.dataType for field in key_fields])
        return Result(reduce(DataFrame.unionAll, frames), plan, rows, first.time)


def _listed(
    columns: Sequence[Column | str | Sequence[Column | str]],
) -> tuple[Column | str, ...]:
    """Return columns that were given one by one or as a list, as PySpark takes them."""
    listed: list[Column | str] = []
    for each in columns:
        listed.extend([each] if isinstance(each, Column | str) else each)
    return tuple(listed)


def _check_aggregates(aggregates: Sequence[object]) -> None:
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


def _check_names(names: Sequence[str], sets: object) -> None:
    """Refuse names that Spark, which ignores case, takes for one column."""
    lower = [name.lower() for name in (*names, *([] if sets is None else ["grouping_id"]))]
    twice = sorted({name for name in lower if lower.count(name) > 1})
    if twice:
        msg = f"the result would have several columns called {twice}: name them with .alias(...)"
        raise DefinitionError(msg)


def _name_in(frame: DataFrame, column: Column) -> str:
    """Return the name Spark gives a column."""
    try:
        names = frame.select(column).columns
    except AnalysisException as error:
        raise _refusal(error, frame) from None
    if len(names) != 1:
        msg = f"columns are taken one by one; this one stands for {names}"
        raise DefinitionError(msg)
    return names[0]


@dataclass(frozen=True)
class _Inputs:
    """The columns that aggregates look at, each once."""

    columns: tuple[Column, ...]
    texts: tuple[str, ...]
    #: place of each aggregate's column; None where it counts whole events
    places: tuple[int | None, ...]


def _distinct_inputs(frame: DataFrame, aggregates: Sequence[AggregateExpression]) -> _Inputs:
    """Find the columns that mean the same; two may read alike and still differ."""
    columns: list[Column] = []
    texts: list[str] = []
    meanings: list[Any] = []
    places: list[int | None] = []
    for each in aggregates:
        if each.column is None:
            places.append(None)
            continue
        meaning = _meaning(frame, each.column)
        place = next((i for i, other in enumerate(meanings) if meaning.semanticEquals(other)), None)
        if place is None:
            place = len(columns)
            text = _name_in(frame, each.column)
            alike = sum(other.split(" #")[0] == text for other in texts)
            columns.append(each.column)
            texts.append(f"{text} #{alike + 1}" if alike else text)
            meanings.append(meaning)
        places.append(place)
    return _Inputs(tuple(columns), tuple(texts), tuple(places))


def _meaning(frame: DataFrame, column: Column) -> Any:
    """Return Spark's resolved expression of a column."""
    try:
        chosen = frame.select(column.alias("x"))
    except AnalysisException as error:
        raise _refusal(error, frame) from None
    return chosen._jdf.queryExecution().analyzed().expressions().head().child()


def _projected(part: _Part, number: int, keys: Sequence[Column], inputs: _Inputs) -> DataFrame:
    """Return the events of one part as ingest reads them."""
    columns = [
        sf.col(part.time).alias(TIME),
        sf.lit(number).cast("int").alias(SOURCE),
        *(key.alias(f"k{place}") for place, key in enumerate(keys)),
        *(column.alias(f"x{place}") for place, column in enumerate(inputs.columns)),
    ]
    try:
        return part.frame.select(*columns)
    except AnalysisException as error:
        raise _refusal(error, part.frame) from None


def _check_union(frames: Sequence[DataFrame]) -> None:
    schema = frames[0].schema
    for frame in frames[1:]:
        if _types(frame.schema) != _types(schema):
            msg = (
                "the streams of a union must agree in the types of the columns the query uses: "
                f"{schema.simpleString()} and {frame.schema.simpleString()}"
            )
            raise DefinitionError(msg)


def _types(schema: StructType) -> list[str]:
    kinds: list[DataType] = [field.dataType for field in schema.fields]
    return [kind.simpleString() for kind in kinds]


def _refusal(error: AnalysisException, frame: DataFrame) -> DefinitionError:
    """Return Spark's complaint in one line, with the columns there are."""
    return DefinitionError(f"{str(error).splitlines()[0]} The columns are {frame.columns}")
