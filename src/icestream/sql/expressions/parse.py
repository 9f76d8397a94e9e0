"""Text to expressions: Spark's SQL, parsed by sqlglot.

Idea: sqlglot would translate the functions it knows into its own terms; here it knows none, so a
call is a name and its arguments. Its tree is converted to ours, which has fewer kinds of nodes; an
error points at anything that has no counterpart.

Invariants:
1. An error points at the words it is about (`test_errors_point_at_the_place`).
2. Where sqlglot and Spark would group operators without parentheses differently, the error asks for
   parentheses (`test_parentheses_are_asked_for_where_readers_differ`).

Limits: no sub-queries, windows, lambdas, arrays or maps; intervals without months and years.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan, error_at
from icestream.sql.expressions import tree, types
from icestream.sql.expressions.intervals import micros_in, parts_of

_WITH_WORDS_INSIDE = ("CAST", "EXTRACT", "SUBSTR", "SUBSTRING", "TRIM", "TRY_CAST")
_PREFIX = "SELECT "

_BINARY: dict[type[exp.Expr], str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.IntDiv: "div",
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>", exp.And: "and", exp.Or: "or", exp.DPipe: "concat",
    exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "^",
}  # fmt: skip
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
#: pairs of outer and inner operators that are grouped differently without parentheses
_UNCLEAR: tuple[tuple[tuple[type[exp.Expr], ...], tuple[type[exp.Expr], ...]], ...] = (
    (_COMPARISONS, (*_COMPARISONS, exp.In, exp.Between, exp.Like)),
    ((exp.DPipe,), (exp.Add, exp.Sub)),
    ((exp.Add, exp.Sub), (exp.DPipe,)),
    (_BITS, _BITS),
)

_TYPES = {
    "TINYINT": types.TINYINT, "SMALLINT": types.SMALLINT, "INT": types.INT, "BIGINT": types.BIGINT,
    "FLOAT": types.FLOAT, "DOUBLE": types.DOUBLE, "BOOLEAN": types.BOOLEAN, "TEXT": types.STRING,
    "VARCHAR": types.STRING, "DATE": types.DATE, "BINARY": types.BINARY, "TIMESTAMP": types.NTZ,
    "TIMESTAMPTZ": types.TIMESTAMP, "TIMESTAMPLTZ": types.TIMESTAMP, "TIMESTAMPNTZ": types.NTZ,
}  # fmt: skip
#: types that are also functions, as in int(x)
_CONVERSIONS = {
    "tinyint": types.TINYINT, "smallint": types.SMALLINT, "int": types.INT, "bigint": types.BIGINT,
    "float": types.FLOAT, "double": types.DOUBLE, "boolean": types.BOOLEAN, "string": types.STRING,
    "date": types.DATE, "timestamp": types.TIMESTAMP, "binary": types.BINARY,
    "decimal": pa.decimal128(10, 0),
}  # fmt: skip
_EXTRACTS = ("year", "quarter", "month", "day", "hour", "minute")


class _Parser(SparkParser):
    """Spark's grammar without the functions sqlglot would translate."""

    FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in _WITH_WORDS_INSIDE
    }


class _Dialect(Spark):
    """Spark's SQL in which a function is a name."""

    Parser = _Parser


def span_of(node: exp.Expr) -> TextSpan | None:
    """Return where sqlglot parsed a node; for a call, where its name is."""
    known = [node.meta] if "start" in node.meta else [each.meta for each in node.walk()]
    spans = [TextSpan(each["start"], each["end"] + 1) for each in known if "start" in each]
    return TextSpan(min(spans).start, max(each.end for each in spans)) if spans else None


