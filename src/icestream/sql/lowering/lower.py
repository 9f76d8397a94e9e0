"""From relations to queries; the only module that knows both.

Idea: a relation is lowered after its inputs. It stays in Spark as long as it can (`in_spark`), and
becomes events with lifetimes where it needs state (`with_state`). Windows on a grid over one stream
are a physical form of their own, chosen where nothing but columns and a condition follows them
(`windows`), because they are computed from panes. Relations that are equal but for the numbers of
their columns are lowered once.

Invariants:
1. A query that is written twice in a statement runs once (`test_equal_queries_run_once`).
2. What Spark can do alone is a frame of Spark (`test_statements_without_state_are_sparks`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from sqlglot import exp

from icestream.api.columns import quoted
from icestream.api.event_joins import matched
from icestream.api.events import Events
from icestream.api.result import Result
from icestream.api.stream import Stream
from icestream.core.errors import DefinitionError
from icestream.operators.object_aggregates.user_aggregates import UserAggregate
from icestream.plan.events.features import with_features
from icestream.plan.nodes.events import FromSource, Mapped, Node, United
from icestream.runtime.ingest.source import source_of
from icestream.runtime.spark.session import zone_of
from icestream.sql.lowering import in_spark, with_state
from icestream.sql.lowering.in_spark import Staged, Static, located
from icestream.sql.lowering.windows import built
from icestream.sql.lowering.with_state import Flowing, temporary
from icestream.sql.relations.conditions import all_of, join_conditions
from icestream.sql.relations.names import NamedRelation, reference
from icestream.sql.relations.over_changing_rows import needs_later_rows, over_changing
from icestream.sql.relations.rules import sets_expanded, simplified
from icestream.sql.relations.times import (
    TimeBounds,
    by_calendar,
    origin,
    time_bounds,
    time_of,
    unexpressed,
)
from icestream.sql.relations.tree import (
    ALL_ROWS,
    Filter,
    Grouped,
    Join,
    Lasting,
    Over,
    OverCall,
    Project,
    Relation,
    Scan,
    Streamed,
    TimeWindow,
    Top,
    UnionAll,
    WindowTable,
    bare,
    walk,
)
from icestream.sql.relations.window_query import WindowQuery, window_query
from icestream.sql.statements.aggregates import AggregateCall
from icestream.sql.statements.dialect import Cql, written
from icestream.sql.statements.tokens import Text

Rows = Static | Staged | Flowing
_ID = re.compile(r"\bc\d+_\w*")


def lowered(
    query: NamedRelation,
    text: Text,
    sources: Mapping[str, Stream | DataFrame],
    own: Mapping[str, UserAggregate],
) -> Result | Events | DataFrame:
    """Lower a statement to the query that computes it: windows, events, or a frame of Spark."""
    with_state.number_names_anew()
    relation = simplified(query.relation)
    if not _zone(sources).startswith(("UTC", "+", "-")):
        relation = by_calendar(relation)
    lowering = Lowering(relation, text, sources, own)
    windows = window_query(relation, query)
    if windows is not None:
        stream = lowering.stream_of(windows)
        if stream is not None:
            return built(windows, stream, text, own)
    rows = lowering.rows(relation)
    names = {column: name for name, column in query.names}
    if isinstance(rows, Static):
        raise text.error(text.place, "the statement reads no stream: run it with spark.sql(...)")
    texts = [f"{column} AS {quoted(name)}" for column, name in names.items()]
    if isinstance(rows, Staged):
        return rows.frame.selectExpr(*texts)
    events = rows.events.select(*texts)
    if rows.points:
        # a statement is a table, in which rows stay from their instant on
        events = replace(events, _node=replace(events._node, stays=True))
    # what comes straight from a source takes the way of the rows beside it
    return events.groupApply(events.columns, _itself) if _is_straight(events._node) else events


def _zone(sources: Mapping[str, Stream | DataFrame]) -> str:
    """Return the zone of the session; UTC if a statement reads nothing."""
    frames = (t._parts[0].frame if isinstance(t, Stream) else t for t in sources.values())
    return next((zone_of(each.sparkSession) for each in frames), "UTC")


def _itself(group: Events) -> Events:
    return group


def _is_straight(node: Node) -> bool:
    """Return whether some events come from a source without a step that has state."""
    match node:
        case Mapped():
            return _is_straight(node.before)
        case United():
            return any(_is_straight(each) for each in node.parts)
    return isinstance(node, FromSource)


class Lowering:
    """Lowers the relations of one statement."""

    def __init__(
        self,
        relation: Relation,
        text: Text,
        sources: Mapping[str, Stream | DataFrame],
        own: Mapping[str, UserAggregate],
    ) -> None:
        """Take a statement, what it reads, and the user's aggregates."""
        self._text = text
        self._sources = sources
        self._own = own
        self._scans = [each for each in walk(relation) if isinstance(each, Scan)]
        #: lowered relations by their text without numbers, with the columns in the order of it
        self._made: dict[str, tuple[Rows, list[str]]] = {}

    def rows(self, relation: Relation) -> Rows:
        shown = repr(relation)
        columns = list(dict.fromkeys(_ID.findall(shown)))
        numbered = {column: f"#{place}" for place, column in enumerate(columns)}
        key = _ID.sub(lambda found: numbered[found[0]], shown)
        if key not in self._made:
            self._made[key] = self._lowered(relation), columns
            return self._made[key][0]
        rows, others = self._made[key]
        again = dict(zip(columns, others, strict=True))
        items: dict[str, exp.Expr] = {
            column: reference(again[column]) for column in relation.columns
        }
        return self._projected(rows, items)

    def stream_of(self, query: WindowQuery) -> Stream | None:
        """Return the stream that windows are about, if its rows stay in Spark."""
        table = query.table
        if query.stream is not None and table.time == time_of(table.input):
            source = self._sources[query.stream]
            return source if isinstance(source, Stream) else None
        rows = self.rows(table.input)
        return timed(table, rows, self._text).stream if isinstance(rows, Staged) else None

    def _lowered(self, relation: Relation) -> Rows:  # noqa: PLR0911 - one for each kind
        match relation:
            case Scan():
                return in_spark.scanned(relation, self._sources[relation.source])
            case Filter():
                rows = self.rows(relation.input)
                for each in relation.conditions:
                    rows = self._filtered(rows, each)
                return rows
            case Project():
                return self._projected(self.rows(relation.input), relation.items)
            case WindowTable():
                return self._windowed(relation)
            case Join():
                return self._joined(relation)
            case Grouped():
                return self._grouped(relation)
            case Top():
                return self._top(relation)
            case UnionAll():
                return self._union(relation)
            case Over():
                return self._over(relation)
            case Lasting():
                return self._lasting(relation)
            case Streamed():
                return self._streamed(relation)
        msg = f"unknown relation {type(relation).__name__}"
        raise AssertionError(msg)

    # -- row by row ------------------------------------------------------------------------

    def _filtered(self, rows: Rows, condition: exp.Expr) -> Rows:
        with located(self._text, self._text.place_of(condition)):
            if isinstance(rows, Flowing):
                return with_state.filtered(rows, condition)
            return in_spark.filtered(rows, condition)

    def _projected(self, rows: Rows, items: Mapping[str, exp.Expr]) -> Rows:
        try:
            if isinstance(rows, Flowing):
                return with_state.projected(rows, items)
            return in_spark.projected(rows, items)
        except Exception:
            # find the item that caused it
            for name, each in items.items():
                with located(self._text, self._text.place_of(each)):
                    if isinstance(rows, Flowing):
                        with_state.projected(rows, {name: each})
                    else:
                        in_spark.projected(rows, {name: each})
            raise

    def _windowed(self, table: WindowTable) -> Rows:
        rows = self.rows(table.input)
        if not table.on_a_grid:
            kind = "sessions" if isinstance(table.window, TimeWindow) else "windows that move"
            raise self._text.error(
                table.place,
                f"{kind} are supported in statements over one stream that only aggregate them: "
                "write the rows of this query to a table and read it as a stream",
            )
        if not isinstance(rows, Staged):
            raise self._text.error(
                table.place,
                "a window needs the rows of one stream: put it around the stream, inside of joins "
                "and aggregates",
            )
        rows = timed(table, rows, self._text)
        with located(self._text, table.place):
            return in_spark.with_copies(table, rows)

    # -- joins -----------------------------------------------------------------------------

    def _joined(self, join: Join) -> Rows:
        left, right = self.rows(join.left), self.rows(join.right)
        with located(self._text, join.place):
            if isinstance(left, Staged) and isinstance(right, Static) and join.kind != "full":
                return in_spark.joined(join, left, right)
            if isinstance(left, Static) and isinstance(right, Staged) and join.kind == "inner":
                swapped = replace(join, left=join.right, right=join.left)
                return in_spark.joined(swapped, right, left)
        if isinstance(left, Static) and join.kind == "inner":
            join, left, right = replace(join, left=join.right, right=join.left), right, left
        if isinstance(right, Static) and not isinstance(left, Static):
            return self._looked_up(join, self._flowing(left), right)
        if isinstance(left, Static):
            raise self._text.error(
                join.place,
                "a static table is the right side of a join with a stream, unless it is an inner "
                "one: exchange the sides",
            )
        bounds = time_bounds(join)
        with located(self._text, join.place):
            return self._flowing_join(join, self._flowing(left), self._flowing(right), bounds)

    def _looked_up(self, join: Join, rows: Flowing, table: Static) -> Rows:
        """Join rows that have state behind them with a static table."""
        conditions = join_conditions(join)
        if join.kind == "full" or (conditions.others and join.kind != "inner"):
            raise self._text.error(
                join.place,
                "a static table beside joins and aggregates is joined by equalities: move other "
                "conditions into a query in FROM, or join the table with the stream before",
            )
        keys = list(conditions.keys) or [(_ONE, _ONE)]
        mine, theirs = ([temporary("key") for _ in keys] for _ in range(2))
        nodes = [_only_if(conditions.left, one) for one, _ in keys]
        made = with_state.with_columns(rows, dict(zip(mine, nodes, strict=True)))
        frame = table.frame.where(written(all_of(conditions.right))) if conditions.right else None
        others = [
            sf.expr(written(other)).alias(n) for (_, other), n in zip(keys, theirs, strict=True)
        ]
        batch = (frame or table.frame).select("*", *others)
        with located(self._text, join.place):
            events = made.events.join(batch, on=list(zip(mine, theirs, strict=True)), how=join.kind)
        found = replace(rows, events=events)
        for each in conditions.others:
            found = with_state.filtered(found, each)
        return replace(found, events=found.events.select(*join.columns))

    def _flowing_join(
        self, join: Join, left: Flowing, right: Flowing, bounds: TimeBounds | None
    ) -> Rows:
        conditions = join_conditions(unexpressed(join, bounds))
        within = None if bounds is None else bounds.within
        if bounds is None:
            sides = [left.forever, right.forever]
        elif within is None:
            sides = self._living([left, right], bounds)
        else:
            sides = [left, right]
        keys = list(conditions.keys) or [(exp.Literal.number(0), exp.Literal.number(0))]
        # a row that does not satisfy the conditions on its side has no partner
        keys = [
            (_only_if(conditions.left, one), _only_if(conditions.right, other))
            for one, other in keys
        ]
        names, made = [], []
        for place, rows in enumerate(sides):
            nodes = [pair[place] for pair in keys]
            names.append([with_state.temporary("key") for _ in nodes])
            items = dict(zip(names[-1], nodes, strict=True))
            made.append(with_state.with_columns(rows, items).events)
        if bounds is not None and bounds.point == 1:
            names, made = names[::-1], made[::-1]
        where = written(all_of(conditions.others)) if conditions.others else None
        on = list(zip(*names, strict=True))
        events = matched(made[0], made[1], on, join.kind, where, within)
        return Flowing(events.select(*join.columns), points=bounds is not None)

    def _living(self, sides: Sequence[Flowing], bounds: TimeBounds) -> list[Flowing]:
        """Return the sides of a join, of which one lives until a time in a column, or forever."""
        streams = sides[0].events._together([sides[1].events], "join")
        delay = streams[0]._node.delay + bounds.shift
        point, other = streams[bounds.point], streams[1 - bounds.point]
        point = point._moved(bounds.shift, delay)
        columns, other = other.columns, other._moved(max(0, bounds.low), delay)
        if bounds.high is None:
            other = other.forever()
        else:
            end = with_state.temporary("end")
            added = with_state.with_columns(Flowing(other, points=True), {end: bounds.high})
            other = added.events._between(None, end).select(*columns)
        living = [Flowing(point, points=True), Flowing(other, points=False)]
        return living if bounds.point == 0 else living[::-1]

    # -- groups ----------------------------------------------------------------------------

    def _grouped(self, grouped: Grouped) -> Rows:
        if grouped.sets is not None:
            grouped = sets_expanded(grouped)
        rows = self._streaming(self.rows(grouped.input))
        items = dict(grouped.keys)
        calls: dict[str, AggregateCall] = {}
        known = {written(node): name for name, node in items.items()}
        for name, call in grouped.calls.items():
            arguments = []
            with located(self._text, call.place):
                inputs = _arguments(call)
            for each in inputs:
                node = Cql().parse(f"SELECT {each}")[0].expressions[0]  # type: ignore[union-attr]
                text = written(node)
                if text not in known:
                    known[text] = with_state.temporary("input")
                    items[known[text]] = node
                arguments.append(known[text])
            calls[name] = replace(call, arguments=tuple(arguments))
        return self._aggregated(grouped, rows, items, calls)

    def _aggregated(
        self,
        grouped: Grouped,
        rows: Staged | Flowing,
        items: Mapping[str, exp.Expr],
        calls: Mapping[str, AggregateCall],
    ) -> Rows:
        projected = self._projected(rows, items or {with_state.temporary("one"): _ONE})
        flow = self._flowing(projected)
        at_instants = time_of(grouped) is not None
        if not at_instants:
            flow = flow.forever
        place = next((call.place for call in calls.values()), self._text.place)
        with located(self._text, place):
            events = with_state.aggregated(flow, list(grouped.keys), calls, self._own)
        return Flowing(events, points=at_instants)

    def _top(self, top: Top) -> Rows:
        if top.count is None:
            return self._numbered(top)
        rows = self._streaming(self.rows(top.input))
        added, by, ascending = with_state.sort_columns(top.order)
        keys = []
        for each in top.partition:
            if isinstance(each, exp.Column):
                keys.append(each.name)
            else:
                keys.append(with_state.temporary("partition"))
                added[keys[-1]] = each
        items = {column: reference(column) for column in top.input.columns}
        flow = self._flowing(self._projected(rows, {**items, **added}))
        at_instants = time_of(top) is not None
        if not at_instants:
            flow = flow.forever
        count, rank = max(top.count, 1), top.rank
        with located(self._text, top.place):
            events = flow.events.groupApply(
                keys, lambda group: group.top(count, by=by, ascending=ascending, rank=rank)
            )
        return Flowing(events.select(*top.columns), points=at_instants)

    def _numbered(self, top: Top) -> Rows:
        """Number rows by time; any other order needs a condition that bounds the number."""
        order, rank = [each.expression for each in top.order], top.rank
        by_time = [each.name for each in order if isinstance(each, exp.Column)]
        falls = any(each.descending for each in top.order)
        if rank is None or falls or by_time != [time_of(top.input)]:
            raise self._text.error(
                top.place,
                "ROW_NUMBER() by anything but the stream's time, ascending, needs a condition on "
                "the number around this query: WHERE n <= 10",
            )
        number = AggregateCall("row_number", (), place=top.place)
        call = OverCall(number, top.partition, by_time[0], "rows", None)
        return self._over(Over(top.input, {rank: call}))

    def _over(self, over: Over) -> Rows:
        rows, time = self._streaming(self.rows(over.input)), time_of(over.input)
        # frames tell copies of an event apart by their arrival
        flow = self._flowing(in_spark.copied(rows) if isinstance(rows, Staged) else rows)
        if not flow.points or needs_later_rows(over):
            # the rule for such frames could not be applied
            with located(self._text, next(iter(over.calls.values())).call.place):
                over_changing(over)
        added: dict[str, exp.Expr] = {}
        made = []
        for name, each in over.calls.items():
            call = each.call
            if time is None or each.order != time or not flow.points:
                raise self._text.error(
                    call.place,
                    "OVER follows the time of the stream: write ORDER BY "
                    f"{bare(time) if time else 'its time column'}, over the rows of a stream or of "
                    "a join with bounds on times",
                )
            keys = []
            for part in each.partition:
                keys.append(part.name if isinstance(part, exp.Column) else temporary("partition"))
                if not isinstance(part, exp.Column):
                    added[keys[-1]] = part
            with located(self._text, call.place):
                made.append(with_state.feature(name, each, tuple(keys), self._own))
        flow = with_state.with_columns(flow, added)
        with located(self._text, next(iter(over.calls.values())).call.place):
            events = flow.events
            node = with_features(events._node, made)
        chosen = replace(events, _node=node).select(*over.columns)
        return Flowing(chosen, points=True)

    def _lasting(self, lasting: Lasting) -> Rows:
        flow = self._flowing(self.rows(lasting.input))
        length = lasting.length
        events = flow.events.alterLifetime(length) if length else flow.events.point()
        return Flowing(events, points=False)

    def _streamed(self, streamed: Streamed) -> Rows:
        flow = self._flowing(self.rows(streamed.input))
        columns, place = list(streamed.columns), with_state.temporary("place")
        # rows that are equal are told apart by their places
        now = flow.forever.events.groupApply(
            columns, lambda group: group.top(ALL_ROWS, by=columns[0], rank=place)
        )
        before = now.shift(1)
        one, other = (now, before) if streamed.kind == "inserted" else (before, now)
        changed = one.groupApply([*columns, place], Events.difference, other)
        return Flowing(changed.select(*streamed.columns), points=True)

    def _union(self, union: UnionAll) -> Rows:
        inputs = [self._streaming(self.rows(part)) for part in union.parts]
        with located(self._text, self._text.keyword("UNION") or self._text.place):
            kinds = [_types(each, p.columns) for each, p in zip(inputs, union.parts, strict=True)]
            common = _common_types(kinds)
        parts = []
        for rows, part, own in zip(inputs, union.parts, kinds, strict=True):
            items = {
                name: reference(column) if mine == wanted else exp.cast(reference(column), wanted)
                for name, column, mine, wanted in zip(
                    union.names, part.columns, own, common, strict=True
                )
            }
            parts.append(self._streaming(self._projected(rows, items)))
        if all(isinstance(each, Staged) and not each.has_instant for each in parts):
            streams = [each.stream for each in parts if isinstance(each, Staged)]
            return Staged(reduce(Stream.union, streams), union.names)
        flows = [self._flowing(each) for each in parts]
        points = all(each.points for each in flows)
        events = [each.events if points else each.forever.events for each in flows]
        with located(self._text, self._text.keyword("UNION") or self._text.place):
            return Flowing(reduce(Events.union, events), points=points)

    def _streaming(self, rows: Rows) -> Staged | Flowing:
        if isinstance(rows, Static):
            raise self._text.error(
                self._text.place,
                "a static table is aggregated, ranked or united in Spark: do it before, and pass "
                "the result",
            )
        return rows

    def _flowing(self, rows: Rows) -> Flowing:
        rows = self._streaming(rows)
        if isinstance(rows, Flowing):
            return rows
        source = rows.source
        if source is not None and not rows.is_picked and not self._is_of_files(source):
            rows = replace(rows, source=None)
        return with_state.flowing(rows, self._whole)

    @cache  # noqa: B019 - a lowering is short-lived
    def _is_of_files(self, source: str) -> bool:
        """Return whether tasks read a source themselves, as long as Spark need not filter it."""
        stream = self._sources[source]
        return isinstance(stream, Stream) and all(source_of(p.frame) for p in stream._parts)

    @cache  # noqa: B019 - a lowering is short-lived
    def _whole(self, source: str) -> Events:
        """Return the events of a source, with all columns that the statement reads."""
        scans = [each for each in self._scans if each.source == source]
        named = {name: name for each in scans for name in each.named}
        rows = in_spark.scanned(replace(scans[0], named=named), self._sources[source])
        assert isinstance(rows, Staged)
        return rows.stream.events()


