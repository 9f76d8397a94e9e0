"""Dataflows for tests: one for each kind of sub-query, in one call.

Idea: a `Stream` puts nodes of a plan together in a line or two, as the API does on Spark; the
functions below name the queries that every runtime of dataflows must get right. Columns are a few
integers to group by and a number to compute with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from icestream.core.times import Micros
from icestream.operators.aggregates import Aggregate
from icestream.operators.dataflow.steps import Filtering, Projecting
from icestream.operators.expressions import Predicate, Projection
from icestream.operators.temporal.aggregate import TemporalAggregate
from icestream.operators.temporal.changes import TemporalOperator
from icestream.operators.temporal.difference import StreamDifference
from icestream.operators.temporal.join import StreamJoin
from icestream.operators.temporal.lifetimes import Forever, Windowed
from icestream.operators.temporal.ordering import Order
from icestream.operators.temporal.top import TopK
from icestream.operators.user_defined.operator import UserDefined
from icestream.operators.user_defined.per_group import (
    ExpiredTimerInfo,
    Rows,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from icestream.operators.user_defined.values import Row
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.nodes import (
    Applied,
    Entered,
    FromSource,
    Left,
    Mapped,
    Node,
    Scope,
    United,
)
from icestream.plan.events.queries import compiled
from icestream.plan.nodes import Source
from icestream.testing.stories.plans import INSTANT

SECOND: Micros = 1_000_000

RATINGS = pa.schema([("user", pa.int64()), ("item", pa.int64()), ("rating", pa.float64())])
CLICKS = pa.schema([("user", pa.int64()), ("page", pa.int64())])


@dataclass(frozen=True)
class Stream:
    """Events of a source, or of the groups of a scope."""

    node: Node

    @staticmethod
    def of(columns: pa.Schema, source: int = 0) -> Stream:
        """Return the events of a source."""
        return Stream(FromSource(columns, source=source))

    def where(self, text: str) -> Stream:
        """Keep events that fulfil a condition."""
        kept = Filtering(Predicate.bind(self.node.payload, text))
        return self.mapped(kept, self.node.payload, f"where {text}")

    def select(self, *texts: str) -> Stream:
        """Compute other columns, the keys of a group among them."""
        chosen = Projection.bind(self.node.payload, texts)
        return self.mapped(Projecting(chosen), chosen.schema, f"select {', '.join(texts)}")

    def forever(self) -> Stream:
        """Let events live on."""
        return self.mapped(Forever(), self.node.payload, "for ever")

    def window(self, length: Micros) -> Stream:
        """Let events live for some time."""
        windowed = self.mapped(Windowed(length), self.node.payload, f"for {length} us")
        return Stream(replace(windowed.node, reach=self.node.reach + length))

    def union(self, *others: Stream) -> Stream:
        """Take the events of several streams."""
        nodes = tuple(stream.node for stream in (self, *others))
        reach = max(node.reach for node in nodes)
        grows = all(node.grows for node in nodes)
        return Stream(United(self.node.payload, self.node.scope, grows, reach, parts=nodes))

    def apply(self, keys: Sequence[str], make: Callable[..., Stream], *others: Stream) -> Stream:
        """Compute a sub-query for each group, of this and other streams."""
        outer = self.node.scope
        scope = Scope((*(outer.keys if outer else ()), *keys), outer)
        made = make(*(stream.entered(scope) for stream in (self, *others))).node
        return Stream(Left(made.payload, outer, made.grows, made.reach, before=made))

    def entered(self, scope: Scope) -> Stream:
        """Let the events enter the groups of a scope."""
        node = self.node
        return Stream(Entered(node.payload, scope, node.grows, node.reach, before=node))

    def agg(self, *aggregates: Aggregate) -> Stream:
        """Aggregate the events alive in each group."""
        assert self.node.scope is not None
        operator = TemporalAggregate(self.node.payload, aggregates, self.node.scope.keys)
        return self.through(operator, "aggregate", grows=False)

    def top(self, k: int, by: str) -> Stream:
        """Keep the best events alive in each group."""
        operator = TopK(self.node.payload, k, (Order(by),))
        return self.through(operator, f"top {k} by {by}", grows=False)

    def join(self, other: Stream, where: str | None = None, hidden: Sequence[str] = ()) -> Stream:
        """Pair events of each group; columns must have different names."""
        left, right = self.node.payload, other.node.payload
        residual = None
        if where is not None:
            residual = Predicate.bind(pa.schema([*left, *right]), where).mask
        operator = StreamJoin(left, right, residual=residual, hidden=hidden)
        grows = self.node.grows and other.node.grows
        return self.through(operator, f"join where {where}", other, grows=grows)

    def difference(self, other: Stream) -> Stream:
        """Keep events where the other stream has none in the group."""
        return self.through(StreamDifference(self.node.payload), "difference", other, grows=False)

    def through(
        self, operator: TemporalOperator, text: str, *others: Stream, grows: bool
    ) -> Stream:
        """Put an operator behind this and other streams."""
        nodes = tuple(stream.node for stream in (self, *others))
        reach = max(node.reach for node in nodes)
        applied = Applied(
            operator.result, self.node.scope, grows, reach, inputs=nodes, operator=operator,
            text=text,
        )  # fmt: skip
        return Stream(applied)

    def mapped(
        self, change: Callable[[pa.RecordBatch], pa.RecordBatch], payload: pa.Schema, text: str
    ) -> Stream:
        """Change each batch on its own."""
        node = self.node
        return Stream(
            Mapped(
                payload, node.scope, node.grows, node.reach, before=node, change=change, text=text
            )
        )


def dataflow(
    stream: Stream,
    mode: str = "update",
    columns: Sequence[pa.Schema] = (RATINGS,),
    slack: Micros = 5 * SECOND,
) -> Dataflow:
    """Return the dataflow whose rows are the events of a stream."""
    sources = tuple(Source(f"source{number}", slack) for number in range(len(columns)))
    numbers = {number: number for number in range(len(columns))}
    return compiled(((stream.node, mode),), numbers, sources, tuple(columns), INSTANT)


def running_aggregate(mode: str = "update") -> Dataflow:
    """Count and add up all ratings of a user so far; in append mode, of the last 8 seconds."""
    ratings = Stream.of(RATINGS)
    ratings = ratings.forever() if mode == "update" else ratings.window(8 * SECOND)
    sums = (Aggregate("sum", "rating", "total"), Aggregate("count", None, "n"))
    return dataflow(ratings.apply(["user"], lambda group: group.agg(*sums)), mode)


def revised_aggregate(mode: str = "append") -> Dataflow:
    """Average and choose among ratings of 8 seconds while their user has no click of the last 3."""
    ratings = Stream.of(RATINGS).window(8 * SECOND)
    clicks = Stream.of(CLICKS, 1).window(3 * SECOND)
    functions = (Aggregate("avg", "rating", "mean"), Aggregate("max", "item", "most"))

    def lonely(left: Stream, right: Stream) -> Stream:
        return left.difference(right).agg(*functions).where("mean > 1")

    return dataflow(ratings.apply(["user"], lonely, clicks), mode, (RATINGS, CLICKS))


def self_join(mode: str = "append") -> Dataflow:
    """Pair the ratings that a user gave within 6 seconds."""

    def pairs(group: Stream) -> Stream:
        left = group.select("user", "item AS item1", "rating AS rating1")
        right = group.select("user AS user2", "item AS item2", "rating AS rating2")
        return left.join(right, "item1 < item2", hidden=["user2"])

    return dataflow(Stream.of(RATINGS).window(6 * SECOND).apply(["user"], pairs), mode)


def join_within(mode: str = "append") -> Dataflow:
    """Pair ratings and clicks of a user that are at most 4 seconds apart."""
    near = 4 * SECOND + 1
    ratings = Stream.of(RATINGS).where("rating IS NOT NULL").window(near)
    clicks = Stream.of(CLICKS, 1).select("user AS clicker", "page").window(near)
    clicks = clicks.select("clicker AS user", "clicker", "page")

    def pairs(left: Stream, right: Stream) -> Stream:
        return left.join(right.select("user AS other", "page"), hidden=["other"])

    return dataflow(ratings.apply(["user"], pairs, clicks), mode, (RATINGS, CLICKS))


def difference(mode: str = "update") -> Dataflow:
    """Keep ratings, for 8 seconds, while their user has no click of the last 3."""
    ratings = Stream.of(RATINGS).window(8 * SECOND)
    clicks = Stream.of(CLICKS, 1).window(3 * SECOND)
    kept = ratings.apply(["user"], lambda left, right: left.difference(right), clicks)
    return dataflow(kept, mode, (RATINGS, CLICKS))


def best(mode: str = "update") -> Dataflow:
    """Keep the two best ratings of a user of the last 6 seconds."""
    ratings = Stream.of(RATINGS).window(6 * SECOND)
    return dataflow(ratings.apply(["user"], lambda group: group.top(2, "rating")), mode)


def nested(mode: str = "update") -> Dataflow:
    """Rate items by the ratings of each user alone, and keep the user's two best items."""
    mean = (Aggregate("avg", "rating", "mean"), Aggregate("max", "rating", "most"))

    def of_a_user(group: Stream) -> Stream:
        by_item = group.apply(["item"], lambda inner: inner.agg(*mean))
        return by_item.select("user", "item", "mean + most AS score").top(2, "score")

    return dataflow(Stream.of(RATINGS).window(9 * SECOND).apply(["user"], of_a_user), mode)


