"""Schemas as Spark users write them: `"n long, total double"` becomes an Arrow schema.

Idea: a scanner of a few kinds of tokens and one function per rule; the resulting types are those in
which Spark itself sends columns to Python.

Invariant: a schema read here equals the one Spark reads from the same text
(`test_parity_types_are_those_of_spark`).

Limits: no collations, intervals, defaults or comments; for these, pass an Arrow schema.
"""

from __future__ import annotations

import re
from typing import NoReturn

import pyarrow as pa

from icestream.core.errors import DefinitionError

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_0-9]+)|([<>(),:]))")

_SIMPLE = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def schema_of(given: pa.Schema | str) -> pa.Schema:
    """Return an Arrow schema as it is, or read one from DDL text."""
    if isinstance(given, pa.Schema):
        return given
    if not isinstance(given, str):
        msg = f"a schema must be text like 'n long, total double' or an Arrow schema; got {given!r}"
        raise DefinitionError(msg)
    return _Reader(given).schema()


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        self._next = 0
        end = len(text.rstrip())
        at = 0
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                self._refuse(f"{text[at:].strip()[0]!r} has no meaning here")
            self._tokens.append(match[1] or match[2] or match[3])
            at = match.end()

    def schema(self) -> pa.Schema:
        """Read the whole text."""
        fields = self._fields("")
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            self._refuse("two columns have the same name")
        return pa.schema(fields)

    def _refuse(self, why: str) -> NoReturn:
        msg = (
            f"cannot read {self._text!r} as a schema: {why}; write for example "
            "'n long, total double, tags array<string>', or give an Arrow schema"
        )
        raise DefinitionError(msg)

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self, wanted: str | None = None) -> str:
        token = self._peek()
        if not token or (wanted is not None and token != wanted):
            expected = "a word" if wanted is None else repr(wanted)
            self._refuse(f"expected {expected}, found {token or 'the end'!r}")
        self._next += 1
        return token

    def _fields(self, end: str) -> list[pa.Field]:
        """Read columns up to a closing token, which is not consumed."""
        fields = [self._field()]
        while self._peek() != end:
            self._take(",")
            fields.append(self._field())
        return fields

    def _field(self) -> pa.Field:
        word = self._take()
        name = word[1:-1].replace("``", "`") if word.startswith("`") else word
        if name in "<>(),:":
            self._refuse(f"expected a column name, found {name!r}")
        if self._peek() == ":":
            self._take()
        kind = self._type()
        nullable = self._peek().lower() != "not"
        if not nullable:
            self._take()
            if self._take().lower() != "null":
                self._refuse("NOT must be followed by NULL")
        return pa.field(name, kind, nullable=nullable)

    def _type(self) -> pa.DataType:
        name = self._take().lower()
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in {"decimal", "dec", "numeric"}:
            return self._decimal()
        if name not in {"array", "map", "struct"}:
            self._refuse(f"{name!r} is not a type ({', '.join(_SIMPLE)}, decimal, ...)")
        self._take("<")
        kind: pa.DataType
        if name == "array":
            kind = pa.list_(self._type())
        elif name == "map":
            key = self._type()
            self._take(",")
            kind = pa.map_(key, self._type())
        else:
            kind = pa.struct(self._fields(">"))
        self._take(">")
        return kind

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._take()
            precision = self._number()
            if self._peek() == ",":
                self._take()
                scale = self._number()
            self._take(")")
        if not 1 <= precision <= 38 or scale > precision:
            self._refuse(f"decimal({precision},{scale}) does not exist")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        digits = self._take()
        if not digits.isdigit():
            self._refuse(f"expected a number, found {digits!r}")
        return int(digits)
