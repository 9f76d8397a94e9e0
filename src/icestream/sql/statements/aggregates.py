"""Aggregate calls: their names in SQL and the functions of the fluent API they denote.

Idea: a call is read into the name of a function of the fluent API, its input expressions and its
literals. SQL syntax around a call is rewritten: `FILTER (WHERE c)` to `CASE WHEN c THEN x END`,
whose nulls aggregates skip, and `percentile_cont(p) WITHIN GROUP (ORDER BY x)` to
`percentile(x, p)`.

Invariants:
1. Each name denotes the function of the same meaning (`test_names_stand_for_functions`).
2. Events that a filter excludes are ignored (`test_a_filter_becomes_a_conditional_argument`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sqlglot import exp

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan
from icestream.sql.statements.tokens import Text


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate of a statement."""

    #: name of the function in the fluent API, or of the user's function
    function: str
    #: expressions over the columns of an event; none for whole events
    arguments: tuple[str, ...]
    #: literals after the expressions
    parameters: tuple[Any, ...] = ()
    #: whether it is the user's own function
    is_users: bool = False
    place: TextSpan = field(default=TextSpan(0, 1), compare=False, repr=False)


@dataclass(frozen=True)
class _Signature:
    function: str
    #: number of input columns
    columns: int = 1
    #: numbers of literals after them: required, and allowed
    needs: int = 0
    takes: int = 0
    #: usage, for messages
    usage: str = ""


_NAMES = {
    "sum": ("sum",),
    "avg": ("avg", "mean"),
    "min": ("min",),
    "max": ("max",),
    "var_pop": ("var_pop",),
    "var_samp": ("var_samp", "variance"),
    "stddev_pop": ("stddev_pop",),
    "stddev_samp": ("stddev_samp", "stddev", "std"),
    "collect_list": ("collect_list", "array_agg"),
    "collect_set": ("collect_set",),
    "median": ("median",),
    "bool_and": ("bool_and", "every"),
    "bool_or": ("bool_or", "some", "any"),
    "count_if": ("count_if",),
    "mode": ("mode",),
}
_PAIRS = {
    "covar_pop": ("covar_pop",),
    "covar_samp": ("covar_samp",),
    "corr": ("corr",),
    "min_by": ("min_by", "arg_min", "argmin"),
    "max_by": ("max_by", "arg_max", "argmax"),
    "weighted_avg": ("weighted_avg", "vwap"),
}
SIGNATURES: dict[str, _Signature] = {
    **{name: _Signature(function) for function, names in _NAMES.items() for name in names},
    **{name: _Signature(function, 2) for function, names in _PAIRS.items() for name in names},
    **{
        name: _Signature(function, 1, 0, 1, f"{name}(x) or {name}(x, true) to skip nulls")
        for function, name in (
            ("first", "first"),
            ("first", "first_value"),
            ("first", "any_value"),
            ("last", "last"),
            ("last", "last_value"),
        )
    },
    "percentile": _Signature("percentile", 1, 1, 1, "percentile(x, 0.95)"),
    "approx_percentile": _Signature("approx_percentile", 1, 1, 2, "approx_percentile(x, 0.95)"),
    "percentile_approx": _Signature("approx_percentile", 1, 1, 2, "percentile_approx(x, 0.95)"),
    "approx_count_distinct": _Signature("approx_count_distinct", 1, 0, 1),
    "approx_top_k": _Signature("approx_top_k", 1, 0, 2, "approx_top_k(x, 5)"),
}
#: all names of aggregates
NAMES = frozenset({*SIGNATURES, "count", "percentile_cont", "grouping", "grouping_id"})

#: aggregates of Spark without a counterpart here, and what to write instead
ABSENT: dict[str, str] = {
    **dict.fromkeys(
        (
            "bit_and", "bit_or", "bit_xor", "bitmap_construct_agg", "bitmap_or_agg",
            "count_min_sketch", "histogram_numeric", "hll_sketch_agg", "hll_union_agg", "kurtosis",
            "regr_avgx", "regr_avgy", "regr_count", "regr_intercept", "regr_r2",
            "regr_slope", "regr_sxx", "regr_sxy", "regr_syy", "skewness",
        ),
        "pass it as a function of your own: ice.sql(..., functions={...})",
    ),
    "listagg": "use array_join(collect_list(x), ',')",
    "string_agg": "use array_join(collect_list(x), ',')",
    "percentile_disc": "use percentile_cont(p) WITHIN GROUP (ORDER BY x)",
    "try_avg": "use avg(x)",
    "try_sum": "use sum(x)",
}  # fmt: skip

