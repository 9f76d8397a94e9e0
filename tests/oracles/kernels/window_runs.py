"""The obvious versions of the kernels in `icestream.kernels.window_runs`."""

from __future__ import annotations


def window_runs_reference(
    id_high: list[int], id_low: list[int], times: list[int], length: int, offset: int
) -> list[tuple[int, int]] | None:
    """Return first tuple and window of each run, None if the times of a key decrease."""
    found: list[tuple[int, int]] = []
    before: tuple[int, int, int] | None = None
    for row, (high, low, time) in enumerate(zip(id_high, id_low, times, strict=True)):
        window = (time - offset) // length * length + offset if length else 0
        if row and (high, low) == (id_high[row - 1], id_low[row - 1]) and time < times[row - 1]:
            return None
        if (high, low, window) != before:
            before = (high, low, window)
            found.append((row, window))
    return found
