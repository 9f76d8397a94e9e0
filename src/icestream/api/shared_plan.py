"""From what users write to plans: statements over one stream, and the plan they share.

Idea: a statement is one query as the user wrote it, with Spark's columns. `build` turns statements
over the same events into one projection of these events and one plan with a view for each.
Columns that mean the same are read once, however many statements use them.

Invariant: a query that cannot run is refused here, before it starts (`tests/api`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StringType, StructField, StructType

from icestream.api.columns import named_column, quoted, resolving
from icestream.api.functions import AggregateExpression
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.computation import Computation
from icestream.plan.grid import lower
from icestream.plan.grid.parts import needs_order
from icestream.plan.nodes.queries import SOURCE, TIME, Plan, Source, View, WindowKind
from icestream.plan.windows.frame import GROUPING_ID
from icestream.plan.windows.session import Session
from icestream.runtime.ingest.file_order import piece_columns
from icestream.runtime.ingest.reception import KEPT
from icestream.runtime.spark.arrow_types import from_arrow_type, to_arrow_type
from icestream.runtime.spark.session import zone_of
from icestream.state.keys import KeyCodec


@dataclass(frozen=True)
class StreamInput:
    """One DataFrame of a stream, with its time column and slack."""

    frame: DataFrame
    time: str
    slack: Micros
    nulls: str
    name: str
    idle: Micros | None = None

    @property
    def columns(self) -> pa.Schema:
        """Return the columns with the types in which Spark sends them."""
        return _arrow_schema(self.frame.columns, self.frame.schema.fields)

    @property
    def event_time(self) -> Column:
        """Return the time column."""
        return named_column(self.frame, self.time)

    @property
    def zone(self) -> str:
        """Return the zone of the session, in which expressions read times."""
        return zone_of(self.frame.sparkSession)

    @property
    def time_type(self) -> pa.DataType:
        """Return the type of the time column."""
        kind = self.frame.select(self.event_time).schema[0].dataType
        return _arrow_type(kind, self.time)


@dataclass(frozen=True)
class Statement:
    """One query as the user wrote it."""

    parts: tuple[StreamInput, ...]
    windows: WindowKind
    keys: tuple[Column, ...]
    #: grouping sets by position among the keys; None for one grouping by all of them
    sets: tuple[tuple[int, ...], ...] | None
    aggregates: tuple[AggregateExpression, ...]
    #: the gap of sessions in which each event has its own
    gap: Column | None = None


Plan_co = TypeVar("Plan_co", bound=Computation, covariant=True)


@dataclass(frozen=True)
class BuiltQuery(Generic[Plan_co]):
    """Events and plan of some statements, or of a query over events with lifetimes."""

    events: DataFrame
    plan: Plan_co
    #: columns of the rows of each view
    rows: tuple[StructType, ...]
    #: the user's name for the time column
    time: str
    #: the events with columns for their order, where rows depend on it
    ordered: DataFrame | None = None
    #: builds it again such that all columns of the sources are read, for rows that are refused
    whole: Callable[[], BuiltQuery[Any]] | None = None
    #: those columns
    kept: StructType | None = None

    @property
    def read(self) -> DataFrame:
        """Return the events as Spark reads them."""
        return self.events if self.ordered is None else self.ordered


@dataclass(frozen=True)
class WholeRows:
    """All columns of the sources, under the names of the table of refused rows."""

    schema: StructType
    #: the columns of each source, null where it has none of a name
    columns: tuple[tuple[Column, ...], ...]

    @classmethod
    def of(cls, parts: Sequence[StreamInput]) -> WholeRows:
        """Return columns of all parts; equal names of different types are told apart."""
        found: dict[str, StructField] = {}
        for number, part in enumerate(parts):
            for each in part.frame.schema.fields:
                name = each.name
                other = found.get(name.lower())
                if other is not None and other.dataType != each.dataType:
                    name = f"{name}_{number}"
                found.setdefault(name.lower(), StructField(name, each.dataType))
        columns = tuple(
            tuple(_kept(part, number, key, each) for key, each in found.items())
            for number, part in enumerate(parts)
        )
        named = [
            [column.alias(f"{KEPT}{place}") for place, column in enumerate(each)]
            for each in columns
        ]
        return cls(StructType([*found.values()]), tuple(map(tuple, named)))


def _kept(part: StreamInput, number: int, key: str, wanted: StructField) -> Column:
    for each in part.frame.schema.fields:
        same = key in (each.name.lower(), f"{each.name.lower()}_{number}")
        if same and each.dataType == wanted.dataType:
            return sf.col(quoted(each.name))
    return sf.lit(None).cast(wanted.dataType)


def build(
    statements: Sequence[Statement], *, whole: bool = False, runs: bool = True
) -> BuiltQuery[Plan]:
    """Return the projection of the events and the plan that statements share.

    Without `runs` nobody asks whether the operators of windows can run it.
    """
    parts = statements[0].parts
    kept = WholeRows.of(parts) if whole else None
    frame = parts[0].frame
    for each in statements:
        check_aggregates(each.aggregates)
        check_same_stream(parts, each.parts)
    keys, inputs = _Columns(frame, named=True), _Columns(frame)
    views = [_view(each, keys, inputs) for each in statements]
    named = [
        *(key.alias(f"k{place}") for place, key in enumerate(keys.columns)),
        *(column.alias(f"x{place}") for place, column in enumerate(inputs.columns)),
    ]
    read = partial(read_parts, parts, lambda part, number: named)
    events = read()
    _, _, *fields = events.schema.fields
    key_fields, input_fields = fields[: len(keys.columns)], fields[len(keys.columns) :]
    plan = Plan(
        sources=sources_of(parts),
        keys=_arrow_schema(keys.texts, key_fields),
        inputs=_arrow_schema([each.name for each in input_fields], input_fields),
        expressions=tuple(inputs.texts),
        views=tuple(views),
        time=parts[0].time_type,
    )
    KeyCodec(plan.group_keys)
    if runs:
        lower.check(plan)
    kinds: list[DataType] = [each.dataType for each in key_fields]
    time = events.schema[0].dataType
    rows = tuple(_result_schema(plan, view, time, kinds) for view in plan.views)
    beside = () if kept is None else (kept.columns,)
    return BuiltQuery(
        read(*beside),
        plan,
        rows,
        parts[0].time,
        in_order(parts, read, *beside) if needs_order(plan) else None,
        partial(build, statements, whole=True),
        None if kept is None else kept.schema,
    )


#: columns of each part
PartColumns = Sequence[Sequence[Column]]


def read_parts(
    parts: Sequence[StreamInput],
    columns: Callable[[StreamInput, int], Sequence[Column]],
    *beside: PartColumns,
) -> DataFrame:
    """Return the events of all parts of a shared plan: time, source, columns, others beside."""
    frames = []
    for number, part in enumerate(parts):
        heading = [part.event_time.alias(TIME), sf.lit(number).cast("int").alias(SOURCE)]
        more = [column for each in beside for column in each[number]]
        with resolving(part.frame.columns):
            frames.append(part.frame.select(*heading, *columns(part, number), *more))
    _check_union(frames)
    return reduce(DataFrame.unionAll, frames)


def in_order(
    parts: Sequence[StreamInput], read: Callable[..., DataFrame], *beside: PartColumns
) -> DataFrame | None:
    """Return the events of a plan with columns for their order; None if sources have none."""
    pieces = piece_columns([part.frame for part in parts])
    return None if pieces is None else read(*beside, [(piece,) for piece in pieces])


def _view(statement: Statement, keys: _Columns, inputs: _Columns) -> View:
    frame, windows = keys.frame, statement.windows
    if statement.gap is not None:
        until = inputs.place_of(_own_ends(statement.parts, statement.gap))
        windows = Session(None, f"x{until}")
    names = [_name_in(frame, key) for key in statement.keys]
    answers = [answer_name(frame, each) for each in statement.aggregates]
    heading = windows.heading(pa.timestamp("us")).name
    grouping_columns = [] if statement.sets is None else [GROUPING_ID]
    check_names([heading, *names, *grouping_columns, *answers])
    places = tuple(keys.place_of(key) for key in statement.keys)
    sets = statement.sets or (tuple(range(len(places))),)
    return View(
        windows,
        tuple(
            aggregate_of(each, name, [inputs.place_of(column) for column in each.columns])
            for each, name in zip(statement.aggregates, answers, strict=True)
        ),
        tuple(tuple(sorted(places[i] for i in chosen)) for chosen in sets),
        places,
        statement.sets is not None,
    )


def _own_ends(parts: Sequence[StreamInput], gap: Column) -> Column:
    """Return the ends of the sessions that events are alone, given the gap of each."""
    if len({part.time for part in parts}) > 1:
        msg = (
            "session with a gap of each event's own needs one time column: give the time columns "
            "of the streams of a union the same name"
        )
        raise DefinitionError(msg)
    with resolving(parts[0].frame.columns):
        kind = parts[0].frame.select(gap).schema[0].dataType
    if isinstance(kind, StringType):
        gap = gap.cast("interval")
    elif "interval" not in kind.simpleString():
        msg = (
            f"the gap of a session is an interval, or text such as '30 minutes'; this column is "
            f"{kind.simpleString()}. Make an interval of it, for example with "
            "sf.make_dt_interval(secs=...)"
        )
        raise DefinitionError(msg)
    return parts[0].event_time + gap


def sources_of(parts: Sequence[StreamInput]) -> tuple[Source, ...]:
    """Return the sources of a shared plan under unique names; refuse batches beside streams."""
    batches = [part.name for part in parts if not part.frame.isStreaming]
    if 0 < len(batches) < len(parts):
        msg = (
            f"{', '.join(batches)} is a batch DataFrame, but others of this query are streams: "
            "read it with spark.readStream, or join it in Spark, with df.join(batch, ...), before "
            "ice.stream(...)"
        )
        raise DefinitionError(msg)
    names = [part.name for part in parts]
    return tuple(
        Source(
            part.name if names.count(part.name) == 1 else f"{part.name} {number}",
            part.slack,
            part.nulls,
            part.idle,
        )
        for number, part in enumerate(parts, start=1)
    )


def check_same_stream(parts: Sequence[StreamInput], others: Sequence[StreamInput]) -> None:
    """Refuse to share a plan between queries over different streams."""
    same = len(parts) == len(others) and all(
        (a.time, a.slack, a.nulls, a.idle) == (b.time, b.slack, b.nulls, b.idle)
        and (a.frame is b.frame or a.frame.sameSemantics(b.frame))
        for a, b in zip(parts, others, strict=True)
    )
    if not same:
        msg = (
            "queries that are started together must read the same stream: create it once with "
            "ice.stream(...), filters and columns included, and build all of them on it"
        )
        raise DefinitionError(msg)


def check_aggregates(aggregates: Sequence[object]) -> None:
    """Refuse anything but aggregates of this library in a plan."""
    if not aggregates:
        msg = "agg needs at least one aggregate, for example ice.count()"
        raise DefinitionError(msg)
    for each in aggregates:
        if not isinstance(each, AggregateExpression):
            msg = (
                f"agg takes Icestream's aggregates (ice.count(), ice.sum('x'), ...); got {each!r}. "
                "Functions of pyspark.sql.functions belong in the columns that are aggregated"
            )
            raise DefinitionError(msg)


def check_names(names: Sequence[str]) -> None:
    """Refuse result names of a plan that are the same column to Spark, which ignores case."""
    lowered = [name.lower() for name in names]
    twice = sorted({name for name in lowered if lowered.count(name) > 1})
    if twice:
        msg = f"the result would have several columns called {twice}: name them with .alias(...)"
        raise DefinitionError(msg)


def _name_in(frame: DataFrame, column: Column) -> str:
    """Return the name Spark gives a column."""
    with resolving(frame.columns):
        names = frame.select(column).columns
    if len(names) != 1:
        msg = f"columns must be given one by one; this one stands for {names}"
        raise DefinitionError(msg)
    return names[0]


@dataclass
class _Columns:
    """The columns that statements read; equal expressions share a place, whatever their text."""

    frame: DataFrame
    #: whether columns of different names are different columns
    named: bool = False
    columns: list[Column] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    _meanings: list[Any] = field(default_factory=list)

    def place_of(self, column: Column) -> int:
        """Return the place of a column, adding it if it is new."""
        meaning, text = _meaning(self.frame, column), _name_in(self.frame, column)
        for place, other in enumerate(self._meanings):
            same_name = not self.named or self.texts[place] == text
            if same_name and meaning.semanticEquals(other):
                return place
        alike = sum(other.split(" #")[0] == text for other in self.texts)
        self.columns.append(column)
        self.texts.append(f"{text} #{alike + 1}" if alike else text)
        self._meanings.append(meaning)
        return len(self.columns) - 1


def aggregate_of(each: AggregateExpression, name: str, places: Sequence[int]) -> Aggregate:
    """Return an aggregate of a plan over the columns `x<place>` that statements share."""
    return Aggregate.of(each.function, [f"x{place}" for place in places], name, each.parameters)


def answer_name(frame: DataFrame, each: AggregateExpression) -> str:
    """Return the name of a result of a plan: the user's, or Spark's, or one like Spark's."""
    if each.name:
        return each.name
    in_spark = each.in_spark
    if in_spark is not None:
        return _name_in(frame, in_spark)
    return f"{each.title}({', '.join(_name_in(frame, column) for column in each.columns)})"


