from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.cold.keyed_rows import DISORDER_MS, TICK_MS, KeyedStream
from bench.rows import START


def test_rows_do_not_depend_on_the_cut(tmp_path: Path) -> None:
    stream = KeyedStream("s", 12_345, 1_000, 2.5)
    folders = [stream.write_files(tmp_path, 6, 50), stream.write_files(tmp_path, 3, 100)]
    tables = [
        pa.concat_tables(pq.read_table(path) for path in sorted(folder.iterdir()))
        for folder in folders
    ]
    assert tables[0].equals(tables[1])
    assert tables[0].column("id").to_pylist() == list(range(300))
    changed = [path.stat().st_mtime for path in sorted(folders[0].iterdir())]
    assert np.diff(changed).tolist() == [1.0] * 5


def test_disorder_is_bounded() -> None:
    times, _, _ = KeyedStream("s", 54_321, 10).columns(5_000, 20_000)
    late = START + np.arange(5_000, 25_000) * TICK_MS - times
    assert 0 <= late.min() < late.max() < DISORDER_MS


@pytest.mark.parametrize("power", [1.0, 2.5])
def test_keys_are_as_skewed_as_asked(power: float) -> None:
    _, keys, _ = KeyedStream("s", 12_345, 10_000, power).columns(0, 200_000)
    assert keys.min() >= 0
    assert keys.max() < 10_000
    for part in (0.01, 0.1, 0.5):
        assert (keys < part * 10_000).mean() == pytest.approx(part ** (1 / power), abs=0.02)


def test_totals_are_those_of_the_rows() -> None:
    stream = KeyedStream("s", 12_345, 50)
    _, keys, values = stream.columns(100, 500)
    expected: dict[int, tuple[int, float]] = {}
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        n, total = expected.get(key, (0, 0.0))
        expected[key] = n + 1, total + value
    names, counts, totals = stream.totals(100, 500)
    pairs = zip(counts.tolist(), totals.tolist(), strict=True)
    assert dict(zip(names.tolist(), pairs, strict=True)) == expected
    assert names.tolist() == list(expected)
