"""What only filters or computes columns of one source stays in Spark.

Idea: a staged relation is a stream whose frames have the columns of the relation, and a hidden
column for the event time. Filters, projections, windows of rows and joins with static tables change
the frames, so all of Spark's functions work. Copies of rows in windows wait as long as nothing but
names of the windows' edges is read: then they are made behind Spark, from rows that are sent once.
Simple conditions and columns are remembered beside the frames, as expressions over columns of the
source, so that rows of files need not pass Spark.

Invariants:
1. Where copies are made changes no row (`test_oracle_copies_in_windows_are_the_same_anywhere`).
2. Nor does it matter where conditions are tested and columns are computed
   (`test_oracle_random_statements`, `test_oracle_columns_are_the_same_wherever_they_are_computed`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    DataType,
    DecimalType,
    FractionalType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
from sqlglot import exp

from icestream.api.columns import quoted, reason_of, reasons_alone
from icestream.api.stream import Stream
from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan
from icestream.core.times import Micros
from icestream.runtime.spark.session import zone_of
from icestream.sql.expressions.time_functions import is_pattern
from icestream.sql.relations.conditions import all_of
from icestream.sql.relations.tree import Join, Scan, TimeWindow, WindowTable, bare
from icestream.sql.statements.dialect import written
from icestream.sql.statements.tokens import Text

#: hidden columns: the event time, unless a column is called so, and the instant of a row if it is
#: another one
TIME, INSTANT = "event time", "instant"
_EDGES = "edges"
_CONDITIONS = (
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.And, exp.Or, exp.Not, exp.In, exp.Is,
    exp.Between,
)  # fmt: skip
_SIMPLE = (*_CONDITIONS, exp.Identifier, exp.Null, exp.Neg, exp.Paren)
_KINDS = {"inner": "inner", "left": "left", "semi": "left_semi", "anti": "left_anti"}


@contextmanager
def located(text: Text, place: TextSpan) -> Iterator[None]:
    """Report what Spark refuses in a part of a statement with its place."""
    try:
        with reasons_alone():
            yield
    except (DefinitionError, AnalysisException) as error:
        raise text.error(place, bare(reason_of(error))) from None


@dataclass(frozen=True)
class Static:
    """The rows of a static table."""

    frame: DataFrame


@dataclass(frozen=True)
class Staged:
    """Rows of a stream that Spark computes."""

    stream: Stream
    columns: tuple[str, ...]
    #: whether rows have an instant other than the event time
    has_instant: bool = False
    #: how much later than the event time it may be
    ahead: Micros = 0
    #: windows that rows are still to be copied into, at whose ends they are then
    window: TimeWindow | None = None
    #: columns with an edge of such a window, `start` or `end`, which the frames do not have yet
    edges: Mapping[str, str] = field(default_factory=dict)
    #: the source, if tasks can compute all columns of the rows, and how they are computed from it
    source: str | None = None
    computed: Mapping[str, exp.Expr] = field(default_factory=dict)
    #: simple conditions on columns of the source that rows of it satisfy
    conditions: tuple[str, ...] = ()

    @property
    def is_picked(self) -> bool:
        """Return whether rows are all rows of a source, with some of its columns."""
        computed = self.computed.values()
        return not self.conditions and all(isinstance(each, exp.Column) for each in computed)

    def from_source(self, node: exp.Expr) -> exp.Expr:
        """Return an expression over columns of the source instead of those of the rows."""
        return node.transform(
            lambda each: self.computed[each.name].copy() if isinstance(each, exp.Column) else each
        )

    @property
    def hidden(self) -> tuple[str, ...]:
        time = self.stream._parts[0].time
        return (time, INSTANT) if self.has_instant and self.window is None else (time,)

    @property
    def sent(self) -> tuple[str, ...]:
        """Return the columns that the frames have."""
        return tuple(name for name in self.columns if name not in self.edges)

    def changed(self, change: Callable[[DataFrame], DataFrame]) -> Staged:
        parts = tuple(replace(part, frame=change(part.frame)) for part in self.stream._parts)
        return replace(self, stream=Stream(parts), source=None)

    @property
    def frame(self) -> DataFrame:
        columns = [sf.col(name) for name in self.columns]
        frames = [part.frame.select(*columns) for part in copied(self).stream._parts]
        return reduce(DataFrame.unionAll, frames)


def scanned(scan: Scan, source: Stream | DataFrame) -> Staged | Static:
    """Lower a scan to rows that Spark computes, under the names of a statement."""

    def renamed(frame: DataFrame) -> list[Column]:
        return [sf.col(quoted(name)).alias(column) for name, column in scan.named.items()]

    if isinstance(source, DataFrame):
        return Static(source.select(*renamed(source)))
    time, taken = TIME, {column.lower() for column in scan.named.values()}
    while time in taken:
        time += "_"
    parts = tuple(
        replace(
            part,
            frame=part.frame.select(*renamed(part.frame), sf.col(quoted(part.time)).alias(time)),
            time=time,
            name=scan.source if len(source._parts) == 1 else part.name,
        )
        for part in source._parts
    )
    computed: dict[str, exp.Expr] = {
        column: exp.column(exp.to_identifier(name, quoted=True))
        for name, column in scan.named.items()
    }
    return Staged(Stream(parts), scan.columns, source=scan.source, computed=computed)


def filtered(rows: Staged | Static, condition: exp.Expr) -> Staged | Static:
    """Lower a condition on staged rows, which Spark evaluates."""
    text = written(condition)
    if isinstance(rows, Static):
        return Static(rows.frame.where(text))
    if _reads(condition, rows.edges):
        rows = copied(rows)
    made = rows.changed(lambda frame: frame.where(text))
    if rows.source is None or not _is_simple(condition, rows.stream._parts[0].frame):
        return made
    held = written(rows.from_source(condition))
    return replace(made, source=rows.source, conditions=(*rows.conditions, held))


def projected(rows: Staged | Static, items: Mapping[str, exp.Expr]) -> Staged | Static:
    """Lower a projection of staged rows, whose columns Spark computes."""
    edges: dict[str, str] = {}
    if isinstance(rows, Staged):
        named = {n: each for n, each in items.items() if isinstance(each, exp.Column)}
        edges = {n: rows.edges[each.name] for n, each in named.items() if each.name in rows.edges}
        if any(_reads(each, rows.edges) for n, each in items.items() if n not in edges):
            rows, edges = copied(rows), {}
    texts = {name: written(each) for name, each in items.items() if name not in edges}
    columns = [sf.expr(text).alias(name) for name, text in texts.items()]
    if isinstance(rows, Static):
        return Static(rows.frame.select(*columns))
    hidden = [sf.col(quoted(name)) for name in rows.hidden]
    made = rows.changed(lambda frame: frame.select(*columns, *hidden))
    made = replace(made, columns=tuple(items), edges=edges)
    frame = rows.stream._parts[0].frame
    if rows.source is None or not all(_is_simple_column(items[name], frame) for name in texts):
        return made
    computed = {name: rows.from_source(items[name]) for name in texts}
    return replace(made, source=rows.source, computed=computed)


def _is_simple_column(node: exp.Expr, frame: DataFrame) -> bool:
    """Return whether tasks compute a column as Spark does."""
    if _is_column(node):
        return True
    match node:
        case exp.Case(args={"ifs": [exp.If(this=condition) as only]}):
            # what an aggregate with FILTER reads
            value, others = only.args["true"], (node.args.get("this"), node.args.get("default"))
            is_value = _is_column(value) or value.is_int
            return is_value and others == (None, None) and _is_simple(condition, frame)
        case exp.Anonymous(this=str(name), expressions=[exp.Column() as time, exp.Literal() as to]):
            kind = frame.schema[time.name].dataType if _is_column(time) else None
            in_utc = zone_of(frame.sparkSession) == "UTC"
            is_time = kind == TimestampNTZType() or (kind == TimestampType() and in_utc)
            return name.lower() == "date_format" and is_time and is_pattern(to.this)
    return isinstance(node, _CONDITIONS) and _is_simple(node, frame)


def _is_simple(condition: exp.Expr, frame: DataFrame) -> bool:
    """Return whether a condition compares only numbers, or only texts, with literals or columns."""
    kinds = set()
    for each in condition.walk():
        if _is_column(each):
            kinds.add(_kind_of(frame.schema[each.name].dataType))
        elif isinstance(each, exp.Literal):
            kinds.add("text" if each.is_string else "number")
        elif not isinstance(each, _SIMPLE):
            return False
    return len(kinds) == 1 and None not in kinds


def _is_column(node: exp.Expr) -> bool:
    """Return whether a node is a column, and not a field of one."""
    return isinstance(node, exp.Column) and len(node.parts) == 1


def _kind_of(kind: DataType) -> str | None:
    if isinstance(kind, IntegralType | FractionalType) and not isinstance(kind, DecimalType):
        return "number"
    return "text" if kind == StringType() else None


def _reads(node: exp.Expr, names: Collection[str]) -> bool:
    return bool(names) and any(each.name in names for each in node.find_all(exp.Column))


def joined(join: Join, rows: Staged, table: Static) -> Staged:
    """Lower a join of a stream with a static table to one that Spark computes."""
    rows = copied(rows)
    condition = sf.expr(written(all_of(join.on))) if join.on else sf.lit(True)
    kind = _KINDS[join.kind]
    made = rows.changed(lambda frame: frame.join(table.frame, condition, kind))
    return replace(made, columns=join.columns)


def with_copies(table: WindowTable, rows: Staged) -> Staged:
    """Lower a window to copies of rows made by Spark, whose instant is the window's end."""
    assert isinstance(table.window, TimeWindow)
    edges = {table.start: "start", table.end: "end"}
    ahead = rows.ahead + table.window.size
    made = replace(copied(rows), columns=table.columns, window=table.window, edges=edges)
    made = replace(made, has_instant=True, ahead=ahead)
    # windows of windows go by another time than the stream's
    return copied(made, table.time) if rows.has_instant else made


