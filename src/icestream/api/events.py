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
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.types import StructType

from icestream.api.column_text import aggregates_over, sql_text
from icestream.api.columns import as_spelled, column_names, quoted
from icestream.api.event_writer import together
from icestream.api.functions import AggregateExpression
from icestream.api.query_warnings import warn_of_sliding
from icestream.api.shared_plan import BuiltQuery, StreamInput
from icestream.api.stream_methods import StreamMethods
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.core.units import format_interval, parse_interval
from icestream.operators.dataflow.steps import Filtering, Projecting, unchanged
from icestream.operators.lifetimes.aggregate import lifetime_aggregate
from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes, ColumnLifetimes
from icestream.operators.lifetimes.changes import LifetimeOperator
from icestream.operators.lifetimes.difference import StreamDifference
from icestream.operators.lifetimes.edges import EdgeRows, Edges
from icestream.operators.lifetimes.ordering import Order
from icestream.operators.lifetimes.top import TopK
from icestream.operators.lifetimes.until_next import UntilNext
from icestream.operators.process.operator import Processor, UserDefined
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.explain import explained_dataflow
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    Final,
    FromSource,
    Left,
    Mapped,
    Node,
    Scope,
    late_events,
)
from icestream.plan.windows.lifetimes import (
    Forever,
    Hopping,
    Lifetime,
    Point,
    Shifted,
    WindowLifetime,
)
from icestream.runtime.spark.arrow_types import from_arrow_schema
from icestream.runtime.spark.sink import as_they_are
from icestream.sql.expressions.compile import Predicate, Projection, text_in_zone

#: column with the last instant of an event that expires
EXPIRES = "__expires"
#: numbers that identify sources while a query is written
_TAGS = count()


