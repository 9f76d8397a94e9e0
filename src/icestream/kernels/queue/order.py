"""The order in which waiting keys are served: one doubly linked list through a reader's rows.

Idea: the schedules differ in where an arrival puts its key. Every key in the list has a *turn*, a
number that ascends from head to tail, so a key that left the list can return to its place.

Invariants:
1. A key is in the list if and only if it waits for the reader
   (`test_oracle_any_sequence_follows_the_schedule`).

Cost: O(1) to enter, move and leave.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Floats, Ints, Table
from icestream.kernels.compile import kernel, lean_kernel
from icestream.kernels.queue.staleness import FROM, NONE, RealTable

#: rows of keys as half words
Links = npt.NDArray[np.int32]

FIFO, INPLACE, LINECUTTING = range(3)

#: words of a key for one reader: its neighbours in the list, its oldest waiting update (NONE if it
#: does not wait), arrival of the value being delivered to the application, oldest update the
#: application lacks, its turn, staleness totals of the queue and of the application, and the input
#: that its newest update came from
LINKS = 0
SINCE = 1
FLYING = 2
LACKS = 3
TURN = 4
QUEUE_STALENESS = 5
APPLICATION_STALENESS = 7
INPUT = 9
READER_WORDS = 10
#: half words of a key in `links`: the cells (plus one) after it and before it in the list
NEXT = 0
PREVIOUS = 1
#: kinds of staleness, and for each the word of its totals and of its oldest pending update
APPLICATION, QUEUE = range(2)
STALENESS_WORDS = ((APPLICATION_STALENESS, LACKS), (QUEUE_STALENESS, SINCE))

#: facts of a reader: schedule, its bit, waiting keys, first and last key of the list plus one,
#: start of measuring, the lowest turn given in front, the largest staleness of each kind
SCHEDULE = 0
BIT = 1
WAITING = 2
HEAD = 3
TAIL = 4
BEGAN = 5
FRONT = 6
LARGEST = 7
READER_FACTS = 9

#: settings of a reader: microseconds that serving one key takes
COST = 0
SETTINGS = 1


class ReaderArrays(NamedTuple):
    """The arrays of one reader of a queue."""

    facts: Ints
    settings: Floats
    #: row of each key, as integers, as floats and as half words
    keys: Table
    reals: RealTable
    links: Links
    #: profiles of the queue's and the application's staleness
    queue_profile: RealTable
    application_profile: RealTable


@lean_kernel
def link(reader: ReaderArrays, cell: int, in_front: bool, turn: int) -> None:
    """Put a key at an end of the order of service, the tail for a turn; it must not be in it."""
    keys, facts = reader.keys, reader.facts
    if in_front:
        facts[FRONT] -= 1
        keys[cell, TURN] = facts[FRONT]
        link_between(reader, cell, 0, facts[HEAD])
    else:
        keys[cell, TURN] = turn
        link_between(reader, cell, facts[TAIL], 0)


@lean_kernel
def link_between(reader: ReaderArrays, cell: int, before: int, after: int) -> None:
    """Insert a key into the order between two neighbours, both given plus one, 0 for none."""
    links = reader.links
    links[cell, NEXT] = after
    links[cell, PREVIOUS] = before
    if before:
        links[before - 1, NEXT] = cell + 1
    else:
        reader.facts[HEAD] = cell + 1
    if after:
        links[after - 1, PREVIOUS] = cell + 1
    else:
        reader.facts[TAIL] = cell + 1


@lean_kernel
def unlink(reader: ReaderArrays, cell: int) -> None:
    """Remove a key from the order of service."""
    links = reader.links
    after = links[cell, NEXT]
    before = links[cell, PREVIOUS]
    if after:
        links[after - 1, PREVIOUS] = before
    else:
        reader.facts[TAIL] = before
    if before:
        links[before - 1, NEXT] = after
    else:
        reader.facts[HEAD] = after


@lean_kernel
def is_first(reader: ReaderArrays, cell: int) -> bool:
    """Return whether no key is before this one in the order, in memory or not."""
    is_head = reader.links[cell, PREVIOUS] == 0
    return bool(is_head and reader.keys[cell, TURN] == reader.facts[FRONT])


@kernel
def next_keys(reader: ReaderArrays, out: Ints) -> int:
    """Fill `out` with the keys that are first in the order of service; return how many."""
    count = 0
    at = reader.facts[HEAD]
    while at and count < out.size:
        out[count] = at - 1
        count += 1
        at = reader.links[at - 1, NEXT]
    return count


@lean_kernel
def blank_key(reader: ReaderArrays, cell: int) -> None:
    """Initialise the row of a new key in a reader's order."""
    for word in range(READER_WORDS):
        reader.keys[cell, word] = 0
    reader.keys[cell, SINCE] = NONE
    reader.keys[cell, LACKS] = NONE
    reader.keys[cell, FLYING] = NONE
    reader.keys[cell, TURN] = NONE
    # a key was never stale before the reader began to measure
    reader.keys[cell, QUEUE_STALENESS + FROM] = reader.facts[BEGAN]
    reader.keys[cell, APPLICATION_STALENESS + FROM] = reader.facts[BEGAN]
