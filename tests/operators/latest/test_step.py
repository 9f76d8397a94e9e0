from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError, InputError
from icestream.operators.latest.step import PANDAS, ROWS, UpdateStep

QUOTES = pa.schema([("symbol", pa.string()), ("price", pa.int64())])
SCORES = pa.schema([("symbol", pa.string()), ("score", pa.float64())])
BATCH = pa.record_batch([["a", "b"], [1, 2]], schema=QUOTES)


def step(function: Any, form: str = "arrow") -> UpdateStep:
    return UpdateStep(function, QUOTES, SCORES, ("symbol",), form)


def arrow(rows: pa.RecordBatch) -> pa.Table:
    return pa.table({"symbol": rows.column(0), "score": rows.column(1), "more": rows.column(1)})


def frames(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.rename(columns={"price": "score"})


def one(row: dict[str, Any]) -> dict[str, Any] | None:
    return {"symbol": row["symbol"], "score": float(row["price"])}


@pytest.mark.parametrize(("function", "form"), [(arrow, "arrow"), (frames, PANDAS), (one, ROWS)])
def test_results_have_the_declared_columns(function: Any, form: str) -> None:
    expected = pa.record_batch([["a", "b"], [1.0, 2.0]], schema=SCORES)
    assert step(function, form)(BATCH).equals(expected)


def test_a_row_may_be_left_out() -> None:
    chosen = step(lambda row: one(row) if row["price"] > 1 else None, ROWS)(BATCH)
    assert chosen.to_pylist() == [{"symbol": "b", "score": 2.0}]


def test_a_step_may_not_change_the_key() -> None:
    with pytest.raises(InputError, match=r"'z'.*may not change the key"):
        step(lambda row: {"symbol": "z", "score": 0.0}, ROWS)(BATCH)


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda rows: None, "must return an Arrow record batch or table"),
        (lambda rows: rows, "also has \\['score'\\]"),
        (
            lambda rows: pa.table({"symbol": rows.column(0), "score": ["x", "y"]}),
            "do not fit",
        ),
    ],
)
def test_what_does_not_fit_the_schema_is_told_so(function: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        step(function)(BATCH)


def test_a_row_must_be_a_dictionary() -> None:
    with pytest.raises(InputError, match=r"must return a dictionary or None; got <class 'list'>"):
        step(lambda row: [row["symbol"]], ROWS)(BATCH)


def test_a_schema_without_the_key_is_refused() -> None:
    with pytest.raises(DefinitionError, match="add 'symbol string' to its schema"):
        UpdateStep(arrow, QUOTES, pa.schema([("score", pa.float64())]), ("symbol",))


@pytest.mark.parametrize(("function", "form"), [(arrow, "arrow"), (frames, PANDAS), (one, ROWS)])
def test_stamped_rows_have_the_time_of_their_update(function: Any, form: str) -> None:
    stamped = step(function, form).stamped("price")
    reverse = pa.record_batch([["b", "a"], [7, 5]], schema=QUOTES)
    assert stamped(reverse).select(["symbol", "updated"]).to_pylist() == [
        {"symbol": "b", "updated": 7},
        {"symbol": "a", "updated": 5},
    ]
    assert stamped.stamped(None) == step(function, form)
    with pytest.raises(DefinitionError, match="another name"):
        UpdateStep(arrow, QUOTES, SCORES.append(pa.field("updated", pa.int64()))).stamped("price")
