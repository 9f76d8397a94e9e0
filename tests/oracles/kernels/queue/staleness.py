"""The obvious versions of the kernels in `icestream.kernels.queue.staleness`."""

from __future__ import annotations

from icestream.kernels.queue.staleness import NONE


def settle_reference(begin: int, open_at: int, at: int) -> tuple[float, int]:
    """Return area and largest value of one ramp, by arithmetic on whole numbers."""
    if open_at == NONE or at <= max(begin, open_at):
        return 0.0, 0
    last, first = at - open_at, max(begin, open_at) - open_at
    return (last * last - first * first) / 2, last
