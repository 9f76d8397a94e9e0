"""The words of PySpark's DataFrames that streams, events, updates and results have in common.

Idea: everything that has columns can `select`; the other words about columns follow from that, so
that they mean the same everywhere. Columns are SQL text or Spark's columns. A word that a class
does not have names the one to use.

Rows of a query (ProjectedRows) may still be projected and filtered: `select` and `where` compose a
function of a DataFrame, which is applied to rows on their way to the sink. A DataFrame without rows
checks each call, so that mistakes are reported where they are made.

Invariants:
1. The same words give the same columns on every class (`test_every_class_has_the_same_words`).
2. Names are found whatever their case, as in Spark (`test_names_are_found_in_any_case`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from icestream.api.columns import as_spelled, column_names, quoted, resolving, spark_columns
from icestream.api.shared_plan import BuiltQuery
from icestream.core.errors import DefinitionError
from icestream.runtime.spark.sink import as_they_are, no_rows


class PySparkMethods:
    """Words of PySpark, with advice about those that are not there."""

    #: what the class is called in messages, and what to use instead of words that it does not have
    _called: ClassVar[str]
    _instead: ClassVar[Mapping[str, str]] = {}

    def __getattr__(self, name: str) -> Any:
        """Say what to use instead of a method that there is not."""
        known = ", ".join(each for each in dir(type(self)) if not each.startswith("_"))
        advice = f"use {self._instead[name]}" if name in self._instead else f"they have {known}"
        msg = f"{self._called} have no {name!r}: {advice}"
        raise AttributeError(msg)


class GroupMethods(PySparkMethods):
    """Groups that are aggregated by `agg`, also where PySpark has a word for each function."""

    _called = "groups"
    _instead: ClassVar[Mapping[str, str]] = {
        **{name: f"agg(ice.{name}('x'))" for name in ("sum", "avg", "mean", "min", "max")},
        "pivot": "agg(ice.sum(sf.when(condition, sf.col('x'))).alias(...)) for each value",
        **dict.fromkeys(
            (
                "applyInArrow",
                "applyInPandas",
                "applyInPandasWithState",
                "transformWithState",
                "transformWithStateInPandas",
            ),
            "stream.events().groupApply('key', lambda group: group.process(...))",
        ),
    }


class ColumnMethods(PySparkMethods):
    """Columns that can be selected."""

    @property
    @abstractmethod
    def schema(self) -> StructType:
        """Return the columns with their types.

        Examples:
            >>> calls.select("timestamp", "agent").schema.simpleString()
            'struct<timestamp:timestamp,agent:string>'
        """

    @property
    def _types(self) -> StructType:
        """Return the columns that words can name, with their types."""
        return self.schema

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns.

        Examples:
            >>> calls.select("timestamp", "agent").columns
            ['timestamp', 'agent']
            >>> kpis.columns
            ['window', 'serviceId', 'count']
        """
        return self._types.names

    @abstractmethod
    def select(self, *cols: Column | str) -> Self:
        """Select columns, or expressions over them."""

    @abstractmethod
    def where(self, condition: Column | str) -> Self:
        """Keep what satisfies a condition."""

    def printSchema(self) -> None:
        """Print the columns with their types.

        Examples:
            >>> kpis.select("serviceId").printSchema()
            root
             |-- serviceId: string (nullable = true)
        """
        print(self._types.treeString())

    def filter(self, condition: Column | str) -> Self:
        """Keep what satisfies a condition: SQL text or a column, as `where` does.

        Examples:
            >>> busy = kpis.filter("count > 100")
        """
        return self.where(condition)

    def selectExpr(self, *expr: str) -> Self:
        """Select expressions in SQL.

        Examples:
            >>> kpis.selectExpr("serviceId", "count * 2 AS twice").columns
            ['serviceId', 'twice']
        """
        return self.select(*expr)

    def withColumn(self, colName: str, col: Column | str) -> Self:
        """Add a column, or replace the column of that name: SQL text or a column.

        Examples:
            >>> from pyspark.sql import functions as F
            >>> calls.withColumn("minutes", F.col("busyTime") / 60).columns[-1]
            'minutes'
            >>> events.select("agent", "busyTime").withColumn("minutes", "busyTime / 60").columns
            ['agent', 'busyTime', 'minutes']
        """
        return self.withColumns({colName: col})

    def withColumns(self, colsMap: Mapping[str, Column | str]) -> Self:
        """Add columns, or replace columns of those names.

        Examples:
            >>> kpis.withColumns({"twice": "count * 2"}).columns
            ['window', 'serviceId', 'count', 'twice']
        """
        columns = self.columns
        made = dict(zip(as_spelled([*colsMap], columns), colsMap.items(), strict=True))
        return self.select(
            *(
                _named(made[name][1], made[name][0]) if name in made else quoted(name)
                for name in dict.fromkeys([*columns, *made])
            )
        )

    def withColumnRenamed(self, existing: str, new: str) -> Self:
        """Give a column another name; without that column, nothing changes, as in PySpark.

        Examples:
            >>> kpis.withColumnRenamed("count", "calls").columns
            ['window', 'serviceId', 'calls']
        """
        names = self.columns
        (found,) = as_spelled([existing], names)
        return self.select(
            *(_named(quoted(name), new) if name == found else quoted(name) for name in names)
        )

    def drop(self, *cols: Column | str) -> Self:
        """Leave columns out; names that do not exist are ignored, as in PySpark.

        Examples:
            >>> kpis.drop("window").columns
            ['serviceId', 'count']
        """
        names = column_names(cols, "drop")
        gone = as_spelled(names, self.columns)
        left = [quoted(name) for name in self.columns if name not in gone]
        if not left:
            msg = f"drop({', '.join(map(repr, names))}) leaves no column"
            raise DefinitionError(msg)
        return self.select(*left)


def _named(col: Column | str, name: str) -> Column | str:
    return f"({col}) AS {quoted(name)}" if isinstance(col, str) else col.alias(name)


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