_ONE = exp.Literal.number(1)


def _types(rows: Staged | Flowing, columns: Sequence[str]) -> list[str]:
    """Return Spark's names of the types of columns."""
    schema = rows.frame.schema if isinstance(rows, Staged) else rows.events._types
    return [schema[column].dataType.simpleString() for column in columns]


def _common_types(kinds: Sequence[Sequence[str]]) -> list[str]:
    """Return the types that Spark gives to a union."""
    spark = SparkSession.active()
    empty = [
        spark.createDataFrame([], ", ".join(f"c{place} {kind}" for place, kind in enumerate(each)))
        for each in kinds
    ]
    return [each.dataType.simpleString() for each in reduce(DataFrame.unionAll, empty).schema]


def timed(table: WindowTable, rows: Staged, text: Text) -> Staged:
    """Lower the time of a window of a statement: the stream's own, or processing time."""
    if table.time == time_of(table.input):
        return rows
    made_of = origin(table.input, table.time)
    if isinstance(made_of, exp.Anonymous) and made_of.name.lower() == "current_timestamp":
        return in_spark.by_processing_time(rows, table.time)
    raise text.error(
        table.place,
        "windows follow the event time of the stream, given as ice.stream(df, time=...): make a "
        "stream of the same rows with the other time",
    )


def _only_if(conditions: tuple[exp.Expr, ...], value: exp.Expr) -> exp.Expr:
    """Return a value, or NULL if conditions do not hold."""
    if not conditions:
        return value
    return exp.Case(ifs=[exp.If(this=all_of(conditions), true=value.copy())])


def _arguments(call: AggregateCall) -> tuple[str, ...]:
    """Return the inputs of a call; COUNT(DISTINCT CASE WHEN c THEN x END) reads c and x."""
    if call.function != "count_distinct":
        return call.arguments
    if len(call.arguments) > 1:
        msg = "COUNT(DISTINCT ...) of several columns: write COUNT(DISTINCT struct(a, b))"
        raise DefinitionError(msg)
    (text,) = call.arguments
    node: Any = Cql().parse(f"SELECT {text}")[0]
    value = node.expressions[0]
    cases: list[exp.Expr] = value.args["ifs"] if isinstance(value, exp.Case) else []
    if len(cases) == 1 and not value.args.get("default"):
        (case,) = cases
        return written(case.this), written(case.args["true"])
    return (text,)
