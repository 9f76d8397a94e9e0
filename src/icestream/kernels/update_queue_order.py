"""The order in which waiting keys are served: linked lists of keys, several where rates count.

Idea: a reader's waiting keys are in doubly linked lists through its row of each key. FIFO,
IN-PLACE and LINECUTTING have one list and differ in where an arrival puts its key. INDEX has a list
for every class of update rate and weight; inside a class the key that waits longest is worth most,
so the best key is the best of the heads. The lists that have keys are numbered without gaps, each
with the score of its head, which is worked out again only when time or head have changed.

Invariants:
1. A key is in at most one list, and in one exactly while it waits for the reader
   (`test_oracle_any_sequence_follows_the_schedule`).
2. With equal rates and weights, INDEX serves as IN-PLACE does
   (`test_index_serves_as_inplace_when_keys_are_alike`).

Cost: O(1) to enter, move and leave, O(keys of its class) to change class while waiting. INDEX looks
at the heads of the classes that have keys.

References: `kernels.update_price` says what serving a key is worth, and why.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icestream.kernels.compile import kernel, lean_kernel
from icestream.kernels.update_price import PRICE, PRICE_WORDS, learnt_price, worth_of
from icestream.kernels.update_queue_staleness import FROM, NONE, Reals, RealTable
from icestream.kernels.words import Ints, Table

FIFO, INPLACE, LINECUTTING, INDEX = range(4)

#: words of a key for one reader: its neighbours and list (plus one), its oldest update that waits,
#: arrival of what is on its way to the application, book of the queue's staleness; weight (a
#: float), oldest update the application lacks, book of its staleness, oldest update shed since the
#: last that was kept
NEXT = 0
PREVIOUS = 1
LIST = 2
SINCE = 3
FLYING = 4
QUEUE_BOOK = 5
WEIGHT = 8
LACKS = 9
APPLICATION_BOOK = 10
DROPPED = 13
READER_WORDS = 16

#: facts of a reader: schedule, its bit, keys that wait, lists with keys, time of the scores, when
#: measuring began
SCHEDULE = 0
BIT = 1
WAITING = 2
LISTS = 3
SCORED = 4
BEGAN = 5
READER_FACTS = 8

#: settings of a reader: cost of serving one key, in microseconds, and its price
SETTINGS = PRICE_WORDS
#: a score that is to be worked out
UNKNOWN = -np.inf

#: words of a list: first and last key plus one, its place among those with keys
HEAD = 0
TAIL = 1
PLACE = 2
LIST_WORDS = 3

#: classes of gaps, four to an octave; of weights, two to an octave around 1
GAPS = 192
WEIGHTS = 32
CLASSES = GAPS * WEIGHTS
_BIAS = 1023


class Reader(NamedTuple):
    """The arrays of one reader of a queue."""

    facts: Ints
    settings: Reals
    #: row of each key, as integers and as floats
    keys: Table
    reals: RealTable
    lists: Table
    #: lists that have keys, and the scores of their heads, UNKNOWN where not worked out
    active: Ints
    scores: Reals
    #: of the queue's and the application's staleness
    queue_profile: RealTable
    application_profile: RealTable


@lean_kernel
def class_of(gap: float, weight: float) -> int:
    """Return the list of a key with such a mean gap between updates and such a weight."""
    rate = 0
    if gap >= 1.0:
        bits = np.int64(np.float64(gap).view(np.int64)) >> 50
        rate = min(int(bits) - (_BIAS << 2) + 1, GAPS - 1)
    bits = np.int64(np.float64(weight).view(np.int64)) >> 51
    heft = min(max(int(bits) - (_BIAS << 1) + WEIGHTS // 2, 0), WEIGHTS - 1)
    return heft * GAPS + rate


@lean_kernel
def price_at(reader: Reader, now: int) -> float:
    """Return the price at an instant: what was learnt before the first service at that instant."""
    if reader.facts[SCORED] == now:
        return float(reader.settings[PRICE])
    return learnt_price(reader.settings)


@lean_kernel
def link(reader: Reader, cell: int, number: int, in_front: bool) -> None:
    """Put a key that is in no list at an end of one."""
    keys, lists = reader.keys, reader.lists
    keys[cell, LIST] = number + 1
    head = lists[number, HEAD]
    tail = lists[number, TAIL]
    if head == 0:
        keys[cell, NEXT] = 0
        keys[cell, PREVIOUS] = 0
        lists[number, HEAD] = cell + 1
        lists[number, TAIL] = cell + 1
        place = reader.facts[LISTS]
        lists[number, PLACE] = place
        reader.active[place] = number
        reader.scores[place] = UNKNOWN
        reader.facts[LISTS] += 1
    elif in_front:
        keys[cell, NEXT] = head
        keys[cell, PREVIOUS] = 0
        keys[head - 1, PREVIOUS] = cell + 1
        lists[number, HEAD] = cell + 1
        reader.scores[lists[number, PLACE]] = UNKNOWN
    else:
        keys[cell, NEXT] = 0
        keys[cell, PREVIOUS] = tail
        keys[tail - 1, NEXT] = cell + 1
        lists[number, TAIL] = cell + 1


@lean_kernel
def link_by_wait(reader: Reader, cell: int, number: int) -> None:
    """Put a key that is in no list behind those of one that wait as long or longer."""
    keys, lists = reader.keys, reader.lists
    before = lists[number, TAIL]
    while before and keys[before - 1, SINCE] > keys[cell, SINCE]:
        before = keys[before - 1, PREVIOUS]
    if before == 0 or keys[before - 1, NEXT] == 0:
        link(reader, cell, number, before == 0)
        return
    after = keys[before - 1, NEXT]
    keys[cell, LIST] = number + 1
    keys[cell, NEXT] = after
    keys[cell, PREVIOUS] = before
    keys[before - 1, NEXT] = cell + 1
    keys[after - 1, PREVIOUS] = cell + 1


@lean_kernel
def unlink(reader: Reader, cell: int) -> None:
    """Take a key out of its list."""
    keys, lists = reader.keys, reader.lists
    number = keys[cell, LIST] - 1
    after = keys[cell, NEXT]
    before = keys[cell, PREVIOUS]
    keys[cell, LIST] = 0
    if after:
        keys[after - 1, PREVIOUS] = before
    else:
        lists[number, TAIL] = before
    if before:
        keys[before - 1, NEXT] = after
        return
    lists[number, HEAD] = after
    place = lists[number, PLACE]
    reader.scores[place] = UNKNOWN
    if after == 0:
        last = reader.facts[LISTS] - 1
        moved = reader.active[last]
        reader.active[place] = moved
        reader.scores[place] = reader.scores[last]
        lists[moved, PLACE] = place
        reader.facts[LISTS] = last


@lean_kernel
def first_key(reader: Reader, gaps: RealTable, gap_column: int, now: int) -> int:
    """Return the key to be served next, -1 if none waits."""
    facts = reader.facts
    if facts[WAITING] == 0:
        return -1
    if facts[SCHEDULE] != INDEX:
        return int(reader.lists[0, HEAD] - 1)
    scores = reader.scores
    price = price_at(reader, now)
    if facts[SCORED] != now:
        for place in range(facts[LISTS]):
            scores[place] = UNKNOWN
        facts[SCORED] = now
        reader.settings[PRICE] = price
    best = -1
    most = UNKNOWN
    for place in range(facts[LISTS]):
        score = scores[place]
        if score == UNKNOWN:
            cell = reader.lists[reader.active[place], HEAD] - 1
            waited = now - reader.keys[cell, SINCE]
            score = worth_of(waited, gaps[cell, gap_column], reader.reals[cell, WEIGHT], price)
            scores[place] = score
        if score > most or (score == most and reader.active[place] < best):
            best = reader.active[place]
            most = score
    return int(reader.lists[best, HEAD] - 1)


@kernel
def next_keys(reader: Reader, gaps: RealTable, gap_column: int, now: int, out: Ints) -> int:
    """Fill `out` with the keys that would be served at `now`, one after the other; say how many."""
    facts = reader.facts
    count = 0
    if facts[SCHEDULE] != INDEX:
        at = reader.lists[0, HEAD]
        while at and count < out.size:
            out[count] = at - 1
            count += 1
            at = reader.keys[at - 1, NEXT]
        return count
    fronts = np.empty(facts[LISTS], np.int64)
    scores = np.full(facts[LISTS], UNKNOWN)
    price = price_at(reader, now)
    for place in range(facts[LISTS]):
        fronts[place] = reader.lists[reader.active[place], HEAD]
    while count < min(out.size, facts[WAITING]):
        best = -1
        for place in range(facts[LISTS]):
            if fronts[place] == 0:
                continue
            if scores[place] == UNKNOWN:
                cell = fronts[place] - 1
                waited = now - reader.keys[cell, SINCE]
                weight = reader.reals[cell, WEIGHT]
                scores[place] = worth_of(waited, gaps[cell, gap_column], weight, price)
            if (
                best < 0
                or scores[place] > scores[best]
                or (scores[place] == scores[best] and reader.active[place] < reader.active[best])
            ):
                best = place
        out[count] = fronts[best] - 1
        count += 1
        fronts[best] = reader.keys[fronts[best] - 1, NEXT]
        scores[best] = UNKNOWN
    return count


@lean_kernel
def blank_key(reader: Reader, cell: int) -> None:
    """Make the row of a new key."""
    for word in range(READER_WORDS):
        reader.keys[cell, word] = 0
    reader.keys[cell, SINCE] = NONE
    reader.keys[cell, LACKS] = NONE
    reader.keys[cell, FLYING] = NONE
    reader.keys[cell, DROPPED] = NONE
    reader.reals[cell, WEIGHT] = 1.0
    # a key was never stale before the reader began to measure
    reader.keys[cell, QUEUE_BOOK + FROM] = reader.facts[BEGAN]
    reader.keys[cell, APPLICATION_BOOK + FROM] = reader.facts[BEGAN]
