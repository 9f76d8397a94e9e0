"""Update streams, in PySpark's words: the newest value of a key in front of an expensive step.

Idea: `stream.latestBy("symbol")` says that an event replaces the one before it of the same symbol,
so that under load only the newest needs an answer; `apply` says what is done to it. The same
`apply` on the stream itself is done to every event. Everything that can be refused is refused
here, before a query starts.
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from icestream.api.shaped import Shaped
from icestream.api.statement import Built, Part, sources_of
from icestream.api.types import arrow_schema, arrow_type
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import format_interval, parse_interval
from icestream.operators.updates.step import ARROW, PANDAS, ROWS, UpdateStep
from icestream.operators.user_defined.ddl import schema_of
from icestream.plan.nodes import SOURCE, TIME
from icestream.plan.updates import Latest, Updates, column
from icestream.state.keys import KeyCodec

if TYPE_CHECKING:
    import pandas as pd

    from icestream.api.stream import Stream

ArrowFunction = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]
RowFunction = Callable[[dict[str, Any]], Mapping[str, Any] | None]


@dataclass(frozen=True)
class LatestBy:
    """A stream in which an event replaces the one before it of the same key."""

    _stream: Stream
    _latest: Latest | None
    _budget: Micros | None = None

    def apply(self, function: ArrowFunction, schema: str | pa.Schema) -> Served:
        """Do an expensive step to the newest rows of many keys at once.

        Args:
            function: takes an Arrow record batch, one row for each key that is served, and returns
                rows as a record batch or table.
            schema: the columns it returns, as text or an Arrow schema; the key is among them.
        """
        return self._served(function, schema, ARROW)

    def applyInPandas(
        self, function: Callable[[pd.DataFrame], pd.DataFrame], schema: str | pa.Schema
    ) -> Served:
        """Do an expensive step to the newest rows of many keys, as pandas frames."""
        return self._served(function, schema, PANDAS)

    def map(self, function: RowFunction, schema: str | pa.Schema) -> Served:
        """Do an expensive step to one row at a time, given and returned as a dictionary.

        A row for which the function returns None is left out.
        """
        return self._served(function, schema, ROWS)

    def _served(self, function: Any, schema: str | pa.Schema, form: str) -> Served:
        if not callable(function):
            msg = f"apply takes a function; got {type(function).__name__}"
            raise DefinitionError(msg)
        parts = self._stream._parts
        columns = _columns(parts)
        keys = () if self._latest is None else self._latest.keys
        step = UpdateStep(function, columns, schema_of(schema), keys, form)
        plan = Updates(
            sources_of(parts),
            columns,
            arrow_type(parts[0].frame.select(parts[0].time).schema[0].dataType, parts[0].time),
            step,
            self._latest,
            self._budget,
        )
        frames = [_projected(part, number, columns) for number, part in enumerate(parts)]
        rows = StructType(
            [
                StructField(each.name, from_arrow_type(each.type), each.nullable)
                for each in step.result
            ]
        )
        events = reduce(DataFrame.unionAll, frames)
        return Served(Built(events, plan, (rows,), parts[0].time))


@dataclass(frozen=True)
class Served(Shaped):
    """The rows of a step over an update stream or over every event; start it with `writeStream`."""

    _built: Built[Updates]

    @property
    def writeStream(self) -> StreamWriter:
        """Say where the rows go and start the query."""
        return StreamWriter(None, self._built, self._shape, self.schema)

    def explain(self) -> None:
        """Print what will be computed and how."""
        plan = self._built.plan
        latest, budget = plan.latest, plan.budget
        print(f"{'columns':>16}  {', '.join(plan.columns.names)}")
        if latest is None:
            print(f"{'serves':>16}  every event, in the batch that brings it")
        else:
            print(f"{'serves':>16}  the newest of each {', '.join(latest.keys) or 'stream'}")
            print(f"{'in the order':>16}  {latest.schedule}")
            spent = "what the trigger leaves" if budget is None else format_interval(budget)
            print(f"{'for':>16}  {spent} in each batch")
        print(f"{'step':>16}  {plan.step.text}")


def latest_by(
    stream: Stream, keys: Sequence[str], schedule: str, budget: str | int | None
) -> LatestBy:
    """Return a stream under update semantics."""
    columns = _columns(stream._parts)
    unknown = [key for key in keys if key not in columns.names]
    if unknown:
        msg = f"latestBy names {unknown}; the columns are {columns.names}"
        raise DefinitionError(msg)
    KeyCodec(pa.schema([columns.field(key) for key in keys]))
    length = None if budget is None else parse_interval(budget)
    if length is not None and length <= 0:
        msg = f"the budget of a batch must be positive; got {budget!r}"
        raise DefinitionError(msg)
    return LatestBy(stream, Latest(tuple(keys), schedule), length)


def _columns(parts: Sequence[Part]) -> pa.Schema:
    """Return the columns that all parts of a stream have."""
    found = [arrow_schema(part.frame.columns, part.frame.schema.fields) for part in parts]
    for part, schema in zip(parts, found, strict=True):
        if (schema.names, schema.types) != (found[0].names, found[0].types):
            msg = (
                f"the streams of a union must have the same columns: {parts[0].name} has "
                f"{found[0].names}, {part.name} has {schema.names}"
            )
            raise DefinitionError(msg)
    return pa.schema([pa.field(each.name, each.type) for each in found[0]])


def _projected(part: Part, number: int, columns: pa.Schema) -> DataFrame:
    """Return the events of one part as ingest reads them."""
    chosen = [sf.col(_quoted(part.time)).alias(TIME), sf.lit(number).cast("int").alias(SOURCE)]
    for place, each in enumerate(columns):
        chosen.append(sf.col(_quoted(each.name)).alias(column(place)))
    return part.frame.select(*chosen)


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
