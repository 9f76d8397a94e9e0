"""Whether different systems computed the same windows, by totals over all closed windows.

Idea: counts, sums, minima and maxima of the events in `rows` are exact in any order of addition, so
their totals over all windows that end by a given time must be equal to the last bit. The expected
totals come from panes added up by numpy, which shares nothing with any of the systems.

Invariants:
1. The totals are those of the plain definition of a window
   (`test_oracle_expected_totals_follow_the_definition`).
2. Averages may differ in rounding only (`test_averages_agree_up_to_rounding`).

Limits: two errors that cancel in all six totals stay undetected.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import rows

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class WindowTotals:
    """Totals over closed windows."""

    windows: int
    events: int
    total: float
    average: float
    least: float
    most: float

    def agrees_with(self, other: WindowTotals) -> bool:
        """Equal, with averages up to rounding."""
        return all(
            math.isclose(mine, theirs, rel_tol=_ROUNDING) if place == 3 else mine == theirs
            for place, (mine, theirs) in enumerate(zip(astuple(self), astuple(other), strict=True))
        )

    @property
    def narrow(self) -> WindowTotals:
        """The totals without minima and maxima."""
        return replace(self, least=0.0, most=0.0)


def closed_by(
    count: int, slide_ms: int, slack_ms: int, shape: rows.StreamShape = rows.SPARSE
) -> int:
    """Return until when (milliseconds) all windows are closed after the first `count` rows."""
    newest = rows.START + (count - 1) // shape.per_tick * rows.TICK
    watermark = newest - rows.DISORDER - slack_ms
    return watermark // slide_ms * slide_ms


def expected(
    range_ms: int, slide_ms: int, until_ms: int, shape: rows.StreamShape = rows.SPARSE
) -> WindowTotals:
    """Compute the totals over all windows that end by `until_ms`."""
    needed = ((until_ms - rows.START) // rows.TICK + rows.DISORDER) * shape.per_tick
    ts, key, value = rows.columns(0, needed, shape)
    first = (rows.START - rows.DISORDER) // slide_ms
    panes = until_ms // slide_ms - first
    inside = ts < until_ms
    cell = (ts[inside] // slide_ms - first) * shape.keys + key[inside]
    grid = (panes, shape.keys)
    count = np.bincount(cell, minlength=panes * shape.keys).reshape(grid)
    total = np.bincount(cell, value[inside], minlength=panes * shape.keys).reshape(grid)
    least = np.full(panes * shape.keys, np.inf)
    most = np.full(panes * shape.keys, -np.inf)
    np.minimum.at(least, cell, value[inside])
    np.maximum.at(most, cell, value[inside])
    least, most = least.reshape(grid), most.reshape(grid)
    width = range_ms // slide_ms
    found = WindowTotals(0, 0, 0.0, 0.0, 0.0, 0.0)
    for end in range(1, panes + 1):
        part = slice(max(0, end - width), end)
        n, s = count[part].sum(axis=0), total[part].sum(axis=0)
        some = n > 0
        found = WindowTotals(
            found.windows + int(some.sum()),
            found.events + int(n.sum()),
            found.total + float(s.sum()),
            found.average + float((s[some] / n[some]).sum()),
            found.least + float(least[part].min(axis=0)[some].sum()),
            found.most + float(most[part].max(axis=0)[some].sum()),
        )
    return found


def of_parquet(folder: Path, until_ms: int) -> WindowTotals:
    """Add up the result files of a query with columns window, n, s, a and optionally lo and hi."""
    files = sorted(folder.glob("**/*.parquet"))
    results = pa.concat_tables(pq.ParquetFile(file).read() for file in files)
    end = pc.cast(pc.struct_field(results["window"], "end"), pa.timestamp("ms"), safe=False)
    closed = results.filter(pc.less_equal(pc.cast(end, pa.int64()), until_ms))
    n, s, a, lo, hi = (
        closed[name].to_numpy().sum() if name in closed.column_names else 0
        for name in ("n", "s", "a", "lo", "hi")
    )
    return WindowTotals(closed.num_rows, int(n), float(s), float(a), float(lo), float(hi))
