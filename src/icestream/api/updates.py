"""Update streams, named as in PySpark: an expensive step processes the newest value of a key.

Idea: with `stream.latestBy("symbol")` an event replaces the previous one of the same symbol, so
under load only the newest needs an answer; `apply` defines the step. `apply` on the stream itself
processes every event. A query that cannot run is refused here, before it starts.
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from icestream.api.columns import as_spelled, resolving, spark_columns
from icestream.api.dataframe_methods import ColumnMethods
from icestream.api.pre_queue import arriving, condition_of, inputs_by_trust, moved, texts_of
from icestream.api.shared_plan import StreamInput
from icestream.api.update_result import StepWords, UpdateResult, built, common_columns, explained
from icestream.api.update_windows import UpdateWindowed
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import parse_interval
from icestream.operators.dataflow.steps import unchanged
from icestream.operators.latest.pre_queue import (
    LATENESS,
    PreQueueFilter,
    PreQueueJoin,
    PreQueueMap,
    PreQueueNode,
    PreQueueUnion,
    columns_of,
    numbers_of,
    ranks_of,
)
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.window_serving import WindowedBy
from icestream.plan.nodes.updates import LOAD, Latest
from icestream.runtime.spark.arrow_types import from_arrow_schema
from icestream.runtime.spark.sink import no_rows
from icestream.sql.ddl import schema_of
from icestream.state.keys import KeyCodec
from icestream.state.queue.windows.spec import UpdateWindows

if TYPE_CHECKING:
    from icestream.api.stream import Stream


@dataclass(frozen=True)
class LatestBy(StepWords, ColumnMethods):
    """A stream in which an event replaces the previous one of the same key.

    Examples:
        >>> calls.latestBy("symbol").map(
        ...     lambda row: {"symbol": row["symbol"]}, "symbol string"
        ... ).columns
        ['symbol']
    """

    _called: ClassVar[str] = "update streams"
    _instead: ClassVar[Mapping[str, str]] = {
        "groupBy": "window(...).groupBy(...), or groupBy(...) of the stream before latestBy(...)",
        "agg": "window(...).agg(...)",
        "dropDuplicates": "nothing: an update replaces the previous one of its key",
    }
    _parts: tuple[StreamInput, ...]
    _latest: Latest | None
    _budget: Micros | None = None
    #: operators in front of the queue; None if there are none
    _pre_queue: PreQueueNode | None = None
    _windowed: WindowedBy | None = None

    def where(self, condition: Column | str) -> LatestBy:
        """Keep the updates that satisfy a condition; the others do not update their key.

        After a union or a join Icestream evaluates the condition, with the semantics of Spark SQL.

        Examples:
            >>> dear = calls.latestBy("symbol").where("price > 100")
            >>> dear.apply(lambda rows: rows, "symbol string, price double").columns
            ['symbol', 'price']
        """
        if self._pre_queue is None:
            return self._in_spark(lambda frame: frame.where(condition), "where")
        text = condition_of(self._frame, condition)
        return self._behind(PreQueueFilter(self._pre_queue, text, self._parts[0].zone))

    @property
    def schema(self) -> StructType:
        return self._frame.schema

    def explain(self) -> None:
        """Print what will be served and in which order.

        Examples:
            >>> calls.latestBy("symbol").explain()
                columns  timestamp, ...
        """
        step = "none yet: call apply, applyInPandas or map, or agg of a window"
        print(explained(self.columns, self._latest, self._budget, step))

    def select(self, *cols: Column | str) -> LatestBy:
        """Select columns, or expressions over them; the key and the time must stay.

        Examples:
            >>> few = calls.latestBy("symbol").select("timestamp", "symbol", "price")
            >>> few.apply(lambda rows: rows, "symbol string, price double").columns
            ['symbol', 'price']
        """
        if self._is_pushed:
            return self._in_spark(lambda frame: frame.select(*spark_columns(frame, cols)), "select")
        assert self._pre_queue is not None
        texts = texts_of(self._frame, cols)
        return self._behind(PreQueueMap(self._pre_queue, tuple(texts), self._parts[0].zone))

    def union(self, other: LatestBy, *, truth: str | Sequence[str]) -> LatestBy:
        """Return the updates of both streams; the time of a key never goes back.

        If a key has several updates with the same time, the update of the most trusted stream
        counts. Later batches cannot add updates for a time that the key has already had, whichever
        stream they come from.

        Args:
            other: an update stream with the same columns and key.
            truth: the name of the most trusted stream (`ice.stream(..., name=...)`), or names in
                descending order of trust; the other streams follow in their order.

        Examples:
            >>> fast = ice.stream(df, time="timestamp", name="fast").latestBy("symbol")
            >>> sure = ice.stream(df, time="timestamp", name="sure").latestBy("symbol")
            >>> both = fast.union(sure, truth="sure")
            >>> both.apply(lambda rows: rows, "symbol string, price double").columns
            ['symbol', 'price']
        """
        self._check_alike("union", other)
        parts = self._parts + other._parts
        names = [part.name for part in parts]
        trusted = [truth] if isinstance(truth, str) else list(truth)
        if len(set(names)) < len(names) or not set(trusted) <= set(names) or not trusted:
            msg = (
                f"truth must name streams of the union, each with a name of its own; the streams "
                f"are called {names}, but truth is {trusted}. Name them with "
                "ice.stream(..., name=...)"
            )
            raise DefinitionError(msg)
        sides = (self._arcs, moved(other._arcs, len(self._parts)))
        order = trusted + [names[number] for side in sides for number in inputs_by_trust(side)]
        arcs = tuple(arc for side in sides for arc in _merged(side))
        best = [min(order.index(names[number]) for number in numbers_of(arc)) for arc in arcs]
        ranked = tuple(sorted(range(len(arcs)), key=best.__getitem__))
        return replace(self, _parts=parts)._behind(PreQueueUnion(arcs, ranked))

    def join(
        self,
        other: LatestBy,
        on: str | Sequence[str],
        *,
        within: str | int,
        condition: str | None = None,
        lateness: str | int | None = None,
    ) -> LatestBy:
        """Match the updates of both streams on their key; the newest match of a key is its update.

        Args:
            other: an update stream with the same key; its other columns need different names.
            on: the key, stated for the reader.
            within: how far apart in time matching updates may be.
            condition: a further condition on matches, in SQL over their columns.
            lateness: how far an update may be behind the newest one of its stream, whatever its
                key, and find all matches; the join forgets what is older. By default as long as
                `forgetAfter`, at most an hour.

        Examples:
            >>> prices = calls.latestBy("symbol").select("timestamp", "symbol", "price")
            >>> volumes = calls.latestBy("symbol").select("timestamp", "symbol", "volume")
            >>> both = prices.join(volumes, on="symbol", within="5 seconds")
            >>> both.apply(lambda rows: rows, "symbol string, price double, volume long").columns
            ['symbol', 'price', 'volume']
        """
        self._check_alike("join", other)
        assert self._latest is not None
        asked = (on,) if isinstance(on, str) else tuple(on)
        if set(asked) != set(self._latest.keys):
            msg = f"update streams are joined on their key {self._latest.keys}; got on={asked}"
            raise DefinitionError(msg)
        right = moved(other._arcs, len(self._parts))
        usual = min(LATENESS, self._latest.forget or LATENESS)
        times = parse_interval(within), usual if lateness is None else parse_interval(lateness)
        if times[1] < 0:
            msg = f"lateness must not be negative; got {lateness!r}"
            raise DefinitionError(msg)
        joined = PreQueueJoin(self._arcs, right, times[0], condition, self._parts[0].zone, times[1])
        return replace(self, _parts=self._parts + other._parts)._behind(joined)

    def window(
        self, size: str | int, slide: str | int | None = None, *, semantics: str = "lazy"
    ) -> UpdateWindowed:
        """Return the windows of each key: the newest window of a key is its update.

        Under load older windows are skipped, but windows are never cut: an answer covers all
        updates of its key in the window.

        Args:
            size: the length of a window.
            slide: the interval between window starts, at most `size`; tumbling if left out.
            semantics: `lazy` chooses the newest window that the newest update completes, `eager`
                the newest window that has started.

        Examples:
            >>> minutes = calls.latestBy("symbol").window("1 minute", slide="10 seconds")
            >>> minutes.agg(ice.avg("price").alias("mean")).columns
            ['symbol', 'window_start', 'window_end', 'mean']
        """
        self._check_alike("window", self)
        length = parse_interval(size)
        kind: Any = semantics
        step = length if slide is None else parse_interval(slide)
        return UpdateWindowed(self, UpdateWindows(length, step, kind))

    def _check_alike(self, method: str, other: object) -> None:
        """Refuse streams that the method does not support."""
        if isinstance(other, UpdateResult):
            msg = (
                f"{method} comes before the step: rows of apply, map and agg are not an update "
                f"stream. Write latestBy(...).{method}(...) first, or start a second query over "
                "the rows"
            )
            raise DefinitionError(msg)
        if not isinstance(other, LatestBy):
            msg = f"{method} takes another update stream: stream.latestBy(...); got {other!r}"
            raise DefinitionError(msg)
        if self._latest is not None and self._latest.under == LOAD:
            msg = f"{method} processes every update: leave under={LOAD!r} out"
            raise DefinitionError(msg)
        if other._latest != self._latest or other._budget != self._budget:
            msg = (
                f"{method} needs two update streams with the same key, schedule and budget; got "
                f"{self._latest} and {other._latest}"
            )
            raise DefinitionError(msg)

    @property
    def _arcs(self) -> PreQueueNode:
        """Return the tree in front of the queue; without one, the rows as they arrive."""
        if self._pre_queue is not None:
            return self._pre_queue
        assert self._latest is not None
        return arriving(self._parts, self._latest.keys)

    @property
    def _is_pushed(self) -> bool:
        """Return whether Spark computes the columns, as for the parts of a union."""
        return self._pre_queue is None or ranks_of(self._pre_queue) is not None

    @property
    def _frame(self) -> DataFrame:
        """Return an empty frame with the columns of the updates, for analysis by Spark."""
        if self._pre_queue is None:
            return self._parts[0].frame
        return no_rows(self._parts[0].frame.sparkSession, from_arrow_schema(self._columns))

    def _behind(self, front: PreQueueNode) -> LatestBy:
        """Return the stream that a new root of the tree makes."""
        # an operator that does not fit is refused where it is built
        front.runner()
        columns_of(front)
        return replace(self, _pre_queue=front)

    def _in_spark(self, change: Callable[[DataFrame], DataFrame], method: str) -> LatestBy:
        keys = () if self._latest is None else self._latest.keys
        parts = tuple(_changed(part, change, keys, method) for part in self._parts)
        front = self._pre_queue
        if isinstance(front, PreQueueUnion):
            sources = [
                arriving([parts[number] for number in numbers_of(arc)], keys, numbers_of(arc))
                for arc in front.sources
            ]
            front = replace(front, sources=tuple(sources))
        return replace(self, _parts=parts, _pre_queue=front)

    @property
    def writeStream(self) -> StreamWriter:
        """Return a writer of the newest rows themselves, without a step.

        Examples:
            >>> writer = calls.latestBy("symbol").writeStream.format("noop")
        """
        return self.apply(unchanged, self._given).writeStream

    def _served(
        self, function: Any, schema: str | pa.Schema, form: str, retries: int
    ) -> UpdateResult:
        if not callable(function):
            msg = f"apply takes a function; got {type(function).__name__}"
            raise DefinitionError(msg)
        keys = () if self._latest is None else self._latest.keys
        if self._windowed is not None:
            keys = self._windowed.by
        every = self._latest is None
        step = UpdateStep(function, self._given, schema_of(schema), keys, form, every, retries)
        return UpdateResult(built(self, [step]), self, step)

    @property
    def _columns(self) -> pa.Schema:
        """Return the columns of the updates."""
        return (
            common_columns(self._parts)
            if self._pre_queue is None
            else self._pre_queue.stream.schema
        )

    @property
    def _given(self) -> pa.Schema:
        """Return the columns that a step receives."""
        if self._windowed is not None:
            return self._windowed.operator("inplace").result.schema
        return self._columns


def _merged(arcs: PreQueueNode) -> tuple[PreQueueNode, ...]:
    """Return the streams of a union, or the stream itself."""
    return arcs.sources if isinstance(arcs, PreQueueUnion) else (arcs,)


def key_names(stream: Stream, keys: Sequence[Column | str]) -> tuple[str, ...]:
    """Return the names of the columns of an update key; DefinitionError for computed ones."""
    frame = stream._parts[0].frame
    names: list[str] = []
    for key in keys:
        if isinstance(key, str):
            names += as_spelled([key], frame.columns)
            continue
        with resolving(frame.columns):
            chosen = _identities(frame.select(key))
        if not chosen.items() <= _identities(frame).items():
            msg = (
                f"latestBy takes columns of the stream; got the expression {key}: add it with "
                "withColumn before, and name that column"
            )
            raise DefinitionError(msg)
        names += chosen
    return tuple(names)


def latest_by(stream: Stream, latest: Latest, budget: str | int | None) -> LatestBy:
    """Return a stream with update semantics, as an update stream."""
    columns, keys = common_columns(stream._parts), latest.keys
    unknown = [name for name in keys if name not in columns.names]
    if unknown:
        msg = f"latestBy names {unknown}; the columns are {columns.names}"
        raise DefinitionError(msg)
    KeyCodec(pa.schema([columns.field(key) for key in keys]))
    length = None if budget is None else parse_interval(budget)
    if length is not None and length <= 0:
        msg = f"the budget of a batch must be positive; got {budget!r}"
        raise DefinitionError(msg)
    return LatestBy(stream._parts, latest, length)


def _changed(
    part: StreamInput, change: Callable[[DataFrame], DataFrame], keys: Sequence[str], method: str
) -> StreamInput:
    """Return a part with its rows changed; raise DefinitionError if key or time would change."""
    with resolving(part.frame.columns):
        frame = change(part.frame)
    before, after = _identities(part.frame), _identities(frame)
    for name in (*keys, part.time):
        if before.get(name) != after.get(name):
            what = "key" if name in keys else "time"
            kept = name in frame.columns
            remedy = "give the computed column another name" if kept else f"add {name!r} to it"
            msg = (
                f"{method} may not change the update {what}: {name!r} must stay a column and keep "
                f"its values; {remedy}"
            )
            raise DefinitionError(msg)
    return replace(part, frame=frame)


def _identities(frame: DataFrame) -> dict[str, int]:
    """Return Spark's expression ids by column name; computed columns get new ones."""
    output = frame._jdf.queryExecution().analyzed().output()
    attributes = [output.apply(place) for place in range(output.size())]
    return {each.name(): each.exprId().id() for each in attributes}
