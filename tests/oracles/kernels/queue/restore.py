"""The obvious versions of the kernels in `icestream.kernels.queue.restore`."""

from __future__ import annotations


def take_cells_reference(waiting: list[int], slots: list[int]) -> list[int]:
    """Return the keys still waiting after some were taken, in order."""
    return [cell for cell in waiting if cell not in set(slots)]


leave_lists_reference = take_cells_reference


def put_by_turn_reference(waiting: list[tuple[int, int]], more: list[tuple[int, int]]) -> list[int]:
    """Return the keys of a list, given as turns and keys, with more of them; equal turns last."""
    return [key for _, key in sorted([*waiting, *more], key=lambda each: each[0])]


def count_ready_reference(turns: list[int], turn: int, most: int) -> int:
    """Return how many of ascending turns, up to `most`, are before another."""
    return min(most, sum(each < turn for each in turns))


def put_values_reference(
    values: dict[int, list[int]], slots: list[int], rows: list[list[int]]
) -> dict[int, list[int]]:
    """Return the values of keys with more of them."""
    return {**values, **dict(zip(slots, rows, strict=True))}
