"""Result rows of windows: running rows collected, then lowered to the columns of each view.

Idea: the fields of groups are collected until they fill a chunk. Keys are then looked up once, and
every view that shares the windows takes the groupings, keys and answers it shows.

Invariant: a row is emitted for every group of a window that a view groups by, and for no other
(`test_oracle_views_that_share_windows_equal_views_alone`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Table
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.aggregates.protocol import MergedFields
from icestream.operators.folding.columns import window_column
from icestream.operators.folding.fields import Layout
from icestream.operators.grid.groups import ResidentGroups
from icestream.operators.protocol import Emitted
from icestream.plan.windows.grid import Cumulative, Grid, Windows, WindowStep


@dataclass(frozen=True)
class WindowView:
    """One query over windows on a grid."""

    number: int
    windows: Windows | Cumulative
    aggregates: tuple[Aggregate, ...]
    #: groupings of the view: the number stored in groups, and the one shown in rows
    groupings: tuple[tuple[int, int], ...]
    #: key columns that the rows show, by position among the group's keys
    keys: tuple[int, ...]
    #: whether rows show their grouping
    tells_grouping: bool
    #: whether only groups that changed are emitted
    updates: bool
    results: pa.Schema


class Emission:
    """Fields of groups collected until they fill a batch, for the views of one kind of window."""

    def __init__(
        self,
        views: tuple[WindowView, ...],
        layout: Layout,
        types: dict[str, pa.DataType],
        grid: Grid,
        size: int,
    ) -> None:
        rows = max(1, size // (8 * (layout.field_words + 3)))
        self._views = views
        self._layout = layout
        self._types = types
        self._grid = grid
        self._updates = any(view.updates for view in views)
        self._fields = np.empty((rows, layout.field_words), dtype=np.int64)
        self._slots = np.empty(rows, dtype=np.int64)
        self._starts = np.empty(rows, dtype=np.int64)
        self._ends = np.empty(rows, dtype=np.int64)
        self._before = 0
        self.rows = 0
        self.full = False

    def collect(self, groups: ResidentGroups, first: int, step: WindowStep) -> int:
        """Collect the groups of a window from row `first` on; return where it stopped."""
        self._before = self.rows
        reached, self.rows = groups.emit(
            first, self._fields, self._slots, self._before, updates=self._updates
        )
        self._starts[self._before : self.rows] = step.start
        self._ends[self._before : self.rows] = step.end
        self.full = reached < len(groups.rows)
        return reached

    @property
    def columns(self) -> tuple[Table, Ints, Ints, Ints]:
        """Return where rows are collected: fields, groups, starts and ends of windows."""
        return self._fields, self._slots, self._starts, self._ends

    def emptied(self) -> Ints:
        """Return the positions, among those just collected, of groups without events."""
        fresh = slice(self._before, self.rows)
        slots: Ints = self._slots[fresh][self._fields[fresh, 0] == 0]
        return slots

    def entries(self, groups: ResidentGroups) -> Table:
        """Return what was just collected as entries, except groups without events."""
        fresh = slice(self._before, self.rows)
        fields: Table = self._fields[fresh]
        there = fields[:, 0] > 0
        return np.concatenate([groups.ids(self._slots[fresh][there]), fields[there]], axis=1)

    def take(self, groups: ResidentGroups) -> Iterator[Emitted]:
        """Convert what was collected to rows of every view."""
        keys = groups.keys(self._slots[: self.rows]).columns if self._views else []
        for view in self._views:
            chosen = self._chosen(view, keys)
            if chosen is None or len(chosen):
                yield view.number, self._rows(view, keys, chosen)
        self.rows = 0

    def _chosen(self, view: WindowView, keys: list[pa.Array]) -> Ints | None:
        """Return the rows of the view's groupings; None for all."""
        if not view.groupings:
            return None
        among = np.isin(keys[-1].to_numpy(), [number for number, _ in view.groupings])
        return None if among.all() else np.flatnonzero(among)

    def _rows(self, view: WindowView, keys: list[pa.Array], chosen: Ints | None) -> pa.RecordBatch:
        fields: Table = self._fields[: self.rows]
        starts, ends = self._starts[: self.rows], self._ends[: self.rows]
        if chosen is not None:
            fields, starts, ends = fields[chosen], starts[chosen], ends[chosen]
            keys = [key.take(pa.array(chosen)) for key in keys]
        instants = (at * self._grid.pane + self._grid.origin for at in (starts, ends))
        window = window_column(view.results.field(0).type, *instants)
        shown = [keys[place] for place in view.keys]
        if view.tells_grouping:
            stored, told = np.array(sorted(view.groupings), dtype=np.int64).T
            shown.append(pa.array(told[np.searchsorted(stored, keys[-1].to_numpy())]))
        merged = MergedFields(fields, self._layout)
        answers = [each.answers(merged, self._types) for each in view.aggregates]
        return pa.RecordBatch.from_arrays([window, *shown, *answers], schema=view.results)
