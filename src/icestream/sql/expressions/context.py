"""What binding a function needs: types of arguments, implicit casts, constants and errors.

Idea: functions are bound one by one, each by a small builder whose arguments are bound already. The
builder asks the context to cast them, as Spark does implicitly, and returns the kernel that
computes the result.

Invariants:
1. An argument of the wrong type is an error when the expression is bound, and points at the
   argument (`test_wrong_types_are_reported_when_bound`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from icestream.core.errors import DefinitionError, InputError
from icestream.core.text_errors import error_at
from icestream.sql.expressions import casts, tree, types
from icestream.sql.expressions.arithmetic import arrays
from icestream.sql.expressions.evaluation import (
    BatchRows,
    Constant,
    Datum,
    Failure,
    Function,
    Kernel,
    Value,
)
from icestream.sql.expressions.types import type_name

#: what goes wrong, and what to write instead
Fails = tuple[str, str]

OVERFLOW = "has a result out of range"

_ONE_ROW = pa.RecordBatch.from_arrays([pa.nulls(1)], ["row"])


@dataclass
class Context:
    """The text that is being bound and the time zone of the session."""

    text: str
    zone: str
    #: whether values depend on the zone
    is_local: bool = False

    def zone_for(self, *kinds: pa.DataType) -> str:
        """Return the zone in which a function reads instants; without any it needs none."""
        if not any(map(types.is_zoned, kinds)):
            return "UTC"
        self.is_local = True
        return self.zone

    def error(self, node: tree.ExpressionNode, message: str) -> DefinitionError:
        """Return an error that points at a part of the text."""
        return error_at(self.text, node.place, message)

    def call(
        self,
        node: tree.ExpressionNode,
        kind: pa.DataType,
        kernel: Kernel,
        args: Sequence[Value],
        *,
        fails: Fails | None = None,
        nullable: bool | None = None,
    ) -> Value:
        """Return a function of arguments.

        Args:
            node: the part of the expression to bind.
            kind: type of the results.
            kernel: computes the results.
            args: arguments, of the types that the kernel takes.
            fails: if a missing result is an error, what goes wrong and what to write instead.
            nullable: whether results can be NULL; by default, whether arguments can.
        """
        if nullable is None:
            nullable = any(arg.nullable for arg in args)
        failure = Failure(tree.text_of(node, as_written=True), *fails) if fails else None
        return Function(kind, nullable, kernel, tuple(args), failure)

    def cast(
        self, node: tree.ExpressionNode, value: Value, kind: pa.DataType, *, gently: bool = False
    ) -> Value:
        if value.type == kind:
            return value
        change = casts.caster(value.type, kind)
        if change is None:
            message = f"{type_name(value.type)} cannot be cast to {type_name(kind)}"
            raise self.error(node, message)
        if isinstance(value, Constant) and not value.scalar.is_valid:
            return Constant(pa.scalar(None, kind))
        zone = self.zone_for(*casts.read_locally(value.type, kind))
        if isinstance(value, Constant) and not gently:
            found = change(pa.repeat(value.scalar, 1), kind, zone)
            if found.null_count:
                raise self.error(node, f"{value.scalar.as_py()!r} is not a valid {type_name(kind)}")
        works = casts.always_works(value.type, kind)
        text = tree.text_of(node, as_written=True)
        return Function(
            kind,
            value.nullable or (gently and not works),
            lambda array: change(array, kind, zone),
            (value,),
            None
            if works or gently
            else Failure(
                text,
                f"has values that are not a valid {type_name(kind)}",
                f"write try_cast(... AS {type_name(kind)}) to get NULL for them",
            ),
        )

    def to(
        self, node: tree.ExpressionNode, value: Value, kind: pa.DataType, *accepted: str
    ) -> Value:
        """Return an argument in the type that a function takes, if Spark casts it implicitly."""
        source = value.type
        fits = (
            source in (kind, types.NULL)
            or types.is_text(source)
            or types.is_text(kind)
            or (types.is_number(source) and kind == types.DOUBLE)
            or (types.is_whole(source) and (types.is_whole(kind) or types.is_decimal(kind)))
            or (types.is_time(source) and types.is_time(kind))
        )
        if not fits:
            wanted = " or ".join(accepted) or type_name(kind)
            raise self.error(node, f"this is {type_name(source)}; {wanted} is needed here")
        return self.cast(node, value, kind)

    def alike(
        self,
        node: tree.ExpressionNode,
        nodes: Sequence[tree.ExpressionNode],
        values: Sequence[Value],
        *,
        text: bool,
    ) -> tuple[pa.DataType, list[Value]]:
        """Return values cast to their common type."""
        kind = types.common_of((value.type for value in values), text=text)
        if kind is None:
            message = ", ".join(type_name(value.type) for value in values)
            raise self.error(node, f"these have no common type: {message}; write CAST(... AS ...)")
        pairs = zip(nodes, values, strict=True)
        return kind, [self.cast(each, value, kind) for each, value in pairs]

    def constant(self, node: tree.ExpressionNode, value: Value, what: str) -> Any:
        """Return the value of an argument that must be constant."""
        if value.columns:
            raise self.error(node, f"{what} must be a constant here, not computed from columns")
        try:
            found: Datum = value.evaluate(BatchRows(_ONE_ROW))
        except InputError as failed:
            raise self.error(node, str(failed)) from None
        return (found if isinstance(found, pa.Scalar) else found[0]).as_py()


def on_arrays(kernel: Kernel) -> Kernel:
    """Return a kernel that a context calls with arrays only, no scalars."""
    return lambda *values: kernel(*arrays(*values))