def recommender(mode: str = "update") -> Dataflow:
    """Recommend items like those that a user rated: three groupings in as many components."""
    ratings = Stream.of(RATINGS).where("user IS NOT NULL AND item IS NOT NULL").forever()

    def pairs(group: Stream) -> Stream:
        left = group.select("user", "item AS item1", "rating AS rating1")
        right = group.select("user AS user2", "item AS item2", "rating AS rating2")
        return left.join(right, "item1 <> item2", hidden=["user2"])

    sums = (
        Aggregate("sum", "product", "dot"),
        Aggregate("count", None, "pairs"),
    )

    def alike(group: Stream) -> Stream:
        both = group.select("item1", "item2", "rating1 * rating2 AS product")
        by_pair = both.apply(["item2"], lambda inner: inner.agg(*sums))
        return by_pair.select("item1", "item2", "dot / pairs AS alike").top(2, "alike")

    model = ratings.apply(["user"], pairs).apply(["item1"], alike)

    def candidates(rated: Stream, likes: Stream) -> Stream:
        found = likes.select("item1 AS liked", "item2", "alike")
        return rated.join(found, hidden=["liked"])

    rated = ratings.select("item AS item1", "user", "rating")
    offered = rated.apply(["item1"], candidates, model)
    score = Aggregate("sum", "score", "score")

    def chosen(group: Stream) -> Stream:
        scores = group.select("user", "item2", "alike * rating AS score")
        return scores.apply(["item2"], lambda inner: inner.agg(score)).top(2, "score")

    return dataflow(offered.apply(["user"], chosen), mode)


