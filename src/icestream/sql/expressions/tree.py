"""Expressions as pure data, and the canonical text of an expression.

Idea: few kinds of nodes are enough, because operators are calls named by their sign. Names are
compared case-insensitively, places not at all, so equal expressions are equal values with equal
hashes. The text puts parentheses around every operator, as Spark does in its column names.

Invariants:
1. Expressions that differ only in case, spaces and redundant parentheses are equal and have one
   text (`test_equal_expressions_have_one_text`).
2. The text reads back as the same expression (`test_the_text_reads_back_as_the_same_expression`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot.dialects.spark import Spark

from icestream.core.text_errors import TextSpan
from icestream.sql.expressions.types import type_name

INFIX = frozenset({
    "+", "-", "*", "/", "%", "div", "=", "<>", "<", "<=", ">", ">=", "<=>", "and", "or", "&", "|",
    "^",
})  # fmt: skip
_SUFFIXES = {pa.int8(): "Y", pa.int16(): "S", pa.int64(): "L"}
_MICROS = {"DAY": 86_400_000_000, "SECOND": 1_000_000}


@dataclass(frozen=True)
class ExpressionNode:
    """Part of an expression."""

    place: TextSpan = field(compare=False, repr=False)


@dataclass(frozen=True)
class Literal(ExpressionNode):
    """A literal value."""

    value: Any
    type: pa.DataType


@dataclass(frozen=True)
class Interval(ExpressionNode):
    """A literal interval."""

    #: microseconds
    length: int
    #: whether it was written in days and weeks: then a date plus the interval is a date
    in_days: bool


@dataclass(frozen=True)
class Name(ExpressionNode):
    """A column, or a field inside of one."""

    #: path of names, in lower case
    parts: tuple[str, ...]
    written: tuple[str, ...] = field(compare=False)


@dataclass(frozen=True)
class Member(ExpressionNode):
    """A field of a struct that is not a column."""

    of: ExpressionNode
    #: name of the field, in lower case
    name: str
    written: str = field(compare=False)


@dataclass(frozen=True)
class Call(ExpressionNode):
    """A function or operator, in lower case, and its arguments."""

    name: str
    args: tuple[ExpressionNode, ...]


@dataclass(frozen=True)
class Cast(ExpressionNode):
    """A cast; `gently` gives NULL where it fails."""

    of: ExpressionNode
    type: pa.DataType
    gently: bool


@dataclass(frozen=True)
class CaseWhen(ExpressionNode):
    """The first value whose condition holds."""

    branches: tuple[tuple[ExpressionNode, ExpressionNode], ...]
    otherwise: ExpressionNode | None


def is_keyword(name: str) -> bool:
    """Return whether a name in an expression tree is also a SQL keyword."""
    return name.upper() in Spark.Tokenizer.KEYWORDS


def quoted(name: str) -> str:
    """Return a name in an expression tree with quotes, if SQL needs them."""
    plain = re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)
    return name if plain and not is_keyword(name) else "`" + name.replace("`", "``") + "`"


def text_of(node: ExpressionNode, *, as_written: bool = False) -> str:
    """Return the text of an expression tree; names in lower case, or as written."""

    def inner(child: ExpressionNode) -> str:
        return text_of(child, as_written=as_written)

    match node:
        case Literal():
            return _literal(node)
        case Interval(length=length, in_days=in_days):
            unit = "DAY" if in_days else "SECOND"
            number = Decimal(length) / _MICROS[unit]
            return f"INTERVAL '{number.normalize():f}' {unit}"
        case Name(parts=parts, written=written):
            return ".".join(map(quoted, written if as_written else parts))
        case Member(of=of, name=name, written=written):
            return f"{inner(of)}.{quoted(written if as_written else name)}"
        case Cast(of=of, type=kind, gently=gently):
            return f"{'TRY_' if gently else ''}CAST({inner(of)} AS {type_name(kind)})"
        case CaseWhen(branches=branches, otherwise=otherwise):
            arms = "".join(f" WHEN {inner(when)} THEN {inner(then)}" for when, then in branches)
            rest = "" if otherwise is None else f" ELSE {inner(otherwise)}"
            return f"CASE{arms}{rest} END"
        case Call(name=name, args=args):
            return _call(name, [inner(each) for each in args])
    msg = f"no text for {type(node).__name__}"
    raise TypeError(msg)


def _call(name: str, args: list[str]) -> str:
    if name in INFIX and len(args) == 2:
        return f"({args[0]} {name.upper()} {args[1]})"
    match name:
        case "-" | "~":
            return f"({name} {args[0]})"
        case "not":
            return f"(NOT {args[0]})"
        case "is null" | "is true" | "is false":
            return f"({args[0]} {name.upper()})"
        case "in":
            return f"({args[0]} IN ({', '.join(args[1:])}))"
        case "like":
            escape = f" ESCAPE {args[2]}" if len(args) == 3 else ""
            return f"({args[0]} LIKE {args[1]}{escape})"
    return f"{name}({', '.join(args)})"


def _literal(node: Literal) -> str:
    value = node.value
    if value is None or isinstance(value, bool):
        return str(value).upper().replace("NONE", "NULL")
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
        return f"'{escaped}'"
    if isinstance(value, float):
        return f"{value!r}{'' if 'e' in repr(value) else 'e0'}"
    if isinstance(value, Decimal):
        return f"{value:f}{'' if '.' in f'{value:f}' else '.'}"
    return f"{value}{_SUFFIXES.get(node.type, '')}"
