from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.runtime.ingest import file_splits
from icestream.runtime.ingest.file_splits import FileSplit, local_path, shared_out


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 90)), max_size=8),
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(20, 60),
)
def test_shares_hold_all_bytes_once_and_are_even(
    ranges: list[tuple[int, int]], workers: int, least: int, most: int
) -> None:
    whole = [FileSplit(f"{n}", start, length) for n, (start, length) in enumerate(ranges)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_splits, "LEAST_SHARE", least)
        patch.setattr(file_splits, "MOST_SHARE", most)
        shares = shared_out(whole, workers)
    found = [(piece.path, at) for share in shares for piece in share for at in _bytes(piece)]
    assert found == [(piece.path, at) for piece in whole for at in _bytes(piece)]
    sizes = [sum(piece.length for piece in share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= most or len(shares) == 1
    assert len(shares) == 1 or min(sizes) >= least


def _bytes(piece: FileSplit) -> range:
    return range(piece.start, piece.end)


def test_files_that_fit_are_not_cut() -> None:
    whole = [FileSplit(f"{n}", 0, 8 << 20) for n in range(16)]
    shares = shared_out(whole, 2)
    assert [[piece.path for piece in share] for share in shares] == [
        [f"{n}" for n in range(first, last)] for first, last in pairwise((0, 8, 16))
    ]


def test_partition_folders_are_left_to_spark() -> None:
    assert local_path("file:///data/day=1/a.parquet") == ""
    assert local_path("file:///data/a%20b.parquet") == "/data/a b.parquet"
    assert local_path("s3a://bucket/a.parquet") == ""
