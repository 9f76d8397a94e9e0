"""How an expression runs over a batch: whole columns at a time, with errors only for active rows.

Idea: every function works on whole arrays and gives NULL where it fails. Whether that is an error
is decided afterwards, by looking at rows that have all arguments, no result, and are *active*:
CASE, AND, OR and COALESCE activate only the rows that a branch applies to. So `CASE WHEN b <> 0
THEN a / b END` never fails, though the division runs over all rows.

Invariants:
1. A row that a branch does not apply to raises no error (`test_branches_not_taken_raise_nothing`).
2. A failure names the expression, the number of rows and one of them, and what to write instead
   (`test_failures_say_what_to_write_instead`).

Cost: one Arrow or numpy call per function and batch; all branches of a CASE are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.errors import InputError

#: an Array, or a Scalar for the same value in all rows
Datum = Any
Kernel = Callable[..., pa.Array]

_SHOWN = 60


@dataclass(frozen=True)
class BatchRows:
    """The rows of a batch, and which of them are active."""

    batch: pa.RecordBatch
    #: rows whose failures are errors; None for all
    active: pa.Array | None = None

    def only(self, mask: Datum) -> BatchRows:
        """Return the same rows; those without TRUE in the mask become inactive."""
        held = pc.fill_null(mask, False)
        active = held if self.active is None else pc.and_(self.active, held)
        return BatchRows(self.batch, as_array(active, self.batch.num_rows))

    def count_active(self, mask: Datum) -> int:
        active = mask if self.active is None else pc.and_(self.active, mask)
        if isinstance(active, pa.Scalar):
            return self.batch.num_rows if active.as_py() else 0
        return pc.sum(active).as_py() or 0

    def first_active(self, mask: Datum) -> int:
        active = mask if self.active is None else pc.and_(self.active, mask)
        return 0 if isinstance(active, pa.Scalar) else pc.index(active, True).as_py()


def as_array(value: Datum, size: int) -> pa.Array:
    """Return what an evaluation gave as an array with one entry per row."""
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, size)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value


def columns_of(values: Sequence[Value]) -> frozenset[str]:
    """Return all columns that the evaluation of values reads."""
    return frozenset[str]().union(*(value.columns for value in values))


@dataclass(frozen=True)
class Failure:
    """The error of a function that fails: the expression, what went wrong, what to write."""

    expression: str
    what: str
    advice: str

    def check(self, rows: BatchRows, args: Sequence[Datum], result: Datum) -> None:
        """Raise if an active row has all arguments and no result."""
        if (result.null_count == 0) if isinstance(result, pa.Array) else result.is_valid:
            return
        failed = pc.is_null(result)
        for arg in args:
            failed = pc.and_(failed, pc.is_valid(arg))
        count = rows.count_active(failed)
        if count:
            at = rows.first_active(failed)
            found = [arg if isinstance(arg, pa.Scalar) else arg[at] for arg in args]
            shown = ", ".join(f"{each.as_py()!r}"[:_SHOWN] for each in found)
            msg = (
                f"{self.expression} {self.what} in {count} of {rows.batch.num_rows} rows, first "
                f"for {shown}; {self.advice}"
            )
            raise InputError(msg)


@dataclass(frozen=True)
class ColumnValue:
    """A column of the batch."""

    name: str
    type: pa.DataType
    nullable: bool

    @property
    def columns(self) -> frozenset[str]:
        return frozenset({self.name})

    def evaluate(self, rows: BatchRows) -> Datum:
        return rows.batch.column(self.name)


@dataclass(frozen=True)
class Constant:
    """One value for all rows."""

    scalar: pa.Scalar
    columns: frozenset[str] = frozenset()

    @property
    def type(self) -> pa.DataType:
        return self.scalar.type

    @property
    def nullable(self) -> bool:
        return not self.scalar.is_valid

    def evaluate(self, rows: BatchRows) -> Datum:
        del rows
        return self.scalar


@dataclass(frozen=True)
class Function:
    """A function of arrays; it gets at least one array, and scalars for constants."""

    type: pa.DataType
    nullable: bool
    kernel: Kernel
    args: tuple[Value, ...]
    #: None if NULL is a valid result for arguments that are not NULL
    failure: Failure | None = None

    @property
    def columns(self) -> frozenset[str]:
        return columns_of(self.args)

    def evaluate(self, rows: BatchRows) -> Datum:
        """Call the function and check for failures."""
        values = [arg.evaluate(rows) for arg in self.args]
        if all(isinstance(value, pa.Scalar) for value in values):
            result: Datum = self.kernel(*(pa.repeat(value, 1) for value in values))[0]
        else:
            result = self.kernel(*values)
        if self.failure is not None:
            self.failure.check(rows, values, result)
        return result


@dataclass(frozen=True)
class FieldValue(Function):
    """A field of a struct."""

    name: str = ""


@dataclass(frozen=True)
class Logic:
    """AND or OR: the second is active only where the first does not decide."""

    first: Value
    second: Value
    #: the deciding value of the first: FALSE for AND
    decides: bool

    @property
    def type(self) -> pa.DataType:
        return pa.bool_()

    @property
    def nullable(self) -> bool:
        """Return whether values can be NULL."""
        return self.first.nullable or self.second.nullable

    @property
    def columns(self) -> frozenset[str]:
        return self.first.columns | self.second.columns

    def evaluate(self, rows: BatchRows) -> Datum:
        """Return the three-valued result."""
        first = self.first.evaluate(rows)
        open_still = first if not self.decides else pc.invert(first)
        second = self.second.evaluate(rows.only(pc.fill_null(open_still, True)))
        join = pc.or_kleene if self.decides else pc.and_kleene
        return join(first, second)


@dataclass(frozen=True)
class CaseValue:
    """CASE: the value of the first condition that is TRUE, or the last value."""

    type: pa.DataType
    conditions: tuple[Value, ...]
    values: tuple[Value, ...]
    otherwise: Value

    @property
    def nullable(self) -> bool:
        return any(value.nullable for value in (*self.values, self.otherwise))

    @property
    def columns(self) -> frozenset[str]:
        return columns_of((*self.conditions, *self.values, self.otherwise))

    def evaluate(self, rows: BatchRows) -> Datum:
        size = rows.batch.num_rows
        chosen = []
        left = rows
        for condition, value in zip(self.conditions, self.values, strict=True):
            holds = pc.fill_null(condition.evaluate(left), False)
            chosen.append((holds, value.evaluate(left.only(holds))))
            left = left.only(pc.invert(holds))
        result = as_array(self.otherwise.evaluate(left), size)
        for holds, value in reversed(chosen):
            result = pc.if_else(holds, value, result)
        return result


@dataclass(frozen=True)
class Coalesce:
    """The first value that is not NULL."""

    type: pa.DataType
    values: tuple[Value, ...]

    @property
    def nullable(self) -> bool:
        """Return whether values can be NULL."""
        return all(value.nullable for value in self.values)

    @property
    def columns(self) -> frozenset[str]:
        return columns_of(self.values)

    def evaluate(self, rows: BatchRows) -> Datum:
        """Return the first values that are not NULL."""
        found: list[Datum] = []
        for value in self.values:
            found.append(value.evaluate(rows))
            rows = rows.only(pc.is_null(found[-1]))
        return pc.coalesce(*found)


#: part of a bound expression
Value = ColumnValue | Constant | Function | Logic | CaseValue | Coalesce
