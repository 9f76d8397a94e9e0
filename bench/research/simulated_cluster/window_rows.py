"""The rows that windows starting in a span of time need, and the results of such windows.

Invariant: both agree with checking every window (`test_oracle_rows_of_windows_in_a_span`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask
from icestream.core.times import Micros
from icestream.operators.protocol import Emitted
from icestream.plan.windows.grid import Windows


def in_windows(
    windows: Iterable[Windows], times: Ints, first: Micros, until: Micros | None
) -> Mask:
    """Return which times are in a window that starts from `first` on and before `until`."""
    found = np.zeros(len(times), dtype=bool)
    for each in windows:
        last = (times - each.offset) // each.slide * each.slide + each.offset
        if until is not None:
            latest = (until - 1 - each.offset) // each.slide * each.slide + each.offset
            last = np.minimum(last, latest)
        found |= (last >= first) & (last > times - each.range)
    return found


def of_windows(emitted: Sequence[Emitted], wanted: Callable[[Micros], bool]) -> list[Emitted]:
    """Return the results of windows that start at a wanted time."""
    found = []
    for view, rows in emitted:
        starts: Any = rows.column(0).field("start").cast(pa.int64()).to_numpy()
        instants, places = np.unique(starts, return_inverse=True)
        mine = np.array([wanted(start) for start in instants.tolist()], dtype=bool)[places]
        if mine.any():
            found.append((view, rows.filter(pa.array(mine))))
    return found
