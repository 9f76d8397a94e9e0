"""The words about events: unions, joins, groups, first events and frames, of whatever has events.

Idea: a stream, a result and events all are `events()`; each word has one implementation, over
these, so it means the same everywhere.

Invariant: the words of a stream and of a result are those of its events
(`test_words_about_events_are_those_of_events`).
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from icestream.api.column_text import sql_text
from icestream.api.event_joins import (
    Within,
    bounds_of,
    compared,
    condition_on,
    deferred,
    kind_of_join,
    matched,
    may_defer,
    near,
    paired,
)
from icestream.api.functions import AggregateExpression, count
from icestream.api.query_warnings import warn_of_instants
from icestream.api.table_joins import beside_table
from icestream.api.words import ColumnWords, GroupWords, column_names
from icestream.core.errors import DefinitionError
from icestream.core.units import parse_interval
from icestream.operators.lifetimes.first_events import FirstEvents
from icestream.plan.events.features import UP_TO_ROW, UP_TO_TIME, FeatureCall, with_features
from icestream.plan.joins.multi_join import Equal, check_comparable
from icestream.plan.nodes.events import Joined, Scope, United, upstream
from icestream.plan.nodes.spilling import Spilling, SpillingOptions, defers
from icestream.plan.windows.frame import Frame

if TYPE_CHECKING:
    from icestream.api.events import Events


class StreamWords(ColumnWords):
    """What has events: a stream, a result, and events themselves."""

    @abstractmethod
    def events(self) -> Events:
        """Return the events."""

    def dropDuplicates(
        self, *keys: str | Column | Sequence[str | Column], within: str | int | None = None
    ) -> Events:
        """Keep the first event by time of those with equal keys, or with all columns equal.

        With `within`, events up to that long after one that was kept are dropped, and the next one
        is kept again; without it, one event of each key is kept forever. Events wait for the
        watermark. Of events with equal times one is kept, always the same.

        Examples:
            >>> once = events.dropDuplicates("agent", within="10 minutes")
        """
        events = self.events()
        events._refuse_retractions("dropDuplicates")
        length = None if within is None else parse_interval(within)
        if length is not None and length < 0:
            msg = f"within must not be negative; got {within!r}"
            raise DefinitionError(msg)
        named = column_names(keys, "dropDuplicates") or tuple(events.columns)
        names = events._columns_named(named, "dropDuplicates")
        operator = FirstEvents(events._node.payload, length)
        text = "first events" if length is None else f"first events within {length}"
        return events.groupApply(
            names,
            lambda group: group._applied(operator, text, grows=True),
        )

    def union(self, other: StreamWords) -> Events:
        """Return the events of both streams; their columns must agree.

        Examples:
            >>> both = events.where("busyTime < 10").union(events.where("busyTime > 600"))
        """
        streams = self.events()._together([other], "union")
        columns = _common(*(stream._node.payload for stream in streams))
        nodes = tuple(stream._loosened(columns)._node for stream in streams)
        united = United(
            columns,
            nodes[0].scope,
            all(node.grows for node in nodes),
            max(node.reach for node in nodes),
            nodes[0].delay,
            parts=nodes,
        )
        return streams[0]._of(united, streams)

    def over(
        self,
        *features: AggregateExpression,
        partitionBy: str | Column | Sequence[str | Column] | None = None,
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
                ROWS BETWEEN rows - 1 PRECEDING AND CURRENT ROW; or `"unbounded"`. With a `range`,
                those of them that are in it. Without `range` and `rows` the frame has all events
                up to the event's time, as SQL's does.

        Examples:
            >>> events.over(
            ...     ice.count().alias("calls"), ice.avg("busyTime").alias("busy"),
            ...     partitionBy="agent", range="1 hour",
            ... ).over(ice.lag("busyTime").alias("before"), partitionBy="serviceId").columns[-3:]
            ['calls', 'busy', 'before']
        """
        events = self.events()
        if events._node.scope is not None:
            msg = "over works on whole streams, not inside groupApply: name the keys in partitionBy"
            raise DefinitionError(msg)
        names = events._columns_named(column_names(partitionBy, "partitionBy"), "over")
        for name in names:
            check_comparable([events._node.payload.field(name)])
        if any(isinstance(each, Joined) for each in upstream(events._node)):
            msg = "over cannot follow a join with onPressure='defer': use onPressure='fetch'"
            raise DefinitionError(msg)
        if not features or not all(isinstance(e, AggregateExpression) for e in features):
            msg = (
                "over takes Icestream's functions, for example "
                "over(ice.sum('amount').alias('spent'), partitionBy='card', range='1 hour')"
            )
            raise DefinitionError(msg)
        frame, calls = _frame(range, rows), []
        for each in features:
            texts = [sql_text(c, events._node.payload, each.function) for c in each.columns]
            name = each.name or f"{each.title}({', '.join(texts) or '*'})"
            call = FeatureCall(each.function, tuple(texts), name, names, frame, each.parameters)
            calls.append(call)
        return replace(events, _node=with_features(events._node, calls))

    def groupApply(
        self,
        keys: str | Column | Sequence[str | Column],
        apply: Callable[..., Events],
        *others: StreamWords,
    ) -> Events:
        """Compute a sub-query for each group.

        Args:
            keys: the columns that define the groups; all streams have them.
            apply: takes the events of a group, of this stream and of `others`, and returns events.
            *others: further streams that the sub-query reads.

        Examples:
            >>> events.last("1 hour").groupApply(
            ...     "agent", lambda agent: agent.select("busyTime").top(3, by="busyTime")
            ... ).columns
            ['agent', 'busyTime']
        """
        named = column_names(keys, "groupApply")
        given: object = apply
        if not callable(given):
            msg = f"groupApply takes keys and a function of the events of a group; got {given!r}"
            raise DefinitionError(msg)
        streams = self.events()._together(others, "groupApply")
        outer = streams[0]._node.scope
        names = streams[0]._columns_named(named, "groupApply")
        streams = [stream._renamed(names, "groupApply") for stream in streams]
        for name in names:
            check_comparable([stream._node.payload.field(name) for stream in streams])
        around = outer.keys if outer is not None else ()
        scope = Scope((*around, *(name for name in names if name not in around)), outer)
        made = apply(*(stream._entering(scope) for stream in streams))
        if getattr(getattr(made, "_node", None), "scope", None) is not scope:
            msg = "the function given to groupApply must return events made from its arguments"
            raise DefinitionError(msg)
        return made._leaving(outer)

    def groupBy(self, *cols: str | Column | Sequence[str | Column]) -> GroupedEvents:
        """Group events by columns, for aggregates over those alive, or any sub-query.

        Examples:
            >>> events.last("1 hour").groupBy("agent").agg(ice.count().alias("calls")).columns
            ['agent', 'calls']
        """
        return GroupedEvents(self.events(), column_names(cols, "groupBy"))

    def join(
        self,
        other: Any,
        on: str | Sequence[Equal] | None = None,
        how: str = "inner",
        *,
        where: str | Column | None = None,
        within: Within | None = None,
        onPressure: str = "fetch",
        **spilling: Unpack[SpillingOptions],
    ) -> Events:
        """Pair events whose lifetimes overlap; a pair lives while both events do.

        Args:
            other: another stream, result or events; inside a group, a stream of the same group; or
                a batch DataFrame, whose rows are read now and belong to the query.
            on: columns with equal values: a name that both have, or a pair of names, or a list of
                these; needed outside a group. Null equals nothing.
            how: which events to return besides pairs: with `inner` none; with `left`, `right` or
                `full` also events of that side, or of both, with nulls, if they have no partner.
                `semi` returns only events of this stream that have a partner, and `anti` those that
                have none.
            where: a further condition on pairs: SQL or a column.
            within: pair events by their times, instead of by lifetime: at most this far apart, or
                `(low, high)` for a time of the other event that is later by at least `low` and at
                most `high`, both included: `within=("-5 minutes", "1 hour")`. An event without a
                partner is one row, as in Spark. Without `within`, it is there at the instants at
                which it has none.
            onPressure: what happens to state that does not fit into memory: `fetch`, `defer` or
                `auto`, as in `ice.join`.
            **spilling: with `defer` or `auto`, the options of `ice.join`.

        Examples:
            >>> prices = events.select("symbol", "price")
            >>> events.select("symbol", "volume").join(
            ...     prices, on="symbol", within="1 minute"
            ... ).columns
            ['symbol', 'volume', 'price']
        """
        if isinstance(other, DataFrame):
            return beside_table(self.events(), other, on, how)
        mine, theirs = self.events(), other.events() if isinstance(other, StreamWords) else other
        streams = mine._together([theirs], "join")
        where = condition_on(streams, where)
        if on is not None:
            streams, on = compared(streams, on)
            mine, theirs = streams
        kind, bounds = kind_of_join(how), None if within is None else bounds_of(within)
        defer = defers(onPressure, spilling, possible=may_defer(streams, on))
        spills = Spilling(**spilling) if defer else None
        if kind != "inner":
            made = matched(mine, theirs, on, kind, where, bounds, spills)
        else:
            near_by = streams if bounds is None else near(streams, bounds)
            if spills is not None:
                made = deferred(near_by, on, where, spills)
            else:
                made = paired(near_by[0], near_by[1], on, where)
        if bounds is None:
            warn_of_instants([each._node for each in streams], stacklevel=2)
            return made
        return replace(made, _node=replace(made._node, stays=True))


@dataclass(frozen=True)
class GroupedEvents(GroupWords):
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
        return self.agg(count().alias("count"))

    def apply(self, apply: Callable[..., Events], *others: StreamWords) -> Events:
        """Compute a sub-query for each group; see `Events.groupApply`.

        Examples:
            >>> events.groupBy("agent").apply(lambda agent: agent.top(3, by="busyTime")).columns[-1]
            'agent'
        """
        return self._events.groupApply(self._keys, apply, *others)


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


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema)


def _frame(range: str | int | None, rows: int | str | None) -> Frame:
    if rows is None:
        return UP_TO_TIME if range is None else Frame(range=parse_interval(range), peers=True)
    if rows == "unbounded" and range is None:
        return UP_TO_ROW
    if isinstance(rows, bool) or not isinstance(rows, int):
        msg = f"rows must be a number of events or, without a range, 'unbounded'; got {rows!r}"
        raise DefinitionError(msg)
    # the range of over has both of its ends
    return Frame(rows=rows, range=None if range is None else parse_interval(range) + 1)
