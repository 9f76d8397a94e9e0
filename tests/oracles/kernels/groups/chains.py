"""The obvious versions of the kernels in `icestream.kernels.groups.chains`."""

from __future__ import annotations

from icestream.kernels.groups.extents import (
    BACK,
    BACK_LATEST,
)
from icestream.kernels.groups.heap import NO_ROOT


def followed_reference(
    extents: dict[int, tuple[list[int], list[int]]], marker: int, watermark: int
) -> list[int]:
    """Return the words of a chain, oldest first, given header and words of extents by marker."""
    words: list[int] = []
    while marker != NO_ROOT:
        header, theirs = extents[marker]
        words = theirs + words
        marker = header[BACK] if header[BACK_LATEST] > watermark else NO_ROOT
    return words
