from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from examples.market.latest_rows import LatestRows

SECOND = 1_000_000


def test_oracle_the_latest_row_of_each_group(tmp_path: Path) -> None:
    def write_rows(name: str, rows: list[tuple[int, str, float]]) -> None:
        columns = {
            "time": pa.array([second * SECOND for second, _, _ in rows], pa.timestamp("us")),
            "symbol": [symbol for _, symbol, _ in rows],
            "vwap": [vwap for _, _, vwap in rows],
        }
        pq.write_table(pa.table(columns), tmp_path / name)

    latest = LatestRows(tmp_path, "symbol")
    latest.refresh()
    assert latest.rows == {}
    write_rows("part-0.parquet", [(1, "A", 1.0), (3, "B", 2.0), (3, "B", 3.0), (2, "B", 4.0)])
    latest.refresh()
    assert {group: (row["time"], row["vwap"]) for group, row in latest.rows.items()} == {
        "A": (1 * SECOND, 1.0),
        "B": (3 * SECOND, 3.0),
    }
    # later files may be of earlier times; a group that is missing keeps its row
    write_rows("part-1.parquet", [(2, "B", 5.0), (4, "C", 6.0)])
    latest.refresh()
    assert {group: row["vwap"] for group, row in latest.rows.items()} == {
        "A": 1.0,
        "B": 3.0,
        "C": 6.0,
    }
