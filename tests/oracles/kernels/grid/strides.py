"""The obvious versions of the kernels in `icestream.kernels.grid.strides`."""

from __future__ import annotations

from collections.abc import Sequence


def stride_reference(
    starts: Sequence[int], reach: int, slices: Sequence[tuple[int, dict[int, int]]]
) -> list[tuple[int, int, int, int]]:
    """Return (start, group, sum, maximum) of every window and group, folding each window anew.

    A slice is a pane and a value for each group.
    """
    found = []
    for start in starts:
        window: dict[int, list[int]] = {}
        for pane, values in slices:
            if start <= pane < start + reach:
                for group, value in values.items():
                    window.setdefault(group, []).append(value)
        found += [(start, group, sum(all_), max(all_)) for group, all_ in sorted(window.items())]
    return found
