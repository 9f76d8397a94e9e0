"""Filter and map over update streams."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.latest.rowwise import UpdateFilter, UpdateMap
from icestream.operators.latest.update_stream import UpdateStream

SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
STREAM = UpdateStream(SCHEMA, ("k",), "t")
Row = dict[str, Any]
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from("abc"),
            "t": st.integers(0, 9),
            "v": st.one_of(st.none(), st.integers(-5, 5)),
        }
    )
)


@given(rows=ROWS)
def test_oracle_filter_keeps_rows_that_meet_the_condition(rows: list[Row]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    found = UpdateFilter(STREAM, "v > 1").on_batch([batch])
    assert found.to_pylist() == [row for row in rows if row["v"] is not None and row["v"] > 1]


@given(rows=ROWS)
def test_oracle_map_computes_columns_and_keeps_key_and_time(rows: list[Row]) -> None:
    mapped = UpdateMap(STREAM, ["t", "k", "v + 1 AS w"])
    found = mapped.on_batch([pa.RecordBatch.from_pylist(rows, schema=SCHEMA)])
    assert mapped.result.keys == ("k",)
    assert found.schema.names == ["t", "k", "w"]
    assert found.to_pylist() == [
        {"t": row["t"], "k": row["k"], "w": None if row["v"] is None else row["v"] + 1}
        for row in rows
    ]


@pytest.mark.parametrize(
    ("columns", "reported"),
    [
        (["k", "v"], "keep the time 't'"),
        (["t", "v"], "keep the update key 'k'"),
        (["t", "upper(k) AS k"], "may not change the update key"),
        (["t", "v AS k"], "may not change the update key"),
        (["t + 1 AS t", "k"], "may not change the time"),
    ],
)
def test_a_map_may_not_change_the_key(columns: list[str], reported: str) -> None:
    with pytest.raises(DefinitionError, match=reported):
        UpdateMap(STREAM, columns)


def test_all_columns_may_be_kept_with_a_star() -> None:
    assert UpdateMap(STREAM, ["*", "v * 2 AS twice"]).result.others == ("v", "twice")
