"""The suffixes of one frame in one partition, and how far they reach.

Idea: partitions are ranges of groups, frames are windows of different reach. Each pair of them is
flipped at a different time, so each has its own stack and facts. They are stored with the facts of
the partition; if those mark the suffixes as lost, all frames start over.

Invariant: a partition that was split or loaded from a snapshot has no suffixes of any frame
(`test_suffixes_of_all_frames_are_lost_with_a_partition`).
"""

from __future__ import annotations

from typing import Any

from icestream.core.times import MINUS_INFINITY
from icestream.operators.frames.layout import FrameLayout
from icestream.operators.grid.partitions import Partition
from icestream.operators.grid.suffix_stack import SuffixStack
from icestream.state.arena import Arena

#: key of the frames' facts among those of a partition
FRAMES = "frames"


class FrameSuffixStack:
    """Suffixes of the tuples of one frame, for the groups of one partition."""

    def __init__(self, facts: dict[str, Any], path: str, words: int) -> None:
        """Wrap the facts of one frame; the stack is in the file `path`."""
        self._facts = facts
        self.stack = SuffixStack(path, words, facts["fronts"])
        #: all tuples before this place have suffixes on the stack
        self.flipped: int = facts["flipped"]
        #: whether the suffixes must be rebuilt before they are used
        self.stale: bool = facts["stale"]

    def note(self) -> None:
        """Record what the next version needs."""
        self._facts.update(fronts=self.stack.size, flipped=self.flipped, stale=self.stale)


def suffix_stacks_of(
    partition: Partition, arena: Arena, frames: tuple[FrameLayout, ...]
) -> list[FrameSuffixStack]:
    """Return the suffix stack of each frame in a partition, empty if it was lost."""
    lost, partition.stale = partition.stale, False
    if lost or FRAMES not in partition.facts:
        partition.facts[FRAMES] = [
            {"fronts": 0, "flipped": MINUS_INFINITY, "stale": lost} for _ in frames
        ]
    found = [
        FrameSuffixStack(
            facts, arena.path(f"fronts-{number}-{partition.low:x}"), layout.suffix_words
        )
        for number, (facts, layout) in enumerate(zip(partition.facts[FRAMES], frames, strict=True))
    ]
    if lost:
        for suffixes in found:
            suffixes.stack.clear()
    return found
