"""The obvious versions of the kernels in `icestream.kernels.groups.inline_groups`."""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.groups.heap import (
    EXPIRY,
    FLAGS,
    GROUP,
    NO_ROOT,
    PARTS,
    ROOT,
    ROOT_EXPIRY,
    WHOLE,
)
from icestream.kernels.groups.inline_groups import BITS, IDENTITY


def adopt_reference(table: Table, columns: Ints, slots: Ints, rows: Table) -> None:
    """Do what `adopt` does, by columns."""
    table[slots[:, None], columns[IDENTITY:]] = rows[:, IDENTITY : columns.size]
    for at in range(GROUP, table.shape[1], PARTS):
        table[slots, at + FLAGS] = np.where(table[slots, at + ROOT] != NO_ROOT, 0, WHOLE)
        table[slots, at + EXPIRY] = table[slots, at + ROOT_EXPIRY]


def draft_reference(synopses: list[list[int]], synopsis: int, width: int) -> tuple[int, list[int]]:
    """Return the rows and words of a group's planned extent."""
    return len(synopses[synopsis]) // width, synopses[synopsis]


def packed_reference(groups: list[list[list[int]]], width: int) -> list[list[int]]:
    """Return the inline words of groups that are whole in memory, given those of their synopses."""
    rows = []
    for synopses in groups:
        words = [word for synopsis in synopses for word in synopsis]
        row = [sum(len(s) << n * BITS for n, s in enumerate(synopses)), *words]
        rows.append([*row, *[0] * (width - len(row))] if len(row) <= width else [0] * width)
    return rows
