"""The obvious versions of the kernels in `icestream.kernels.queue.windows.batch`."""

from __future__ import annotations

from icestream.core.arrays import Ids


def find_cells_reference(hi: Ids, lo: Ids) -> list[int]:
    """Number keys in order of first appearance, with a dict."""
    numbers: dict[tuple[int, int], int] = {}
    return [
        numbers.setdefault(key, len(numbers)) for key in zip(hi.tolist(), lo.tolist(), strict=True)
    ]
