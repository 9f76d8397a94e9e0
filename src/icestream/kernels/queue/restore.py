"""Keys that leave an update queue without being served, and keys that return to it.

Idea: every waiting key has a turn, a number that ascends from the head of the list to its tail. So
waiting keys can be evicted with their turn, and return between the same neighbours, from a file or
from the log. Both are done for many keys at once.

Invariants:
1. Keys that are taken leave the order like served ones (`test_parity_taken_cells`).
2. Keys that return are in the list in the order of their turns
   (`test_parity_keys_return_by_their_turns`).
3. Ready keys come before the first turn that is missing (`test_parity_keys_that_are_ready`).

Cost: O(1) for each key; a return traverses the list up to the last turn that returns to it,
unless all of them are after its tail.
"""

from __future__ import annotations

from icestream.core.arrays import Ints
from icestream.kernels.compile import kernel
from icestream.kernels.queue.order import (
    FRONT,
    HEAD,
    NEXT,
    PREVIOUS,
    SINCE,
    TAIL,
    TURN,
    ReaderArrays,
    link_between,
    unlink,
)
from icestream.kernels.queue.queue import (
    ADDRESS,
    CellArrays,
    is_linked,
    put_value,
    release_one,
    take_one,
)
from icestream.kernels.queue.staleness import NONE
from icestream.kernels.queue.unit_chains import take_row


@kernel
def take_cells(store: CellArrays, reader: ReaderArrays, slots: Ints, now: int) -> None:
    """Remove chosen keys and values from a reader's order until restored; skip others."""
    for k in range(slots.size):
        cell = slots[k]
        if reader.keys[cell, SINCE] != NONE:
            take_one(store, reader, cell, now)
            release_one(store, cell)


@kernel
def leave_lists(reader: ReaderArrays, slots: Ints) -> None:
    """Remove keys from the list that wait elsewhere until restored; skip those not in it."""
    for k in range(slots.size):
        if reader.keys[slots[k], SINCE] != NONE:
            unlink(reader, slots[k])


@kernel
def put_by_turn(reader: ReaderArrays, slots: Ints) -> None:
    """Restore keys, sorted by turn, in the list of an update queue."""
    keys, facts = reader.keys, reader.facts
    at = facts[HEAD]
    for k in range(slots.size):
        cell = slots[k]
        turn = keys[cell, TURN]
        tail = facts[TAIL]
        if tail == 0 or keys[tail - 1, TURN] <= turn:
            link_between(reader, cell, tail, 0)
        else:
            while keys[at - 1, TURN] <= turn:
                at = reader.links[at - 1, NEXT]
            link_between(reader, cell, reader.links[at - 1, PREVIOUS], at)
        facts[FRONT] = min(facts[FRONT], turn)


@kernel
def count_ready(reader: ReaderArrays, turn: int, most: int) -> int:
    """Return how many keys of the list, up to `most`, come before a turn to restore."""
    count = 0
    at = reader.facts[HEAD]
    while at and count < most and reader.keys[at - 1, TURN] < turn:
        count += 1
        at = reader.links[at - 1, NEXT]
    return count


@kernel
def put_values(store: CellArrays, slots: Ints, words: Ints, offsets: Ints) -> None:
    """Restore values of keys without one; there must be room for all of them."""
    for k in range(slots.size):
        store.cells[slots[k], ADDRESS] = take_row(store.pool, store.space, is_linked(store))
        put_value(store, slots[k], words, offsets[k], offsets[k + 1])
