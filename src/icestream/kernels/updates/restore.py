"""Keys that leave an update queue otherwise than by being served, and keys that return to it.

Idea: every waiting key has a turn, a number that ascends from the head of its list to its tail. So
keys may leave memory while they wait, with list and turn, and go back between the same neighbours
when they return, from a file or from the log. Both are done to many keys at once.

Invariants:
1. Keys that are taken leave as if they had been served (`test_parity_taken_cells`).
2. Keys that return are in their lists in the order of their turns
   (`test_parity_keys_return_by_their_turns`).
3. What is ready stands before the first turn that is missing (`test_parity_keys_that_are_ready`).

Cost: O(1) for each key; returning walks a list up to the last turn that returns to it, unless all
of them are behind its tail.
"""

from __future__ import annotations

from icestream.core.arrays import Ints
from icestream.kernels.compile import kernel
from icestream.kernels.updates.order import (
    BACK,
    FRONT,
    HEAD,
    LIST,
    NEXT,
    PREVIOUS,
    TAIL,
    TURN,
    Reader,
    link,
    link_between,
    unlink,
)
from icestream.kernels.updates.queue import (
    ADDRESS,
    Store,
    is_linked,
    put_value,
    release_one,
    take_one,
)
from icestream.kernels.updates.values import take_row


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
def leave_lists(reader: Reader, slots: Ints) -> None:
    """Take keys that go on waiting elsewhere out of their lists; others are left alone."""
    for k in range(slots.size):
        if reader.keys[slots[k], LIST]:
            unlink(reader, slots[k])


leave_lists_reference = take_cells_reference


@kernel
def put_by_turn(reader: Reader, slots: Ints, numbers: Ints) -> None:
    """Put keys that are in no list into given ones by their turns, in whose order they come."""
    keys, lists, facts = reader.keys, reader.lists, reader.facts
    at = 0
    for k in range(slots.size):
        cell, number = slots[k], numbers[k]
        turn = keys[cell, TURN]
        tail = lists[number, TAIL]
        if k == 0 or number != numbers[k - 1]:
            at = lists[number, HEAD]
        if tail == 0 or keys[tail - 1, TURN] <= turn:
            link(reader, cell, number, False)
        else:
            while keys[at - 1, TURN] <= turn:
                at = keys[at - 1, NEXT]
            before = keys[at - 1, PREVIOUS]
            if before:
                link_between(reader, cell, number, before, at)
            else:
                link(reader, cell, number, True)
        keys[cell, TURN] = turn
    for k in range(slots.size):
        turn = keys[slots[k], TURN]
        facts[FRONT] = min(facts[FRONT], turn)
        facts[BACK] = max(facts[BACK], turn + 1)


def put_by_turn_reference(waiting: list[tuple[int, int]], more: list[tuple[int, int]]) -> list[int]:
    """Return the keys of a list, given as turns and keys, with more of them; equal turns last."""
    return [key for _, key in sorted([*waiting, *more], key=lambda each: each[0])]


@kernel
def count_ready(reader: Reader, turn: int, most: int) -> int:
    """Return how many keys of the first list, up to `most`, stand before a turn."""
    count = 0
    at = reader.lists[0, HEAD]
    while at and count < most and reader.keys[at - 1, TURN] < turn:
        count += 1
        at = reader.keys[at - 1, NEXT]
    return count


def count_ready_reference(turns: list[int], turn: int, most: int) -> int:
    """Return how many of ascending turns, up to `most`, are before another."""
    return min(most, sum(each < turn for each in turns))


@kernel
def put_values(store: Store, slots: Ints, words: Ints, offsets: Ints) -> None:
    """Give values to keys without one; there must be room for all of them."""
    for k in range(slots.size):
        store.cells[slots[k], ADDRESS] = take_row(store.pool, store.space, is_linked(store))
        put_value(store, slots[k], words, offsets[k], offsets[k + 1])


def put_values_reference(
    values: dict[int, list[int]], slots: list[int], rows: list[list[int]]
) -> dict[int, list[int]]:
    """Return the values of keys with more of them."""
    return {**values, **dict(zip(slots, rows, strict=True))}
