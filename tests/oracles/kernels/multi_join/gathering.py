"""The obvious versions of the kernels in `icestream.kernels.multi_join.gathering`."""

from __future__ import annotations


def take_rows_reference(
    rows: list[tuple[int, bool]],
    epoch: int,
    due: list[bool],
    floor: list[int],
    cleaned: list[int],
    cuts: list[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Return position and generation of the rows taken, given id_high and if it is in range."""
    taken = []
    for number, (id_high, within) in enumerate(rows):
        home = ((id_high >> 32) * len(due)) >> 32
        if within and due[home] and floor[home] < epoch:
            generation = sum(cut < epoch for part, cut in cuts if part == home)
            taken.append((number, 2 * generation + (epoch > cleaned[home])))
    return taken


def order_pairs_reference(
    rows: list[tuple[int, int, int, int]],
) -> list[tuple[int, int]]:
    """Return position and generation of (port, id_high, id_low, generation), sorted."""
    numbers = sorted(range(len(rows)), key=lambda number: rows[number][:3])
    return [(number, rows[number][3]) for number in numbers]
