from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from examples.lending.generator import BEGIN, Loans
from examples.lending.offline import differences, expected
from examples.lending.query import RESULTS

HOUR = 3_600_000_000


def _write(folder: Path, name: str, until: int, events: Path) -> None:
    """Write what should be told as a query does."""
    rows = expected(events, name, until)
    names = ["area"] * ("area" in name) + ["loans"]
    names += ["rate", "income"] if name.startswith("interest") else ["approval"]
    time = pa.timestamp("us", "UTC")
    spans = [pa.array([row[edge] for row in rows]).cast(time) for edge in (0, 1)]
    lifetime = pa.StructArray.from_arrays(spans, names=["start", "end"])
    values = [pa.array([row[2 + place] for row in rows]) for place in range(len(names))]
    (folder / name).mkdir(parents=True)
    pq.write_table(
        pa.table([lifetime, *values], names=["lifetime", *names]), folder / name / "part-0.parquet"
    )


def test_rows_that_differ_are_counted(tmp_path: Path) -> None:
    events, until = tmp_path / "events", BEGIN + HOUR
    list(Loans(rate=2).write(events, 8000, seconds=1000))
    for name in RESULTS:
        _write(tmp_path / "results", name, until, events)
    assert not any(differences(events, tmp_path / "results", until).values())
    later = differences(events, tmp_path / "results", until + HOUR // 6)
    assert all(count > 0 for count in later.values())
    assert len(expected(events, "interest-of-all", until)) >= 9
