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

from icestream.api.statement import Built, Statement
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.plan.cost import Statistics
from icestream.plan.explain import explained
from icestream.plan.nodes import Plan
from icestream.runtime.sink import as_they_are, no_rows


@dataclass(frozen=True)
class Result:
    """What a query computes; start it with `writeStream`."""

    _statement: Statement
    #: events and plan of the statement alone
    _built: Built[Plan]
    _shape: Callable[[DataFrame], DataFrame] = as_they_are

    @property
    def schema(self) -> StructType:
        """Return the columns of the result with their types."""
        return self._shape(no_rows(self._built.events.sparkSession, self._built.rows[0])).schema

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
        return StreamWriter(self._statement, self._built, self._shape, self.schema)

    def explain(self, statistics: Statistics | None = None) -> None:
        """Print what will be computed and how.

        With statistics of the stream, also the size of both plans; a running query measures them
        itself and reports them in `lastProgress`.
        """
        print(explained(self._built.plan, statistics))

    def _then(self, change: Callable[[DataFrame], DataFrame]) -> Result:
        before = self._shape
        changed = replace(self, _shape=lambda rows: change(before(rows)))
        try:
            changed.columns  # noqa: B018 - resolved now, so that a mistake is told now
        except AnalysisException as error:
            msg = f"{str(error).splitlines()[0]} The columns are {self.columns}"
            raise DefinitionError(msg) from None
        return changed
