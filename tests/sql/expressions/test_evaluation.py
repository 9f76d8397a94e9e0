"""How expressions run: failures count only in rows that a branch is meant for."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.core.errors import InputError
from icestream.sql.expressions.compile import parse

BATCH = pa.record_batch({
    "a": pa.array([6, 7, None, 2**31 - 1], pa.int32()),
    "b": pa.array([2, 0, 0, None], pa.int32()),
    "s": ["1", "x", None, "4"],
    "d": pa.array(["1.50", "0.00", None, "2.25"]).cast(pa.decimal128(9, 2)),
})  # fmt: skip


def _of(text: str, batch: pa.RecordBatch = BATCH) -> object:
    return parse(text).bind(batch.schema).evaluate(batch).to_pylist()


def test_branches_not_taken_raise_nothing() -> None:
    assert _of("case when b <> 0 then a / b end") == [3.0, None, None, None]
    assert _of("if(b = 0, null, a / b)") == [3.0, None, None, None]
    assert _of("b <> 0 and a / b > 1") == [True, False, False, None]
    assert _of("b = 0 or a / b > 1") == [True, True, True, None]
    assert _of("coalesce(b, a + 0)") == [2, 0, 0, 2**31 - 1]
    assert _of("case when s = 'x' then 0 else int(s) end") == [1, 0, None, 4]
    nested = "case when b is null then 0 when b = 0 then -1 else if(b > 0, a div b, a % b) end"
    assert _of(nested) == [3, -1, -1, 0]


def test_branches_that_are_taken_do_raise() -> None:
    with pytest.raises(InputError, match=r"\(a / b\) divides by zero in 1 of 4 rows"):
        _of("case when a = 7 then a / b end")
    with pytest.raises(InputError, match="divides by zero"):
        _of("b = 0 and a / b > 1")
    with pytest.raises(InputError, match="divides by zero"):
        _of("coalesce(null, 1 / b)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a / b", "(a / b) divides by zero in 1 of 4 rows, first for 7.0, 0.0; write "
                  "try_divide(a, b) or a / nullif(b, 0)"),
        ("a % b", "(a % b) divides by zero in 1 of 4 rows, first for 7, 0; write try_mod(a, b)"),
        ("a div b", "first for 7, 0; write a div nullif(b, 0)"),
        ("A + 1", "(A + 1) has a result out of range in 1 of 4 rows, first for 2147483647, 1; "
                  "write try_add(A, 1) to get NULL there, or cast to a wider type"),
        ("int(s)", "CAST(s AS INT) has values that are not a valid INT in 1 of 4 rows, first for "
                   "'x'; write try_cast(... AS INT)"),
        ("s + 1", "s has values that are not a valid BIGINT in 1 of 4 rows, first for 'x'"),
        ("a / d", "divides by zero or has a result out of range in 1 of 4 rows"),
        ("cast(a as smallint)", "not a valid SMALLINT in 1 of 4 rows, first for 2147483647"),
        ("1 / 0", "(1 / 0) divides by zero in 4 of 4 rows"),
        ("pmod(a, b)", "pmod(a, b) divides by zero in 1 of 4 rows"),
        ("floor(1e300)", "out of range"),
        ("timestamp_seconds(9223372036854775807L)", "check the unit"),
        ("-cast(-128 as tinyint)", "cast to a wider type first"),
        ("date '9999-01-01' + 2147483647", "filter out times this far away"),
    ],
)  # fmt: skip
def test_failures_say_what_to_write_instead(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        _of(text)
    assert message in str(refused.value)


def test_advice_that_is_followed_works() -> None:
    assert _of("try_divide(a, b)") == [3.0, None, None, None]
    assert _of("a / nullif(b, 0)") == [3.0, None, None, None]
    assert _of("try_add(a, 1)") == [7, 8, None, None]
    assert _of("try_cast(s as int)") == [1, None, None, 4]
    assert _of("bigint(a) + 1") == [7, 8, None, 2**31]


def test_no_rows_raise_nothing() -> None:
    assert _of("1 / 0", BATCH[:0]) == []
    assert _of("a / b", BATCH[:1]) == [3.0]
    assert _of("a / b", BATCH[2:]) == [None, None]
