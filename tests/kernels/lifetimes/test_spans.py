from __future__ import annotations

import numpy as np
import pytest

from icestream.kernels import field_words
from icestream.kernels.lifetimes.spans import merge_spans
from tests.oracles.kernels.lifetimes.spans import merge_spans_reference

OPS = [
    field_words.ADD_I64,
    field_words.ADD_I128,
    field_words.MIN,
    field_words.MAX,
    field_words.LEAST_3,
]
PLACES = [0, 1, 3, 4, 5]
IDENTITY = [0, 0, 0, 2**63 - 1, -(2**63), *[2**63 - 1] * 3]


@pytest.mark.parametrize("seed", range(30))
def test_parity_merging_over_spans(seed: int) -> None:
    dice = np.random.default_rng(seed)
    rows, segments = int(dice.integers(0, 15)), int(dice.integers(1, 12))
    ends = np.sort(dice.integers(0, segments + 1, (rows, 2)), axis=1)
    first, last = np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1])
    table = dice.integers(-5, 5, (rows, len(IDENTITY)))
    table[:, 2] = table[:, 1] >> 63
    tree = np.tile(np.array(IDENTITY), (2 * segments, 1))
    merge_spans(first, last, table, np.array(OPS), np.array(PLACES), tree)
    assert tree[segments:].tolist() == merge_spans_reference(
        first.tolist(), last.tolist(), table.tolist(), OPS, PLACES, IDENTITY, segments
    )


def test_a_row_leaves_no_trace_where_it_is_not() -> None:
    # 1e40   |====|
    # 1.0    |=========|
    table = np.array([[1e40, 0.0], [1.0, 0.0]]).view(np.int64)
    tree = np.zeros((4, 2), dtype=np.int64)
    ops, places = np.array([field_words.ADD_DD]), np.array([0])
    merge_spans(np.array([0, 0]), np.array([1, 2]), table, ops, places, tree)
    assert tree[2:].view(np.float64)[:, 0].tolist() == [1e40, 1.0]
