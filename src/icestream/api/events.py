"""Events with lifetimes: grouped sub-queries, joins, differences, the best of a group, user code.

Idea: `Events` is a stream in which every event has a lifetime and each method returns another one.
`groupApply` hands the events of one group, all groups at once, to a function that says what to
compute; inside it the same methods work on the group. Conditions and columns are SQL text, because
these rows are no longer in the JVM. Everything that can be refused is refused while the query is
written.
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
from pyspark.sql.types import StructType

from icestream.api.event_writer import built, columns_of
from icestream.api.functions import AggregateExpression
from icestream.api.statement import BuiltQuery, StreamInput
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.core.units import parse_interval
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow.edge_rows import EdgeRows
from icestream.operators.dataflow.padding import Padding
from icestream.operators.dataflow.steps import Filtering, Projecting
from icestream.operators.lifetimes.aggregate import LifetimeAggregate
from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes
from icestream.operators.lifetimes.changes import LifetimeOperator
from icestream.operators.lifetimes.difference import StreamDifference
from icestream.operators.lifetimes.edges import Edges
from icestream.operators.lifetimes.join import StreamJoin
from icestream.operators.lifetimes.ordering import Order
from icestream.operators.lifetimes.top import TopK
from icestream.operators.process.operator import Processor, UserDefined
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.explain import explained_dataflow
from icestream.plan.joins.multi_join import Equal, joined, refuse_after_joins
from icestream.plan.nodes.events import (
    Applied,
    Entered,
    FromSource,
    Left,
    Mapped,
    Node,
    Scope,
    United,
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

if TYPE_CHECKING:
    from icestream.api.stream import Stream

#: kinds of joins by PySpark's names, without underscores
_JOINS = {
    "inner": "inner",
    **dict.fromkeys(("left", "leftouter"), "left"),
    **dict.fromkeys(("right", "rightouter"), "right"),
    **dict.fromkeys(("full", "fullouter", "outer"), "full"),
    **dict.fromkeys(("semi", "leftsemi"), "semi"),
    **dict.fromkeys(("anti", "leftanti"), "anti"),
}
#: column that keeps events without a key from meeting each other
_ALONE = "without a key"
#: numbers that tell sources apart while a query is written
_TAGS = count()


@dataclass(frozen=True)
class Events:
    """Events with lifetimes, of a whole stream or of each group.

    Examples:
        >>> events.window("1 hour").groupApply(
        ...     "agent", lambda agent: agent.agg(ice.count().alias("n"))
        ... ).columns
        ['agent', 'n']
    """

    _node: Node
    #: the sources that take part, by tag
    _parts: Mapping[int, StreamInput] = field(repr=False)

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns.

        Examples:
            >>> events.select("agent", "busyTime").columns
            ['agent', 'busyTime']
        """
        return list(self._node.payload.names)

    # -- event by event --------------------------------------------------------------------

    def where(self, condition: str) -> Events:
        """Keep the events that fulfil a condition, written in SQL.

        Examples:
            >>> long_calls = events.where("busyTime > 600")
        """
        predicate = Predicate.bind(self._node.payload, condition)
        return self._mapped(Filtering(predicate), self._node.payload, f"where {predicate.text}")

    filter = where

    def select(self, *expressions: str) -> Events:
        """Choose columns, or expressions over them as in `selectExpr`; a group's keys stay.

        Examples:
            >>> events.select("agent", "busyTime / 60 AS minutes").columns
            ['agent', 'minutes']
        """
        scope = self._node.scope
        texts = list(expressions)
        projection = Projection.bind(self._node.payload, texts)
        if scope is not None:
            missing = [key for key in scope.keys if key not in projection.schema.names]
            projection = Projection.bind(self._node.payload, [*map(_quoted, missing), *texts])
        return self._mapped(Projecting(projection), projection.schema, f"select {', '.join(texts)}")

    selectExpr = select

    def withColumn(self, colName: str, col: str) -> Events:
        """Add a column, or replace the one of that name, by an SQL expression.

        Examples:
            >>> events.select("agent", "busyTime").withColumn("minutes", "busyTime / 60").columns
            ['agent', 'busyTime', 'minutes']
        """
        others = [_quoted(name) for name in self.columns if name != colName]
        return self.select(*others, f"({col}) AS {_quoted(colName)}")

    def alterLifetime(self, duration: str | int | None) -> Events:
        """Let each event live for a duration from its beginning on; None for ever.

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
        """See the events of the last `range`: at every instant, or at the multiples of `slide`.

        Examples:
            >>> hourly_events = events.window("1 hour", slide="10 minutes")
        """
        if slide is None:
            return self.alterLifetime(range)
        return self._altered(Hopping(parse_interval(range), parse_interval(slide)))

    def forever(self) -> Events:
        """Let each event live from its beginning on, for ever.

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
        """Let each event live as long as before, but so much later.

        Examples:
            >>> later = events.shift("5 minutes")
        """
        return self._altered(Shifted(parse_interval(by)))

    def union(self, other: Events) -> Events:
        """Take the events of both; their columns must agree.

        Examples:
            >>> both = events.where("busyTime < 10").union(events.where("busyTime > 600"))
        """
        self._check_together(other, "union")
        columns = _common(self._node.payload, other._node.payload)
        nodes = (self._loosened(columns)._node, other._loosened(columns)._node)
        united = United(
            columns,
            self._node.scope,
            all(node.grows for node in nodes),
            max(node.reach for node in nodes),
            parts=nodes,
        )
        return Events(united, {**self._parts, **other._parts})

    # -- groups ----------------------------------------------------------------------------

    def groupApply(
        self,
        keys: str | Sequence[str],
        apply: Callable[..., Events],
        *others: Events,
    ) -> Events:
        """Compute a sub-query for each group, all of them at once.

        Args:
            keys: the columns that tell groups apart; all streams have them.
            apply: gets the events of a group, of this stream and of `others`, and returns others.
            *others: further streams that the sub-query looks at.

        Examples:
            >>> events.window("1 hour").groupApply(
            ...     "agent", lambda agent: agent.select("busyTime").top(3, by="busyTime")
            ... ).columns
            ['agent', 'busyTime']
        """
        names = (keys,) if isinstance(keys, str) else tuple(keys)
        outer = self._node.scope
        for stream in (self, *others):
            stream._check_columns(names, "groupApply")
            self._check_together(stream, "groupApply")
        around = outer.keys if outer is not None else ()
        scope = Scope((*around, *(name for name in names if name not in around)), outer)
        made: object = apply(*(stream._entering(scope) for stream in (self, *others)))
        if not isinstance(made, Events) or made._node.scope is not scope:
            msg = "the function given to groupApply returns what it made of the events it was given"
            raise DefinitionError(msg)
        return made._leaving(outer)

    def agg(self, *aggregates: AggregateExpression) -> Events:
        """Compute aggregates of a group: at each instant, over the events alive then.

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
        texts = [[_text(column) for column in each.columns] for each in aggregates]
        inputs = list(dict.fromkeys(text for each in texts for text in each))
        named = [f"({text}) AS x{place}" for place, text in enumerate(inputs)]
        before = self.select(*map(_quoted, scope.keys), *named)
        chosen = tuple(
            _aggregate(each, [f"x{inputs.index(text)}" for text in used], used)
            for each, used in zip(aggregates, texts, strict=True)
        )
        operator = LifetimeAggregate(before._node.payload, chosen, scope.keys)
        shown = ", ".join(
            f"{each.function}({', '.join(used) or '*'}) as {each.alias}"
            for each, used in zip(chosen, texts, strict=True)
        )
        return before._applied(operator, f"aggregate {shown}", grows=False)

    def top(self, k: int, by: str | Sequence[str], *, ascending: bool = False) -> Events:
        """Keep the best `k` events of a group at each instant, by some columns.

        Examples:
            >>> events.window("1 hour").groupApply(
            ...     "agent", lambda agent: agent.select("busyTime").top(3, by="busyTime")
            ... ).columns
            ['agent', 'busyTime']
        """
        self._scope("top", "groupApply(keys, lambda group: group.top(...))")
        names = (by,) if isinstance(by, str) else tuple(by)
        self._check_columns(names, "top")
        order = tuple(Order(name, descending=not ascending) for name in names)
        operator = TopK(self._node.payload, k, order)
        way = "ascending" if ascending else "descending"
        return self._applied(operator, f"top {k} by {', '.join(names)} {way}", grows=False)

    def process(self, processor: Processor) -> Events:
        """Let user code with state of its own look at the events of each group.

        Examples:
            >>> answers = events.groupApply("agent", lambda agent: agent.process(Counting()))
            >>> answers.columns
            ['agent', 'calls']
        """
        scope = self._scope("process", "groupApply(keys, lambda group: group.process(...))")
        payload = self._node.payload
        keys = pa.schema([payload.field(key) for key in scope.keys])
        operator = UserDefined(processor, keys, payload)
        return self._applied(operator, f"process {type(processor).__name__}", grows=True)

    def edges(self, start: str, end: str, since: str) -> Events:
        """Make events that last of rows that begin and rows that end them.

        An event begins with a row for which `start` holds and is there at once, without an end; a
        later row of its group for which `end` holds ends it. All other rows live for an instant.

        Args:
            start: which rows begin an event, a condition in SQL.
            end: which rows end one, a condition in SQL.
            since: the time of the row that began what an end ends, in SQL.

        Examples:
            >>> talks = events.groupApply(
            ...     "agent",
            ...     lambda agent: agent.edges(
            ...         start="busyTime = 0", end="busyTime > 0", since="timestamp"
            ...     ),
            ... )
        """
        self._scope("edges", "groupApply(keys, lambda group: group.edges(...))")
        node = self._node
        if not node.grows:
            msg = "edges are rows of a stream, not results that may be taken back"
            raise DefinitionError(msg)
        edging = EdgeRows.bind(node.payload, start, end, since)
        told = self._mapped(edging, edging.schema(node.payload), edging.text)
        return told._applied(Edges(node.payload, ()), "events of edges", grows=False)

    # -- two streams -----------------------------------------------------------------------

    def join(
        self,
        other: Events,
        on: str | Sequence[Equal] | None = None,
        *,
        how: str = "inner",
        where: str | None = None,
        within: str | int | None = None,
        onPressure: str = "fetch",
        **spilling: Unpack[SpillingOptions],
    ) -> Events:
        """Pair events whose lifetimes have an instant in common, for these instants.

        Args:
            other: the other stream; inside a group, of the same group.
            on: columns with equal values: a name that both have, or a pair of names, or several of
                these; needed outside a group. Null equals nothing.
            how: which events without a partner come, with nulls, at the instants at which they have
                none: `inner` (none), `left`, `right` or `full`; or only events of this stream, at
                the instants at which they have a partner, `semi`, or have none, `anti`.
            where: what a pair must fulfil beside, in SQL; for `inner` joins.
            within: instead of their own lifetimes, pair events at most so far apart in time.
            onPressure: what happens to state that does not fit into memory. `fetch`: it is read
                when it is needed, and every pair comes at once; `defer`: it waits on disk, pairs
                with it come when the join is cleaned up. See `ice.join`.
            **spilling: with `defer`, the strategy, threshold, amount and partitions of `ice.join`.

        Examples:
            >>> prices = events.select("symbol", "price")
            >>> events.select("symbol", "volume").join(
            ...     prices, on="symbol", within="1 minute"
            ... ).columns
            ['symbol', 'volume', 'price']
        """
        self._check_together(other, "join")
        if (kind := _kind_of_join(how)) != "inner":
            if where is not None or within is not None or defers(onPressure, spilling):
                msg = (
                    f"how={how!r} goes by lifetimes and equal keys alone, without where=, within= "
                    "and onPressure='defer': set lifetimes before, with alterLifetime(...)"
                )
                raise DefinitionError(msg)
            return self._joined_or_alone(other, on, kind)
        if within is not None:
            near = WindowLifetime(parse_interval(within) + 1)
            return self._altered(near).join(
                other._altered(near), on, where=where, onPressure=onPressure, **spilling
            )
        if defers(onPressure, spilling):
            return self._deferred((other,), on, where, Spilling(**spilling))
        if on is not None:
            mine, theirs, keys = self._sharing(other, on, keep=Events._with_keys)
            return mine.groupApply(keys, lambda a, b: a.join(b, where=where), theirs)
        scope = self._scope("join", "join(other, on=...)")
        left, right = self._node.payload, other._node.payload
        names = [*left.names, *(_twin(n) if n in scope.keys else n for n in right.names)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"both sides of the join have {twice}: rename them with select('x AS y')"
            raise DefinitionError(msg)
        twins = [_twin(key) for key in scope.keys]
        pairs = pa.schema([f.with_name(n) for f, n in zip([*left, *right], names, strict=True)])
        residual = None if where is None else Predicate.bind(pairs, where)
        operator = StreamJoin(
            left, right, names, None if residual is None else residual.mask, hidden=twins
        )
        text = "join" if residual is None else f"join where {residual.text}"
        grows = self._node.grows and other._node.grows
        return self._applied(operator, text, grows=grows, other=other)

    def _joined_or_alone(
        self, other: Events, on: str | Sequence[Equal] | None, kind: str
    ) -> Events:
        """Return a join that also says where there is no partner."""
        if on is not None:
            mine, theirs, keys = self._apart(other, on)
            made = mine.groupApply((*keys, _ALONE), lambda a, b: a.join(b, how=kind), theirs)
            return made.select(*(_quoted(name) for name in made.columns if name != _ALONE))
        if kind == "semi":
            self._scope("join", "join(other, on=...)")
            operator = StreamDifference(self._node.payload, present=True)
            return self._applied(operator, "semi join", grows=False, other=other)
        if kind == "anti":
            return self.difference(other)
        pairs = self.join(other)
        alone = [self.difference(other)] if kind != "right" else []
        alone += [other.difference(self)] if kind != "left" else []
        columns = pa.schema([each.with_nullable(True) for each in pairs._node.payload])
        padded = [each._mapped(Padding(columns), columns, "with nulls") for each in alone]
        return reduce(Events.union, padded, pairs)

    def _apart(
        self, other: Events, on: str | Sequence[Equal]
    ) -> tuple[Events, Events, tuple[str, ...]]:
        """Return two streams with keys under names that both have; without a key nothing is equal.

        A further column tells apart what has all keys, and what of either stream has not.
        """
        mine, theirs, keys = self._sharing(other, on, keep=lambda stream, _names: stream)
        missing = " OR ".join(f"{_quoted(key)} IS NULL" for key in keys)
        left, right = (
            stream.withColumn(_ALONE, f"CASE WHEN {missing} THEN {number} ELSE 0 END")
            for number, stream in ((1, mine), (2, theirs))
        )
        return left, right, keys

    def _deferred(
        self,
        others: Sequence[Events],
        on: str | Sequence[Equal] | None,
        where: str | None,
        spilling: Spilling,
    ) -> Events:
        """Return a join whose state may leave memory, with the results that needs for later."""
        streams = (self, *others)
        if on is None or self._node.scope is not None:
            msg = "onPressure='defer' joins whole streams by columns: join(other, on=...)"
            raise DefinitionError(msg)
        for stream in streams:
            if not stream._node.grows:
                msg = (
                    "onPressure='defer' joins events that stay as they are, not results that may "
                    "be taken back: use onPressure='fetch'"
                )
                raise DefinitionError(msg)
        node = joined([stream._node for stream in streams], on, where, spilling)
        return Events(node, {tag: part for s in streams for tag, part in s._parts.items()})

    def _sharing(
        self,
        other: Events,
        on: str | Sequence[Equal],
        keep: Callable[[Events, Sequence[str]], Events],
    ) -> tuple[Events, Events, tuple[str, ...]]:
        """Return what is kept of two streams, with the columns of a join under shared names."""
        pairs = [
            (each, each) if isinstance(each, str) else tuple(each)
            for each in ((on,) if isinstance(on, str) else on)
        ]
        for pair in pairs:
            if len(pair) != 2:
                msg = f"on={pair} must name a column of each of the two streams"
                raise DefinitionError(msg)
        mine, theirs = (list(names) for names in zip(*pairs, strict=True))
        self._check_columns(mine, "join")
        other._check_columns(theirs, "join")
        left, right = keep(self, mine), keep(other, theirs)
        for name, twin in pairs:
            if name != twin and name in right.columns:
                msg = f"both sides of the join have {name!r}: rename it with select('x AS y')"
                raise DefinitionError(msg)
            if name != twin:
                right = right.withColumn(name, _quoted(twin))
        return left, right, tuple(mine)

    def difference(self, other: Events, on: str | Sequence[str] | None = None) -> Events:
        """Keep events at the instants at which the other stream has none in their group.

        Examples:
            >>> unanswered = events.alterLifetime("1 hour").difference(
            ...     events.where("busyTime > 0").shift("1 minute"), on="agent"
            ... )
        """
        if on is not None:
            return self.groupApply(on, lambda a, b: a.difference(b), other)
        self._scope("difference", "difference(other, on=...)")
        self._check_together(other, "difference")
        operator = StreamDifference(self._node.payload)
        return self._applied(operator, "difference", grows=False, other=other)

    # -- running ---------------------------------------------------------------------------

    @property
    def writeStream(self) -> StreamWriter:
        """Say where the results go and start the query.

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

        With a progress report of the running query (`query.lastProgress`), joins that defer are
        compared by the rows and keys it measured; else by assumed ones.

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
            msg = "events of a group leave it by being returned from groupApply's function"
            raise DefinitionError(msg)
        return built(self._node, self._parts, mode)

    # -- making nodes ----------------------------------------------------------------------

    def _mapped(
        self,
        change: Callable[[pa.RecordBatch], pa.RecordBatch],
        payload: pa.Schema,
        text: str,
        longer: int = 0,
    ) -> Events:
        node = self._node
        made = Mapped(
            payload,
            node.scope,
            node.grows,
            node.reach + longer,
            before=node,
            change=change,
            text=text,
        )
        return replace(self, _node=made)

    def _loosened(self, columns: pa.Schema) -> Events:
        """Allow nulls where other columns of the same types do."""
        if self._node.payload.equals(columns):
            return self
        projection = replace(Projection.bind(self._node.payload, ["*"]), schema=columns)
        return self._mapped(Projecting(projection), columns, "allow nulls")

    def _altered(self, lifetime: Lifetime) -> Events:
        match lifetime:
            case WindowLifetime():
                longer = lifetime.duration
            case Hopping():
                longer = lifetime.range + lifetime.slide
            case Shifted():
                longer = lifetime.by
            case _:
                longer = 0
        return self._mapped(
            AlterLifetimes(lifetime), self._node.payload, f"lifetime {lifetime}", longer
        )

    def _entering(self, scope: Scope) -> Events:
        node = self._node
        entered = Entered(node.payload, scope, node.grows, node.reach, before=node)
        return replace(self, _node=entered)

    def _leaving(self, scope: Scope | None) -> Events:
        node = self._node
        return replace(self, _node=Left(node.payload, scope, node.grows, node.reach, before=node))

    def _applied(
        self, operator: LifetimeOperator, text: str, *, grows: bool, other: Events | None = None
    ) -> Events:
        streams = (self,) if other is None else (self, other)
        nodes = tuple(stream._node for stream in streams)
        refuse_after_joins(nodes, text)
        made = Applied(
            operator.result,
            self._node.scope,
            grows,
            max(node.reach for node in nodes),
            inputs=nodes,
            operator=operator,
            text=text,
        )
        parts = {tag: part for stream in streams for tag, part in stream._parts.items()}
        return Events(made, parts)

    # -- refusing --------------------------------------------------------------------------

    def _scope(self, method: str, instead: str) -> Scope:
        if self._node.scope is None:
            msg = f"{method} works on the events of a group: use {instead}"
            raise DefinitionError(msg)
        return self._node.scope

    def _with_keys(self, names: Sequence[str]) -> Events:
        """Keep the events that have a value in all of some columns."""
        fields = [self._node.payload.field(name) for name in names]
        missing = [_quoted(each.name) for each in fields if each.nullable]
        return self.where(" AND ".join(f"{n} IS NOT NULL" for n in missing)) if missing else self

    def _check_columns(self, names: Sequence[str], method: str) -> None:
        unknown = [name for name in names if name not in self._node.payload.names]
        if unknown:
            msg = f"{method} names {unknown}; the columns are {self.columns}"
            raise DefinitionError(msg)

    def _check_together(self, other: object, method: str) -> None:
        if not isinstance(other, Events):
            msg = f"{method} takes other events (stream.events()); got {type(other).__name__}"
            raise DefinitionError(msg)
        if other._node.scope is not self._node.scope:
            msg = (
                f"{method} takes events of the same group: hand other streams to groupApply as "
                "further arguments"
            )
            raise DefinitionError(msg)


