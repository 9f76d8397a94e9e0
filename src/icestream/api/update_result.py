"""Steps over update streams as queries: their rows, and how several of them become one query.

Idea: a step knows its stream. Steps over the same stream, started together, share one plan with a
view for each; those over newest values share one queue.

A stream, an update stream and windows of one have the same three words for steps; they differ in
which rows a step gets: every event, the newest row of each key, or the newest answer of each key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf

from icestream.api.columns import quoted
from icestream.api.dataframe_methods import ProjectedRows
from icestream.api.shared_plan import (
    BuiltQuery,
    StreamInput,
    check_same_stream,
    in_order,
    read_parts,
    sources_of,
)
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import format_interval
from icestream.operators.latest.pre_queue import columns_of, ranks_of
from icestream.operators.latest.step import ARROW, PANDAS, ROWS, UpdateStep
from icestream.operators.latest.window_aggregate import END
from icestream.plan.nodes.updates import Latest, Updates, column
from icestream.runtime.spark.arrow_types import from_arrow_schema, from_arrow_type

if TYPE_CHECKING:
    import pandas as pd

    from icestream.api.updates import LatestBy


@dataclass(frozen=True)
class UpdateResult(ProjectedRows):
    """The rows of a step over an update stream or over every event; start it with `writeStream`.

    Examples:
        >>> served = calls.latestBy("symbol").apply(
        ...     lambda batch: batch.select(["symbol"]), "symbol string"
        ... )
        >>> served.columns
        ['symbol']
    """

    _built: BuiltQuery[Updates]
    _source: LatestBy
    _step: UpdateStep

    @property
    def writeStream(self) -> StreamWriter:
        """Return a writer that sets where the rows go and starts the query.

        Examples:
            >>> served = calls.map(lambda row: {"symbol": row["symbol"]}, "symbol string")
            >>> writer = served.writeStream.format("noop").memory("64 MB")
        """
        return StreamWriter(
            None, self._built, self._shape, self.schema, _result=self, _together=together
        )

    def _stamped(self, is_stamped: bool) -> UpdateResult:
        """Return the rows with the time of the update that each answers, or without it."""
        windowed, time = self._source._windowed, self._source._arcs.stream.time
        stamp = time if windowed is None else END
        step = self._step.stamped(stamp if is_stamped else None)
        return replace(self, _built=built(self._source, [step]), _step=step)

    def explain(self) -> None:
        """Print what will be computed and how.

        Examples:
            >>> served = calls.map(lambda row: {"symbol": row["symbol"]}, "symbol string")
            >>> served.explain()
                columns  timestamp, ...
        """
        plan = self._built.plan
        print(explained(plan.columns.names, plan.latest, plan.budget, self._step.text))


def explained(
    columns: Sequence[str], latest: Latest | None, budget: Micros | None, step: str
) -> str:
    """Return what a step over an update stream, or over every event, computes and how."""
    lines = {"columns": ", ".join(columns)}
    if latest is None:
        lines["serves"] = "every event, in the batch that brings it"
    else:
        spent = "what the trigger leaves" if budget is None else format_interval(budget)
        lines["serves"] = f"the newest of each {', '.join(latest.keys) or 'stream'}"
        lines["in the order"] = latest.schedule
        lines["for"] = f"{spent} in each batch"
    return "\n".join(f"{name:>16}  {text}" for name, text in {**lines, "step": step}.items())


def together(results: Sequence[object], _modes: Sequence[str]) -> BuiltQuery[Updates]:
    """Return the events and the plan of results of update streams that form one query."""
    given = [each for each in results if isinstance(each, UpdateResult)]
    if len(given) < len(results):
        msg = (
            "steps over an update stream can only be started with steps over the same stream. "
            "Start windows, joins and jobs as separate queries with writeStream...start(): "
            "queries may read the same DataFrame in parallel"
        )
        raise DefinitionError(msg)
    sources = [each._source for each in given]
    queues = [each for each in sources if each._latest is not None]
    lead = queues[0] if queues else sources[0]
    if lead._windowed is not None:
        msg = "windows of update streams must be started alone, with writeStream...start()"
        raise DefinitionError(msg)
    for source in sources:
        check_same_stream(lead._parts, source._parts)
    if any(replace(each, _parts=lead._parts) != lead for each in queues):
        msg = (
            "steps that are started together share one queue: call latestBy(...) once and build "
            "all of them on its result, or start them as separate queries"
        )
        raise DefinitionError(msg)
    return built(lead, [each._step for each in given])


def built(source: LatestBy, steps: Sequence[UpdateStep]) -> BuiltQuery[Updates]:
    """Return the events and the plan of the results of some steps over an update stream."""
    parts, front = source._parts, source._pre_queue
    ranks = ranks_of(front) if source._windowed is None else None
    if ranks is not None:
        front = None
    columns = common_columns(parts) if front is None else columns_of(front)
    read = partial(read_parts, parts, partial(_columns, columns))
    plan = Updates(
        sources_of(parts),
        columns,
        parts[0].time_type,
        tuple(steps),
        source._latest,
        source._budget,
        ranks=ranks,
        front=front,
        windowed=source._windowed,
    )
    rows = tuple(from_arrow_schema(step.result) for step in steps)
    return BuiltQuery(read(), plan, rows, parts[0].time, in_order(parts, read))


def common_columns(parts: Sequence[StreamInput]) -> pa.Schema:
    """Return the columns of a result's update stream, which all its parts have."""
    found = [part.columns for part in parts]
    for part, schema in zip(parts, found, strict=True):
        if (schema.names, schema.types) != (found[0].names, found[0].types):
            msg = (
                f"the streams of a union must have the same columns: {parts[0].name} has "
                f"{found[0].names}, {part.name} has {schema.names}"
            )
            raise DefinitionError(msg)
    return pa.schema([pa.field(each.name, each.type) for each in found[0]])


