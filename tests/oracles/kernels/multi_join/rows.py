"""The obvious versions of the kernels in `icestream.kernels.multi_join.rows`."""

from __future__ import annotations

from icestream.core.arrays import Ints
from icestream.kernels.multi_join.rows import LOG_HEAD


def packed_reference(rows: list[tuple[int, int, int, int, list[int]]]) -> list[int]:
    """Return (id_high, id_low, le, re, payload), one after the other."""
    return [word for *head, payload in rows for word in (*head, *payload)]


def log_starts_reference(words: Ints) -> list[int] | None:
    """Return where each row begins; None if they are not rows."""
    found, left = [], words.tolist()
    while left:
        size = left[LOG_HEAD] >> 32 if len(left) > LOG_HEAD else 0
        if size < 1 or LOG_HEAD + size > len(left):
            return None
        found.append(len(words) - len(left))
        left = left[LOG_HEAD + size :]
    return found


def gather_payloads_reference(heap: Ints, places: Ints) -> list[int]:
    """Return the payloads that begin at some places."""
    made: list[int] = []
    for at in places.tolist():
        made += heap[at : at + (int(heap[at]) >> 32)].tolist()
    return made
