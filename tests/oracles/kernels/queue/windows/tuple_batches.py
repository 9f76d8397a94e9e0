"""The obvious versions of the kernels in `icestream.kernels.queue.windows.tuple_batches`."""

from __future__ import annotations

from icestream.core.arrays import Ids


def find_cells_reference(id_high: Ids, id_low: Ids) -> list[int]:
    """Number keys in order of first appearance, with a dict."""
    numbers: dict[tuple[int, int], int] = {}
    return [
        numbers.setdefault(key, len(numbers))
        for key in zip(id_high.tolist(), id_low.tolist(), strict=True)
    ]
