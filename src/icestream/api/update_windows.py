"""Windows of update streams, named as in PySpark: the newest window of a key is its update.

Idea: the aggregates are those of all windows. Their inputs become columns of the stream, so that
only these are sent. Windows return rows like a step does, and a step may follow.
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column

from icestream.api.functions import AggregateExpression
from icestream.api.pre_queue import condition_of, frame_of
from icestream.api.shared_plan import aggregate_of, answer_name, check_aggregates
from icestream.api.update_result import UpdateResult, built
from icestream.api.words import quoted
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.window_serving import WindowedBy
from icestream.state.queue.windows.spec import UpdateWindows

if TYPE_CHECKING:
    import pandas as pd

    from icestream.api.updates import ArrowFunction, LatestBy, RowFunction


@dataclass(frozen=True)
class UpdateWindowed:
    """The newest window of every key, by groups."""

    _source: LatestBy
    _windows: UpdateWindows
    _by: tuple[str, ...] | None = None

    def groupBy(self, *cols: str) -> UpdateWindowed:
        """Compute the aggregates for each combination of the columns: the key and any others."""
        return replace(self, _by=tuple(cols))

    def agg(self, *aggregates: AggregateExpression) -> WindowAnswers:
        """Compute aggregates over each window; rows contain its first and last instant."""
        check_aggregates(aggregates)
        source = self._source
        assert source._latest is not None
        keys, time = source._latest.keys, source._arcs.stream.time
        by = keys if self._by is None else self._by
        names = [answer_name(source._frame, each) for each in aggregates]
        inputs = [column for each in aggregates for column in each.columns]
        over = source.select(
            *(quoted(name) for name in dict.fromkeys((*keys, *by, time))),
            *(column.alias(f"x{place}") for place, column in enumerate(inputs)),
        )
        made, place = [], 0
        for each, name in zip(aggregates, names, strict=True):
            places = range(place, place + len(each.columns))
            made.append(aggregate_of(each, name, list(places)))
            place += len(each.columns)
        windowed = WindowedBy(over._columns, keys, time, self._windows, tuple(made), by)
        result = windowed.operator(source._latest.schedule).result.schema
        step = UpdateStep(_as_they_are, result, result, by)
        over = replace(over, _windowed=windowed)
        return WindowAnswers(built(over, [step]), over, step)


@dataclass(frozen=True)
class WindowAnswers(UpdateResult):
    """The answers of windows of an update stream; a step may follow."""

    def where(self, condition: Column | str) -> WindowAnswers:
        """Keep the answers that satisfy a condition; the others do not update their key."""
        windowed = self._source._windowed
        assert windowed is not None
        session = self._source._parts[0].frame.sparkSession
        text = condition_of(frame_of(session, self._source._given), condition)
        having = (*windowed.having, text)
        checked = replace(windowed, having=having, zone=self._source._zone)
        checked.filters()
        over = replace(self._source, _windowed=checked)
        return WindowAnswers(built(over, [self._step]), over, self._step)

    def apply(self, function: ArrowFunction, schema: str | pa.Schema) -> UpdateResult:
        """Apply an expensive step to the answers of many keys at once; see `LatestBy.apply`."""
        return self._source.apply(function, schema)

    def applyInPandas(
        self, function: Callable[[pd.DataFrame], pd.DataFrame], schema: str | pa.Schema
    ) -> UpdateResult:
        """Apply an expensive step to the answers of many keys, as pandas frames."""
        return self._source.applyInPandas(function, schema)

    def map(self, function: RowFunction, schema: str | pa.Schema) -> UpdateResult:
        """Apply an expensive step to one answer at a time; the function maps dictionaries."""
        return self._source.map(function, schema)


def _as_they_are(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows
