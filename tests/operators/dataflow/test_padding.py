from __future__ import annotations

import pyarrow as pa

from icestream.operators.dataflow.steps import Padding
from icestream.operators.lifetimes.changes import changes_schema
from tests.oracles.lifetimes import Event, changes_from, events_of


def test_missing_columns_are_null() -> None:
    events = [(Event((1, 2), 0, 5, ("a",)), 1)]
    columns = pa.schema([("x", pa.int64()), ("name", pa.string()), ("y", pa.float64())])
    padded = Padding(columns)(changes_from(events, pa.schema([("name", pa.string())])))
    assert padded.schema == changes_schema(columns)
    assert events_of(padded) == [(Event((1, 2), 0, 5, (None, "a", None)), 1)]
