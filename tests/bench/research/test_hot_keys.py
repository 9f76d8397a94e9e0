from __future__ import annotations

from bench.research.hot_keys import key_parts


def test_a_hot_key_is_split_where_merging_is_cheap() -> None:
    assert key_parts([70.0, 10.0, 10.0, 10.0], 4) == (3, 1, 1, 1)
    assert key_parts([70.0], 4, total=100.0) == (3,)
    assert key_parts([70.0], 4, total=100.0, merging=15.0) == (2,)
    assert key_parts([70.0], 4, total=100.0, merging=50.0) == (1,)
    assert key_parts([1000.0], 4, total=1000.0) == (4,)
    assert key_parts([], 4) == ()
