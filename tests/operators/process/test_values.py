from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from icestream.core.errors import DefinitionError
from icestream.operators.process.values import RowCoder
from icestream.sql.ddl import schema_of


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("long", 3),
        ("long", np.int64(3)),
        ("double", 3),
        ("double", float("inf")),
        ("float", 0.1),
        ("string", "ä"),
        ("string", b"ab"),
        ("binary", b"\x00"),
        ("boolean", False),
        ("date", dt.date(2024, 2, 29)),
        ("date", dt.datetime(2024, 2, 29, 5)),
        ("timestamp", dt.datetime(2024, 2, 29, 5)),
        ("timestamp", dt.datetime(2024, 2, 29, 5, tzinfo=dt.timezone(dt.timedelta(hours=2)))),
        ("timestamp_ntz", dt.datetime(2024, 2, 29, 5, 0, 0, 7)),
        ("decimal(5,2)", Decimal("1.5")),
        ("array<int>", [1, None]),
        ("array<int>", (1, 2)),
        ("struct<a:int,b:string>", {"a": 1, "b": None}),
        ("map<string,int>", {"a": 1}),
        ("long", None),
    ],
)
def test_rows_read_back_the_same_before_and_after_they_were_stored(kind: str, value: Any) -> None:
    coder = RowCoder(schema_of(f"x {kind}"))
    row = coder.row((value,))
    again = coder.rows(coder.batch([row]))[0]
    assert again == row
    assert type(again[0]) is type(row[0])


def test_dicts_and_lists_are_rows_too() -> None:
    coder = RowCoder(schema_of("n long, s string"))
    assert coder.row({"s": "a", "n": 1}) == coder.row([1, "a"]) == (1, "a")


@pytest.mark.parametrize("wrong", [(1,), (1, "a", 2), {"n": 1}, {"n": 1, "t": "a"}, 1, "ab"])
def test_what_is_no_row_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"is not a row of \(n int64, s string\)"):
        RowCoder(schema_of("n long, s string")).row(wrong)


def test_values_that_do_not_fit_are_named() -> None:
    coder = RowCoder(schema_of("n long, s string"))
    with pytest.raises(DefinitionError, match="'x' does not fit the column 'n int64'"):
        coder.row(("x", "a"))
    with pytest.raises(DefinitionError, match=f"{2**70} does not fit the column 'n int64'"):
        coder.batch([(1, "a"), (2**70, "b")])


def test_every_nan_is_the_same_key() -> None:
    coder = RowCoder(schema_of("x double"))
    assert coder.key((float("nan"),)) == coder.key((-float("nan"),))
    assert coder.key((1.5,)) == (1.5,)