def misread(error: ParseError, text: str, before: int = 0) -> tuple[TextSpan, str, str]:
    """Return where sqlglot could not parse a text, why, and the word there.

    `before` characters were added in front of the text.
    """
    message = error.errors[0]
    line = int(message.get("line") or 1)
    ahead = sum(len(each) + 1 for each in text.split("\n")[: line - 1])
    end = ahead + int(message.get("col") or 0) - (before if line == 1 else 0)
    complaint = str(message.get("description") or "").split(" but got ")[0].rstrip(".")
    if not complaint or "<class" in complaint or "Unexpected token" in complaint:
        complaint = "something is missing or out of place"
    word = str(message.get("highlight") or "")
    return TextSpan(end - len(word), end), f"cannot read this: {complaint}", word


@dataclass(frozen=True)
class Parsed:
    """An item of a select list."""

    text: str
    #: None means *
    root: tree.ExpressionNode | None
    alias: str | None


def parse_item(text: str) -> Parsed:
    """Parse one expression of a text, with or without an alias, or *."""
    reader = _Reader(text)
    found = reader.top()
    alias = None
    if isinstance(found, exp.Alias):
        alias, found = found.alias, found.this
    if isinstance(found, exp.Star) and not any(found.args.values()):
        return Parsed(text, None, None)
    return Parsed(text, reader.node(found), alias)


