"""Windows, their results before they are started, and how results go on as streams.

Idea: the user may project and filter the rows of windows (`select`, `where`). If nothing else
follows, this happens to the rows of a committed version on their way to the sink, and the windows
have operators of their own. Whatever reads the rows of windows, another window, a join, an
aggregate, reads them as events at the last instant of their window, once they are final; a table of
what holds reads them as they are.

Invariant: rows that go on are those that would have been written
(`test_oracle_every_kind_of_window_composes_as_in_sql`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from pyspark.sql import Column, DataFrame

from icestream.api.columns import column_names
from icestream.api.dataframe_methods import GroupMethods, ProjectedRows
from icestream.api.event_writer import together
from icestream.api.events import Events
from icestream.api.functions import AggregateExpression, as_column, count
from icestream.api.shared_plan import BuiltQuery, Statement, StreamInput, build
from icestream.api.stream_methods import GroupedEvents, StreamMethods
from icestream.api.window_rows import OWN_GAPS, reads_events, rows_of_statement, rows_of_windows
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import parse_interval
from icestream.operators.object_aggregates.functions import needs_objects
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.explain import explained_dataflow
from icestream.plan.explain import explained
from icestream.plan.grid import lower
from icestream.plan.grid.cost import WindowStatistics
from icestream.plan.nodes.queries import Plan, WindowKind
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from icestream.runtime.spark.sink import as_they_are

#: slide of windows that emit a row with every event
EVERY_EVENT = "event"


def rows(count: int) -> RowsSlide:
    """Return the slide of a result that emits a row with every `count`-th event.

    Examples:
        >>> calls.window("1 hour", slide=ice.rows(10)).groupBy("agent").count().columns
        ['time', 'agent', 'count']
    """
    return RowsSlide(count)


class WindowWords(StreamMethods):
    """What has windows: a stream, and every result."""

    @property
    @abstractmethod
    def _windowed(self) -> tuple[StreamInput, ...] | Events:
        """Return what windows are made of."""

    @abstractmethod
    def _with_batch(self, batch: DataFrame, on: Any, how: str) -> Self:
        """Return the rows joined with a batch."""

    def join(self, other: Any, on: Any = None, how: str = "inner", **more: Any) -> Any:
        """Join with a batch DataFrame, or with another stream, result or events.

        A batch adds its columns: to every event of a stream, as Spark does, or to the rows of a
        result on their way to the sink. Everything else is joined as by `Events.join`; rows of
        windows meet where their windows end together, for example by `window`.

        Examples:
            >>> names = spark.createDataFrame([("1", "Help")], "serviceId string, name string")
            >>> kpis.join(names, on="serviceId", how="left").columns
            ['serviceId', 'window', 'count', 'name']
            >>> longest = hourly.agg(ice.max("busyTime").alias("longest"))
            >>> kpis.join(longest, on=["window", "serviceId"]).columns
            ['window', 'serviceId', 'count', 'longest']
        """
        if not isinstance(other, DataFrame):
            return super().join(other, on, how, **more)
        if other.isStreaming or more:
            msg = (
                "join takes a batch DataFrame with on= and how=; a streaming one becomes a stream "
                "first: ice.stream(df, time=...)"
            )
            raise DefinitionError(msg)
        return self._with_batch(other, on, how)

    def groupBy(self, *cols: str | Column | Sequence[str | Column]) -> GroupedEvents:
        """Group all events so far by columns, for aggregates that grow with every event.

        To group the rows of each window, name `window` as well.

        Examples:
            >>> calls.groupBy("agent").agg(ice.count().alias("calls")).columns
            ['agent', 'calls']
            >>> kpis.groupBy("serviceId").agg(ice.max("count").alias("most")).columns
            ['serviceId', 'most']
        """
        return self.events().forever().groupBy(*cols)

    def window(
        self,
        range: str | int,
        slide: str | int | RowsSlide | None = None,
        startTime: str | int = 0,
    ) -> Windowed:
        """Group events into windows of length `range` every `slide`; tumbling without a slide.

        Args:
            range: the length of a window.
            slide: when windows are computed: an interval; `"event"` for a row with every event,
                over (t - range, t]; or `ice.rows(m)` for a row with every m-th event of a group.
            startTime: the offset of the windows from 1970-01-01 00:00 UTC.

        Examples:
            >>> calls.window("1 hour", slide="10 seconds").groupBy("agent").count().columns
            ['window', 'agent', 'count']
            >>> calls.window("1 hour", slide="event").groupBy("agent").count().columns
            ['time', 'agent', 'count']
        """
        length = parse_interval(range)
        if slide == EVERY_EVENT or isinstance(slide, RowsSlide):
            if startTime != 0:
                msg = "startTime is for windows on a grid, not for windows that move with events"
                raise DefinitionError(msg)
            every = slide if isinstance(slide, RowsSlide) else None
            return Windowed(self._windowed, Frame(range=length, slide=every))
        step = length if slide is None else parse_interval(slide)
        return Windowed(self._windowed, Windows(length, step, parse_interval(startTime)))

    def rows(
        self,
        count: int,
        slide: int | str | None = None,
        partitionBy: Column | str | Sequence[Column | str] | None = None,
        range: str | int | None = None,
    ) -> Windowed:
        """Group events into windows of the last `count` events of the stream, or of each group.

        Args:
            count: the number of events in a window, in the order of (time, arrival).
            slide: a number m for a row with every m-th event; an interval for rows at its
                multiples; None for a row with every event, for its group.
            partitionBy: columns that group the events; each group counts its own events.
            range: of these events, only those in (t - range, t], with a row for every event t of
                a group, or every m-th.

        Examples:
            >>> calls.rows(100, partitionBy="agent").agg(ice.avg("busyTime")).columns
            ['time', 'agent', 'avg(busyTime)']
        """
        given: object = count
        if not isinstance(given, int):
            msg = f"rows takes a number of events; got {count!r}"
            raise DefinitionError(msg)
        moves: RowsSlide | Micros | None = None
        if slide is not None:
            moves = RowsSlide(slide) if isinstance(slide, int) else parse_interval(slide)
        length = None if range is None else parse_interval(range)
        if partitionBy is None:
            frame = Frame(rows=count, slide=moves, partition="stream", range=length)
            return Windowed(self._windowed, frame)
        frame = Frame(rows=count, slide=moves, partition="key", range=length)
        return Windowed(self._windowed, frame, listed_columns([partitionBy]), _partitioned=True)

    def cumulative(self, size: str | int, step: str | int, startTime: str | int = 0) -> Windowed:
        """Group events into windows that grow every `step` and start afresh every `size`.

        Examples:
            >>> calls.cumulative("1 day", step="1 minute").groupBy("agent").count().columns
            ['window', 'agent', 'count']
        """
        return Windowed(
            self._windowed,
            Cumulative(parse_interval(size), parse_interval(step), parse_interval(startTime)),
        )

    def session(self, gap: str | int | Column) -> Windowed:
        """Group the events of each group into sessions, which a pause longer than `gap` ends.

        A gap that is a column is each event's own, as in Spark's `session_window`: an interval, or
        text such as `30 minutes`. An event without a positive gap is in no session.

        Examples:
            >>> calls.session("30 minutes").groupBy("agent").count().columns
            ['session_window', 'agent', 'count']
            >>> own = sf.when(sf.col("serviceId") == "1", "10 minutes").otherwise("30 minutes")
            >>> calls.session(own).groupBy("agent").count().columns
            ['session_window', 'agent', 'count']
        """
        if not isinstance(gap, Column):
            return Windowed(self._windowed, Session(parse_interval(gap)))
        if isinstance(self._windowed, Events):
            raise DefinitionError(OWN_GAPS)
        return Windowed(self._windowed, Session(None, "gap"), _gap=gap)


@dataclass(frozen=True)
class Windowed(GroupMethods):
    """The windows of a stream, by group.

    Examples:
        >>> calls.window("1 hour").groupBy("agent").agg(
        ...     ice.max("busyTime").alias("longest")
        ... ).columns
        ['window', 'agent', 'longest']
    """

    #: a stream, or events of any kind
    _source: tuple[StreamInput, ...] | Events
    _windows: WindowKind
    _keys: tuple[Column | str, ...] = ()
    _sets: tuple[tuple[int, ...], ...] | None = None
    #: whether the keys were given with the windows (`partitionBy`)
    _partitioned: bool = False
    #: the gap of sessions in which each event has its own
    _gap: Column | None = None

    def groupBy(self, *cols: Column | str | Sequence[Column | str]) -> Windowed:
        """Compute the aggregates for each combination of values of the columns, nulls included.

        Examples:
            >>> calls.window("1 hour").groupBy("serviceId", "agent").count().columns
            ['window', 'serviceId', 'agent', 'count']
        """
        keys = listed_columns(cols)
        if self._partitioned and _plain_texts(keys) != _plain_texts(self._keys):
            msg = (
                "rows(..., partitionBy=...) groups by the columns of partitionBy: leave groupBy "
                "out, or name the same columns"
            )
            raise DefinitionError(msg)
        return replace(self, _keys=keys, _sets=None)

    groupby = groupBy

    def groupingSets(
        self,
        groupingSets: Sequence[Sequence[Column | str]],
        *cols: Column | str | Sequence[Column | str],
    ) -> Windowed:
        """Compute several groupings at once, as `DataFrame.groupingSets` does.

        The column `grouping_id` of the result identifies the grouping of a row.

        Examples:
            >>> calls.window("1 hour").groupingSets(
            ...     [["serviceId", "agent"], ["serviceId"], []], "serviceId", "agent"
            ... ).count().columns
            ['window', 'serviceId', 'agent', 'grouping_id', 'count']
        """
        if self._partitioned:
            msg = "rows(..., partitionBy=...) has one grouping, by the columns of partitionBy"
            raise DefinitionError(msg)
        keys = listed_columns(cols)
        names = list(column_names(keys, "groupingSets"))
        asked = [column_names(chosen, "groupingSets") for chosen in groupingSets]
        unknown = sorted({name for chosen in asked for name in chosen} - set(names))
        if unknown:
            msg = (
                f"grouping sets name {unknown}, which are not among the columns {names}: write for "
                "example groupingSets([['a', 'b'], ['a']], 'a', 'b')"
            )
            raise DefinitionError(msg)
        if not asked:
            msg = "groupingSets needs at least one set of columns; use groupBy for a single set"
            raise DefinitionError(msg)
        sets = tuple(tuple(sorted({names.index(name) for name in chosen})) for chosen in asked)
        if len(set(sets)) < len(sets):
            msg = f"each grouping set may be given only once; got {asked}"
            raise DefinitionError(msg)
        return replace(self, _keys=keys, _sets=sets)

    def count(self) -> Result:
        """Count the events of each group and window.

        Examples:
            >>> calls.window("1 hour").count().columns
            ['window', 'count']
        """
        return self.agg(count().alias("count"))

    def agg(self, *aggregates: AggregateExpression) -> Result:
        """Compute aggregates over each window and group.

        Examples:
            >>> hourly.agg(ice.count().alias("calls"), ice.avg("busyTime").alias("busy")).columns
            ['window', 'serviceId', 'calls', 'busy']
        """
        if isinstance(self._source, Events):
            rows = rows_of_windows(self._source, self._windows, self._keys, self._sets, aggregates)
            return result_of(rows)
        keys = tuple(as_column(key) for key in self._keys)
        statement = Statement(self._source, self._windows, keys, self._sets, aggregates, self._gap)
        built = build([statement], runs=False)
        if has_objects(built.plan) and reads_events(built.plan):
            return result_of(rows_of_statement(statement))
        lower.check(built.plan)
        return Result(built, statement)


@dataclass(frozen=True)
class Result(WindowWords, ProjectedRows):
    """The rows that a query computes; start it with `writeStream`.

    Examples:
        >>> kpis.where("count > 100").select("window.end", "serviceId").columns
        ['end', 'serviceId']
    """

    _built: BuiltQuery[Any]
    #: what windows of their own operators compute; None if they are windows of events
    _statement: Statement | None
    _rows: Events | None = None

    @property
    def writeStream(self) -> StreamWriter:
        """Return a writer that sets where the results go and starts the query.

        Examples:
            >>> writer = kpis.writeStream.format("parquet").option("path", "out").memory("64 MB")
        """
        own = self._statement is not None
        built = self._built if own else self._in_mode("append")
        shape, schema = (self._shape, self.schema) if own else (as_they_are, built.rows[0])
        return StreamWriter(self._statement, built, shape, schema, self._in_mode, self, together)

    def explain(self, statistics: WindowStatistics | None = None) -> None:
        """Print what will be computed and how.

        With statistics of the stream, it also prints the size of both storage plans; a running
        query measures them itself and reports them in `lastProgress`.

        Examples:
            >>> kpis.explain()
                sources  [{'name': 'stream', ...
        """
        plan = self._built.plan
        as_events = self._statement is None
        print(explained_dataflow(plan) if as_events else explained(plan, statistics))

    # -- going on --------------------------------------------------------------------------

    def events(self) -> Events:
        """Return the rows as events at the last instant of their window, when they are final.

        In output mode `now`, what is computed from them follows the rows of open windows too.

        Examples:
            >>> kpis.events().groupApply("window", lambda group: group.top(3, by="count")).columns
            ['window', 'serviceId', 'count']
        """
        return self._events(newest=False)._final()

    def latestBy(self, *keys: str) -> Events:
        """Return the newest row of each key: each lives until the next; see `Events.untilNext`.

        Examples:
            >>> kpis.latestBy("serviceId").columns
            ['window', 'serviceId', 'count']
        """
        return self.events().untilNext(keys)

    @property
    def _windowed(self) -> Events:
        return self.events()

    def _with_batch(self, batch: DataFrame, on: Any, how: str) -> Self:
        return ProjectedRows.join(self, batch, on, how)

    def _events(self, *, newest: bool) -> Events:
        """Return the rows as events that are revised, after the user's projection."""
        rows = self._rows
        if rows is None:
            assert self._statement is not None
            rows = rows_of_statement(self._statement, newest=newest)
        for word, given in self._words:
            rows = getattr(rows, word)(*given)
        return rows

    def _in_mode(self, mode: str) -> BuiltQuery[Dataflow]:
        """Return the query as a dataflow: in mode `changes` rows replace those of their key."""
        if mode == "append":
            return self.events()._built(mode)
        return self._events(newest=True)._built("now" if mode == "changes" else mode)


def result_of(rows: Events) -> Result:
    """Return rows of windows of events as a result."""
    return Result(rows._final()._built("append"), None, rows)


def has_objects(plan: Plan) -> bool:
    """Return whether a result is computed from states that have no fixed size."""
    types = {field.name: field.type for field in plan.inputs}
    return any(
        (isinstance(view.windows, Frame) and view.windows.within_range)
        or any(needs_objects(each, types) for each in view.aggregates)
        for view in plan.views
    )


def _plain_texts(columns: Sequence[Column | str]) -> list[str]:
    """Return columns as text without their aliases; Spark ignores case."""
    texts = [str(as_column(column)).removeprefix("Column<'") for column in columns]
    return [text.removesuffix("'>").split(" AS ")[0].strip("`").lower() for text in texts]


def listed_columns(
    columns: Sequence[Column | str | Sequence[Column | str]],
) -> tuple[Column | str, ...]:
    """Return a result's columns, given one by one or as a list, as PySpark accepts them."""
    listed: list[Column | str] = []
    for each in columns:
        given: object = each
        if not isinstance(given, Column | str | Sequence):
            msg = f"expected columns or their names; got {given!r}"
            raise DefinitionError(msg)
        listed.extend([each] if isinstance(each, Column | str) else each)
    return tuple(listed)
