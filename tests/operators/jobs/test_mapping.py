"""Maps in both forms copy what they keep, and let functions make any number of tuples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.operators.jobs.inference import initial_of, map_columns, state_columns
from icestream.operators.jobs.mapping import MapTuples
from icestream.operators.lifetimes.changes import LE, RE, changes_of

PAYLOAD = pa.schema([("word", pa.string()), ("times", pa.int64())])
MADE = pa.schema([("letter", pa.string())])
KEPT = pa.schema([PAYLOAD.field("times")])


def letters(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"letter": each, "ts2": row["ts2"] + 5} for each in row["word"]]


def letters_of_many(batch: pa.RecordBatch) -> dict[str, Any]:
    words = batch.column("word").to_pylist()
    rows = np.repeat(np.arange(len(words)), [len(word) for word in words])
    ends = batch.column("ts2").to_numpy()[rows] + 5
    return {"letter": list("".join(words)), "row": rows, "ts2": ends}


def _changes() -> pa.RecordBatch:
    payload = pa.record_batch([pa.array(["ab", "", "cde"]), pa.array([1, 2, 3])], schema=PAYLOAD)
    le, ids = np.array([10, 20, 30]), np.array([7, 8, 9], dtype=np.uint64)
    return changes_of(payload, le, le + 1, np.ones(3, dtype=np.int64), ids, ids)


@pytest.mark.parametrize(("function", "many"), [(letters, False), (letters_of_many, True)])
def test_oracle_maps_in_both_forms(function: Callable[..., Any], many: bool) -> None:
    """A tuple for each letter, with the count of its word."""
    made = MapTuples(function, "letters", MADE, KEPT, many)(_changes())
    assert made.column("letter").to_pylist() == list("abcde")
    assert made.column("times").to_pylist() == [1, 1, 3, 3, 3]
    assert made.column(LE).to_pylist() == [10, 10, 30, 30, 30]
    assert made.column(RE).to_pylist() == [16, 16, 36, 36, 36]
    assert made.column("__hi").to_pylist() == [7, 7, 9, 9, 9]


def test_wrong_output_is_shown_beside_what_was_declared() -> None:
    for function in (lambda _: {"other": 1}, lambda _: 5):
        with pytest.raises(DefinitionError, match=r"letter string|must return a dict"):
            MapTuples(function, "wrong", MADE, KEPT, vectorised=False)(_changes())
    with pytest.raises(DefinitionError, match="wrong: the function failed with ZeroDivisionError"):
        MapTuples(lambda _: 1 // 0, "wrong", MADE, KEPT, vectorised=False)(_changes())


def test_columns_are_found_out_by_trying() -> None:
    assert map_columns(letters, "letters", PAYLOAD, vectorised=False).equals(MADE)
    twice = map_columns(
        lambda batch: {"twice": batch.column("times").to_numpy() * 2.0},
        "twice",
        PAYLOAD,
        vectorised=True,
    )
    assert twice.equals(pa.schema([("twice", pa.float64())]))


def test_states_begin_with_zeros_unless_told_otherwise() -> None:
    state = pa.schema([("n", pa.int64()), ("low", pa.float64()), ("name", pa.string())])
    assert initial_of(state, {"low": 9.0}) == {"n": 0, "low": 9.0, "name": None}
    assert state_columns({"n": 0, "low": 1.5}).equals(
        pa.schema([("n", pa.int64()), ("low", pa.float64())])
    )
    with pytest.raises(DefinitionError, match="initial has"):
        initial_of(state, {"high": 1.0})
