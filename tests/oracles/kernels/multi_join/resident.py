"""The obvious versions of the kernels in `icestream.kernels.multi_join.resident`."""

from __future__ import annotations

from itertools import product

import numpy as np

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels.multi_join.resident import HEAD, PORT_BITS


def open_keys_reference(
    known: dict[tuple[int, int], int], id_high: Ids, id_low: Ids, slots: Ints
) -> None:
    """Number keys with a dict, in order of first appearance."""
    for row, key in enumerate(zip(id_high.tolist(), id_low.tolist(), strict=True)):
        slots[row] = known.setdefault(key, len(known))


def combine_reference(
    chunk: list[tuple[int, int, int]], others: list[list[tuple[int, int, int]]]
) -> list[tuple[tuple[int, ...], int, int]]:
    """Return positions and lifetime of all combinations of (key, le, re) with a common time."""
    made = []
    for numbers in product(range(len(chunk)), *(range(len(rows)) for rows in others)):
        members = [chunk[numbers[0]]]
        members += [rows[n] for rows, n in zip(others, numbers[1:], strict=True)]
        start, end = max(row[1] for row in members), min(row[2] for row in members)
        if len({row[0] for row in members}) == 1 and start < end:
            made.append((numbers, start, end))
    return made


def link_reference(
    rows: list[tuple[int, int, int, int, list[int]]], width: int, partitions: int
) -> tuple[list[int], list[int]]:
    """Return the heap without chains, and bytes by partition, of (id_high, port, le, re, payload).

    Keys are numbered in order of first appearance.
    """
    numbers: dict[int, int] = {}
    heap: list[int] = []
    sizes = [0] * partitions
    for id_high, port, le, re, payload in rows:
        partition = ((id_high >> 32) * partitions) >> 32
        sizes[partition] += 8 * (HEAD + len(payload)) + (
            0 if id_high in numbers else 8 * (width + 1)
        )
        slot = numbers.setdefault(id_high, len(numbers))
        heap += [slot << PORT_BITS | port, le, re, 0, *payload]
    return heap, sizes


def ended_words_reference(rows: list[tuple[int, int]], watermark: int) -> tuple[int, int]:
    """Add up the words of (re, words) that ended."""
    ended = sum(HEAD + words for re, words in rows if re <= watermark)
    return ended, min((re for re, _ in rows if re > watermark), default=2**63 - 1)


def rows_by_port_reference(ports: list[int], counts: Ints) -> None:
    """Count rows, given the port of each."""
    np.add.at(counts, ports, 1)


def compact_reference(
    rows: list[tuple[int, int, int, int, list[int]]],
    doomed: set[int],
    partitions: int,
    watermark: int,
) -> list[tuple[int, int, int, int, list[int]]]:
    """Return the rows (id_high, port, le, re, payload) that stay."""
    return [
        row
        for row in rows
        if ((row[0] >> 32) * partitions) >> 32 not in doomed and row[3] > watermark
    ]


def index_keys_reference(places: int, keys: Table, used: int) -> list[int]:
    """Return the index after inserting the keys in order."""
    index = [0] * places
    for slot, id_low in enumerate(keys[:used, 1].tolist()):
        place = ((id_low % 2**64) >> 20) % places
        while index[place]:
            place = (place + 1) % places
        index[place] = slot + 1
    return index