class Bursts(StatefulProcessor):
    """Adds up what a user did, and tells it once 3 seconds have passed without anything."""

    output = "user long, events long, total double, most double"

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Keep the burst that goes on."""
        self._burst = handle.getValueState("burst", "events long, latest long")
        self._ratings = handle.getListState("ratings", "rating double")

    def handleInputRows(  # noqa: N802 - PySpark's name
        self, key: Row, rows: Rows, timers: TimerValues
    ) -> None:
        """Add rows to the burst, which ends later now."""
        del key
        events, latest = self._burst.get() or (0, None)
        if latest is not None:
            timers.delete(latest + 3 * SECOND)
        latest = max([*rows.times] if latest is None else [latest, *rows.times])
        timers.set(latest + 3 * SECOND)
        self._burst.update((events + len(rows), latest))
        self._ratings.appendList([(rating,) for rating in rows["rating"]])

    def handleExpiredTimer(  # noqa: N802 - PySpark's name
        self, key: Row, timers: TimerValues, expired: ExpiredTimerInfo
    ) -> Iterator[dict[str, Any]]:
        """Tell the burst and forget it."""
        del timers, expired
        events, _ = self._burst.get() or (0, None)
        ratings = [rating for (rating,) in self._ratings.get() if rating is not None]
        most = max(ratings, default=None)
        yield {"user": key[0], "events": events, "total": sum(ratings), "most": most}
        self._burst.clear()
        self._ratings.clear()


def user_defined(mode: str = "append") -> Dataflow:
    """Let user code with a value, a list and timers look at what a user rated."""

    def bursts(group: Stream) -> Stream:
        keys = pa.schema([RATINGS.field("user")])
        operator = UserDefined(Bursts(), keys, RATINGS)
        told = group.through(operator, "bursts", grows=True)
        return Stream(replace(told.node, reach=told.node.reach + 3 * SECOND))

    return dataflow(Stream.of(RATINGS).apply(["user"], bursts), mode)


def united(mode: str = "update") -> Dataflow:
    """Count what a user did, in either of two streams, in the last 5 seconds."""
    ratings = Stream.of(RATINGS).select("user", "item AS what").window(5 * SECOND)
    clicks = Stream.of(CLICKS, 1).select("user", "page AS what").window(5 * SECOND)
    count = (Aggregate("count", None, "n"), Aggregate("max", "what", "most"))
    flow = ratings.union(clicks).apply(["user"], lambda group: group.agg(*count))
    return dataflow(flow, mode, (RATINGS, CLICKS))
