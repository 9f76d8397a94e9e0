"""Union of update streams."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.latest.union import UpdateUnion
from icestream.operators.latest.update_stream import UpdateStream

SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
STREAM = UpdateStream(SCHEMA, ("k",), "t")
Row = tuple[str, int, int]
BATCH = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.integers(0, 3)), max_size=8
)


def rows(values: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"k": k, "t": t, "v": v} for k, t, v in values], schema=SCHEMA
    )


def values(batch: pa.RecordBatch) -> list[Row]:
    return [(row["k"], row["t"], row["v"]) for row in batch.to_pylist()]


@given(
    calls=st.lists(st.dictionaries(st.integers(0, 2), BATCH, min_size=1), max_size=5),
    truth=st.permutations([0, 1, 2]),
)
def test_oracle_every_row_of_a_union_that_goes_up(
    calls: list[dict[int, list[Row]]], truth: list[int]
) -> None:
    union = UpdateUnion([STREAM] * 3, truth)
    last: dict[str, tuple[int, int]] = {}
    for call in calls:
        best: dict[tuple[str, int], tuple[int, int]] = {}
        for port in sorted(call):
            for key, time, value in call[port]:
                trust = -truth.index(port)
                known = best.get((key, time), (trust, 0))
                if (time, trust) >= last.get(key, (-1, 0)) and trust >= known[0]:
                    best[key, time] = trust, value
        found = values(union.on_batch([rows(call.get(port, [])) for port in range(3)]))
        assert sorted(found) == sorted((*at, value) for at, (_, value) in best.items())
        assert [time for _, time, _ in found] == sorted(time for _, time, _ in found)
        for (key, time), (trust, _) in sorted(best.items(), key=lambda each: each[0][1]):
            last[key] = time, trust
        again = UpdateUnion([STREAM] * 3, truth)
        again.recall(union.state())
        union = again


def test_the_youngest_is_delivered_without_waiting_for_slow_inputs() -> None:
    union = UpdateUnion([STREAM, STREAM], [0, 1])
    first = union.on_batch([rows([("a", 5, 1), ("a", 7, 2)]), rows([])])
    assert values(first) == [("a", 5, 1), ("a", 7, 2)]
    later = union.on_batch([rows([]), rows([("a", 6, 9), ("a", 7, 9), ("b", 1, 0)])])
    assert values(later) == [("b", 1, 0)]
    assert union.late == 2


def test_equal_times_are_settled_by_the_declared_truth() -> None:
    both = [rows([("a", 9, 24)]), rows([("a", 9, 25)])]
    assert values(UpdateUnion([STREAM, STREAM], [1]).on_batch(both)) == [("a", 9, 25)]
    assert values(UpdateUnion([STREAM, STREAM], [0]).on_batch(both)) == [("a", 9, 24)]


def test_inputs_that_differ_are_refused() -> None:
    with pytest.raises(DefinitionError, match="same columns"):
        UpdateUnion([STREAM, UpdateStream(SCHEMA, ("v",), "t")], [])
    with pytest.raises(DefinitionError, match="truth must list inputs"):
        UpdateUnion([STREAM], [1])
