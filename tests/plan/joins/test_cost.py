from __future__ import annotations

import numpy as np
import pytest

from icestream.plan.joins.order import HEAD_BYTES, StreamStatistics, results_of, state_of


def test_oracle_expected_results_are_those_of_evenly_spread_keys() -> None:
    # 10, 20 and 40 keys, each alike often, the smaller sets inside the larger
    sizes = ((10, 30), (20, 40), (40, 120))
    counts = [np.where(np.arange(40) < keys, rows / keys, 0.0) for keys, rows in sizes]
    streams = [StreamStatistics(rows, keys, 16) for keys, rows in sizes]
    assert results_of(streams) == pytest.approx(float(np.prod(counts, axis=0).sum()))


def test_a_stream_without_rows_makes_no_results() -> None:
    streams = [StreamStatistics(0, 0, 16), StreamStatistics(10, 5, 8)]
    assert results_of(streams) == 0
    assert state_of(streams) == 10 * (8 + HEAD_BYTES)
