"""Result rows of frames, collected until they fill a batch.

Idea: windows are collected as words in a flat table, with the slot of their group and their
instant. Keys and answers are computed from them a batch at a time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Table
from icestream.kernels.frames import moving as kernels
from icestream.operators.frames.layout import FrameLayout
from icestream.operators.frames.spec import FrameSpec
from icestream.operators.grid.groups import ResidentGroups


class FrameOutput:
    """Windows that were shown but not emitted yet."""

    def __init__(
        self,
        spec: FrameSpec,
        layout: FrameLayout,
        groups: ResidentGroups,
        results: pa.Schema,
        size: int,
    ) -> None:
        """Collect up to `size` bytes of words; `layout` defines where the frame is in a row."""
        words = layout.field_words
        room = max(1, size // (8 * (words + 2)))
        self._spec = spec
        self._layout = layout
        self._groups = groups
        self._results = results
        self.fields: Table = np.empty((room, words), dtype=np.int64)
        self.slots: Ints = np.empty(room, dtype=np.int64)
        self.times: Ints = np.empty(room, dtype=np.int64)
        #: windows collected
        self.rows = 0

    def standing(self, first: int) -> int:
        """Collect groups with tuples in the window from row `first` on; return where it stopped."""
        layout, rows = self._layout, self._groups.rows
        following, self.rows = kernels.show_standing(
            rows,
            first,
            len(rows),
            layout.ops,
            layout.in_rows,
            layout.suffixes_at,
            self.fields,
            self.slots,
            self.rows,
        )
        return int(following)

    def take(self) -> pa.RecordBatch:
        """Convert what was collected to result rows, which may be kept."""
        count, self.rows = self.rows, 0
        columns = self.fields, self.slots, self.times
        return self.batch(*(each[:count].copy() for each in columns))

    def batch(self, fields: Table, slots: Ints, times: Ints) -> pa.RecordBatch:
        """Convert windows to result rows."""
        spec = self._spec
        answers = [each.lower(fields, self._layout, spec.types) for each in spec.aggregates]
        keys = self._groups.keys(slots).columns if len(spec.keys) else []
        instants = pa.array(times).cast(self._results.field(0).type)
        return pa.RecordBatch.from_arrays([instants, *keys, *answers], schema=self._results)