def _meaning(frame: DataFrame, column: Column) -> Any:
    """Return Spark's resolved expression of a column."""
    with resolving(frame.columns):
        chosen = frame.select(column.alias("x"))
    return chosen._jdf.queryExecution().analyzed().expressions().head().child()


def _check_union(frames: Sequence[DataFrame]) -> None:
    schema = frames[0].schema
    for frame in frames[1:]:
        if _types(frame.schema) != _types(schema):
            msg = (
                "the streams of a union must have equal types in the columns that the query uses: "
                f"{schema.simpleString()} and {frame.schema.simpleString()}"
            )
            raise DefinitionError(msg)


def _types(schema: StructType) -> list[str]:
    kinds: list[DataType] = [field.dataType for field in schema.fields]
    return [kind.simpleString() for kind in kinds]


# -- types of Spark and of Arrow -------------------------------------------------------------


def _arrow_schema(names: Sequence[str], fields: Sequence[StructField]) -> pa.Schema:
    """Return fields of Spark's types as Arrow fields with the given names."""
    return pa.schema(
        [
            pa.field(name, _arrow_type(field.dataType, name))
            for name, field in zip(names, fields, strict=True)
        ]
    )


def _arrow_type(kind: DataType, name: str) -> pa.DataType:
    """Return the Arrow type in which Spark sends a column of its type."""
    if isinstance(kind, StringType) and kind.simpleString() != "string":
        msg = (
            f"column {name!r} is {kind.simpleString()}: strings must have the binary collation; "
            "cast it to string"
        )
        raise DefinitionError(msg)
    try:
        return to_arrow_type(kind)
    except PySparkException as error:
        msg = f"column {name!r} of type {kind.simpleString()} cannot be used here: {error}"
        raise DefinitionError(msg) from None


def _result_schema(plan: Plan, view: View, time: DataType, keys: Sequence[DataType]) -> StructType:
    """Return Spark's types of a view's rows: keys as they arrived, aggregates as in Spark."""
    columns = plan.results(view)
    heading: DataType = time
    if pa.types.is_struct(columns.field(0).type):
        heading = StructType([StructField("start", time), StructField("end", time)])
    given = [heading, *(keys[place] for place in view.keys)]
    kinds = [*given, *(from_arrow_type(kind) for kind in columns.types[len(given) :])]
    return StructType(
        [StructField(name, kind) for name, kind in zip(columns.names, kinds, strict=True)]
    )
