"""Events with lifetimes: grouped sub-queries, joins, differences, top-k and user code.

Idea: in `Events` every event has a lifetime, and each method returns new `Events`. `groupApply`
passes the events of a group to a function that defines what to compute for it; the function runs
once, for all groups, and uses the same methods. Conditions and columns are SQL text, because these
rows have left the JVM. A query that cannot run is refused while it is written.
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from typing import Any, ClassVar, Unpack

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from icestream.api.column_text import sql_text
from icestream.api.event_joins import (
    Within,
    bounds_of,
    deferred,
    kind_of_join,
    matched,
    may_defer,
    near,
    paired,
)
from icestream.api.event_writer import built, columns_of
from icestream.api.frames import framed
from icestream.api.functions import AggregateExpression
from icestream.api.hints import warn_of_instants
from icestream.api.shared_plan import BuiltQuery, StreamInput
from icestream.api.words import ColumnWords, quoted
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.core.units import format_interval, parse_interval
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow.edge_rows import EdgeRows
from icestream.operators.dataflow.steps import Filtering, Projecting
from icestream.operators.lifetimes.aggregate import lifetime_aggregate
from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes
from icestream.operators.lifetimes.changes import LifetimeOperator
from icestream.operators.lifetimes.difference import StreamDifference
from icestream.operators.lifetimes.edges import Edges
from icestream.operators.lifetimes.first_events import FirstEvents
from icestream.operators.lifetimes.ordering import Order
from icestream.operators.lifetimes.top import TopK
from icestream.operators.lifetimes.until_next import UntilNext
from icestream.operators.process.operator import Processor, UserDefined
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.explain import explained_dataflow
from icestream.plan.joins.multi_join import Equal, check_comparable
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    Final,
    FromSource,
    Joined,
    Left,
    Mapped,
    Node,
    Scope,
    United,
    late_events,
    upstream,
)
from icestream.plan.nodes.spilling import Spilling, SpillingOptions, defers
from icestream.plan.windows.lifetimes import (
    Forever,
    Hopping,
    Lifetime,
    Point,
    Shifted,
    WindowLifetime,
)
from icestream.runtime.spark.sink import as_they_are
from icestream.sql.expressions.compile import Predicate, Projection

#: numbers that identify sources while a query is written
_TAGS = count()


@dataclass(frozen=True)
class Events(ColumnWords):
    """Events with lifetimes, of a whole stream or of each group.

    Examples:
        >>> events.window("1 hour").groupApply(
        ...     "agent", lambda agent: agent.agg(ice.count().alias("n"))
        ... ).columns
        ['agent', 'n']
    """

    _called: ClassVar[str] = "events"
    _instead: ClassVar[Mapping[str, str]] = {
        "dropDuplicates": "groupBy('key').apply(lambda group: group.top(1, by=...))",
        "orderBy": "groupBy('key').apply(lambda group: group.top(n, by=...))",
        "limit": "groupBy('key').apply(lambda group: group.top(n, by=...))",
        "session": "session(...) of the stream, before events()",
        "show": "writeStream.format('console').start()",
        "write": "writeStream",
        "leftJoin": "join(other, on=..., how='left')",
    }
    _node: Node
    #: the sources of the events, by tag
    _parts: Mapping[int, StreamInput] = field(repr=False)

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns.

        Examples:
            >>> events.select("agent", "busyTime").columns
            ['agent', 'busyTime']
        """
        return list(self._node.payload.names)

    @property
    def _types(self) -> StructType:
        return from_arrow_schema(self._node.payload)

    # -- event by event --------------------------------------------------------------------

    def where(self, condition: str | Column) -> Events:
        """Keep the events that satisfy a condition: SQL text or a column.

        Examples:
            >>> long_calls = events.where("busyTime > 600")
        """
        text = sql_text(condition, self._node.payload, "where")
        predicate = Predicate.bind(self._node.payload, text)
        return self._mapped(Filtering(predicate), self._node.payload, f"where {predicate.text}")

    def select(self, *expressions: str | Column) -> Events:
        """Select columns, or expressions over them as in `selectExpr`; the keys of a group stay.

        Examples:
            >>> events.select("agent", "busyTime / 60 AS minutes").columns
            ['agent', 'minutes']
        """
        scope = self._node.scope
        texts = [sql_text(each, self._node.payload, "select") for each in expressions]
        projection = Projection.bind(self._node.payload, texts)
        if scope is not None:
            missing = [key for key in scope.keys if key not in projection.schema.names]
            projection = Projection.bind(self._node.payload, [*map(quoted, missing), *texts])
        return self._mapped(Projecting(projection), projection.schema, f"select {', '.join(texts)}")

    def alterLifetime(self, duration: str | int | None) -> Events:
        """Let each event live for a duration from its start; None means forever.

        Examples:
            >>> for_an_hour = events.alterLifetime("1 hour")
        """
        if duration is None:
            return self._altered(Forever())
        length = parse_interval(duration)
        if length <= 0:
            msg = f"a lifetime must be positive; got {duration!r}"
            raise DefinitionError(msg)
        return self._altered(WindowLifetime(length))

    def window(self, range: str | int, slide: str | int | None = None) -> Events:
        """Set lifetimes so that events are seen in windows [start, end), as those of a stream.

        At each multiple T of `slide`, the events of [T - range, T) are seen, until the next
        multiple. Without `slide` the window slides with time: this is `last(range)`.

        Examples:
            >>> hourly_events = events.window("1 hour", slide="10 minutes")
        """
        if slide is None:
            return self.last(range)
        return self._altered(Hopping(parse_interval(range), parse_interval(slide)))

    def last(self, range: str | int) -> Events:
        """Set lifetimes so that every instant sees the events of the last `range`, its own too.

        Examples:
            >>> of_the_last_hour = events.last("1 hour")
        """
        return self.alterLifetime(range)

    def forever(self) -> Events:
        """Let each event live forever from its start.

        Examples:
            >>> prices = events.select("symbol", "price").forever()
        """
        return self._altered(Forever())

    def point(self) -> Events:
        """Let each event live for one instant.

        Examples:
            >>> instants = events.alterLifetime("1 hour").point()
        """
        return self._altered(Point())

    def shift(self, by: str | int) -> Events:
        """Move each lifetime to later instants by a duration.

        Examples:
            >>> later = events.shift("5 minutes")
        """
        return self._altered(Shifted(parse_interval(by)))

    def untilNext(self, keys: str | Sequence[str]) -> Events:
        """Let each event live until the next one with equal keys: the versions of a table.

        A join with instants then finds the version of each instant. Of events with equal times one
        is seen, always the same.

        Examples:
            >>> prices = events.select("symbol", "price").untilNext("symbol")
            >>> events.select("symbol", "volume").join(prices, on="symbol", how="left").columns
            ['symbol', 'volume', 'price']
        """
        self._refuse_retractions("untilNext")
        operator = UntilNext(self._node.payload)
        return self.groupApply(
            keys, lambda group: group._applied(operator, "until the next", grows=False)
        )

    def dropDuplicates(
        self, keys: str | Sequence[str] | None = None, *, within: str | int | None = None
    ) -> Events:
        """Keep the first event by time of those with equal keys, or with all columns equal.

        With `within`, events up to that long after one that was kept are dropped, and the next one
        is kept again; without it, one event of each key is kept forever. Events wait for the
        watermark. Of events with equal times one is kept, always the same.

        Examples:
            >>> once = events.dropDuplicates("agent", within="10 minutes")
        """
        self._refuse_retractions("dropDuplicates")
        length = None if within is None else parse_interval(within)
        if length is not None and length < 0:
            msg = f"within must not be negative; got {within!r}"
            raise DefinitionError(msg)
        operator = FirstEvents(self._node.payload, length)
        text = "first events" if length is None else f"first events within {length}"
        return self.groupApply(
            self.columns if keys is None else keys,
            lambda group: group._applied(operator, text, grows=True),
        )

    def union(self, other: Events) -> Events:
        """Return the events of both streams; their columns must agree.

        Examples:
            >>> both = events.where("busyTime < 10").union(events.where("busyTime > 600"))
        """
        streams = self._together([other], "union")
        columns = _common(self._node.payload, other._node.payload)
        nodes = tuple(stream._loosened(columns)._node for stream in streams)
        united = United(
            columns,
            self._node.scope,
            all(node.grows for node in nodes),
            max(node.reach for node in nodes),
            nodes[0].delay,
            parts=nodes,
        )
        return self._of(united, streams)

    # -- groups ----------------------------------------------------------------------------

    def groupApply(
        self,
        keys: str | Sequence[str],
        apply: Callable[..., Events],
        *others: Events,
    ) -> Events:
        """Compute a sub-query for each group.

        Args:
            keys: the columns that define the groups; all streams have them.
            apply: takes the events of a group, of this stream and of `others`, and returns events.
            *others: further streams that the sub-query reads.

        Examples:
            >>> events.window("1 hour").groupApply(
            ...     "agent", lambda agent: agent.select("busyTime").top(3, by="busyTime")
            ... ).columns
            ['agent', 'busyTime']
        """
        names = (keys,) if isinstance(keys, str) else tuple(keys)
        outer = self._node.scope
        streams = self._together(others, "groupApply")
        for stream in streams:
            stream._check_columns(names, "groupApply")
        for name in names:
            check_comparable([stream._node.payload.field(name) for stream in streams])
        around = outer.keys if outer is not None else ()
        scope = Scope((*around, *(name for name in names if name not in around)), outer)
        made: object = apply(*(stream._entering(scope) for stream in streams))
        if not isinstance(made, Events) or made._node.scope is not scope:
            msg = "the function given to groupApply must return events made from its arguments"
            raise DefinitionError(msg)
        return made._leaving(outer)

    def groupBy(self, *cols: str | Sequence[str]) -> GroupedEvents:
        """Group events by columns, for aggregates over those alive, or any sub-query.

        Examples:
            >>> events.last("1 hour").groupBy("agent").agg(ice.count().alias("calls")).columns
            ['agent', 'calls']
        """
        keys = [name for each in cols for name in ([each] if isinstance(each, str) else each)]
        return GroupedEvents(self, tuple(keys))

    def agg(self, *aggregates: AggregateExpression) -> Events:
        """Compute aggregates of a group at each instant, over the events alive at that instant.

        Columns are names or SQL text: `ice.sum("price * amount").alias("turnover")`.

        Examples:
            >>> events.window("1 hour").groupApply(
            ...     "agent", lambda agent: agent.agg(ice.sum("busyTime").alias("busy"))
            ... ).columns
            ['agent', 'busy']
        """
        scope = self._scope("agg", "groupApply(keys, lambda group: group.agg(...))")
        if not aggregates or not all(isinstance(e, AggregateExpression) for e in aggregates):
            msg = "agg takes Icestream's aggregates, for example ice.count(), ice.sum('price')"
            raise DefinitionError(msg)
        texts = [
            [sql_text(column, self._node.payload, each.function) for column in each.columns]
            for each in aggregates
        ]
        inputs = list(dict.fromkeys(text for each in texts for text in each))
        named = [f"({text}) AS x{place}" for place, text in enumerate(inputs)]
        before = self.select(*map(quoted, scope.keys), *named)
        chosen = tuple(
            _aggregate(each, [f"x{inputs.index(text)}" for text in used], used)
            for each, used in zip(aggregates, texts, strict=True)
        )
        operator = lifetime_aggregate(before._node.payload, chosen, scope.keys)
        shown = ", ".join(
            f"{each.function}({', '.join(used) or '*'}) as {each.alias}"
            for each, used in zip(chosen, texts, strict=True)
        )
        return before._applied(operator, f"aggregate {shown}", grows=False)

    def top(
        self,
        k: int,
        by: str | Sequence[str],
        *,
        ascending: bool | Sequence[bool] = False,
        rank: str | None = None,
    ) -> Events:
        """Keep the top `k` events of a group at each instant, ordered by some columns.

        Args:
            k: the number of events.
            by: the columns, most significant first; nulls sort as in Spark.
            ascending: whether the least values are the top ones, for all columns or for each.
            rank: the name of a further column with the place of an event, from 1.

        Examples:
            >>> events.window("1 hour").groupApply(
            ...     "agent", lambda agent: agent.select("busyTime").top(3, by="busyTime")
            ... ).columns
            ['agent', 'busyTime']
        """
        self._scope("top", "groupApply(keys, lambda group: group.top(...))")
        names = (by,) if isinstance(by, str) else tuple(by)
        self._check_columns(names, "top")
        ways = [ascending] * len(names) if isinstance(ascending, bool) else list(ascending)
        if len(ways) != len(names) or not all(isinstance(way, bool) for way in ways):
            msg = (
                f"ascending must be True or False, or a list with one of them for each of the "
                f"{len(names)} columns of by; got {ascending!r}"
            )
            raise DefinitionError(msg)
        order = tuple(Order(n, descending=not way) for n, way in zip(names, ways, strict=True))
        operator = TopK(self._node.payload, k, order, rank=rank)
        words = ["ascending" if way else "descending" for way in ways]
        shown = [f"{name} {word}" for name, word in zip(names, words, strict=True)]
        text = f"{', '.join(names)} {words[0]}" if len(set(words)) == 1 else ", ".join(shown)
        ranked = "" if rank is None else ", ranked"
        return self._applied(operator, f"top {k} by {text}{ranked}", grows=False)

    def process(self, processor: Processor) -> Events:
        """Pass the events of each group to user code, which may keep state.

        Examples:
            >>> answers = events.groupApply("agent", lambda agent: agent.process(Counting()))
            >>> answers.columns
            ['agent', 'calls']
        """
        scope = self._scope("process", "groupApply(keys, lambda group: group.process(...))")
        self._refuse_delay("process")
        payload = self._node.payload
        keys = pa.schema([payload.field(key) for key in scope.keys])
        operator = UserDefined(processor, keys, payload)
        return self._applied(operator, f"process {type(processor).__name__}", grows=True)

    def edges(self, start: str, end: str, since: str, *, late: str = "close") -> Events:
        """Make events from rows that start an event and rows that end it.

        A row for which `start` holds starts an event, which is visible at once and has no end yet.
        A later row of its group for which `end` holds ends it. All other rows live for an instant.

        Args:
            start: a condition in SQL for rows that start an event.
            end: a condition in SQL for rows that end an event.
            since: an SQL expression over an end row: the time of the row that started the event.
            late: what a row that ends an event does if it comes too late: `close` ends the event
                at the watermark; `drop` ignores the row, and the event has no end. A row that
                starts an event too late is ignored, and so is the row that ends that event.

        Examples:
            >>> talks = events.groupApply(
            ...     "agent",
            ...     lambda agent: agent.edges(
            ...         start="busyTime = 0", end="busyTime > 0", since="timestamp"
            ...     ),
            ... )
        """
        self._scope("edges", "groupApply(keys, lambda group: group.edges(...))")
        self._refuse_delay("edges")
        self._refuse_retractions("edges")
        node = self._node
        if late not in ("close", "drop"):
            msg = f"late must be 'close' or 'drop'; got {late!r}"
            raise DefinitionError(msg)
        edge_rows = EdgeRows.bind(node.payload, start, end, since)

        def edges_of(rows: Events) -> Events:
            return rows._mapped(edge_rows, edge_rows.schema(node.payload), edge_rows.text)

        changes, too_late = edges_of(self), late_events(node)
        if late == "close" and too_late is not None:
            changes = changes.union(edges_of(replace(self, _node=too_late).where(end)))
        return changes._applied(Edges(node.payload, ()), "events of edges", grows=False)

    def over(
        self,
        *features: AggregateExpression,
        partitionBy: str | Sequence[str] = (),
        range: str | int | None = None,
        rows: int | str | None = None,
    ) -> Events:
        """Add columns to each event, over the events before it with the same keys, and itself.

        Events are in the order of time, those of equal time in the order of arrival. A row is
        emitted once, when no event before it can come any more. Calls can follow each other: the
        features of all of them are computed together.

        Args:
            *features: aggregates, or `ice.lag`, `ice.row_number` and `ice.rank`, with aliases.
            partitionBy: the columns that are equal; without any, all events count.
            range: how far back the frame reaches: at an event of time t it has the events of
                [t - range, t], also those of equal time that arrive later, as SQL's RANGE BETWEEN
                range PRECEDING AND CURRENT ROW.
            rows: how many events the frame has, the event and the `rows` - 1 before it, as SQL's
                ROWS BETWEEN rows - 1 PRECEDING AND CURRENT ROW; or `"unbounded"`. Without `range`
                and `rows` the frame has all events up to the event's time, as SQL's does.

        Examples:
            >>> events.over(
            ...     ice.count().alias("calls"), ice.avg("busyTime").alias("busy"),
            ...     partitionBy="agent", range="1 hour",
            ... ).over(ice.lag("busyTime").alias("before"), partitionBy="serviceId").columns[-3:]
            ['calls', 'busy', 'before']
        """
        if self._node.scope is not None:
            msg = "over works on whole streams, not inside groupApply: name the keys in partitionBy"
            raise DefinitionError(msg)
        names = (partitionBy,) if isinstance(partitionBy, str) else tuple(partitionBy)
        self._check_columns(names, "over")
        if any(isinstance(each, Joined) for each in upstream(self._node)):
            msg = "over cannot follow a join with onPressure='defer': use onPressure='fetch'"
            raise DefinitionError(msg)
        return replace(self, _node=framed(self._node, features, names, range, rows))

    # -- two streams -----------------------------------------------------------------------

    def join(
        self,
        other: Events,
        on: str | Sequence[Equal] | None = None,
        *,
        how: str = "inner",
        where: str | None = None,
        within: Within | None = None,
        onPressure: str = "fetch",
        **spilling: Unpack[SpillingOptions],
    ) -> Events:
        """Pair events whose lifetimes overlap; a pair lives while both events do.

        Args:
            other: the other stream; inside a group, a stream of the same group.
            on: columns with equal values: a name that both have, or a pair of names, or a list of
                these; needed outside a group. Null equals nothing.
            how: which events to return besides pairs: with `inner` none; with `left`, `right` or
                `full` also events of that side, or of both, with nulls, if they have no partner.
                `semi` returns only events of this stream that have a partner, and `anti` those that
                have none.
            where: a further condition on pairs, in SQL.
            within: pair events by their times, instead of by lifetime: at most this far apart, or
                `(low, high)` for a time of the other event that is later by at least `low` and at
                most `high`, both included: `within=("-5 minutes", "1 hour")`. An event without a
                partner is one row, as in Spark. Without `within`, it is there at the instants at
                which it has none.
            onPressure: what happens to state that does not fit into memory. `fetch`: it is read
                when it is needed, and every pair is emitted at once. `defer`: it waits on disk, and
                its pairs are emitted when the join is cleaned up. `auto`: `defer` where that is
                possible. See `ice.join`.
            **spilling: with `defer` or `auto`, the strategy, threshold, amount and partitions of
                `ice.join`.

        Examples:
            >>> prices = events.select("symbol", "price")
            >>> events.select("symbol", "volume").join(
            ...     prices, on="symbol", within="1 minute"
            ... ).columns
            ['symbol', 'volume', 'price']
        """
        streams = self._together([other], "join")
        kind, bounds = kind_of_join(how), None if within is None else bounds_of(within)
        can_defer = may_defer(streams, on)
        defer = defers(onPressure, spilling, possible=can_defer)
        spills = Spilling(**spilling) if defer else None
        if kind != "inner":
            made = matched(self, other, on, kind, where, bounds, spills)
        else:
            near_by = streams if bounds is None else near(streams, bounds)
            if spills is not None:
                made = deferred(near_by, on, where, spills)
            else:
                made = paired(near_by[0], near_by[1], on, where)
        if bounds is None:
            warn_of_instants((self._node, other._node), stacklevel=2)
            return made
        return replace(made, _node=replace(made._node, stays=True))

    def difference(self, other: Events, on: str | Sequence[str] | None = None) -> Events:
        """Keep events at the instants at which the other stream has no event of their group.

        Examples:
            >>> unanswered = events.alterLifetime("1 hour").difference(
            ...     events.where("busyTime > 0").shift("1 minute"), on="agent"
            ... )
        """
        if on is not None:
            return self.groupApply(on, lambda a, b: a.difference(b), other)
        self._scope("difference", "difference(other, on=...)")
        operator = StreamDifference(self._node.payload)
        return self._applied(operator, "difference", grows=False, other=other)

    # -- running ---------------------------------------------------------------------------

    @property
    def writeStream(self) -> StreamWriter:
        """Return a writer that sets where the results go and starts the query.

        Examples:
            >>> busy = events.window("1 hour").groupApply(
            ...     "agent", lambda agent: agent.agg(ice.count().alias("calls"))
            ... )
            >>> writer = busy.writeStream.format("noop").memory("64 MB")
        """
        built = self._built("append")
        return StreamWriter(None, built, as_they_are, built.rows[0], self._built)

    @property
    def schema(self) -> StructType:
        """Return the columns of the rows in append mode.

        Examples:
            >>> busy = events.window("1 hour").groupApply(
            ...     "agent", lambda agent: agent.agg(ice.count().alias("calls"))
            ... )
            >>> busy.schema.names
            ['lifetime', 'agent', 'calls']
        """
        return self._built("append").rows[0]

    def explain(self, progress: Mapping[str, Any] | None = None) -> None:
        """Print what will be computed and how.

        With a progress report of the running query (`query.lastProgress`), the costs of joins that
        defer use its measured numbers of rows and keys, otherwise assumed ones.

        Examples:
            >>> busy = events.window("1 hour").groupApply(
            ...     "agent", lambda agent: agent.agg(ice.count().alias("calls"))
            ... )
            >>> busy.explain()
                source  0: stream (...
        """
        print(explained_dataflow(self._built("append").plan, progress))

    def _built(self, mode: str) -> BuiltQuery[Dataflow]:
        """Return the projection of the sources and the dataflow, for an output mode."""
        if self._node.scope is not None:
            msg = "return the events of a group from groupApply's function before writing them"
            raise DefinitionError(msg)
        return built(self._node, self._parts, mode)

    # -- making nodes ----------------------------------------------------------------------

    def _mapped(
        self,
        change: Callable[[pa.RecordBatch], pa.RecordBatch],
        payload: pa.Schema,
        text: str,
        longer: int = 0,
        delay: int | None = None,
    ) -> Events:
        node = self._node
        made = Mapped(
            payload,
            node.scope,
            node.grows,
            node.reach + longer,
            node.delay if delay is None else delay,
            before=node,
            change=change,
            text=text,
        )
        return replace(self, _node=made)

    def _loosened(self, columns: pa.Schema) -> Events:
        """Allow nulls wherever the given columns, of the same types, do."""
        if self._node.payload.equals(columns):
            return self
        projection = replace(Projection.bind(self._node.payload, ["*"]), schema=columns)
        return self._mapped(Projecting(projection), columns, "allow nulls")

    def _altered(self, lifetime: Lifetime) -> Events:
        text, delay = f"lifetime {lifetime}", self._node.delay
        match lifetime:
            case WindowLifetime():
                longer = lifetime.duration
            case Hopping():
                longer = lifetime.range + lifetime.slide
                if delay:
                    lifetime = replace(lifetime, offset=delay)
                    text += f", delayed by {delay}"
            case Shifted():
                longer = lifetime.by
            case _:
                longer = 0
        return self._mapped(AlterLifetimes(lifetime), self._node.payload, text, longer)

    def _moved(self, by: int, delay: int) -> Events:
        """Let events live later; of that, `delay` in all is not meant."""
        if not by and delay == self._node.delay:
            return self
        change = AlterLifetimes(Shifted(by))
        return self._mapped(change, self._node.payload, f"lifetime {change.lifetime}", by, delay)

    def _final(self) -> Events:
        """Return rows of windows as others read them."""
        node = self._node
        made = Final(node.payload, None, True, node.reach, node.delay, before=node)
        return replace(self, _node=made)

    def _of(self, node: Node, streams: Sequence[Events]) -> Events:
        """Return a node that is made of streams."""
        return Events(node, {tag: part for s in streams for tag, part in s._parts.items()})

    def _entering(self, scope: Scope) -> Events:
        node = self._node
        entered = Entered(node.payload, scope, node.grows, node.reach, node.delay, before=node)
        return replace(self, _node=entered)

    def _leaving(self, scope: Scope | None) -> Events:
        node = self._node
        left = Left(node.payload, scope, node.grows, node.reach, node.delay, before=node)
        return replace(self, _node=left)

    def _applied(
        self, operator: LifetimeOperator, text: str, *, grows: bool, other: Events | None = None
    ) -> Events:
        streams = self._together([] if other is None else [other], text)
        nodes = tuple(stream._node for stream in streams)
        made = Applied(
            operator.result,
            self._node.scope,
            grows,
            max(node.reach for node in nodes),
            nodes[0].delay,
            inputs=nodes,
            operator=operator,
            text=text,
        )
        return self._of(made, streams)

    # -- validating ------------------------------------------------------------------------

    def _scope(self, method: str, instead: str) -> Scope:
        if self._node.scope is None:
            msg = f"{method} works only on the events of a group: use {instead}"
            raise DefinitionError(msg)
        return self._node.scope

    def _with_keys(self, names: Sequence[str]) -> Events:
        """Keep the events that have values in all of some columns."""
        fields = [self._node.payload.field(name) for name in names]
        missing = [quoted(each.name) for each in fields if each.nullable]
        return self.where(" AND ".join(f"{n} IS NOT NULL" for n in missing)) if missing else self

    def _check_columns(self, names: Sequence[str], method: str) -> None:
        unknown = [name for name in names if name not in self._node.payload.names]
        if unknown:
            msg = f"{method} names {unknown}; the columns are {self.columns}"
            raise DefinitionError(msg)

    def _together(self, others: Sequence[object], method: str) -> list[Events]:
        """Return these and other events of the same group, with equal delays."""
        streams = [self]
        for other in others:
            if not isinstance(other, Events):
                msg = f"{method} takes other events (stream.events()); got {type(other).__name__}"
                raise DefinitionError(msg)
            if other._node.scope is not self._node.scope:
                msg = (
                    f"{method} takes events of the same group: pass other streams to groupApply as "
                    "further arguments"
                )
                raise DefinitionError(msg)
            streams.append(other)
        delay = max(stream._node.delay for stream in streams)
        return [stream._moved(delay - stream._node.delay, delay) for stream in streams]

    def _refuse_retractions(self, method: str) -> None:
        if not self._node.grows:
            msg = f"{method} takes the rows of a stream, not results that may be retracted"
            raise DefinitionError(msg)

    def _refuse_delay(self, method: str) -> None:
        if self._node.delay:
            msg = (
                f"{method} reads the times of events, but the rows of a join within a bound exist "
                f"only {format_interval(self._node.delay)} after theirs: use {method} before the "
                "join"
            )
            raise DefinitionError(msg)


