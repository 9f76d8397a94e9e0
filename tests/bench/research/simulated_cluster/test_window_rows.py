from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bench.research.simulated_cluster.window_rows import in_windows, of_windows
from icestream.plan.windows.grid import Windows

windows = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3)).map(
    lambda each: Windows(each[0] * each[1], each[1], min(each[2], each[1] - 1))
)


@given(
    kinds=st.lists(windows, min_size=1, max_size=3),
    times=st.lists(st.integers(-20, 40), max_size=20),
    first=st.integers(-20, 40),
    span=st.none() | st.integers(0, 20),
)
def test_oracle_rows_of_windows_in_a_span(
    kinds: list[Windows], times: list[int], first: int, span: int | None
) -> None:
    until = None if span is None else first + span
    starts = range(first, 100 if until is None else until)
    found = in_windows(kinds, np.array(times, dtype=np.int64), first, until)
    assert found.tolist() == [
        any(
            (start - each.offset) % each.slide == 0 and start <= time < start + each.range
            for each in kinds
            for start in starts
        )
        for time in times
    ]


def test_results_are_told_by_the_start_of_their_window() -> None:
    start = pa.array([0, 10, 0, 20]).cast(pa.timestamp("us"))
    window = pa.StructArray.from_arrays([start, start], names=["start", "end"])
    rows = pa.RecordBatch.from_pydict({"window": window, "n": [1, 2, 3, 4]})
    ((view, kept),) = of_windows([(7, rows)], lambda instant: instant < 15)
    assert view == 7
    assert kept.column("n").to_pylist() == [1, 2, 3]
    assert of_windows([(7, rows)], lambda _: False) == []