def copied(rows: Staged, by: str | None = None) -> Staged:
    """Lower windows of a statement to copies of rows that Spark makes, `by` the event time."""
    window, time = rows.window, quoted(by or rows.stream._parts[0].time)
    if window is None:
        return rows
    if window.kind == "cumulate":
        start = f"unix_micros({time}) - pmod(unix_micros({time}), {window.size})"
        first = f"unix_micros({time}) - pmod(unix_micros({time}), {window.step}) + {window.step}"
        ends = sf.expr(f"explode(sequence({first}, {start} + {window.size}, {window.step}))")
        texts = {"start": f"timestamp_micros({start})", "end": f"timestamp_micros({_EDGES})"}
    else:
        lengths = [f"{each} microseconds" for each in (window.size, window.step, window.offset)]
        ends = sf.window(sf.col(time), *lengths)
        texts = {"start": f"{_EDGES}.start", "end": f"{_EDGES}.end"}
    edges = {name: texts[edge] for name, edge in rows.edges.items()} | {INSTANT: texts["end"]}

    def with_edges(frame: DataFrame) -> DataFrame:
        others = [sf.col(quoted(name)) for name in frame.columns if name != INSTANT]
        columns = [sf.expr(text).alias(name) for name, text in edges.items()]
        return frame.select(*others, ends.alias(_EDGES)).select(*others, *columns)

    return replace(rows.changed(with_edges), window=None, edges={})


def by_processing_time(rows: Staged, time: str) -> Staged:
    """Lower a window over processing time: a column of Spark gives the event time."""
    hidden = rows.stream._parts[0].time
    stamped = rows.changed(lambda frame: frame.withColumn(hidden, sf.col(time)))
    parts = tuple(replace(part, slack=0) for part in stamped.stream._parts)
    return replace(stamped, stream=Stream(parts))
