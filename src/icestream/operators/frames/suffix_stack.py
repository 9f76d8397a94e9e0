"""The fronts of one frame in one partition, and how far they reach.

Idea: partitions are ranges of groups, frames are windows of different reach: each pair of them is
flipped at a time of its own, so it has a stack and facts of its own. They live with the facts of
the partition; when those say that the fronts were lost, all frames begin anew.

Invariant: a partition that was split or loaded from a snapshot has no fronts of any frame
(`test_fronts_of_all_frames_are_lost_with_a_partition`).
"""

from __future__ import annotations

from typing import Any

from icestream.core.times import MINUS_INFINITY
from icestream.operators.frames.layout import FrameLayout
from icestream.operators.grid.partitions import Partition
from icestream.operators.grid.suffix_stack import SuffixStack
from icestream.state.arena import Arena

#: where the facts of frames are among those of a partition
FRAMES = "frames"


class FrameSuffixStack:
    """Fronts of the tuples of one frame, for the groups of one partition."""

    def __init__(self, facts: dict[str, Any], path: str, words: int) -> None:
        """Wrap the facts of one frame; the stack is in the file `path`."""
        self._facts = facts
        self.stack = SuffixStack(path, words, facts["fronts"])
        #: place before which all tuples have fronts on the stack
        self.flipped: int = facts["flipped"]
        #: whether the fronts must be made before they are used
        self.stale: bool = facts["stale"]

    def note(self) -> None:
        """Write down what the next version has to know."""
        self._facts.update(fronts=self.stack.size, flipped=self.flipped, stale=self.stale)


def fronts_of(
    partition: Partition, arena: Arena, frames: tuple[FrameLayout, ...]
) -> list[FrameSuffixStack]:
    """Return the fronts of each frame in a partition, empty where they were lost."""
    lost, partition.stale = partition.stale, False
    if lost or FRAMES not in partition.facts:
        partition.facts[FRAMES] = [
            {"fronts": 0, "flipped": MINUS_INFINITY, "stale": lost} for _ in frames
        ]
    found = [
        FrameSuffixStack(
            facts, arena.path(f"fronts-{number}-{partition.low:x}"), layout.front_words
        )
        for number, (facts, layout) in enumerate(zip(partition.facts[FRAMES], frames, strict=True))
    ]
    if lost:
        for fronts in found:
            fronts.stack.clear()
    return found
