"""One output column of a query: a function, its input columns and its literals.

Idea: pure data with a name for the function; what the name means is looked up when the types of the
columns are known. Functions over words are here, under the names of `pyspark.sql.functions` where
it has them, the others in `operators.object_aggregates`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from typing import Any

import pyarrow as pa

from icestream.core.arrays import Table
from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.choices import ByOrdering, ByTime, Extreme
from icestream.operators.aggregates.moments import Comoment, Moment, WeightedAverage
from icestream.operators.aggregates.protocol import MergedFields, TypedCall, WordFunction
from icestream.operators.aggregates.sums import Average, Count, CountIf, Sum
from icestream.operators.folding.fields import Field, Layout

#: functions whose state is an object, computed by `operators.object_aggregates`
OBJECT_FUNCTIONS = (
    "collect_list",
    "collect_set",
    "count_distinct",
    "percentile",
    "median",
    "mode",
    "approx_count_distinct",
    "approx_percentile",
    "approx_top_k",
    "user",
)

Types = Mapping[str, pa.DataType]


WORD_FUNCTIONS: dict[str, WordFunction] = {
    "count": Count(),
    "sum": Sum(),
    "avg": Average(),
    "min": Extreme("min"),
    "max": Extreme("max"),
    "var_pop": Moment(),
    "var_samp": Moment(sample=True),
    "stddev_pop": Moment(root=True),
    "stddev_samp": Moment(sample=True, root=True),
    "count_if": CountIf(),
    "bool_and": Extreme("min", booleans=True),
    "bool_or": Extreme("max", booleans=True),
    "first": ByTime("first"),
    "last": ByTime("last"),
    "covar_pop": Comoment(),
    "covar_samp": Comoment(sample=True),
    "corr": Comoment(relative=True),
    "weighted_avg": WeightedAverage(),
    "min_by": ByOrdering("least_by"),
    "max_by": ByOrdering("most_by"),
}


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One output column: a function over input columns (`None`: over whole events)."""

    function: str
    column: str | None
    alias: str
    #: further input columns
    others: tuple[str, ...] = ()
    #: literal arguments of the function
    parameters: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls, function: str, columns: Sequence[str], alias: str, parameters: tuple[Any, ...] = ()
    ) -> Aggregate:
        """Return a function over any number of columns; over whole events without any."""
        first, others = (columns[0], columns[1:]) if columns else (None, ())
        return cls(function, first, alias, tuple(others), parameters)

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column, *self.others)

    def of_inputs(self) -> Aggregate:
        """Return the same function of its columns under their names as inputs of fields."""
        inputs = tuple(map(input_name, self.columns))
        return Aggregate.of(self.function, inputs, self.alias, self.parameters)

    @property
    def text(self) -> str:
        """Return the call, as plans show it."""
        shown = [getattr(each, "name", None) or repr(each) for each in self.parameters]
        return f"{self.function}({', '.join([*(self.columns or '*'), *shown])})"

    @property
    def is_object(self) -> bool:
        """Return whether the state is an object, whatever the types of the columns."""
        return self.function in OBJECT_FUNCTIONS

    def check(self, types: Types) -> None:
        self.result_type(types)

    def result_type(self, types: Types) -> pa.DataType:
        """Return the type of the answers: Spark's, where Spark has the function."""
        if self.is_object:
            objects: Any = import_module("icestream.operators.object_aggregates.functions")
            return objects.result_type(self, types)
        function, call = self._resolved(types)
        function.check(call)
        return function.result_type(call)

    def fields(self, types: Types) -> tuple[Field, ...]:
        """Return the fields that events are folded into (lift)."""
        function, call = self._resolved(types)
        function.check(call)
        return function.lift(call)

    def lower(self, table: Table, layout: Layout, types: Types) -> pa.Array:
        """Compute the answers from a table of merged fields (without the identity)."""
        return self.answers(MergedFields(table, layout), types)

    def answers(self, merged: MergedFields, types: Types) -> pa.Array:
        function, call = self._resolved(types)
        return function.lower(call, merged)

    def _resolved(self, types: Types) -> tuple[WordFunction, TypedCall]:
        function = WORD_FUNCTIONS.get(self.function)
        if function is None:
            msg = f"{self.function} is not an aggregate of groups: it belongs in over(...)"
            if self.is_object:
                msg = f"{self.function} has no fields of words"
            raise DefinitionError(msg)
        wanted = {function.arity, 0} if self.function == "count" else {function.arity}
        if len(self.columns) not in wanted:
            msg = f"{self.text} has the wrong number of columns: give it {function.arity}"
            raise DefinitionError(msg)
        kinds = tuple(types[column] for column in self.columns)
        return function, TypedCall(self.function, self.columns, kinds, self.parameters, self.alias)


@dataclass(frozen=True)
class AggregateSpec:
    """Aggregates over inputs of known types, by keys."""

    aggregates: tuple[Aggregate, ...]
    keys: pa.Schema
    inputs: pa.Schema

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in self.inputs}

    @cached_property
    def layout(self) -> Layout:
        """Return the fields that all aggregates need together."""
        return Layout.of(field for each in self.aggregates for field in each.fields(self.types))

    def refuse_objects(self, where: str) -> None:
        """Reject aggregates whose state has no fixed size; `where` names the place and a remedy."""
        for each in self.aggregates:
            if each.is_object:
                msg = f"{each.function} (as {each.alias!r}) is not available over {where}"
                raise DefinitionError(msg)


def input_name(name: str) -> str:
    """Return the name of a column of the payload as an input of fields."""
    return f"input.{name}"


def applicable(inputs: pa.Schema) -> Iterator[Aggregate]:
    """Yield every aggregate function over words with every column, or two, that it takes."""
    types = {column.name: column.type for column in inputs}
    for name, function in WORD_FUNCTIONS.items():
        single = [(column,) for column in inputs.names]
        for columns in single if function.arity == 1 else list(pairwise(inputs.names)):
            alias = "_".join((name, *columns))
            aggregate = Aggregate(name, columns[0], alias, tuple(columns[1:]))
            try:
                aggregate.fields(types)
            except DefinitionError:
                continue
            yield aggregate