def events_of(stream: Stream) -> Events:
    """Return the events of a stream; each lives for one instant."""
    parts = {next(_TAGS): part for part in stream._parts}
    nodes = tuple(FromSource(columns_of(part), source=tag) for tag, part in parts.items())
    streams = [Events(node, {node.source: parts[node.source]}) for node in nodes]
    return reduce(Events.union, streams)


def _common(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return the columns of a union."""
    if one.names != other.names or one.types != other.types:
        msg = (
            f"a union needs equal columns: {_shown(one)} and {_shown(other)}; choose and cast "
            "them with select(...)"
        )
        raise DefinitionError(msg)
    pairs = zip(one, other, strict=True)
    return pa.schema([a.with_nullable(a.nullable or b.nullable) for a, b in pairs])


def _aggregate(each: AggregateExpression, inputs: Sequence[str], texts: Sequence[str]) -> Aggregate:
    name = each.name or f"{each.title}({', '.join(texts) or '*'})"
    first = inputs[0] if inputs else None
    return Aggregate(each.function, first, name, tuple(inputs[1:]), each.parameters)


def _kind_of_join(how: str) -> str:
    """Return the kind of a join by its name."""
    kind = _JOINS.get(how.lower().replace("_", ""))
    if kind is None:
        msg = f"how={how!r} is no join: use inner, left, right, full, semi or anti"
        raise DefinitionError(msg)
    return kind


def _text(column: object) -> str:
    """Return the SQL text of a column that was given by name."""
    return str(column).removeprefix("Column<'").removesuffix("'>")


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _twin(name: str) -> str:
    """Return the name of a key on the other side of a join."""
    return f"{name} of the other side"


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema)


__all__ = ["Events", "events_of"]
