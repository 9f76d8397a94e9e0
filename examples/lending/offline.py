"""The expected results of the job, computed by DuckDB over all loans at once.

Idea: one SQL statement for each result; windows are those that ended by the last watermark of the
query. Averages are compared to one part in a billion, because the order of summation differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from examples.lending.query import RESULTS, WINDOWS
from icestream.core.times import Micros
from icestream.core.units import parse_interval

_RATE = "(back - amount) / amount / (lendingTime / 12.0)"
_VALUES = {
    "interest": [f"avg({_RATE})", "avg(income)"],
    "approval": ["avg(approval::int)"],
}
#: allowed relative difference of two averages
CLOSE = 1e-9

#: start and end of the window, the area if there is one, loans, averages
Row = tuple[Any, ...]


def expected(events: Path, name: str, until: Micros) -> list[Row]:
    """Return the rows of a result whose windows end by a time, sorted."""
    kind, _, scope = name.partition("-")
    area = ["area"] if scope == "by-area" else []
    at = "epoch_us(date)"
    found: list[Row] = []
    for text in WINDOWS:
        length = parse_interval(text)
        start = f"({at} // {length} * {length})"
        columns = [start, f"{start} + {length}", *area, "count(*)", *_VALUES[kind]]
        groups = ", ".join(str(number) for number in range(1, 3 + len(area)))
        found += _rows(
            f"SELECT {', '.join(columns)} FROM read_parquet('{events}/*.parquet') "
            f"WHERE {start} + {length} <= {until} GROUP BY {groups}"
        )
    return sorted(found)


def told(folder: Path, name: str) -> list[Row]:
    """Return the rows that a query wrote for a result, sorted."""
    kind, _, scope = name.partition("-")
    area = ["area"] if scope == "by-area" else []
    values = ["rate", "income"] if kind == "interest" else ["approval"]
    columns = ["epoch_us(lifetime.start)", "epoch_us(lifetime.end)", *area, "loans", *values]
    files = f"{folder}/{name}/part-*.parquet"
    return sorted(_rows(f"SELECT {', '.join(columns)} FROM read_parquet('{files}')"))


def differences(events: Path, results: Path, until: Micros) -> dict[str, int]:
    """Return the number of wrong rows of each result."""
    return {
        name: _different(told(results, name), expected(events, name, until)) for name in RESULTS
    }


def _rows(statement: str) -> list[Row]:
    return duckdb.execute(statement).fetchall()


def _different(found: list[Row], wanted: list[Row]) -> int:
    apart = sum(not _same(one, other) for one, other in zip(found, wanted, strict=False))
    return apart + abs(len(found) - len(wanted))


def _same(one: Row, other: Row) -> bool:
    return all(
        abs(a - b) <= CLOSE * abs(b) if isinstance(a, float) else a == b
        for a, b in zip(one, other, strict=True)
    )