#: turns an expression over the columns of an event into text, or refuses it
Writer = Callable[[exp.Expr], str]


@dataclass(frozen=True)
class _Parts:
    """A call with the SQL syntax around it."""

    name: str
    arguments: list[exp.Expr]
    node: exp.Expr
    condition: exp.Expr | None = None
    order: exp.Order | None = None
    skips_nulls: bool = False
    distinct: bool = False


def called(node: exp.Expr) -> str | None:
    """Return the lower-case name of the aggregate that a node calls, if it is a call."""
    if isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        return called(node.this)
    if isinstance(node, exp.Any):
        return "any"
    return node.name.lower() if isinstance(node, exp.Anonymous) else None


class CallReader:
    """Reads the aggregate calls of one statement."""

    def __init__(self, text: Text, users: frozenset[str], write: Writer) -> None:
        """Take the lower-case names of the user's own functions."""
        self._text = text
        self._users = users
        self._write = write

    def is_aggregate(self, node: exp.Expr) -> bool:
        name = called(node)
        return name is not None and (
            name in self._users or name in SIGNATURES or name in _SPECIAL or name in ABSENT
        )

    def read(self, node: exp.Expr) -> AggregateCall:
        parts = self._unwrapped(node)
        if parts.name in self._users:
            return self._users_call(parts)
        if parts.name in ABSENT:
            raise self._error(parts, f"{parts.name} is not supported: {ABSENT[parts.name]}")
        self._check_surroundings(parts)
        if parts.name == "count":
            return self._count(parts)
        if parts.name == "percentile_cont":
            return self._percentile_cont(parts)
        return self._plain(parts, SIGNATURES[parts.name])

    # -- kinds of calls --------------------------------------------------------------------

    def _plain(self, parts: _Parts, signature: _Signature) -> AggregateCall:
        usage = signature.usage or f"{parts.name}({'x' if signature.columns == 1 else 'x, y'})"
        given = parts.arguments
        most = signature.columns + signature.takes
        if not signature.columns + signature.needs <= len(given) <= most:
            raise self._error(parts, f"{parts.name} is called like {usage}")
        columns, rest = given[: signature.columns], given[signature.columns :]
        parameters = tuple(self._literal(each, parts.name) for each in rest)
        if signature.function in _ORDERED:
            parameters = (True,) if parts.skips_nulls or parameters == (True,) else ()
            if parts.condition is not None and not parameters:
                raise self._error(
                    parts, f"{parts.name} with a FILTER needs IGNORE NULLS: nulls are filtered too"
                )
        return self._call(parts, signature.function, columns, parameters)

    def _count(self, parts: _Parts) -> AggregateCall:
        if parts.distinct:
            if not parts.arguments:
                raise self._error(parts, "count is called like COUNT(DISTINCT x)")
            return self._call(parts, "count_distinct", parts.arguments, ())
        [column] = self._columns(parts, 1, "COUNT(*) or COUNT(x)")
        if isinstance(column, exp.Star | exp.Literal):
            if parts.condition is None:
                return AggregateCall("count", (), place=self._text.place_of(parts.node))
            column = exp.Literal.number(1)
        return self._call(parts, "count", [column], ())

    def _percentile_cont(self, parts: _Parts) -> AggregateCall:
        usage = "percentile_cont(0.5) WITHIN GROUP (ORDER BY x)"
        [fraction] = self._columns(parts, 1, usage)
        ordered = parts.order.expressions if parts.order is not None else []
        if len(ordered) != 1:
            raise self._error(parts, f"percentile_cont is called like {usage}")
        chosen = self._literal(fraction, parts.name)
        if ordered[0].args.get("desc"):
            chosen = _from_above(chosen)
        return self._call(parts, "percentile", [ordered[0].this], (chosen,))

    def _users_call(self, parts: _Parts) -> AggregateCall:
        if parts.condition is not None or parts.distinct or parts.order is not None:
            raise self._error(parts, f"{parts.name} is your own: write CASE WHEN inside its call")
        columns = [each for each in parts.arguments if not isinstance(each, exp.Star)]
        texts = tuple(self._write(each) for each in columns)
        return AggregateCall(parts.name, texts, (), True, self._text.place_of(parts.node))

    def _call(
        self,
        parts: _Parts,
        function: str,
        columns: list[exp.Expr],
        parameters: tuple[Any, ...],
    ) -> AggregateCall:
        if parts.condition is not None:
            columns = [_when(parts.condition, column) for column in columns]
        texts = tuple(self._write(column) for column in columns)
        return AggregateCall(function, texts, parameters, place=self._text.place_of(parts.node))

    # -- parts of a call -------------------------------------------------------------------

    def _unwrapped(self, node: exp.Expr) -> _Parts:
        condition: exp.Expr | None = None
        order: exp.Order | None = None
        skips_nulls = False
        while isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
            if isinstance(node, exp.Filter):
                condition = node.expression.this
            elif isinstance(node, exp.WithinGroup):
                order = node.expression
            else:
                skips_nulls = isinstance(node, exp.IgnoreNulls)
            node = node.this
        if isinstance(node, exp.Any):
            return _Parts("any", [node.this.unnest()], node, condition)
        arguments = list(node.expressions)
        distinct = bool(arguments) and isinstance(arguments[0], exp.Distinct)
        if distinct:
            arguments = list(arguments[0].expressions)
        name = node.name.lower()
        return _Parts(name, arguments, node, condition, order, skips_nulls, distinct)

    def _check_surroundings(self, parts: _Parts) -> None:
        """Refuse syntax around a call that has no meaning for it."""
        if parts.distinct and parts.name != "count":
            raise self._error(
                parts, "DISTINCT is for COUNT only; collect_set(x) returns the distinct values"
            )
        if parts.order is not None and parts.name != "percentile_cont":
            raise self._error(parts, "WITHIN GROUP is for percentile_cont only")
        if any(isinstance(each, exp.Order) for each in parts.arguments):
            raise self._error(
                parts, "values come in the order of the stream: remove ORDER BY, or sort the "
                "result, for example sort_array(collect_list(x))"
            )  # fmt: skip
        signature = SIGNATURES.get(parts.name)
        if parts.skips_nulls and (signature is None or signature.function not in _ORDERED):
            raise self._error(parts, "IGNORE NULLS is for first and last only; others skip nulls")

    def _columns(self, parts: _Parts, count: int, usage: str) -> list[exp.Expr]:
        if len(parts.arguments) != count:
            raise self._error(parts, f"{parts.name} is called like {usage}")
        return parts.arguments

    def _literal(self, node: exp.Expr, name: str) -> Any:
        """Return the value of a literal: a number, text, true or false, or an array of those."""
        value = _value(node)
        if value is None:
            raise self._text.error(node, f"{name} needs a literal here")
        return value

    def _error(self, parts: _Parts, message: str) -> DefinitionError:
        return self._text.error(parts.node, message)


#: calls with a reader of their own
_SPECIAL = ("count", "percentile_cont")
#: functions that do not skip nulls by default
_ORDERED = ("first", "last")


def _when(condition: exp.Expr, value: exp.Expr) -> exp.Expr:
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())])


def _value(node: exp.Expr) -> Any:
    if isinstance(node, exp.Paren):
        return _value(node.this)
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Literal):
        return str(node.this) if node.is_string else _number(node.this)
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal):
        return -_number(node.this.this)
    if called(node) == "array":
        values = tuple(_value(each) for each in node.expressions)
        return None if None in values else values
    return None


def _number(text: str) -> int | float:
    return int(text) if text.isdecimal() else float(text)


def _from_above(fraction: Any) -> Any:
    """Return the fraction from the low end for a fraction from the high end."""
    if isinstance(fraction, tuple):
        return tuple(_from_above(each) for each in fraction)
    return float(1 - Decimal(str(fraction)))
