"""The obvious version of the kernel in `icestream.kernels.lifetimes.first`."""

from __future__ import annotations

from icestream.core.times import INFINITY


def keep_first_reference(
    owners: list[int], starts: list[int], within: int, until: list[int]
) -> tuple[list[bool], list[int]]:
    """Return which events are kept, and when each group keeps one again."""
    kept, until = [], list(until)
    for owner, start in zip(owners, starts, strict=True):
        kept.append(start >= until[owner])
        if kept[-1]:
            until[owner] = min(INFINITY, start + within + 1)
    return kept, until
