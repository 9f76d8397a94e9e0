"""The directory of nodes: which records of the log hold the states of which node.

Idea: a slice is a record with the states of some groups of one node, sorted by identity. The
directory has the level and place of its node, its marker, its size and its range of `id_high`,
sorted by node and, within a node, by arrival. It is all that memory holds for states on the log: 48
bytes for up to 64 KB.

Invariant: slices are returned by node and arrival, whatever the order in which they were added
(`test_parity_directory_beside_a_sorted_list`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Mask
from icestream.state.arena import Arena
from icestream.state.table import CountedTable

SLICE = np.dtype(
    [
        ("level", np.int64),
        ("place", np.int64),
        ("marker", np.uint64),
        ("bytes", np.int64),
        ("first_id_high", np.uint64),
        ("last_id_high", np.uint64),
    ]
)

Slices = npt.NDArray[np.void]


class NodeDirectory:
    """Slices of one shard, in an arena."""

    def __init__(self, arena: Arena) -> None:
        self._table = CountedTable(arena, "slices", SLICE)
        #: slices and places of each level, copied on first use
        self._levels: dict[int, tuple[Slices, Ints]] = {}

    def __len__(self) -> int:
        return len(self._table)

    @property
    def all(self) -> Slices:
        """Return every slice, by (level, place, arrival)."""
        return self._table.records

    def append(self, slices: Slices) -> None:
        """Add new slices; raises `Refused`, with nothing changed, if the budget is full."""
        if len(slices) == 0:
            return
        merged = np.concatenate([self.all, slices])
        self._table.replace(merged[np.lexsort((merged["place"], merged["level"]))])
        self._levels.clear()

    def keep(self, chosen: Mask) -> None:
        """Drop all slices but the chosen ones."""
        self._table.keep(chosen)
        self._levels.clear()

    def node(self, level: int, place: int) -> Slices:
        slices, places = self._of(level)
        bounds = np.searchsorted(places, [place, place + 1])
        return slices[bounds[0] : bounds[1]]

    def nodes(self, level: int) -> list[int]:
        """Return the places of a level that have slices, ascending."""
        found: list[int] = np.unique(self._of(level)[1]).tolist()
        return found

    def largest(self, panes: int) -> int:
        """Return the most bytes of slices that any `panes` consecutive panes have."""
        slices, places = self._of(0)
        sums = np.concatenate([[0], np.cumsum(slices["bytes"])])
        ends = np.searchsorted(places, places + panes)
        return int((sums[ends] - sums[:-1]).max(initial=0))

    def _of(self, level: int) -> tuple[Slices, Ints]:
        if level not in self._levels:
            slices = self.all
            chosen = slices[slices["level"] == level]
            self._levels[level] = chosen, np.ascontiguousarray(chosen["place"])
        return self._levels[level]
