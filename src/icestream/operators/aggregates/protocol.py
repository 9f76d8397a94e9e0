"""The protocol of functions over fields of words: lift, lower, input and result types.

Idea: a function never sees events. It names the fields that events are folded into (lift) and
computes answers from tables of merged fields (lower); in between, fields merge by their own
operations.

Answers from sums of doubles are rounded once: they are the doubles nearest to the exact sum,
quotient or spread (`kernels.double_sums`). Infinities and NaN were counted apart from the sum;
where there are any, they determine the result.

Invariants:
1. A function reads only fields that it lifted (`test_functions_look_only_at_fields_they_lifted`).
2. Answers equal those of fractions, rounded (`test_oracle_exact_fields_are_rounded_once`).
3. Answers share no memory with the table
   (`test_answers_may_be_kept_while_the_table_is_used_again`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Floats, Ints, Mask, Table
from icestream.core.errors import DefinitionError
from icestream.kernels import double_sum_results, double_sums
from icestream.kernels.field_words import WORDS
from icestream.operators.folding.fields import Field, Layout


@dataclass(frozen=True, slots=True)
class TypedCall:
    """A function applied to columns whose types are known."""

    function: str
    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    parameters: tuple[Any, ...]
    alias: str

    def refusal(self, complaint: str, advice: str) -> DefinitionError:
        """Return the error for columns that the function does not accept."""
        columns = "column" if len(self.columns) == 1 else "columns"
        return DefinitionError(f"{complaint} ({columns} of {self.alias!r}): {advice}")


@dataclass(frozen=True, slots=True)
class MergedFields:
    """A table of merged fields, one row for each answer, without the identity."""

    table: Table
    layout: Layout
    #: words that were asked for, by place
    _columns: dict[int, Ints] = field(default_factory=dict, compare=False)

    def words(self, field: Field) -> Table:
        place = self.layout.place(field)
        return self.table[:, place : place + WORDS[field.op]]

    def word(self, field: Field) -> Ints:
        """Return a copy of the only word of a field; several aggregates may ask for it."""
        place = self.layout.place(field)
        if place not in self._columns:
            # where counts are all there is they are contiguous, and the table is used again
            self._columns[place] = self.table[:, place].copy()
        return self._columns[place]

    def sums(self, field: Field) -> Floats:
        out = np.empty(len(self.table))
        double_sum_results.nearest_sums(self.table, self._of(field), out)
        return self._with_specials(out, field)

    def zeros(self, field: Field) -> Mask:
        place, _, count, _ = self._of(field).tolist()
        empty: Mask = (self.table[:, place : place + count] == 0).all(axis=1)
        return empty & ~self._special(field)

    def means(self, field: Field, counts: Ints) -> Floats:
        """Return the doubles nearest to sums divided by counts, which are positive."""
        out = np.empty(len(self.table))
        double_sum_results.nearest_means(self.table, self._of(field), counts, out)
        return self._with_specials(out, field)

    def ratios(self, field: Field, by: Field) -> Floats:
        """Return the doubles nearest to the quotients of sums; NaN where the divisor is zero."""
        out = np.empty(len(self.table))
        double_sum_results.nearest_ratios(self.table, self._of(field), self._of(by), out)
        special = self._special(field) | self._special(by)
        if special.any():
            out = np.where(special, self.sums(field) / self.sums(by), out)
        return out

    def spreads(self, products: Field, x: Field, y: Field, counts: Ints, divisors: Ints) -> Floats:
        """Return the doubles nearest to (sum of products - product of sums / count) / divisor."""
        out = np.empty(len(self.table))
        of, x_at, y_at = (self._of(each) for each in (products, x, y))
        double_sum_results.nearest_spreads(self.table, of, x_at, y_at, counts, divisors, out)
        out[self._special(products) | self._special(x) | self._special(y)] = np.nan
        return out

    def _of(self, field: Field) -> Ints:
        described: Ints = self.layout.at.sums_at[self.layout.sums.index(field)]
        return described

    def _specials(self, field: Field) -> Ints:
        """Return the numbers of NaN, infinities and minus infinities in each sum."""
        at = int(self._of(field)[double_sums.SPECIALS_AT])
        if at < 0:
            return np.zeros((len(self.table), double_sums.SPECIALS), dtype=np.int64)
        return self.table[:, at : at + double_sums.SPECIALS]

    def _special(self, field: Field) -> Mask:
        if self._of(field)[double_sums.SPECIALS_AT] < 0:
            return np.zeros(len(self.table), dtype=np.bool_)
        found: Mask = (self._specials(field) != 0).any(axis=1)
        return found

    def _with_specials(self, finite: Floats, field: Field) -> Floats:
        if self._of(field)[double_sums.SPECIALS_AT] < 0:
            return finite
        undefined, above, below = self._specials(field).T != 0
        out = np.where(above, np.inf, np.where(below, -np.inf, finite))
        return np.where(undefined | (above & below), np.nan, out)


def answers_where(there: Mask, values: Ints | Floats) -> pa.Array:
    """Return values as answers; where there is none, null."""
    return pa.array(np.ascontiguousarray(values), mask=None if there.all() else ~there)


class WordFunction(ABC):
    """An aggregate function whose state has a fixed number of words."""

    #: the number of columns it takes
    arity: ClassVar[int] = 1

    def check(self, call: TypedCall) -> None:
        """Reject types that the function does not support; by default it takes any."""
        del call

    def result_type(self, call: TypedCall) -> pa.DataType:
        """Return the type of the answers: by default that of the first column."""
        return call.types[0]

    @abstractmethod
    def lift(self, call: TypedCall) -> tuple[Field, ...]:
        """Return the fields that the function needs."""

    @abstractmethod
    def lower(self, call: TypedCall, merged: MergedFields) -> pa.Array:
        """Return the answers."""


def is_word(kind: pa.DataType) -> bool:
    """Check whether values of an aggregate's input type fit into one word that preserves order."""
    if pa.types.is_decimal128(kind):
        return bool(kind.precision <= 18)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
    )


def check_numbers(call: TypedCall) -> None:
    """Reject input types of an aggregate that cannot be added up."""
    for kind in call.types:
        number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal128)
        if not any(is_one(kind) for is_one in number):
            complaint = f"{call.function} needs a number, got {kind}"
            raise call.refusal(complaint, "cast the column to a numeric type first")


def check_booleans(call: TypedCall) -> None:
    """Reject input types of an aggregate other than boolean."""
    for kind in call.types:
        if not pa.types.is_boolean(kind):
            complaint = f"{call.function} needs a boolean, got {kind}"
            raise call.refusal(complaint, "use a comparison, for example sf.col('x') > 0")


def check_words(call: TypedCall) -> None:
    """Reject input types of an aggregate that do not fit into a word."""
    for kind in call.types:
        if not is_word(kind):
            complaint = f"{call.function} of a {kind} is not supported"
            advice = (
                "use a number, date, timestamp or boolean, decimals up to 18 digits, or a function "
                "that stores whole values, such as ice.collect_set and ice.user"
            )
            raise call.refusal(complaint, advice)
