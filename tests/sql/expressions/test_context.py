"""Types of arguments, checked when an expression is bound."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.sql.expressions.compile import parse

SCHEMA = pa.schema([
    ("a", pa.int32()), ("d", pa.float64()), ("s", pa.string()), ("b", pa.bool_()),
    ("t", pa.timestamp("us", "UTC")), ("dt", pa.date32()), ("u", pa.uint64()),
    ("st", pa.struct([("x", pa.int32())])), ("li", pa.list_(pa.int32())),
])  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem", "marked"),
    [
        ("a + b", "there is no INT + BOOLEAN; cast to numbers first", "a + b"),
        ("s + s", "there is no STRING + STRING", "s + s"),
        ("d div 2", "div takes whole numbers and decimals", "d div 2"),
        ("not a", "this is INT; BOOLEAN is needed here", "a"),
        ("b and a", "this is INT; BOOLEAN is needed here", "a"),
        ("sqrt(t)", "this is TIMESTAMP; a number is needed here", "t"),
        ("a = b", "these have no common type: INT, BOOLEAN", "a = b"),
        ("coalesce(a, t)", "these have no common type: INT, TIMESTAMP", "coalesce"),
        ("greatest(a, s)", "these have no common type: INT, STRING", "greatest"),
        ("st = st", "cannot be compared; compare their fields", "st = st"),
        ("cast(dt as int)", "DATE cannot be cast to INT", "dt"),
        ("unix_micros(a)", "this is INT; TIMESTAMP is needed here", "a"),
        ("year(a)", "this is INT; DATE is needed here", "a"),
        ("dt + dt", "there is no DATE + DATE", "dt + dt"),
        ("u + 1", "there is no uint64 + INT", "u + 1"),
        ("abs(b)", "this is BOOLEAN; a number is needed here", "abs"),
        ("d & 1", "bit operators need whole numbers", "d & 1"),
        ("case when a then 1 end", "this is INT; BOOLEAN is needed here", "a"),
    ],
)
def test_wrong_types_are_reported_when_bound(text: str, problem: str, marked: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse(text).bind(SCHEMA)
    message, line, mark = str(refused.value).splitlines()
    assert problem in message
    assert line[mark.index("^") : mark.rindex("^") + 1] == marked


def test_values_of_other_types_can_be_handed_on() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"u": pa.array([1, None], pa.uint64()), "li": pa.array([[1], None], pa.list_(pa.int32()))}
    )
    for name in ("u", "li"):
        bound = parse(f"coalesce({name}, {name})").bind(batch.schema)
        assert bound.evaluate(batch).equals(batch.column(name))
        assert parse(f"{name} is null").bind(batch.schema).evaluate(batch).to_pylist() == [
            False,
            True,
        ]
