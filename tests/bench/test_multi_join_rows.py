from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench.multi_join_rows import KEYS, RANGE, RATIOS, STREAMS, JoinStream


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: str(stream.name))
def test_rows_do_not_depend_on_the_cut(stream: JoinStream) -> None:
    whole = stream.columns(0, RANGE + 500)
    cut = [stream.columns(0, RANGE - 3), stream.columns(RANGE - 3, 503)]
    for name, column in whole.items():
        np.testing.assert_array_equal(column, np.concatenate([each[name] for each in cut]))


def test_keys_come_as_often_as_asked() -> None:
    for stream in STREAMS:
        columns = stream.columns(0, 2 * RANGE)
        for name, join in zip(stream.keys, stream.joins, strict=True):
            first, second = np.split(columns[name], 2)
            assert first.max() < KEYS[join] <= second.min()
            often = np.bincount(first, minlength=KEYS[join])
            assert often.mean() == pytest.approx(RATIOS[join], rel=0.01)
            assert Counter(often.tolist())[10 * RATIOS[join]] == 0


def test_files_are_what_spark_is_told(tmp_path: Path) -> None:
    stream = STREAMS[2]
    folder = stream.write_files(tmp_path, 2, 100)
    found = pq.read_table(sorted(folder.glob("*.parquet"))[1])
    assert found.equals(stream.table(100, 100))
    assert [each.split()[0] for each in stream.spark_schema.split(", ")] == found.schema.names
