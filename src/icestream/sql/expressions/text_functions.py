"""Functions of text over Arrow arrays.

Idea: each is one of Arrow's functions. Arrow takes some arguments once per call: patterns,
positions and characters must be constants. Values that are not text are converted to text, as in
Spark.

Invariants:
1. Each function gives the values of Spark's (`test_oracle_text`).

Limits: upper and lower convert character by character, so the German sharp s stays one character.
Patterns of LIKE, positions and lengths are constants.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icestream.sql.expressions import tree, types
from icestream.sql.expressions.context import Context
from icestream.sql.expressions.evaluation import Constant, Kernel, Value
from icestream.sql.expressions.operators import Builder
from icestream.sql.expressions.types import BINARY, BOOLEAN, INT, STRING

_NOTHING = pa.scalar(None, STRING)


def _text(ctx: Context, node: tree.ExpressionNode, value: Value) -> Value:
    return ctx.to(node, value, STRING)


def _of_text(kernel: Kernel, kind: pa.DataType = STRING) -> Builder:
    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        return ctx.call(node, kind, kernel, [_text(ctx, node.args[0], args[0])])

    return build


def _length(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    if types.is_bytes(args[0].type):
        value = ctx.cast(node.args[0], args[0], BINARY)
        return ctx.call(node, INT, pc.binary_length, [value])
    return _of_text(pc.utf8_length, INT)(ctx, node, args)


def _concat(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    in_bytes = all(types.is_bytes(arg.type) for arg in args)
    kind = BINARY if in_bytes else STRING
    values = [ctx.to(part, arg, kind) for part, arg in zip(node.args, args, strict=True)]
    glue = pa.scalar(b"" if in_bytes else "", kind)

    def join(*parts: pa.Array) -> pa.Array:
        return pc.binary_join_element_wise(*parts, glue)

    return ctx.call(node, kind, join, values)


def _concat_with(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    first, *rest = zip(node.args, args, strict=True)
    glue = ctx.constant(first[0], _text(ctx, *first), "the text between")
    values = [_text(ctx, part, arg) for part, arg in rest]
    if glue is None or not values:
        return Constant(pa.scalar(None if glue is None else "", STRING))

    def kernel(*parts: Any) -> pa.Array:
        # Arrow's own way to skip NULLs drops rows that have nothing else
        led = [pc.fill_null(pc.binary_join_element_wise(glue, part, ""), "") for part in parts]
        return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*led, ""), start=len(glue))

    return ctx.call(node, STRING, kernel, values, nullable=False)


def _with_constants(kind: pa.DataType, bind: Any, *what: str) -> Builder:
    """Return the builder of a function whose arguments after the first are constant text."""

    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        subject = _text(ctx, node.args[0], args[0])
        rest = zip(node.args[1:], args[1:], what[: len(args) - 1], strict=True)
        given = [ctx.constant(part, _text(ctx, part, arg), message) for part, arg, message in rest]
        if None in given:
            return Constant(pa.scalar(None, kind))
        return ctx.call(node, kind, bind(*given), [subject])

    return build


def _replacing(pattern: str, by: str = "") -> Kernel:
    if not pattern:
        return lambda array: array
    return partial(pc.replace_substring, pattern=pattern, replacement=by)


def _instr(pattern: str) -> Kernel:
    def kernel(array: pa.Array) -> pa.Array:
        ahead = pc.utf8_length(pc.list_element(pc.split_pattern(array, pattern, max_splits=1), 0))
        found = pc.match_substring(array, pattern)
        return pc.if_else(found, pc.add(ahead, pa.scalar(1, INT)), pa.scalar(0, INT))

    def first(array: pa.Array) -> pa.Array:
        return pc.if_else(pc.is_valid(array), pa.scalar(1, INT), pa.scalar(None, INT))

    return kernel if pattern else first


def _substring(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    subject = args[0]
    if types.is_bytes(subject.type):
        raise ctx.error(node, "substring takes text here; cast to STRING first")
    numbers = []
    for part, arg in zip(node.args[1:], args[1:], strict=True):
        number = ctx.constant(part, ctx.to(part, arg, INT), "a position in text")
        if number is None:
            return Constant(_NOTHING)
        numbers.append(number)
    position, length = numbers[0], numbers[1] if len(numbers) == 2 else 2**31 - 1
    start = position - 1 if position > 0 else position
    stop: int | None = start + max(length, 0)
    if length <= 0:
        start, stop = 0, 0
    elif start < 0 <= start + length:
        stop = None
    kernel = partial(pc.utf8_slice_codeunits, start=start, stop=stop)
    return ctx.call(node, STRING, kernel, [_text(ctx, node.args[0], subject)])


def _end(*, left: bool) -> Builder:
    """Return the builder of left or right: some characters of one end."""

    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        length = ctx.constant(node.args[1], ctx.to(node.args[1], args[1], INT), "a length")
        if length is None:
            return Constant(_NOTHING)
        from_start = left or length <= 0
        ends = {"start": 0, "stop": max(length, 0)} if from_start else {"start": -length}
        kernel = partial(pc.utf8_slice_codeunits, **ends)
        return ctx.call(node, STRING, kernel, [_text(ctx, node.args[0], args[0])])

    return build


def _trim(kernel: Kernel) -> Builder:
    def build(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
        characters: str | None = " "
        if len(args) == 2:
            part = node.args[0]
            characters = ctx.constant(part, _text(ctx, part, args[0]), "the characters to trim")
        if characters is None:
            return Constant(_NOTHING)
        subject = _text(ctx, node.args[-1], args[-1])
        if not characters:
            return subject
        return ctx.call(node, STRING, partial(kernel, characters=characters), [subject])

    return build


def _like(ctx: Context, node: tree.Call, args: list[Value]) -> Value:
    subject = _text(ctx, node.args[0], args[0])
    pattern = ctx.constant(node.args[1], _text(ctx, node.args[1], args[1]), "the pattern")
    escape = "\\"
    if len(args) == 3:
        escape = ctx.constant(node.args[2], args[2], "the escape character")
        if not isinstance(escape, str) or len(escape) != 1:
            raise ctx.error(node.args[2], "ESCAPE takes one character")
    if pattern is None:
        return Constant(pa.scalar(None, BOOLEAN))
    regex = _regex(pattern, escape)
    if regex is None:
        message = f"in a pattern {escape} must precede _, % or itself"
        raise ctx.error(node.args[1], message)
    return ctx.call(node, BOOLEAN, partial(pc.match_substring_regex, pattern=regex), [subject])


def _regex(pattern: str, escape: str) -> str | None:
    """Return a pattern of LIKE as a regular expression; None if an escape precedes others."""
    parts = []
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            following = next(letters, None)
            if following not in ("_", "%", escape):
                return None
            parts.append(re.escape(following))
        elif letter in "_%":
            parts.append("." if letter == "_" else ".*")
        else:
            parts.append(re.escape(letter))
    return f"(?s)^{''.join(parts)}\\z"


_ONE, _TWO = (1, 1), (2, 2)

TEXT_FUNCTIONS: dict[str, tuple[Builder, tuple[int, int]]] = {
    "concat": (_concat, (1, 255)),
    "concat_ws": (_concat_with, (1, 255)),
    "length": (_length, _ONE),
    "char_length": (_length, _ONE),
    "character_length": (_length, _ONE),
    "lower": (_of_text(pc.utf8_lower), _ONE),
    "lcase": (_of_text(pc.utf8_lower), _ONE),
    "upper": (_of_text(pc.utf8_upper), _ONE),
    "ucase": (_of_text(pc.utf8_upper), _ONE),
    "reverse": (_of_text(pc.utf8_reverse), _ONE),
    "substring": (_substring, (2, 3)),
    "substr": (_substring, (2, 3)),
    "left": (_end(left=True), _TWO),
    "right": (_end(left=False), _TWO),
    "trim": (_trim(pc.utf8_trim), (1, 2)),
    "btrim": (_trim(pc.utf8_trim), _ONE),
    "ltrim": (_trim(pc.utf8_ltrim), (1, 2)),
    "rtrim": (_trim(pc.utf8_rtrim), (1, 2)),
    "like": (_like, (2, 3)),
    "startswith": (
        _with_constants(BOOLEAN, lambda start: partial(pc.starts_with, pattern=start), "the start"),
        _TWO,
    ),
    "endswith": (
        _with_constants(BOOLEAN, lambda end: partial(pc.ends_with, pattern=end), "the end"),
        _TWO,
    ),
    "contains": (
        _with_constants(
            BOOLEAN, lambda part: partial(pc.match_substring, pattern=part), "the part"
        ),
        _TWO,
    ),
    "replace": (
        _with_constants(STRING, _replacing, "the text to replace", "the text to put there"),
        (2, 3),
    ),
    "instr": (_with_constants(INT, _instr, "the text to find"), _TWO),
}