def _columns(columns: pa.Schema, part: StreamInput, number: int) -> list[Column]:
    """Return the columns of one part as ingest reads them."""
    return [
        (
            sf.col(quoted(each.name))
            if each.name in part.frame.columns
            else sf.lit(None).cast(from_arrow_type(each.type))
        ).alias(column(place))
        for place, each in enumerate(columns)
    ]


ArrowFunction = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]
RowFunction = Callable[[dict[str, Any]], Mapping[str, Any] | None]


class StepWords:
    """What steps can be applied to."""

    @abstractmethod
    def _served(
        self, function: Any, schema: str | pa.Schema, form: str, retries: int
    ) -> UpdateResult:
        """Return the rows of a step."""

    def apply(
        self, function: ArrowFunction, schema: str | pa.Schema, *, retries: int = 0
    ) -> UpdateResult:
        """Apply an expensive step to many rows at once: the newest of each key, or every event.

        Args:
            function: takes an Arrow record batch, of an update stream with one row per key that is
                served, and returns rows as a record batch or table.
            schema: the columns it returns, as text or an Arrow schema; they include the key.
            retries: how often the function is called again if it fails.

        Examples:
            >>> calls.latestBy("symbol").apply(
            ...     lambda batch: batch.select(["symbol", "price"]), "symbol string, price double"
            ... ).columns
            ['symbol', 'price']
        """
        return self._served(function, schema, ARROW, retries)

    def applyInPandas(
        self,
        function: Callable[[pd.DataFrame], pd.DataFrame],
        schema: str | pa.Schema,
        *,
        retries: int = 0,
    ) -> UpdateResult:
        """Apply an expensive step to many rows at once, as pandas frames; see `apply`.

        Examples:
            >>> calls.latestBy("symbol").applyInPandas(
            ...     lambda frame: frame[["symbol", "price"]], "symbol string, price double"
            ... ).columns
            ['symbol', 'price']
        """
        return self._served(function, schema, PANDAS, retries)

    def map(
        self, function: RowFunction, schema: str | pa.Schema, *, retries: int = 0
    ) -> UpdateResult:
        """Apply an expensive step to one row at a time; the function maps dictionaries.

        A row for which the function returns None is dropped.

        Examples:
            >>> calls.latestBy("symbol").map(
            ...     lambda row: {"symbol": row["symbol"], "twice": row["price"] * 2},
            ...     "symbol string, twice double",
            ... ).columns
            ['symbol', 'twice']
        """
        return self._served(function, schema, ROWS, retries)
