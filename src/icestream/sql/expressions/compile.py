"""Expressions bound to the schema of batches, and evaluated over them.

Idea: binding walks through an expression once. It finds the columns, types every part as Spark
would and picks a kernel for each function, so every mistake in a query is reported before rows
arrive. Per batch only the kernels are called.

Invariants:
1. The error for an unknown column lists the existing ones (`test_unknown_columns_are_reported`).
2. Names are case-insensitive; a name that fits two columns which differ only in case is an error
   (`test_columns_are_found_in_any_case`).
3. Evaluating gives arrays of the bound type, one value per row, whatever the batch
   (`test_results_have_the_bound_type_and_length`).

Cost: reading an expression takes about 0.6 ms, binding 0.1 ms per function; once per query.

Limits: kernels cannot be pickled; send the `Expression` and bind it at the receiver.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.text_errors import TextSpan, error_at, guess
from icestream.sql.expressions import tree, types
from icestream.sql.expressions.context import Context
from icestream.sql.expressions.evaluation import (
    BatchRows,
    CaseValue,
    ColumnValue,
    Constant,
    FieldValue,
    Value,
    as_array,
)
from icestream.sql.expressions.functions import FUNCTIONS
from icestream.sql.expressions.parse import Parsed, parse_item
from icestream.sql.expressions.types import BOOLEAN, type_name


@dataclass(frozen=True)
class Expression:
    """A parsed expression; equal to others that differ only in spelling."""

    root: tree.ExpressionNode
    #: the name given with AS
    alias: str | None
    text: str

    def __str__(self) -> str:
        """Return the canonical text, without the alias."""
        return tree.text_of(self.root)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression):
            return NotImplemented
        return (self.root, self.alias) == (other.root, other.alias)

    def __hash__(self) -> int:
        return hash((self.root, self.alias))

    @property
    def name(self) -> str:
        """Return the name of the result: the alias, the column's or field's name, or the text."""
        if self.alias is not None:
            return self.alias
        if isinstance(self.root, tree.Name):
            return self.root.written[-1]
        if isinstance(self.root, tree.Member):
            return self.root.written
        return tree.text_of(self.root, as_written=True)

    def bind(self, schema: pa.Schema, *, zone: str = "UTC") -> Bound:
        """Find columns and types.

        Args:
            schema: the columns of the batches.
            zone: time zone of the session, for dates, hours and text of timestamps.
        """
        context = Context(self.text, zone)
        value = _Binder(schema, context).value(self.root)
        return Bound(value, self.name, zone if context.is_local else "UTC")


@dataclass(frozen=True)
class Bound:
    """An expression that knows its columns and types."""

    _value: Value
    #: name of the result
    name: str
    #: zone that results depend on
    zone: str = "UTC"

    @property
    def type(self) -> pa.DataType:
        return self._value.type

    @property
    def nullable(self) -> bool:
        """Return whether results can be NULL."""
        return self._value.nullable

    @property
    def columns(self) -> set[str]:
        """Return the columns it reads, spelled as in the schema."""
        return set(self._value.columns)

    @property
    def reads(self) -> str | None:
        """Return the column that it repeats; None if it computes something."""
        return self._value.name if isinstance(self._value, ColumnValue) else None

    @property
    def field_of(self) -> tuple[str, str] | None:
        """Return the column of which it is a field, and the field; None if it is something else."""
        match self._value:
            case FieldValue(args=(ColumnValue(name=column),), name=name):
                return column, name
        return None

    @property
    def field(self) -> pa.Field:
        """Return name, type and nullability of the results."""
        return pa.field(self.name, self.type, nullable=self.nullable)

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        if batch.num_rows == 0:
            return pa.nulls(0, self.type)
        return as_array(self._value.evaluate(BatchRows(batch)), batch.num_rows)


def text_in_zone(text: str, *expressions: Bound) -> str:
    """Return a text about expressions with the zone that they depend on, unless it is UTC."""
    zones = {each.zone for each in expressions} - {"UTC"}
    return " ".join([text, *(f"in {zone}" for zone in sorted(zones))])


def parse(text: str) -> Expression:
    """Parse one expression, with or without AS, so that it can be compiled."""
    return _expression(parse_item(text))


def _expression(item: Parsed) -> Expression:
    if item.root is None:
        place = TextSpan(0, len(item.text))
        raise error_at(item.text, place, "* stands for columns only in a list of results")
    return Expression(item.root, item.alias, item.text)


@dataclass(frozen=True)
class Projection:
    """A list of results: columns, expressions with names, and * for all columns."""

    items: tuple[Bound, ...]
    schema: pa.Schema

    @classmethod
    def bind(cls, schema: pa.Schema, texts: Sequence[str], *, zone: str = "UTC") -> Projection:
        """Bind a list as in SELECT; the names of results must differ."""
        items: list[Bound] = []
        for text in texts:
            item = parse_item(text)
            found = (
                [Bound(_column(field), field.name) for field in schema]
                if item.root is None
                else [_expression(item).bind(schema, zone=zone)]
            )
            taken = {other.name.lower() for other in items}
            twice = [each.name for each in found if each.name.lower() in taken]
            if twice:
                message = f"there are two results named {twice[0]!r}; give one another name with AS"
                raise error_at(text, TextSpan(0, len(text)), message)
            items += found
        return cls(tuple(items), pa.schema([item.field for item in items]))

    @property
    def columns(self) -> set[str]:
        return set[str]().union(*(item.columns for item in self.items))

    def renamed(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """Return the names that columns have among the results; None if one is not there."""
        there = {item.reads: item.name for item in self.items if item.reads is not None}
        return tuple(there[name] for name in names) if {*names} <= {*there} else None

    def read_for(self, names: Collection[str]) -> frozenset[str]:
        """Return the columns that some of the results are made of."""
        return frozenset[str]().union(*(each.columns for each in self.items if each.name in names))

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.items:
            return batch.select([])
        arrays = [item.evaluate(batch) for item in self.items]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@dataclass(frozen=True)
class Predicate:
    """A condition on rows."""

    bound: Bound
    text: str

    @classmethod
    def bind(cls, schema: pa.Schema, text: str, *, zone: str = "UTC") -> Predicate:
        expression = parse(text)
        bound = expression.bind(schema, zone=zone)
        if bound.type not in (BOOLEAN, types.NULL):
            message = f"a condition must be TRUE or FALSE; this is {type_name(bound.type)}"
            raise error_at(text, expression.root.place, message)
        return cls(bound, str(expression))

    @property
    def columns(self) -> set[str]:
        return self.bound.columns

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Return TRUE for rows that meet the condition; NULL means FALSE."""
        found = self.bound.evaluate(batch).cast(BOOLEAN)
        return pc.fill_null(found, False) if found.null_count else found

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that meet the condition."""
        return batch.filter(self.mask(batch))


def _column(field: pa.Field) -> ColumnValue:
    return ColumnValue(field.name, field.type, field.nullable)


class _Binder:
    """Binds the parts of one expression."""

    def __init__(self, schema: pa.Schema, context: Context) -> None:
        self._schema = schema
        self._context = context

    def value(self, node: tree.ExpressionNode) -> Value:
        match node:
            case tree.Literal(value=value, type=kind):
                return Constant(pa.scalar(value, kind))
            case tree.Interval(length=length):
                return Constant(pa.scalar(length, types.INTERVAL))
            case tree.Name():
                return self._name(node)
            case tree.Member(of=of, name=name):
                return self._field(node, self.value(of), name)
            case tree.Cast(of=of, type=kind, gently=gently):
                return self._context.cast(node, self.value(of), kind, gently=gently)
            case tree.CaseWhen():
                return self._case(node)
            case tree.Call():
                return self._call(node)
        msg = f"no binding for {type(node).__name__}"
        raise TypeError(msg)

    def _name(self, node: tree.Name) -> Value:
        found = [field for field in self._schema if field.name.lower() == node.parts[0]]
        if len(found) > 1:
            both = [field.name for field in found]
            raise self._context.error(node, f"this is ambiguous between {both}; rename all but one")
        if not found:
            names = list(self._schema.names)
            hint = guess(node.written[0], names) or "."
            message = f"there is no column {node.written[0]!r}{hint} The columns are {names}"
            raise self._context.error(node, message)
        value: Value = _column(found[0])
        for name in node.parts[1:]:
            value = self._field(node, value, name)
        return value

    def _field(self, node: tree.ExpressionNode, of: Value, name: str) -> Value:
        if not pa.types.is_struct(of.type):
            message = f"{type_name(of.type)} has no fields, so no field {name!r}"
            raise self._context.error(node, message)
        fields = [of.type.field(at) for at in range(of.type.num_fields)]
        found = [at for at, field in enumerate(fields) if field.name.lower() == name]
        if len(found) != 1:
            names = [field.name for field in fields]
            hint = guess(name, names) or "."
            raise self._context.error(node, f"there is no field {name!r}{hint} It has {names}")
        (at,) = found
        return FieldValue(
            fields[at].type,
            of.nullable or fields[at].nullable,
            lambda array: pc.struct_field(array, [at]),
            (of,),
            name=fields[at].name,
        )

    def _case(self, node: tree.CaseWhen) -> Value:
        ctx = self._context
        conditions = [ctx.to(when, self.value(when), BOOLEAN) for when, _ in node.branches]
        parts = [then for _, then in node.branches]
        values = [self.value(then) for then in parts]
        otherwise = node.otherwise or tree.Literal(node.place, None, types.NULL)
        parts.append(otherwise)
        values.append(self.value(otherwise))
        kind, values = ctx.alike(node, parts, values, text=True)
        return CaseValue(kind, tuple(conditions), tuple(values[:-1]), values[-1])

    def _call(self, node: tree.Call) -> Value:
        known = FUNCTIONS.get(node.name)
        if known is None:
            names = [name for name in FUNCTIONS if name.isidentifier()]
            hint = guess(node.name, names)
            message = f"there is no function {node.name!r} on grouped rows{hint}"
            raise self._context.error(node, message)
        build, (least, most) = known
        if not least <= len(node.args) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            message = f"{node.name} takes {wanted} arguments; got {len(node.args)}"
            raise self._context.error(node, message)
        return build(self._context, node, [self.value(arg) for arg in node.args])
