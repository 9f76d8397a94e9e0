"""The obvious versions of the kernels in `icestream.kernels.queue.windows.key_times`."""

from __future__ import annotations


def going_up_reference(keys: list[int], times: list[int], last: dict[int, int]) -> list[bool]:
    """Do what `going_up` does, with a dict."""
    keep = []
    for key, time in zip(keys, times, strict=True):
        before = last.get(key)
        keep.append(before is None or time >= before)
        if keep[-1]:
            last[key] = time
    return keep
