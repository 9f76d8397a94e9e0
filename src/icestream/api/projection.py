"""Rows of a query that the user may still project and filter.

Idea: `select` and `where` compose a function of a DataFrame, which is applied to rows on their way
to the sink. A DataFrame without rows checks each call, so that mistakes are reported where they are
made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from icestream.api.columns import resolving, spark_columns
from icestream.api.dataframe_methods import ColumnMethods
from icestream.api.shared_plan import BuiltQuery
from icestream.core.errors import DefinitionError
from icestream.runtime.spark.sink import as_they_are, no_rows


@dataclass(frozen=True)
class ProjectedRows(ColumnMethods):
    """The rows of a query, with the projection applied before they go to the sink."""

    _called: ClassVar[str] = "rows of a result"
    _instead: ClassVar[Mapping[str, str]] = {
        "show": "writeStream.format('console').start()",
        "write": "writeStream",
        "agg": "groupBy(...).agg(...), or window(...).agg(...)",
        "top": "events().groupApply('window', lambda group: group.top(n, by=...))",
    }
    #: events and plan of this query alone
    _built: BuiltQuery[Any]
    _shape: Callable[[DataFrame], DataFrame] = field(default=as_they_are, kw_only=True)
    #: the words that made the projection, and what each was given
    _words: tuple[tuple[str, tuple[Any, ...]], ...] = field(default=(), kw_only=True)

    @property
    def schema(self) -> StructType:
        """Return the columns of the rows with their types.

        Examples:
            >>> kpis.schema.simpleString()
            'struct<window:struct<start:timestamp,end:timestamp>,serviceId:string,count:bigint>'
        """
        return self._shape(no_rows(self._built.events.sparkSession, self._built.rows[0])).schema

    def select(self, *cols: Column | str) -> Self:
        """Select columns of the rows, or expressions over them.

        Examples:
            >>> from pyspark.sql import functions as F
            >>> kpis.select("serviceId", F.expr("count * 2 AS twice")).columns
            ['serviceId', 'twice']
        """
        return self._then("select", cols, lambda rows: rows.select(*spark_columns(rows, cols)))

    def where(self, condition: Column | str) -> Self:
        """Keep the rows that satisfy a condition.

        Examples:
            >>> busy = kpis.where("count > 100")
        """
        return self._then("where", (condition,), lambda rows: rows.where(condition))

    def join(self, other: DataFrame, on: Any, how: str = "inner") -> Self:
        """Join the rows with a batch DataFrame on their way to the sink.

        Examples:
            >>> names = spark.createDataFrame([("1", "Help")], "serviceId string, name string")
            >>> kpis.join(names, on="serviceId", how="left").columns
            ['serviceId', 'window', 'count', 'name']
        """
        given: object = other
        if not isinstance(given, DataFrame) or given.isStreaming:
            msg = (
                "rows of a result are joined with a batch DataFrame; streams are joined before: "
                "stream.join(other, on=..., within=...)"
            )
            raise DefinitionError(msg)
        return self._then("join", (other, on, how), lambda rows: rows.join(other, on, how))

    def _then(
        self, word: str, given: tuple[Any, ...], change: Callable[[DataFrame], DataFrame]
    ) -> Self:
        before, words = self._shape, (*self._words, (word, given))
        changed = replace(self, _shape=lambda rows: change(before(rows)), _words=words)
        with resolving(self.columns):
            changed.columns  # noqa: B018 - resolved now, so that a mistake is reported now
        return changed
