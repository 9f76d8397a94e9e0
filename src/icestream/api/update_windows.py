"""Windows of update streams, named as in PySpark: the newest window of a key is its update.

Idea: the aggregates are those of all windows. Their inputs become columns of the stream, so that
only these are sent. Windows return rows like a step does, and a step may follow.
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column

from icestream.api.columns import quoted
from icestream.api.functions import AggregateExpression
from icestream.api.pre_queue import condition_of
from icestream.api.shared_plan import aggregate_of, answer_name, check_aggregates
from icestream.api.update_result import StepWords, UpdateResult, built
from icestream.operators.dataflow.steps import unchanged
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.window_serving import WindowedBy
from icestream.runtime.spark.arrow_types import from_arrow_schema
from icestream.runtime.spark.sink import no_rows
from icestream.state.queue.windows.spec import UpdateWindows

if TYPE_CHECKING:
    from icestream.api.updates import LatestBy


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
        step = UpdateStep(unchanged, result, result, by)
        over = replace(over, _windowed=windowed)
        return WindowAnswers(built(over, [step]), over, step)


@dataclass(frozen=True)
class WindowAnswers(StepWords, UpdateResult):
    """The answers of windows of an update stream; a step may follow."""

    def where(self, condition: Column | str) -> WindowAnswers:
        """Keep the answers that satisfy a condition; the others do not update their key."""
        windowed = self._source._windowed
        assert windowed is not None
        session = self._source._parts[0].frame.sparkSession
        given = no_rows(session, from_arrow_schema(self._source._given))
        text = condition_of(given, condition)
        having = (*windowed.having, text)
        checked = replace(windowed, having=having, zone=self._source._parts[0].zone)
        checked.filters()
        over = replace(self._source, _windowed=checked)
        return WindowAnswers(built(over, [self._step]), over, self._step)

    def _served(
        self, function: Any, schema: str | pa.Schema, form: str, retries: int
    ) -> UpdateResult:
        return self._source._served(function, schema, form, retries)
