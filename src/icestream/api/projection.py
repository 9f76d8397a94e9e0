"""Rows of a query that the user may still project and filter.

Idea: `select` and `where` compose a function of a DataFrame, which is applied to rows on their way
to the sink. A DataFrame without rows checks each call, so that mistakes are reported where they are
made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from icestream.api.shared_plan import BuiltQuery
from icestream.core.errors import DefinitionError
from icestream.runtime.spark.sink import as_they_are, no_rows


@dataclass(frozen=True)
class ProjectedRows:
    """The rows of a query, with the projection applied before they go to the sink."""

    #: events and plan of this query alone
    _built: BuiltQuery[Any]
    _shape: Callable[[DataFrame], DataFrame] = field(default=as_they_are, kw_only=True)

    @property
    def schema(self) -> StructType:
        """Return the columns of the rows with their types.

        Examples:
            >>> kpis.schema.simpleString()
            'struct<window:struct<start:timestamp,end:timestamp>,serviceId:string,count:bigint>'
        """
        return self._shape(no_rows(self._built.events.sparkSession, self._built.rows[0])).schema

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns.

        Examples:
            >>> kpis.columns
            ['window', 'serviceId', 'count']
        """
        return self.schema.names

    def select(self, *cols: Column | str) -> Self:
        """Select columns of the rows, or expressions over them.

        Examples:
            >>> from pyspark.sql import functions as F
            >>> kpis.select("serviceId", F.expr("count * 2 AS twice")).columns
            ['serviceId', 'twice']
        """
        return self._then(lambda rows: rows.select(*cols))

    def where(self, condition: Column | str) -> Self:
        """Keep the rows that satisfy a condition.

        Examples:
            >>> busy = kpis.where("count > 100")
        """
        return self._then(lambda rows: rows.where(condition))

    filter = where

    def _then(self, change: Callable[[DataFrame], DataFrame]) -> Self:
        before = self._shape
        changed = replace(self, _shape=lambda rows: change(before(rows)))
        try:
            changed.columns  # noqa: B018 - resolved now, so that a mistake is reported now
        except AnalysisException as error:
            msg = f"{str(error).splitlines()[0]} The columns are {self.columns}"
            raise DefinitionError(msg) from None
        return changed
