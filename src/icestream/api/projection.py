"""Rows of a query that may still be shaped: columns chosen, rows left out.

Idea: what is done to the rows on their way to the sink is a function of a DataFrame, put together
call by call; a mistake is told where it is made, against a DataFrame without rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from icestream.api.statement import BuiltQuery
from icestream.core.errors import DefinitionError
from icestream.runtime.spark.sink import as_they_are, no_rows


@dataclass(frozen=True)
class ProjectedRows:
    """The rows of a query, with what is done to them before they go to the sink."""

    #: events and plan of the query alone
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
        """Choose columns of the rows, or expressions over them.

        Examples:
            >>> from pyspark.sql import functions as F
            >>> kpis.select("serviceId", F.expr("count * 2 AS twice")).columns
            ['serviceId', 'twice']
        """
        return self._then(lambda rows: rows.select(*cols))

    def where(self, condition: Column | str) -> Self:
        """Keep the rows that fulfil a condition.

        Examples:
            >>> busy = kpis.where("count > 100")
        """
        return self._then(lambda rows: rows.where(condition))

    filter = where

    def _then(self, change: Callable[[DataFrame], DataFrame]) -> Self:
        before = self._shape
        changed = replace(self, _shape=lambda rows: change(before(rows)))
        try:
            changed.columns  # noqa: B018 - resolved now, so that a mistake is told now
        except AnalysisException as error:
            msg = f"{str(error).splitlines()[0]} The columns are {self.columns}"
            raise DefinitionError(msg) from None
        return changed
