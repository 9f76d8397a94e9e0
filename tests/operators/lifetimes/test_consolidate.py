from __future__ import annotations

import math
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.lifetimes.changes import changes_of, consolidated, identities
from tests.fixtures import lifetime_events as scenarios
from tests.oracles.lifetimes import assert_same_bag, bag_of, events_of


def changes(payload: pa.RecordBatch, diffs: list[int]) -> pa.RecordBatch:
    rows = len(diffs)
    ids = np.zeros(rows, dtype=np.uint64)
    le = np.zeros(rows, dtype=np.int64)
    return changes_of(payload, le, le + 1, np.array(diffs, dtype=np.int64), ids, ids)


@given(dice=st.randoms())
def test_oracle_consolidated_changes_are_the_bag(dice: Random) -> None:
    for batch in scenarios.scenario(
        dice, [scenarios.port()], scenarios.ScenarioKind(batches=2, cuts=True)
    ):
        for _, chunk in batch.chunks:
            found = consolidated(chunk)
            assert found.schema == chunk.schema
            assert_same_bag(bag_of(found), bag_of(chunk))
            events = [event for event, _ in events_of(found)]
            assert len(events) == len(bag_of(chunk))
            came = [event for event, _ in events_of(chunk)]
            assert events == sorted(events, key=came.index)


def test_nan_is_nan_null_is_null_and_zero_has_no_sign() -> None:
    scores = pa.array([math.nan, -math.nan, None, None, 0.0, -0.0], pa.float64(), from_pandas=False)
    payload = pa.RecordBatch.from_arrays([scores], names=["score"])
    assert consolidated(changes(payload, [1, -1, 1, -1, 1, -1])).num_rows == 0
    assert (
        consolidated(changes(payload, [1, 1, 1, 1, 1, 1])).column("__diff").to_pylist() == [2] * 3
    )


def test_lists_are_equal_where_their_elements_are() -> None:
    lists = [[1.5, math.nan], [1.5], None, [], [None], [1.5, math.nan], None, [None], []]
    for kind in (pa.list_(pa.float64()), pa.large_list(pa.float64())):
        column = pa.array([[9.0], *lists], kind).slice(1)
        id_high, id_low = identities(pa.RecordBatch.from_arrays([column], names=["vector"]))
        emitted = list(zip(id_high.tolist(), id_low.tolist(), strict=True))
        assert [emitted.index(each) for each in emitted] == [0, 1, 2, 3, 4, 0, 2, 4, 3]
    pairs = pa.array(
        [[[1, 2], None], [[1], [2]], [[1, 2], None]], pa.list_(pa.list_(pa.int32(), -1))
    )
    id_high, _ = identities(pa.RecordBatch.from_arrays([pairs], names=["vectors"]))
    assert id_high[0] == id_high[2] != id_high[1]


def test_rows_that_count_nothing_go_even_alone() -> None:
    payload = pa.RecordBatch.from_pydict({"x": ["a", "b"]})
    assert consolidated(changes(payload, [0, 3])).column("x").to_pylist() == ["b"]
    assert consolidated(changes(payload.slice(1), [0])).num_rows == 0
    assert consolidated(changes(payload.slice(2), [])).num_rows == 0


def test_maps_are_refused_with_advice() -> None:
    maps = pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(DefinitionError):
        consolidated(changes(pa.RecordBatch.from_arrays([maps], names=["m"]), [1, 1]))
