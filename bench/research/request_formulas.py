"""The number of requests of windows on disk, predicted from rates and sizes.

Invariants:
1. The counters of a repository agree with them in steady state
   (`test_requests_follow_the_formulas`, `test_shared_requests_follow_the_formulas`).
2. The worked examples of the paper are reproduced (`test_the_example_of_a_call_center_comes_out`).

References: formulas 3.1, 3.2, 4.1 and 4.2 of Shared SlideM.
"""

from __future__ import annotations

from collections.abc import Sequence


def requests_per_second(rate: float, block_bytes: int, tuple_bytes: int) -> float:
    """Requests of one window per second (3.1): a read and a write for every block of tuples."""
    return 2 * rate / (block_bytes // tuple_bytes)


def bytes_per_second(rate: float, block_bytes: int, tuple_bytes: int) -> float:
    """Bytes that one window moves per second (3.2)."""
    return requests_per_second(rate, block_bytes, tuple_bytes) * block_bytes


def shared_requests_per_block(windows: int, hit_rate: float) -> float:
    """Requests of a shared repository for every block of the stream, as printed (4.1).

    A write for the new block; for every window but the largest, a read and a write if its next
    block is not in memory; for the largest one, a read, because the block it leaves makes room.
    """
    return 1 + (1 - hit_rate) * (2 * (windows - 1) + 1)


def steady_shared_requests_per_block(windows: int, hit_rate: float) -> float:
    """Requests for every block of the stream in steady state: a read and a write for each miss.

    Every evicted block must come back, so writes equal reads. The printed formula is larger by
    exactly `hit_rate`: if the largest window finds its next block in memory, the block it leaves
    makes room for the new one, which is then not written.
    """
    return 2 * windows * (1 - hit_rate)


def hit_rate(segments: Sequence[tuple[int, int]]) -> float:
    """Share of blocks found in memory (4.2): per segment, blocks in memory and blocks in all.

    A segment reaches from the block of one window to that of the next smaller window; a segment
    without blocks means that the windows share a block, which is in memory.
    """
    return sum(inside / total if total else 1.0 for inside, total in segments) / len(segments)
