"""What only filters or computes columns of one source stays in Spark.

Idea: a staged relation is a stream whose frames have the columns of the relation, and a hidden
column for the event time. Filters, projections, windows of rows and joins with static tables change
the frames, so all of Spark's functions work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from sqlglot import exp

from icestream.api.stream import Stream
from icestream.api.words import quoted
from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan
from icestream.core.times import Micros
from icestream.sql.relations.conditions import all_of
from icestream.sql.relations.tree import Join, Scan, TimeWindow, WindowTable, bare
from icestream.sql.statements.dialect import written
from icestream.sql.statements.tokens import Text

#: hidden columns: the event time, and the instant of a row if it is another one
TIME, INSTANT = "event time", "instant"
_EDGES = "edges"
_KINDS = {"inner": "inner", "left": "left", "semi": "left_semi", "anti": "left_anti"}


@contextmanager
def located(text: Text, place: TextSpan) -> Iterator[None]:
    """Report errors about a part of a statement with its place."""
    try:
        yield
    except (DefinitionError, AnalysisException) as error:
        message = str(error).strip().splitlines()[0]
        raise text.error(place, bare(message)) from None


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

    @property
    def hidden(self) -> tuple[str, ...]:
        return (TIME, INSTANT) if self.has_instant else (TIME,)

    def changed(self, change: Callable[[DataFrame], DataFrame]) -> Staged:
        parts = tuple(replace(part, frame=change(part.frame)) for part in self.stream._parts)
        return replace(self, stream=Stream(parts))

    @property
    def frame(self) -> DataFrame:
        frames = [part.frame.select(*map(sf.col, self.columns)) for part in self.stream._parts]
        return reduce(DataFrame.unionAll, frames)


def scanned(scan: Scan, source: Stream | DataFrame) -> Staged | Static:
    """Return the rows of a source under the names of a scan."""

    def renamed(frame: DataFrame) -> list[Column]:
        return [sf.col(quoted(name)).alias(column) for name, column in scan.named.items()]

    if isinstance(source, DataFrame):
        return Static(source.select(*renamed(source)))
    parts = tuple(
        replace(
            part,
            frame=part.frame.select(*renamed(part.frame), sf.col(quoted(part.time)).alias(TIME)),
            time=TIME,
            name=scan.source if len(source._parts) == 1 else part.name,
        )
        for part in source._parts
    )
    return Staged(Stream(parts), scan.columns)


def filtered(rows: Staged | Static, condition: exp.Expr) -> Staged | Static:
    """Keep the rows that satisfy a condition."""
    text = written(condition)
    if isinstance(rows, Static):
        return Static(rows.frame.where(text))
    return rows.changed(lambda frame: frame.where(text))


def projected(rows: Staged | Static, items: Mapping[str, exp.Expr]) -> Staged | Static:
    """Compute columns."""
    columns = [sf.expr(written(each)).alias(name) for name, each in items.items()]
    if isinstance(rows, Static):
        return Static(rows.frame.select(*columns))
    hidden = [sf.col(quoted(name)) for name in rows.hidden]
    made = rows.changed(lambda frame: frame.select(*columns, *hidden))
    return replace(made, columns=tuple(items))


def joined(join: Join, rows: Staged, table: Static) -> Staged:
    """Join a stream with a static table."""
    condition = sf.expr(written(all_of(join.on))) if join.on else sf.lit(True)
    kind = _KINDS[join.kind]
    made = rows.changed(lambda frame: frame.join(table.frame, condition, kind))
    return replace(made, columns=join.columns)


def with_copies(table: WindowTable, rows: Staged) -> Staged:
    """Return each row once for each of its windows; its instant is the window's end."""
    window = table.window
    assert isinstance(window, TimeWindow)
    time = quoted(table.time)
    if window.kind == "cumulate":
        start = f"unix_micros({time}) - pmod(unix_micros({time}), {window.size})"
        first = f"unix_micros({time}) - pmod(unix_micros({time}), {window.step}) + {window.step}"
        ends = sf.expr(f"explode(sequence({first}, {start} + {window.size}, {window.step}))")
        edges = {
            table.start: f"timestamp_micros({start})",
            table.end: f"timestamp_micros({_EDGES})",
        }
    else:
        lengths = f"{window.size} microseconds", f"{window.step} microseconds"
        ends = sf.window(sf.col(time), *lengths)
        edges = {table.start: f"{_EDGES}.start", table.end: f"{_EDGES}.end"}
    edges[INSTANT] = edges[table.end]

    def copied(frame: DataFrame) -> DataFrame:
        others = [sf.col(quoted(name)) for name in frame.columns if name != INSTANT]
        columns = [sf.expr(text).alias(name) for name, text in edges.items()]
        return frame.select(*others, ends.alias(_EDGES)).select(*others, *columns)

    made = rows.changed(copied)
    return replace(made, columns=table.columns, has_instant=True, ahead=window.size)


def by_processing_time(rows: Staged, time: str) -> Staged:
    """Return the rows with a column of processing times as their event time."""
    stamped = rows.changed(lambda frame: frame.withColumn(TIME, sf.col(time)))
    parts = tuple(replace(part, slack=0) for part in stamped.stream._parts)
    return replace(stamped, stream=Stream(parts))
