from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.operators.latest import coalescing
from icestream.operators.latest.coalescing import NewestUpdates, UpdateCoalescer

UPDATES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=60)


def updates(rows: list[tuple[int, int]], first: int = 0) -> NewestUpdates:
    keys, times = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    payload = pa.record_batch({"number": pa.array(np.arange(first, first + len(rows)))})
    ones = np.ones_like(times)
    return NewestUpdates.of(
        keys.astype(np.uint64), (keys * 7).astype(np.uint64), times, times, ones, payload
    )


@settings(max_examples=60, deadline=None)
@given(UPDATES, st.data())
def test_oracle_folding_does_not_depend_on_the_pieces(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coalescing, "ENOUGH_ROWS", data.draw(st.sampled_from([1, 5, 1000])))
        folder, at = UpdateCoalescer(), 0
        while at < len(rows):
            size = data.draw(st.integers(1, 10))
            folder.take(updates(rows[at : at + size], at))
            at += size
        found = folder.finish()
    assert found is not None
    expected: dict[int, tuple[int, int, int, int]] = {}
    for number, (key, time) in enumerate(rows):
        first, last, count, newest = expected.get(key, (time, time, 0, number))
        newest = number if time >= last else newest
        expected[key] = min(first, time), max(last, time), count + 1, newest
    columns = [found.first, found.last, found.count]
    values = zip(*columns, found.payload.column(0).to_pylist(), strict=True)
    assert dict(zip(found.identity[0].tolist(), values, strict=True)) == expected


def test_nothing_folds_to_nothing() -> None:
    assert UpdateCoalescer().finish() is None
