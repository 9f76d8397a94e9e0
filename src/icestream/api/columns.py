"""Columns as users name them, made columns of Spark, and what Spark refuses in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from icestream.core.errors import DefinitionError


def spark_columns(frame: DataFrame, cols: Sequence[Column | str]) -> list[Column]:
    """Return what `select` was given as columns of Spark: names as they are, other text as SQL."""
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
    """Report columns that Spark refuses in one line, with the columns that there are."""
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
    """Return the name of a column quoted for SQL."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
