"""The obvious versions of the kernels in `icestream.kernels.queue.windows.marks`."""

from __future__ import annotations


def obey_marks_reference(
    keys: list[int], times: list[int], marks: list[int], windows: dict[int, tuple[int, list[int]]]
) -> list[tuple[int, int, list[int]]]:
    """Keep (end, times of the records in it) of each key's open window; return what is emitted."""
    emitted = []
    for key, time, mark in zip(keys, times, marks, strict=True):
        if mark > 0:
            windows[key] = (mark, [])
        if key in windows:
            windows[key][1].append(time)
            if time == windows[key][0]:
                emitted.append((key, *windows.pop(key)))
    return emitted