class _Reader:
    """Converts sqlglot's tree for one text to ours."""

    def __init__(self, text: str) -> None:
        self._text = text

    def top(self) -> exp.Expr:
        try:
            statements = _Dialect().parse(_PREFIX + self._text)
        except TokenError:
            message = "a quote or comment is opened in this text and never closed"
            raise error_at(self._text, TextSpan(0, len(self._text)), message) from None
        except ParseError as error:
            raise self._misread(error) from None
        select = statements[0]
        whole = TextSpan(0, len(self._text))
        if len(statements) > 1 or not isinstance(select, exp.Select):
            raise error_at(self._text, whole, "write one expression, without a semicolon")
        if not select.expressions:
            message = "there is no expression; write for example rating > 3"
            raise error_at(self._text, whole, message)
        if len(select.expressions) > 1:
            message = "write one expression; pass others as separate arguments"
            raise self._error(select.expressions[1], message)
        others = [v for k, v in select.args.items() if k not in ("expressions", "kind") and v]
        if others:
            raise error_at(self._text, whole, "write an expression only, no other part of a query")
        found: exp.Expr = select.expressions[0]
        return found

    def _misread(self, error: ParseError) -> DefinitionError:
        place, complaint, word = misread(error, self._text, len(_PREFIX))
        hint = f"; a column of this name is written `{word}`" if tree.is_keyword(word) else ""
        return error_at(self._text, place, f"{complaint} here{hint}")

    def _place(self, found: exp.Expr) -> TextSpan:
        """Return the place of a node; for a call, that of its name."""
        span, skip = span_of(found), len(_PREFIX)
        if span is None:
            return TextSpan(0, len(self._text))
        return TextSpan(span.start - skip, span.end - skip)

    def _error(self, found: exp.Expr, message: str) -> DefinitionError:
        return error_at(self._text, self._place(found), message)

    def node(self, found: exp.Expr) -> tree.ExpressionNode:
        """Return our node for one of sqlglot's."""
        place = self._place(found)
        sign = _BINARY.get(type(found))
        if sign is not None:
            self._check_order(found)
            args = (self.node(found.this), self.node(found.expression))
            call = tree.Call(place, sign, args)
            return tree.Call(place, "not", (call,)) if found.args.get("negate") else call
        for kind, read in self._READERS.items():
            if isinstance(found, kind):
                return read(self, found, place)
        what = type(found).__name__
        raise self._error(found, f"expressions on grouped rows cannot contain this ({what})")

    def _check_order(self, found: exp.Expr) -> None:
        """Reject operators that Spark would group differently from sqlglot."""
        for operand in (found.this, found.expression):
            inner = operand.this if isinstance(operand, exp.Not) else operand
            for outer_kinds, inner_kinds in _UNCLEAR:
                same = type(found) is type(inner) and isinstance(found, _BITS)
                if isinstance(found, outer_kinds) and isinstance(inner, inner_kinds) and not same:
                    raise self._error(found, "put parentheses around one of these operators")

    def _nodes(self, many: list[exp.Expr]) -> tuple[tree.ExpressionNode, ...]:
        return tuple(self.node(each) for each in many)

    def _literal(self, found: exp.Literal, place: TextSpan) -> tree.ExpressionNode:
        if found.is_string:
            return tree.Literal(place, str(found.this), types.STRING)
        return self._number(str(found.this), place)

    def _number(self, written: str, place: TextSpan) -> tree.ExpressionNode:
        """Return the narrowest of INT, BIGINT and DECIMAL, or a DOUBLE if there is an E."""
        if written.lstrip("-")[:1] not in "0123456789." or not written.strip("-."):
            raise error_at(self._text, place, "this number cannot be read")
        if "e" in written.lower():
            return tree.Literal(place, float(written), types.DOUBLE)
        value = Decimal(written)
        if "." not in written:
            for kind, bits in ((types.INT, 31), (types.BIGINT, 63)):
                if -(2**bits) <= value < 2**bits:
                    return tree.Literal(place, int(value), kind)
        scale = max(0, -int(value.as_tuple().exponent))
        precision = max(len(value.as_tuple().digits), scale)
        if precision > types.DIGITS:
            raise error_at(self._text, place, "a decimal has at most 38 digits; write 1.5e0")
        return tree.Literal(place, value, pa.decimal128(precision, scale))

    def _negative(self, found: exp.Neg, place: TextSpan) -> tree.ExpressionNode:
        inside = found.this
        if isinstance(inside, exp.Literal) and not inside.is_string:
            return self._number("-" + str(inside.this), place)
        if isinstance(inside, exp.Cast) and isinstance(inside.this, exp.Literal):
            # -1L, which sqlglot reads as -CAST(1 AS BIGINT)
            negated = inside.copy()
            negated.this.set("this", f"-{inside.this.this}")
            return self.node(negated)
        return tree.Call(place, "-", (self.node(inside),))

    def _strings(self, found: exp.Concat, place: TextSpan) -> tree.ExpressionNode:
        """Join strings that sqlglot treats as adjacent; a doubled quote is one inside a text."""
        parts = found.expressions
        if not all(isinstance(each, exp.Literal) and each.is_string for each in parts):
            raise self._error(found, "write concat(...) or || to join values")
        written = self._text[place.start :]
        glue = "'" if re.match(r"'(?:[^'\\]|\\.)*''", written) else ""
        return tree.Literal(place, glue.join(str(each.this) for each in parts), types.STRING)

    def _column(self, found: exp.Column, place: TextSpan) -> tree.ExpressionNode:
        if isinstance(found.this, exp.Star):
            raise self._error(found, "write * alone, or name the fields of the struct")
        written = tuple(part.name for part in found.parts)
        return tree.Name(place, tuple(part.lower() for part in written), written)

    def _dot(self, found: exp.Dot, place: TextSpan) -> tree.ExpressionNode:
        if not isinstance(found.expression, exp.Identifier):
            raise self._error(found, "only fields of structs can follow a dot")
        return _member(self.node(found.this), found.expression.name, place)

    def _bracket(self, found: exp.Bracket, place: TextSpan) -> tree.ExpressionNode:
        (key,) = found.expressions if len(found.expressions) == 1 else (None,)
        if not isinstance(key, exp.Literal) or not key.is_string:
            raise self._error(found, "brackets take the name of a struct's field, as in s['name']")
        return _member(self.node(found.this), str(key.this), place)

    def _cast(self, found: exp.Cast, place: TextSpan) -> tree.ExpressionNode:
        target = self._type(found.to, found)
        inside = found.this
        if isinstance(inside, exp.Literal) and self._has_suffix(inside):
            literal = self._suffixed(str(inside.this), target, place)
            if literal is not None:
                return literal
        return tree.Cast(place, self.node(inside), target, bool(found.args.get("safe")))

    def _has_suffix(self, literal: exp.Literal) -> bool:
        """Distinguish 10L, which sqlglot reads as a cast, from CAST(10 AS BIGINT)."""
        if "start" not in literal.meta:
            return literal.is_string
        return not literal.is_string and self._text[self._place(literal).end - 1].isalpha()

    def _suffixed(
        self, number: str, kind: pa.DataType, place: TextSpan
    ) -> tree.ExpressionNode | None:
        if kind == types.DOUBLE:
            return tree.Literal(place, float(number), kind)
        if types.is_decimal(kind):
            return tree.Literal(place, Decimal(number), kind)
        if not types.is_whole(kind):
            return None
        bound = 1 << (kind.bit_width - 1)
        if not -bound <= int(number) < bound:
            raise error_at(self._text, place, f"this is not a valid {types.type_name(kind)}")
        return tree.Literal(place, int(number), kind)

    def _type(self, written: exp.DataType, found: exp.Expr) -> pa.DataType:
        name = written.this.name if hasattr(written.this, "name") else str(written.this)
        if name == "DECIMAL":
            sizes = [int(each.name) for each in written.expressions] or [10]
            precision, scale = sizes[0], sizes[1] if len(sizes) > 1 else 0
            if not 0 <= scale <= precision <= types.DIGITS or precision == 0:
                raise self._error(found, "a decimal has 1 to 38 digits, and at most as many places")
            return pa.decimal128(precision, scale)
        if name not in _TYPES:
            message = written.sql(dialect=_Dialect)
            raise self._error(found, f"values cannot be cast to {message} here")
        return _TYPES[name]

    def _is(self, found: exp.Is, place: TextSpan) -> tree.ExpressionNode:
        if isinstance(found.expression, exp.Null):
            return tree.Call(place, "is null", (self.node(found.this),))
        if isinstance(found.expression, exp.Boolean):
            name = "is true" if found.expression.this else "is false"
            return tree.Call(place, name, (self.node(found.this),))
        raise self._error(found, "IS takes NULL, TRUE or FALSE")

    def _in(self, found: exp.In, place: TextSpan) -> tree.ExpressionNode:
        if not found.expressions:
            raise self._error(found, "IN takes a list of values; join to look into other rows")
        return tree.Call(place, "in", (self.node(found.this), *self._nodes(found.expressions)))

    def _between(self, found: exp.Between, place: TextSpan) -> tree.ExpressionNode:
        value = self.node(found.this)
        low = tree.Call(place, ">=", (value, self.node(found.args["low"])))
        high = tree.Call(place, "<=", (value, self.node(found.args["high"])))
        return tree.Call(place, "and", (low, high))

    def _like(self, found: exp.Like, place: TextSpan) -> tree.ExpressionNode:
        args = (self.node(found.this), self.node(found.expression))
        call = tree.Call(place, "like", args)
        return tree.Call(place, "not", (call,)) if found.args.get("negate") else call

    def _escape(self, found: exp.Escape, place: TextSpan) -> tree.ExpressionNode:
        like = self.node(found.this)
        turned = isinstance(like, tree.Call) and like.name == "not"
        call = like.args[0] if turned and isinstance(like, tree.Call) else like
        if not isinstance(call, tree.Call) or call.name != "like":
            raise self._error(found, "ESCAPE belongs to LIKE")
        call = tree.Call(place, "like", (*call.args, self.node(found.expression)))
        return tree.Call(place, "not", (call,)) if turned else call

    def _case(self, found: exp.Case, place: TextSpan) -> tree.ExpressionNode:
        subject = None if found.this is None else self.node(found.this)
        branches = []
        for arm in found.args["ifs"]:
            when = self.node(arm.this)
            if subject is not None:
                when = tree.Call(when.place, "=", (subject, when))
            branches.append((when, self.node(arm.args["true"])))
        default = found.args.get("default")
        return tree.CaseWhen(
            place, tuple(branches), None if default is None else self.node(default)
        )

    def _if(self, found: exp.If, place: TextSpan) -> tree.ExpressionNode:
        otherwise = found.args.get("false")
        if otherwise is None:
            raise self._error(found, "write if(condition, value, other value)")
        branch = (self.node(found.this), self.node(found.args["true"]))
        return tree.CaseWhen(place, (branch,), self.node(otherwise))

    def _interval(self, found: exp.Interval, place: TextSpan) -> tree.ExpressionNode:
        if not isinstance(found.this, exp.Literal):
            message = "an interval must be a literal; multiply one by a column: n * INTERVAL 1 DAY"
            raise self._error(found, message)
        unit = found.args.get("unit")
        spelled = "" if unit is None or isinstance(unit, exp.IntervalSpan) else unit.name.lower()
        amounts = parts_of(str(found.this.this), spelled)
        if not amounts:
            message = (
                "this interval cannot be read; write for example INTERVAL 5 MINUTES or INTERVAL "
                "'1 02:30:00' DAY TO SECOND; months and years are not supported"
            )
            raise self._error(found, message)
        in_days = all(unit in ("day", "week") for _, unit in amounts)
        return tree.Interval(place, micros_in(amounts), in_days)

    def _substring(self, found: exp.Substring, place: TextSpan) -> tree.ExpressionNode:
        keys = ("this", "start", "length")
        args = [found.args[key] for key in keys if found.args.get(key) is not None]
        return tree.Call(place, "substring", self._nodes(args))

    def _trim(self, found: exp.Trim, place: TextSpan) -> tree.ExpressionNode:
        side = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(found.args.get("position") or "")
        args = [self.node(found.this)]
        if found.expression:
            args.append(self.node(found.expression))
        return tree.Call(place, side or "trim", tuple(reversed(args)))

    def _extract(self, found: exp.Extract, place: TextSpan) -> tree.ExpressionNode:
        unit = found.name.lower()
        if unit not in _EXTRACTS:
            message = f"write a function, such as second(...), or EXTRACT of one of {_EXTRACTS}"
            raise self._error(found, message)
        return tree.Call(place, unit, (self.node(found.expression),))

    def _call(self, found: exp.Anonymous, place: TextSpan) -> tree.ExpressionNode:
        name = str(found.this).lower()
        args = self._nodes(found.expressions)
        if name in _CONVERSIONS and len(args) == 1:
            return tree.Cast(place, args[0], _CONVERSIONS[name], gently=False)
        return tree.Call(place, name, args)

    _READERS: ClassVar[dict[type[exp.Expr], Callable[..., tree.ExpressionNode]]] = {
        exp.Paren: lambda self, found, place: self.node(found.this),
        exp.Literal: _literal,
        exp.Null: lambda self, found, place: tree.Literal(place, None, types.NULL),
        exp.Boolean: lambda self, found, place: tree.Literal(place, found.this, types.BOOLEAN),
        exp.RawString: lambda self, found, place: tree.Literal(place, found.this, types.STRING),
        exp.Neg: _negative,
        exp.Not: lambda self, found, place: tree.Call(place, "not", (self.node(found.this),)),
        exp.NullSafeNEQ: lambda self, found, place: tree.Call(
            place, "not", (tree.Call(place, "<=>", self._nodes([found.this, found.expression])),)
        ),
        exp.BitwiseNot: lambda self, found, place: tree.Call(place, "~", (self.node(found.this),)),
        exp.Concat: _strings,
        exp.Column: _column,
        exp.Dot: _dot,
        exp.Bracket: _bracket,
        exp.Cast: _cast,
        exp.Is: _is,
        exp.In: _in,
        exp.Between: _between,
        exp.Like: _like,
        exp.Escape: _escape,
        exp.Case: _case,
        exp.If: _if,
        exp.Interval: _interval,
        exp.Substring: _substring,
        exp.Trim: _trim,
        exp.Extract: _extract,
        exp.Anonymous: _call,
    }


def _member(of: tree.ExpressionNode, name: str, place: TextSpan) -> tree.ExpressionNode:
    if isinstance(of, tree.Name):
        return tree.Name(place, (*of.parts, name.lower()), (*of.written, name))
    return tree.Member(place, of, name.lower(), name)
