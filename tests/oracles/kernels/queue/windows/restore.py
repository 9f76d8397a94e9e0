"""The obvious versions of the kernels in `icestream.kernels.queue.windows.restore`."""

from __future__ import annotations


def lift_tuples_reference(
    times: list[int], reads: int | None, end: int, starts: int | None
) -> list[int]:
    """Return the live times of a buffer, given the next one read and the next one started."""
    return [
        time
        for time in times
        if (reads is not None and reads <= time <= end) or (starts is not None and time >= starts)
    ]


def put_tuples_reference(counts: list[int], tuples: list[list[int]]) -> list[list[list[int]]]:
    """Return the tuples of each key."""
    rest = iter(tuples)
    return [[next(rest) for _ in range(count)] for count in counts]
