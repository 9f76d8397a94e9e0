"""Bringing an update queue back from a log: chosen keys leave it, others return to their places.

Idea: a log says which keys were served and in which list each waiting key was, in order. Both are
done to many keys at once.

Invariants:
1. Keys that are taken leave as if they had been served (`test_parity_taken_cells`).
2. Keys that are put back are in the given lists in the given order (`test_parity_lists_put_back`).

Cost: O(1) for each key.
"""

from __future__ import annotations

from icestream.kernels.compile import kernel
from icestream.kernels.updates.order import HEAD, LIST, LISTS, NEXT, Reader, link, unlink
from icestream.kernels.updates.queue import Store, release_one, take_one
from icestream.kernels.words import Ints


@kernel
def take_cells(store: Store, reader: Reader, slots: Ints, now: int) -> None:
    """Take chosen keys out of a reader's order, with their values; others are left alone."""
    for k in range(slots.size):
        cell = slots[k]
        if reader.keys[cell, LIST]:
            take_one(store, reader, cell, now)
            release_one(store, cell)


def take_cells_reference(waiting: list[int], slots: list[int]) -> list[int]:
    """Return the keys that wait after some were taken, in their order."""
    return [cell for cell in waiting if cell not in set(slots)]


@kernel
def put_in_lists(reader: Reader, slots: Ints, numbers: Ints) -> None:
    """Let waiting keys wait in given lists instead, in the order in which they are given."""
    for k in range(slots.size):
        unlink(reader, slots[k])
    for k in range(slots.size):
        link(reader, slots[k], numbers[k], False)


def put_in_lists_reference(slots: list[int], numbers: list[int]) -> dict[int, list[int]]:
    """Return the keys of each list that has some, in their order."""
    lists: dict[int, list[int]] = {}
    for slot, number in zip(slots, numbers, strict=True):
        lists.setdefault(number, []).append(slot)
    return lists


@kernel
def list_members(reader: Reader, out: Ints) -> int:
    """Fill `out` with the waiting keys, list by list and in order; return how many."""
    count = 0
    for place in range(reader.facts[LISTS]):
        at = reader.lists[reader.active[place], HEAD]
        while at:
            out[count] = at - 1
            count += 1
            at = reader.keys[at - 1, NEXT]
    return count


def list_members_reference(lists: dict[int, list[int]]) -> list[int]:
    """Return the members of lists one after the other."""
    return [member for members in lists.values() for member in members]
