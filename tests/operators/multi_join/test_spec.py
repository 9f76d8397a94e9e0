from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.operators.multi_join.spec import (
    MOST_STREAMS,
    MultiJoinSpec,
    first_id_high,
    partitions_of,
)

X = pa.schema([("x", pa.int64())])


@pytest.mark.parametrize("partitions", [1, 3, 256, 300])
def test_partitions_are_even_ranges_of_id_high(partitions: int) -> None:
    id_high = np.linspace(0, 2**64 - 2**12, 10_001).astype(np.uint64)
    found = partitions_of(id_high, partitions)
    assert (np.diff(found) >= 0).all()
    counts = np.bincount(found, minlength=partitions)
    assert len(counts) == partitions
    assert counts.max() - counts.min() <= 2


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"inputs": (X,)}, "at least two"),
        ({"inputs": (X,) * (MOST_STREAMS + 1)}, "at most 65,504 streams"),
        ({"partitions": 0}, "at least one partition"),
        ({"columns": ((0, "x", "a"), (1, "x", "a"))}, "'a' twice"),
        ({"columns": ((2, "x", "a"),)}, "stream 2"),
        ({"columns": ((0, "z", "a"),)}, "no column 'z'"),
    ],
)
def test_a_join_that_cannot_be_is_refused(change: dict[str, Any], reported: str) -> None:
    given: dict[str, Any] = {"number": 0, "inputs": (X, X), "columns": (), "partitions": 4}
    with pytest.raises(DefinitionError, match=reported):
        MultiJoinSpec(**(given | change))


def test_the_output_has_the_columns_in_the_order_given() -> None:
    other = pa.schema([("x", pa.int64()), ("y", pa.string())])
    spec = MultiJoinSpec(0, (X, other), ((1, "y", "name"), (0, "x", "x")), 4)
    assert spec.payload == pa.schema([("name", pa.string()), ("x", pa.int64())])
    assert spec.ports == 2


@pytest.mark.parametrize("partitions", [1, 12, 300])
def test_a_partition_begins_with_its_first_id_high(partitions: int) -> None:
    firsts = [first_id_high(partition, partitions) for partition in range(partitions + 1)]
    assert firsts[0] == 0
    assert firsts[-1] == 2**64
    ends = np.array([(low, high - 1) for low, high in pairwise(firsts)], dtype=np.uint64)
    for column in ends.T:
        assert partitions_of(column, partitions).tolist() == list(range(partitions))
