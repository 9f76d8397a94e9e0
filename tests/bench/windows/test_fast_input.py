from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, ipc

from bench import rows
from bench.registry import Size
from bench.windows import fast_input


def test_the_faster_backend_of_flink_is_the_one_compared() -> None:
    ours = {"parquet, tasks": {"eps": 30e6, "phases": [{"ingest": 1}, {"ingest": 2}]}}
    flink = {"heap|plain": 2e6, "heap|mini-batch": 3e6, "rocksdb|plain": 1e6, "scan": 9e6}
    figures = fast_input.summarise(ours, flink)
    assert figures["flink_eps"] == 3e6
    assert figures["flink_rocksdb_eps"] == 1e6
    assert figures["ratio_flink"] == 10
    assert figures["phases"] == {"parquet, tasks": {"ingest": 2}}
    bars = fast_input.judge({**figures, "agree": ["parquet, tasks", "flink"]}, 2)
    assert [bar.holds for bar in bars] == [True, True, True]


def test_what_was_not_measured_fails_its_bars() -> None:
    figures = {**fast_input.summarise({}, {}), "agree": []}
    assert [bar.holds for bar in fast_input.judge(figures, 1)] == [False, False, False]


def test_a_figure_is_drawn_also_where_a_peer_has_no_rate(tmp_path: Path) -> None:
    ours = {"csv, JVM": {"eps": 1e6, "phases": [{}]}, "csv, tasks": {"eps": None, "phases": [{}]}}
    fast_input.plot(fast_input.summarise(ours, {}), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 0


@pytest.mark.parametrize("size", Size)
def test_every_case_has_batches_that_count(size: Size) -> None:
    cases = fast_input.SCALES[size].cases
    assert all(case.skip < case.batches for case in cases)
    assert len({case.name for case in cases}) == len(cases)


def test_every_format_holds_the_same_rows(tmp_path: Path) -> None:
    expected = rows.table(0, 200)
    arrow = rows.write_files(tmp_path, 2, 100, "arrow")
    read = pa.concat_tables(
        ipc.open_file(path).read_all() for path in sorted(arrow.glob("*.arrow"))
    )
    assert read.equals(expected)
    text = rows.write_files(tmp_path, 2, 100, "csv")
    names = csv.ReadOptions(column_names=expected.column_names)
    types = csv.ConvertOptions(column_types=expected.schema)
    parsed = [csv.read_csv(path, names, None, types) for path in sorted(text.glob("*.csv"))]
    assert pa.concat_tables(parsed).equals(expected)
    assert '"' not in (text / "000000.csv").read_text()
