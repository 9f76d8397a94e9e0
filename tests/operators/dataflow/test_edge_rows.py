from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError, InputError
from icestream.core.times import INFINITY
from icestream.operators.lifetimes.changes import DIFF, LE, RE, changes_of, changes_schema
from icestream.operators.lifetimes.edges import END, KIND, POINT, START, EdgeRows

PAYLOAD = pa.schema([("what", pa.string()), ("since", pa.timestamp("us", "UTC"))])


def rows_of(*rows: tuple[int, str | None, int | None]) -> pa.RecordBatch:
    time, what, since = zip(*rows, strict=True)
    payload = pa.RecordBatch.from_arrays(
        [pa.array(what, pa.string()), pa.array(since, PAYLOAD.field("since").type)], schema=PAYLOAD
    )
    le, nobody = np.array(time), np.zeros(len(rows), dtype=np.uint64)
    return changes_of(payload, le, le + 1, np.ones(len(rows), dtype=np.int64), nobody, nobody)


def bound(since: str = "since") -> EdgeRows:
    return EdgeRows.bind(PAYLOAD, "what = 'in'", "what = 'out'", since)


def test_rows_become_starts_ends_and_points() -> None:
    edges = bound()(rows_of((3, "in", None), (5, "out", 3), (6, "by", 9), (7, None, None)))
    kind = pa.field(KIND, pa.int8(), nullable=False)
    assert edges.schema == changes_schema(pa.schema([kind, *PAYLOAD]))
    assert edges.select([LE, RE, DIFF, KIND]).to_pylist() == [
        {LE: 3, RE: INFINITY, DIFF: 1, KIND: START},
        {LE: 3, RE: 5, DIFF: 1, KIND: END},
        {LE: 6, RE: 7, DIFF: 1, KIND: POINT},
        {LE: 7, RE: 8, DIFF: 1, KIND: POINT},
    ]
    assert bound()(rows_of((3, "in", None)).slice(1)).num_rows == 0


def test_a_start_may_be_computed() -> None:
    edges = bound("since - INTERVAL 1 SECOND")(rows_of((9_000_000, "out", 4_000_000)))
    assert edges.column(LE).to_pylist() == [3_000_000]


def test_rows_that_are_no_edges_are_reported() -> None:
    with pytest.raises(InputError, match="does not have the start of its event"):
        bound()(rows_of((3, "in", None), (5, "out", None)))
    both = EdgeRows.bind(PAYLOAD, "what = 'in'", "since IS NULL", "since")
    with pytest.raises(InputError, match="exclude each other"):
        both(rows_of((3, "in", None)))


def test_a_begin_that_is_no_time_is_refused() -> None:
    with pytest.raises(DefinitionError, match="since='what' must be a time, not string"):
        bound("what")


def test_edgings_that_differ_say_so() -> None:
    assert bound().text == "edges, start where (what = 'in'), end where (what = 'out') since since"
    assert bound().text != bound("since - INTERVAL 1 SECOND").text
