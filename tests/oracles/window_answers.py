"""Results of windows over rows of a key and a value, computed the obvious way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pyarrow as pa

from icestream.plan.windows.grid import Windows

#: view, start, key -> count, sum, greatest
Answers = dict[tuple[int, int, int], tuple[int, int, int]]


def answers(batches: Iterable[pa.RecordBatch], views: Sequence[Windows]) -> Answers:
    """Return the results of every window that has a row; rows have `time`, `k0` and `x0`."""
    values: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for rows in batches:
        for each in rows.to_pylist():
            for view, windows in enumerate(views):
                latest = each["time"] - each["time"] % windows.slide
                for start in range(latest, each["time"] - windows.range, -windows.slide):
                    values[view, start, each["k0"]].append(each["x0"])
    return {place: (len(all_), sum(all_), max(all_)) for place, all_ in values.items()}
