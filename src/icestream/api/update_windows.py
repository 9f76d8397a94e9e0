"""Windows of update streams, in PySpark's words: the newest window of a key is its update.

Idea: aggregates are those of all windows; their inputs become columns of the stream, so that only
what they need travels. What windows answer are rows like those of a step, and a step may follow.
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException

from icestream.api.functions import AggregateExpression
from icestream.api.served import Served, built, common_columns, quoted
from icestream.api.statement import aggregate_of, answer_name, check_aggregates, refusal
from icestream.operators.updates.step import UpdateStep
from icestream.operators.updates.window_serving import WindowedBy
from icestream.state.update_queue.windows.spec import UpdateWindows

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
        """Compute the aggregates for each value of the columns: the key, and more if wanted."""
        return replace(self, _by=tuple(cols))

    def agg(self, *aggregates: AggregateExpression) -> Answers:
        """Compute aggregates over each window; rows tell its first and last instant."""
        check_aggregates(aggregates)
        source = self._source
        assert source._latest is not None
        part, keys = source._parts[0], source._latest.keys
        by = keys if self._by is None else self._by
        names = [answer_name(part.frame, each) for each in aggregates]
        inputs = [column for each in aggregates for column in each.columns]
        chosen = dict.fromkeys((*keys, *by, part.time))
        try:
            frame = part.frame.select(
                *(quoted(name) for name in chosen),
                *(column.alias(f"x{place}") for place, column in enumerate(inputs)),
            )
        except AnalysisException as error:
            raise refusal(error, part.frame) from None
        made, place = [], 0
        for each, name in zip(aggregates, names, strict=True):
            places = range(place, place + len(each.columns))
            made.append(aggregate_of(each, name, list(places)))
            place += len(each.columns)
        parts = (replace(part, frame=frame),)
        windowed = WindowedBy(
            common_columns(parts), keys, part.time, self._windows, tuple(made), by
        )
        result = windowed.operator(source._latest.schedule).result.schema
        step = UpdateStep(_as_they_are, result, result, by)
        over = replace(source, _parts=parts, _windowed=windowed)
        return Answers(built(over, [step]), over, step)


@dataclass(frozen=True)
class Answers(Served):
    """The answers of windows of an update stream; a step may follow."""

    def apply(self, function: ArrowFunction, schema: str | pa.Schema) -> Served:
        """Do an expensive step to the answers of many keys at once; see `LatestBy.apply`."""
        return self._source.apply(function, schema)

    def applyInPandas(
        self, function: Callable[[pd.DataFrame], pd.DataFrame], schema: str | pa.Schema
    ) -> Served:
        """Do an expensive step to the answers of many keys, as pandas frames."""
        return self._source.applyInPandas(function, schema)

    def map(self, function: RowFunction, schema: str | pa.Schema) -> Served:
        """Do an expensive step to one answer at a time, given and returned as a dictionary."""
        return self._source.map(function, schema)


def _as_they_are(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows
