"""The tree over panes: which nodes a window is composed of, and in which portions they are read.

Idea: a node of level k represents `FAN**k` panes, starting at a multiple of that. Nodes are
combined from those below once; a window is then a few nodes of each level. Many states are read in
portions that fit into memory: several small targets at once, a large one in ranges of `id_high`.

    panes       0 1 2 3 4 5 6 7 8 9
    level 1    [       [       [
    window 2..9     2 3 [  1  ] 8      four nodes instead of seven

Invariants:
1. The nodes of a window cover its panes once (`test_oracle_nodes_cover_a_window_once`).
2. A window has at most `2 * (FAN - 1)` nodes of each level but the highest
   (`test_bounded_a_window_has_few_nodes`).
3. Portions hold every slice of every target once (`test_oracle_portions_hold_every_slice_once`).

Cost: with fan 4 an event is written once per level, half as often as with fan 2, and a window reads
one and a half times as many nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from icestream.operators.object_aggregates.directory import Slices

#: number of nodes that form one node of the next level
FAN = 4
#: levels above the panes; windows of more than `FAN**LEVELS` panes use several of the highest
LEVELS = 6
#: bytes in memory that a slice takes in addition to its data
SLICE_OVERHEAD = 1024

#: one more than the greatest id_high
END = 2**64


def highest_level(reach: int, move: int) -> int:
    """Return the highest level of the tree whose nodes serve at least two windows.

    Windows are `reach` panes long and `move` panes apart.
    """
    level = 0
    while level < LEVELS and FAN ** (level + 1) + move <= reach:
        level += 1
    return level


def nodes_of(start: int, end: int, highest: int) -> Iterator[tuple[int, int]]:
    """Yield level and place of the fewest nodes of the tree that cover a window's panes."""
    while start < end:
        level = 0
        while (
            level < highest
            and start % FAN ** (level + 1) == 0
            and start + FAN ** (level + 1) <= end
        ):
            level += 1
        yield level, start // FAN**level
        start += FAN**level


def first_pane(level: int, place: int) -> int:
    """Return the first pane of a node of the tree."""
    return place * int(FAN**level)


@dataclass(frozen=True, slots=True)
class SliceRange:
    """Slices to combine for one target, limited to groups with `low <= id_high < high`."""

    target: int
    slices: Slices
    low: int = 0
    high: int = END

    def part(self, low: int, high: int) -> SliceRange:
        """Return what there is of another range of id_high."""
        first, last = self.slices["first_id_high"], self.slices["last_id_high"]
        inside = (first <= np.uint64(high - 1)) & (last >= np.uint64(low))
        return SliceRange(self.target, self.slices[inside], low, high)


def portions(targets: Iterable[tuple[int, Slices]], limit: int) -> Iterator[list[SliceRange]]:
    """Yield tree nodes to combine, up to `limit` bytes at a time, targets in order.

    A larger one comes alone.
    """
    pending: list[SliceRange] = []
    size = 0
    for target, slices in targets:
        more = int(slices["bytes"].sum()) + SLICE_OVERHEAD * len(slices)
        if pending and size + more > limit:
            yield pending
            pending, size = [], 0
        if len(slices):
            pending.append(SliceRange(target, slices))
            size += more
    if pending:
        yield pending
