"""What a query computes, before it is started.

Idea: the rows of the windows may be shaped further (`select`, `where`); that happens to the rows
of a committed version on their way to the sink, so it changes no state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from icestream.api.writer import Output, StreamWriter
from icestream.core.errors import DefinitionError
from icestream.plan.nodes import Plan
from icestream.runtime.sink import no_rows


@dataclass(frozen=True)
class Result:
    """What a query computes; start it with `writeStream`."""

    _events: DataFrame
    _plan: Plan
    #: columns of the windows' rows, before `_shape`
    _rows: StructType
    #: the user's name of the time column
    _time: str
    _shape: Callable[[DataFrame], DataFrame] = lambda rows: rows

    @property
    def schema(self) -> StructType:
        """Return the columns of the result with their types."""
        return self._shape(no_rows(self._events.sparkSession, self._rows)).schema

    @property
    def columns(self) -> list[str]:
        """Return the names of the result columns."""
        return self.schema.names

    def select(self, *cols: Column | str) -> Result:
        """Choose columns of the rows, or expressions over them."""
        return self._then(lambda rows: rows.select(*cols))

    def where(self, condition: Column | str) -> Result:
        """Keep the rows that fulfil a condition."""
        return self._then(lambda rows: rows.where(condition))

    filter = where

    @property
    def writeStream(self) -> StreamWriter:
        """Say where the results go and start the query."""
        output = Output(self._rows, self._shape, self.schema, self._time)
        return StreamWriter(self._events, self._plan, output)

    def explain(self) -> None:
        """Print what will be computed and how."""
        windows, layout = self._plan.windows, self._plan.spec.layout
        facts = {
            **self._plan.describe(),
            "panes": f"{windows.range_panes} per window, {windows.slide_panes} per slide",
            "on the log": f"{8 * layout.entry_width} bytes per group and pane",
            "in memory": f"{8 * layout.group_width} bytes and the key per group",
        }
        for name, value in facts.items():
            print(f"{name:>14}  {value}")

    def _then(self, change: Callable[[DataFrame], DataFrame]) -> Result:
        before = self._shape
        changed = replace(self, _shape=lambda rows: change(before(rows)))
        try:
            changed.columns  # noqa: B018 - resolved now, so that a mistake is told now
        except AnalysisException as error:
            msg = f"{str(error).splitlines()[0]} The columns are {self.columns}"
            raise DefinitionError(msg) from None
        return changed