@dataclass(frozen=True)
class GroupedEvents:
    """Events by group.

    Examples:
        >>> events.forever().groupBy("agent").count().columns
        ['agent', 'count']
    """

    _events: Events
    _keys: tuple[str, ...]

    def agg(self, *aggregates: AggregateExpression) -> Events:
        """Compute aggregates of each group at each instant; see `Events.agg`.

        Examples:
            >>> events.forever().groupBy("agent").agg(ice.max("busyTime").alias("m")).columns
            ['agent', 'm']
        """
        return self.apply(lambda group: group.agg(*aggregates))

    def count(self) -> Events:
        """Count the events of each group that are alive.

        Examples:
            >>> events.last("1 hour").groupBy("agent").count().columns
            ['agent', 'count']
        """
        return self.agg(AggregateExpression("count", spelling="count").alias("count"))

    def apply(self, apply: Callable[..., Events], *others: Events) -> Events:
        """Compute a sub-query for each group; see `Events.groupApply`.

        Examples:
            >>> events.groupBy("agent").apply(lambda agent: agent.top(3, by="busyTime")).columns[-1]
            'agent'
        """
        return self._events.groupApply(self._keys, apply, *others)


def events_of(inputs: Sequence[StreamInput]) -> Events:
    """Return the events of a stream; each lives for one instant."""
    parts = {next(_TAGS): part for part in inputs}
    nodes = tuple(FromSource(columns_of(part), source=tag) for tag, part in parts.items())
    streams = [Events(node, {node.source: parts[node.source]}) for node in nodes]
    return reduce(Events.union, streams)


def _common(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return the columns of a union."""
    if one.names != other.names or one.types != other.types:
        msg = (
            f"a union needs equal columns: {_shown(one)} and {_shown(other)}; select and cast "
            "them with select(...)"
        )
        raise DefinitionError(msg)
    pairs = zip(one, other, strict=True)
    return pa.schema([a.with_nullable(a.nullable or b.nullable) for a, b in pairs])


def _aggregate(each: AggregateExpression, inputs: Sequence[str], texts: Sequence[str]) -> Aggregate:
    name = each.name or f"{each.title}({', '.join(texts) or '*'})"
    first = inputs[0] if inputs else None
    return Aggregate(each.function, first, name, tuple(inputs[1:]), each.parameters)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema)


__all__ = ["Events", "events_of"]
