"""The words of PySpark's DataFrames that streams, events, updates and results have in common.

Idea: everything that has columns can `select`; the other words about columns follow from that, so
that they mean the same everywhere. Columns are SQL text or Spark's columns. A word that a class
does not have names the one to use.

Invariants:
1. The same words give the same columns on every class (`test_every_class_has_the_same_words`).
2. Names are found whatever their case, as in Spark (`test_names_are_found_in_any_case`).
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from icestream.core.errors import DefinitionError


class PySparkWords:
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


class GroupWords(PySparkWords):
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


class ColumnWords(PySparkWords):
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


def spark_columns(frame: DataFrame, cols: Sequence[Column | str]) -> list[Column]:
    """Return the columns of a word as Spark's: names as they are, other text as SQL."""
    if not cols:
        msg = f"select needs at least one column; the columns are {frame.columns}"
        raise DefinitionError(msg)
    return [
        each
        if not isinstance(each, str)
        else sf.col(quoted(each))
        if each in frame.columns
        else sf.expr(each)
        for each in cols
    ]


def named_column(frame: DataFrame, name: str) -> Column:
    """Return a column by its name, which may have dots and quotes, or a field of a struct."""
    return sf.col(quoted(name) if name in frame.columns else name)


def column_names(given: object, word: str) -> tuple[str, ...]:
    """Return the names of columns, given as names, columns of Spark, lists of these, or None."""
    if given is None or isinstance(given, str | Column):
        found = str(given).removeprefix("Column<'").removesuffix("'>")
        if len(found) > 1 and found[0] == found[-1] == "`":
            found = found[1:-1].replace("``", "`")
        return () if given is None else (found,)
    if not isinstance(given, Sequence):
        msg = f"{word} takes names of columns; got {given!r}"
        raise DefinitionError(msg)
    return tuple(name for each in given for name in column_names(each, word))


def as_spelled(names: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Return names as the columns are spelled, whose case may be another; others as they are."""
    spelled = {name.lower(): name for name in columns}
    return tuple(n if n in columns else spelled.get(n.lower(), n) for n in names)


@contextmanager
def resolving(columns: Sequence[str], complaint: str = "") -> Iterator[None]:
    """Report words for columns that Spark refuses in one line, with the columns that there are."""
    try:
        with reasons_alone():
            yield
    except PySparkException as error:
        msg = f"{complaint}{reason_of(error).rstrip('. ')}. The columns are {list(columns)}"
        raise DefinitionError(msg) from None


@contextmanager
def reasons_alone() -> Iterator[None]:
    """Keep PySpark from printing the stack of the JVM with what Spark refuses."""
    logs = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("DataFrame", "SQL")]
    for each in logs:
        each.disabled = True
    try:
        yield
    finally:
        for each in logs:
            each.disabled = False


def reason_of(error: Exception) -> str:
    """Return the first line of what Spark refuses, without its code and the place in a plan."""
    return re.sub(r"^\[[\w.]+\] ", "", str(error).strip().splitlines()[0].split(" SQLSTATE")[0])


def quoted(name: str) -> str:
    """Return the name of a column quoted for SQL, as words about columns need it."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _named(col: Column | str, name: str) -> Column | str:
    return f"({col}) AS {quoted(name)}" if isinstance(col, str) else col.alias(name)
