"""Spark's columns as SQL text, for rows that have left the JVM, and aggregates over them.

Idea: Spark resolves a column against an empty DataFrame with the same columns; the resolved
expression has a text that the package's own parser reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession

from icestream.api.columns import quoted, resolving
from icestream.api.functions import AggregateExpression
from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.runtime.spark.arrow_types import from_arrow_schema
from icestream.runtime.spark.sink import no_rows
from icestream.sql.expressions.compile import parse
from icestream.sql.expressions.tree import Name


def sql_text(expression: object, payload: pa.Schema, method: str, *, alias: bool = True) -> str:
    """Return an expression over some columns as text; it is text, or a column of Spark.

    Without `alias`, the name that a column of Spark was given is left out.
    """
    if isinstance(expression, str):
        # as in Spark, the name of a column is the column, whatever characters it has
        is_column = expression in payload.names and method != "where"
        return _reference([expression], payload) if is_column else expression
    if not isinstance(expression, Column):
        msg = (
            f"{method} takes SQL text or a column, for example {method}('price > 10') or "
            f"{method}(F.col('price') > 10); got {type(expression).__name__}"
        )
        raise DefinitionError(msg)
    if _kind(expression) == "UnresolvedAttribute":
        parts = _node(expression).nameParts()
        return _reference([str(parts.apply(at)) for at in range(parts.size())], payload)
    if _kind(expression) == "SqlExpression":
        written = str(expression).removeprefix("Column<'").removesuffix("'>")
        if alias or parse(written).alias is None:
            return written
    nothing = no_rows(SparkSession.active(), from_arrow_schema(payload))
    with resolving(payload.names, f"{method} cannot read this column: "):
        analyzed = nothing.select(expression)._jdf.queryExecution().analyzed()
    if analyzed.getClass().getSimpleName() != "Project":
        msg = f"{method} takes no aggregates: they belong in groupBy(...).agg(...)"
        raise DefinitionError(msg)
    (found,) = (analyzed.projectList().apply(at) for at in range(analyzed.projectList().size()))
    own = alias and _kind(expression) == "Alias"
    unnamed = found.getClass().getSimpleName() == "Alias" and not own
    return str((found.child() if unnamed else found).sql())


def names_of(columns: Sequence[Column], payload: pa.Schema, method: str) -> list[str]:
    """Return the names that Spark gives to columns."""
    nothing = no_rows(SparkSession.active(), from_arrow_schema(payload))
    with resolving(payload.names, f"{method} cannot read these columns: "):
        return nothing.select(*columns).columns


def aggregates_over(
    expressions: Sequence[AggregateExpression], payload: pa.Schema, whole: str
) -> tuple[list[str], list[tuple[Aggregate, list[str]]]]:
    """Return inputs of aggregates as columns x0, x1, ... to select, and the aggregates over them.

    Each comes with the texts of its inputs, which name it; `whole` stands for whole events.
    """
    found = [[sql_text(column, payload, e.function) for column in e.columns] for e in expressions]
    inputs = list(dict.fromkeys(text for texts in found for text in texts))
    for text in inputs:
        # an error shows the text as it was written, not the column made of it
        parse(text).bind(payload)
    made = []
    for each, texts in zip(expressions, found, strict=True):
        name = each.name or f"{each.title}({', '.join(texts) or whole})"
        names = [f"x{inputs.index(text)}" for text in texts]
        made.append((Aggregate.of(each.function, names, name, each.parameters), texts))
    return [f"({text}) AS x{place}" for place, text in enumerate(inputs)], made


def _reference(names: Sequence[str], payload: pa.Schema) -> str:
    """Return the text of a column, or of a field inside of one, with quotes where it needs them.

    What is no column is text: `ice.sum("price * amount")` names a column of Spark.
    """
    plain = ".".join(names)
    if names[0].lower() not in map(str.lower, payload.names):
        return plain
    with suppress(DefinitionError):
        read = parse(plain)
        if isinstance(read.root, Name) and read.alias is None and read.root.written == (*names,):
            return plain
    return ".".join(map(quoted, names))


def _kind(column: Column) -> str:
    """Return the kind of a column: a name, text, an alias or something else."""
    return str(_node(column).getClass().getSimpleName())


def _node(column: Column) -> Any:
    node: Any = column._jc.node  # a method of Java
    return node()