@dataclass(frozen=True)
class Events(StreamMethods):
    """Events with lifetimes, of a whole stream or of each group.

    Examples:
        >>> events.last("1 hour").groupApply(
        ...     "agent", lambda agent: agent.agg(ice.count().alias("n"))
        ... ).columns
        ['agent', 'n']
    """

    _called: ClassVar[str] = "events"
    _instead: ClassVar[Mapping[str, str]] = {
        "orderBy": "groupBy('key').apply(lambda group: group.top(n, by=...))",
        "limit": "groupBy('key').apply(lambda group: group.top(n, by=...))",
        "session": "ice.stream(events).session(...)",
        "show": "writeStream.format('console').start()",
        "write": "writeStream",
        "leftJoin": "join(other, on=..., how='left')",
    }
    _node: Node
    #: the sources of the events, by tag
    _parts: Mapping[int, StreamInput] = field(repr=False)

    @property
    def columns(self) -> list[str]:
        return list(self._node.payload.names)

    @property
    def _types(self) -> StructType:
        return from_arrow_schema(self._node.payload)

    @property
    def _zone(self) -> str:
        """Return the zone of the session, in which expressions read times."""
        part = next(iter(self._parts.values()), None)
        return "UTC" if part is None else part.zone

    def events(self) -> Events:
        """Return the events themselves, as those of a stream.

        Examples:
            >>> events.events() is events
            True
        """
        return self

    # -- event by event --------------------------------------------------------------------

    def where(self, condition: str | Column) -> Events:
        """Keep the events that satisfy a condition: SQL text or a column.

        Examples:
            >>> long_calls = events.where("busyTime > 600")
        """
        text = sql_text(condition, self._node.payload, "where")
        predicate = Predicate.bind(self._node.payload, text, zone=self._zone)
        shown = text_in_zone(f"where {predicate.text}", predicate.bound)
        return self._mapped(Filtering(predicate), self._node.payload, shown)

    def select(self, *expressions: str | Column) -> Events:
        """Select columns, or expressions over them as in `selectExpr`; the keys of a group stay.

        Examples:
            >>> events.select("agent", "busyTime / 60 AS minutes").columns
            ['agent', 'minutes']
        """
        if not expressions:
            msg = f"select needs at least one column; the columns are {self.columns}"
            raise DefinitionError(msg)
        return self._selected(*expressions)

    def _selected(self, *expressions: str | Column) -> Events:
        """Select columns; none if nothing but the number of events counts."""
        scope = self._node.scope
        texts = [sql_text(each, self._node.payload, "select") for each in expressions]
        zone = self._zone
        projection = Projection.bind(self._node.payload, texts, zone=zone)
        if scope is not None:
            missing = [quoted(key) for key in scope.keys if key not in projection.schema.names]
            projection = Projection.bind(self._node.payload, [*missing, *texts], zone=zone)
        shown = text_in_zone(f"select {', '.join(texts)}", *projection.items)
        return self._mapped(Projecting(projection), projection.schema, shown)

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
        multiple. Without `slide` the window slides with time: `last(range)` says so.

        Examples:
            >>> hourly_events = events.window("1 hour", slide="10 minutes")
        """
        if slide is not None:
            return self._altered(Hopping(parse_interval(range), parse_interval(slide)))
        sliding = self.last(range)
        warn_of_sliding(range, stacklevel=2)
        return sliding

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

    def expires(self, at: str | Column) -> Events:
        """Let each event live until a time of its own, that instant included; without one, not.

        Examples:
            >>> valid = events.expires("timestamp + INTERVAL 1 HOUR")
        """
        ending = self.withColumn(EXPIRES, at)
        kind = ending._node.payload.field(EXPIRES).type
        if not pa.types.is_timestamp(kind):
            msg = (
                f"expires takes a timestamp; {at} is {kind}: convert it with timestamp_millis(...)"
            )
            raise DefinitionError(msg)
        return ending._between(None, EXPIRES).drop(EXPIRES)

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
        self._columns_named(column_names(keys, "untilNext"), "untilNext")
        return self.groupApply(
            keys, lambda group: group._applied(operator, "until the next", grows=False)
        )

    # -- groups ----------------------------------------------------------------------------

    def repartition(self) -> Events:
        """Let what follows run as a component of its own, even if it groups by the same keys.

        Otherwise what groups by the keys of a join or a group runs inside it, without an exchange.

        Examples:
            >>> apart = busy.repartition().groupApply("agent", lambda g: g.top(1, "calls"))
        """
        return self._mapped(unchanged, self._node.payload, "sent again")

    def agg(self, *aggregates: AggregateExpression) -> Events:
        """Compute aggregates of a group at each instant, over the events alive at that instant.

        Columns are names or SQL text: `ice.sum("price * amount").alias("turnover")`.

        Examples:
            >>> events.last("1 hour").groupApply(
            ...     "agent", lambda agent: agent.agg(ice.sum("busyTime").alias("busy"))
            ... ).columns
            ['agent', 'busy']
        """
        scope = self._scope("agg", "groupApply(keys, lambda group: group.agg(...))")
        if not aggregates or not all(isinstance(e, AggregateExpression) for e in aggregates):
            msg = "agg takes Icestream's aggregates, for example ice.count(), ice.sum('price')"
            raise DefinitionError(msg)
        inputs, found = aggregates_over(aggregates, self._node.payload, "*")
        before = self._selected(*map(quoted, scope.keys), *inputs)
        chosen = tuple(aggregate for aggregate, _ in found)
        operator = lifetime_aggregate(before._node.payload, chosen, scope.keys)
        shown = ", ".join(
            f"{each.function}({', '.join(texts) or '*'}) as {each.alias}" for each, texts in found
        )
        return before._applied(operator, f"aggregate {shown}", grows=False)

    def top(
        self,
        k: int,
        by: str | Column | Sequence[str | Column],
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
            >>> events.last("1 hour").groupApply(
            ...     "agent", lambda agent: agent.select("busyTime").top(3, by="busyTime")
            ... ).columns
            ['agent', 'busyTime']
        """
        self._scope("top", "groupApply(keys, lambda group: group.top(...))")
        names = self._columns_named(column_names(by, "top"), "top")
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
        edge_rows = EdgeRows.bind(node.payload, start, end, since, zone=self._zone)

        def edges_of(rows: Events) -> Events:
            return rows._mapped(edge_rows, edge_rows.schema(node.payload), edge_rows.text)

        changes, too_late = edges_of(self), late_events(node)
        if late == "close" and too_late is not None:
            changes = changes.union(edges_of(replace(self, _node=too_late).where(end)))
        return changes._applied(Edges(node.payload, ()), "events of edges", grows=False)

    # -- two streams -----------------------------------------------------------------------

    def difference(self, other: Events, on: str | Sequence[str] | None = None) -> Events:
        """Keep events at the instants at which the other stream has no event of their group.

        Null keys are a group like others, as in EXCEPT; in joins they equal nothing.

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
            >>> writer = busy.writeStream.format("noop").memory("64 MB")
        """
        built = self._built("append")
        return StreamWriter(None, built, as_they_are, built.rows[0], self._built, self, together)

    @property
    def schema(self) -> StructType:
        """Return the columns of the rows in append mode.

        Examples:
            >>> busy.schema.names
            ['lifetime', 'agent', 'calls']
        """
        return self._built("append").rows[0]

    def explain(self, progress: Mapping[str, Any] | None = None) -> None:
        """Print what will be computed and how.

        With a progress report of the running query (`query.lastProgress`), the costs of joins that
        defer use its measured numbers of rows and keys, otherwise assumed ones.

        Examples:
            >>> busy.explain()
                source  0: stream (...
        """
        print(explained_dataflow(self._built("append").plan, progress))

    def _built(self, mode: str) -> BuiltQuery[Dataflow]:
        """Return the projection of the sources and the dataflow, for an output mode."""
        return together([self], [mode])

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
        later = node.delay if delay is None else delay
        fields = payload, node.scope, node.grows, node.reach + longer, later
        return replace(self, _node=Mapped(*fields, before=node, change=change, text=text))

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

    def _between(self, start: str | None, end: str | None, longer: int = 0) -> Events:
        """Let events live from the time in one column to that in another, `longer` at most."""
        delay = self._node.delay
        text = f"lifetime from {start or 'its time'} to {end or 'the end'}"
        text += f", delayed by {delay}" if delay else ""
        return self._mapped(ColumnLifetimes(start, end, delay), self._node.payload, text, longer)

    def _moved(self, by: int, delay: int) -> Events:
        """Let events live later; of that, `delay` in all is not meant."""
        if not by and delay == self._node.delay:
            return self
        change = AlterLifetimes(Shifted(by))
        return self._mapped(change, self._node.payload, f"lifetime {change.lifetime}", by, delay)

    def _final(self) -> Events:
        """Return rows of windows as others read them."""
        return self._within(Final, None, grows=True)

    def _of(self, node: Node, streams: Sequence[Events]) -> Events:
        """Return a node that is made of streams."""
        return Events(node, {tag: part for s in streams for tag, part in s._parts.items()})

    def _entering(self, scope: Scope) -> Events:
        return self._within(Entered, scope, grows=self._node.grows)

    def _leaving(self, scope: Scope | None) -> Events:
        return self._within(Left, scope, grows=self._node.grows)

    def _within(
        self, kind: type[Entered | Left | Final], scope: Scope | None, *, grows: bool
    ) -> Events:
        node = self._node
        made = kind(node.payload, scope, grows, node.reach, node.delay, before=node)
        return replace(self, _node=made)

    def _applied(
        self, operator: LifetimeOperator, text: str, *, grows: bool, other: Events | None = None
    ) -> Events:
        streams = self._together([] if other is None else [other], text)
        nodes = tuple(stream._node for stream in streams)
        reach, delay = max(node.reach for node in nodes), nodes[0].delay
        fields = operator.result, self._node.scope, grows, reach, delay
        return self._of(Applied(*fields, inputs=nodes, operator=operator, text=text), streams)

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

    def _columns_named(self, names: Sequence[str], method: str) -> tuple[str, ...]:
        """Return names as the columns are spelled; raise an error for those that are not there."""
        found = as_spelled(names, self._node.payload.names)
        unknown = [name for name in found if name not in self._node.payload.names]
        if unknown:
            hint = ", and windows come first: window('1 hour').groupBy(...)"
            hint = hint if any("window(" in name for name in unknown) else ""
            msg = f"{method} names {unknown}; the columns are {self.columns}{hint}"
            raise DefinitionError(msg)
        return found

    def _renamed(self, names: Sequence[str], method: str) -> Events:
        """Return these events with columns that are spelled as given."""
        events = self
        for found, name in zip(self._columns_named(names, method), names, strict=True):
            events = events if found == name else events.withColumnRenamed(found, name)
        return events

    def _together(self, others: Sequence[object], method: str) -> list[Events]:
        """Return these and other events of the same group, with equal delays."""
        streams = [self]
        for given in others:
            if not isinstance(given, StreamMethods):
                msg = f"{method} takes other events (stream.events()); got {type(given).__name__}"
                raise DefinitionError(msg)
            other = given.events()
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


def events_of(inputs: Sequence[StreamInput]) -> Events:
    """Return the events of a stream; each lives for one instant."""
    parts = {next(_TAGS): part for part in inputs}
    nodes = tuple(FromSource(part.columns, source=tag) for tag, part in parts.items())
    streams = [Events(node, {node.source: parts[node.source]}) for node in nodes]
    return reduce(Events.union, streams)
