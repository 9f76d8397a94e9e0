"""The table of functions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.sql.expressions.compile import parse

SCHEMA = pa.schema([("a", pa.int32()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "colesce(a, 1)",
            "there is no function 'colesce' on grouped rows; did you mean 'coalesce'",
        ),
        ("rand()", "there is no function 'rand'"),
        ("sum(a)", "there is no function 'sum'"),
        ("sqrt()", "sqrt takes 1 arguments; got 0"),
        ("log(1, 2, 3)", "log takes 1 to 2 arguments; got 3"),
    ],
)
def test_unknown_functions_are_reported(text: str, message: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse(text).bind(SCHEMA)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s like s", "the pattern must be a constant"),
        ("substring(s, a)", "a position in text must be a constant"),
        ("startswith(s, s)", "the start must be a constant"),
        ("round(a, s)", "the number of places must be a constant"),
        ("round(1.5, 'x')", "the number of places must be a whole number"),
        ("date_trunc('eon', t)", "this is not a unit of time"),
        ("trunc(date '2024-01-01', 'hour')", "a year, quarter, month or week"),
        (r"s like 'a\\b'", "must precede _, % or itself"),
        ("s like 'x' escape 'ab'", "ESCAPE takes one character"),
        ("named_struct('x')", "names and values in turn"),
        ("ts > 1", "there is no column 'ts'; did you mean 't'?"),
        ("int('abc')", "'abc' is not a valid INT"),
        ("t > 'tomorrow'", "'tomorrow' is not a valid TIMESTAMP"),
    ],
)
def test_arguments_that_cannot_be_are_reported(text: str, message: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse(text).bind(SCHEMA)
    assert message in str(refused.value)
