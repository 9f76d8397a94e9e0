"""The order in which waiting keys are served: linked lists of keys, several if rates count.

Idea: a reader's waiting keys are in doubly linked lists through its row of each key. FIFO,
IN-PLACE and LINECUTTING have one list and differ in where an arrival puts its key. INDEX has a list
for every class of update rate and weight; inside a class the key that waits longest has the highest
index, so the best key is the best of the heads. The non-empty lists are numbered without gaps, each
with the score of its head, which is recomputed only when time or head have changed. Keys with even
gaps between updates are in lists by gap and by updates missed, the one updated last in front: their
index decreases inside a list, or increases if services are free, so both ends are compared. Keys
that missed many updates wait in the order of arrival.

Invariants:
1. A key is in at most one list, and in one if and only if it waits for the reader
   (`test_oracle_any_sequence_follows_the_schedule`).
2. Keys with even gaps are served right after their updates if not all can be served
   (`test_keys_with_even_gaps_are_served_right_after_their_updates`).
3. With equal rates and weights, INDEX serves like IN-PLACE
   (`test_index_serves_as_inplace_when_keys_are_alike`).

Cost: O(1) to enter, move and leave, O(keys of its class) to change class while waiting. INDEX
compares the heads of the non-empty classes.

References: `kernels.queue.price` says what serving a key is worth, and why.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel, lean_kernel
from icestream.kernels.queue.price import PRICE, PRICE_WORDS, even_wait, learnt_price, worth_of
from icestream.kernels.queue.staleness import FROM, NONE, Reals, RealTable

FIFO, INPLACE, LINECUTTING, INDEX = range(4)

#: words of a key for one reader: its neighbours and list (plus one), its oldest waiting update,
#: arrival of the value being delivered to the application, staleness totals of the queue; weight
#: (a float), oldest update the application lacks, its staleness totals, oldest update shed since
#: the last that was kept
NEXT = 0
PREVIOUS = 1
LIST = 2
SINCE = 3
FLYING = 4
QUEUE_STALENESS = 5
WEIGHT = 8
LACKS = 9
APPLICATION_STALENESS = 10
DROPPED = 13
#: in an update queue, which sheds nothing: its turn (position number), ascending in a list
TURN = DROPPED
#: outside memory, where a key has no neighbours: the time from which serving it gains (INDEX)
DUE = NEXT
#: how uneven the gaps between updates are (a float; 0 for a clock), and the last update
UNEVEN = 14
LATEST = 15
READER_WORDS = 16
#: kinds of staleness, and for each the word of its totals and of its oldest pending update
APPLICATION, QUEUE = range(2)
STALENESS_WORDS = ((APPLICATION_STALENESS, LACKS), (QUEUE_STALENESS, SINCE))

#: facts of a reader: schedule, its bit, waiting keys, non-empty lists, time of the scores, start
#: of measuring, the lowest turn given in front and the next one at a tail
SCHEDULE = 0
BIT = 1
WAITING = 2
LISTS = 3
SCORED = 4
BEGAN = 5
FRONT = 6
BACK = 7
READER_FACTS = 8

#: settings of a reader: cost of serving one key, in microseconds, and its price
SETTINGS = PRICE_WORDS
#: a score that has to be computed
UNKNOWN = -np.inf

#: words of a list: first and last key plus one, its place among the non-empty ones
HEAD = 0
TAIL = 1
PLACE = 2
LIST_WORDS = 3

#: classes of gaps, four to an octave; of weights, two to an octave around 1
GAPS = 192
WEIGHTS = 32
CLASSES = GAPS * WEIGHTS
#: lists of keys with even gaps, for each class of gaps: by updates missed, the last for all more
RUNGS = 8
LISTS_OF_INDEX = CLASSES + RUNGS * GAPS
#: gaps are even below this; weight of the last gap in that estimate
EVEN = 0.1
EVEN_STEP = 1 / 8
_BIAS = 1023


class ReaderArrays(NamedTuple):
    """The arrays of one reader of a queue."""

    facts: Ints
    settings: Reals
    #: row of each key, as integers and as floats
    keys: Table
    reals: RealTable
    lists: Table
    #: non-empty lists, and the scores of their heads, UNKNOWN if not computed
    active: Ints
    scores: Reals
    #: profiles of the queue's and the application's staleness
    queue_profile: RealTable
    application_profile: RealTable


@lean_kernel
def class_of(gap: float, weight: float) -> int:
    """Return the class of a key in the order of service, by its mean gap and weight."""
    rate = 0
    if gap >= 1.0:
        bits = np.int64(np.float64(gap).view(np.int64)) >> 50
        rate = min(int(bits) - (_BIAS << 2) + 1, GAPS - 1)
    bits = np.int64(np.float64(weight).view(np.int64)) >> 51
    heft = min(max(int(bits) - (_BIAS << 1) + WEIGHTS // 2, 0), WEIGHTS - 1)
    return heft * GAPS + rate


@lean_kernel
def note_gap(reader: ReaderArrays, cell: int, gap: int, mean: float) -> None:
    """Note a gap between two updates: estimate how even a key's gaps are, for its order."""
    off = min(abs(gap - mean) / max(mean, 1.0), 1.0)
    reader.reals[cell, UNEVEN] += EVEN_STEP * (off - reader.reals[cell, UNEVEN])


@lean_kernel
def is_even(reader: ReaderArrays, cell: int) -> bool:
    """Return whether the order serves a key by the phase of its updates."""
    return bool(reader.reals[cell, UNEVEN] < EVEN and reader.reals[cell, WEIGHT] == 1.0)


@lean_kernel
def even_list(gap: float, waited: int) -> int:
    """Return the list in the order of a key with even gaps that waited this long."""
    missed = int(waited / max(gap, 1.0) + 0.5)
    rung = missed
    if missed >= 4:
        # two lists for each doubling: 4-5, 6-7, 8-11; the last from 12 on
        octave = 2
        while (missed >> octave) > 1:
            octave += 1
        rung = min(2 * octave + ((missed >> (octave - 1)) & 1), RUNGS - 1)
    return CLASSES + rung * GAPS + class_of(gap, 1.0) % GAPS


@lean_kernel
def is_by_phase(number: int) -> bool:
    """Return whether a list of the order has keys in the order of their last updates."""
    return CLASSES <= number < LISTS_OF_INDEX - GAPS


@lean_kernel
def wait_of(
    reader: ReaderArrays, cell: int, number: int, gap: float, now: int, price: float
) -> float:
    """Return the effective waiting time of a key in a list of the order."""
    waited = max(now - reader.keys[cell, SINCE], 0)
    if not is_by_phase(number):
        return float(waited)
    left = max(gap - (now - reader.keys[cell, LATEST]), 0.0)
    return even_wait(float(waited), left, gap, price)


@lean_kernel
def key_worth(
    reader: ReaderArrays, cell: int, number: int, gap: float, now: int, price: float
) -> float:
    """Return the index by which the order now ranks a key of a list."""
    weight = reader.reals[cell, WEIGHT]
    return worth_of(wait_of(reader, cell, number, gap, now, price), gap, weight, price)


@lean_kernel
def better_end(
    reader: ReaderArrays,
    gaps: RealTable,
    gap_column: int,
    number: int,
    head: int,
    tail: int,
    now: int,
    price: float,
) -> tuple[int, float]:
    """Return the better key of the two ends of a list of the order, and its index."""
    most = key_worth(reader, head, number, gaps[head, gap_column], now, price)
    if is_by_phase(number) and tail != head:
        other = key_worth(reader, tail, number, gaps[tail, gap_column], now, price)
        if other > most:
            return tail, other
    return head, most


@lean_kernel
def price_at(reader: ReaderArrays, now: int) -> float:
    """Return the price that the order uses at a time: the estimate before its first service."""
    if reader.facts[SCORED] == now:
        return float(reader.settings[PRICE])
    return learnt_price(reader.settings)


@lean_kernel
def link(reader: ReaderArrays, cell: int, number: int, in_front: bool) -> None:
    """Put a key at an end of a list in the order of service; it must be in none."""
    keys, lists = reader.keys, reader.lists
    keys[cell, LIST] = number + 1
    if in_front:
        reader.facts[FRONT] -= 1
        keys[cell, TURN] = reader.facts[FRONT]
    else:
        keys[cell, TURN] = reader.facts[BACK]
        reader.facts[BACK] += 1
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
def is_first(reader: ReaderArrays, cell: int) -> bool:
    """Return whether no key is before this one in a single-list order, in memory or not."""
    keys = reader.keys
    return bool(keys[cell, PREVIOUS] == 0 and keys[cell, TURN] == reader.facts[FRONT])


@lean_kernel
def is_last(reader: ReaderArrays, cell: int) -> bool:
    """Return whether no key is after this one in a single-list order, in memory or not."""
    keys = reader.keys
    return bool(keys[cell, NEXT] == 0 and keys[cell, TURN] == reader.facts[BACK] - 1)


@lean_kernel
def link_by_wait(reader: ReaderArrays, cell: int, number: int) -> None:
    """Insert a key into the order after the keys that waited as long or longer."""
    keys, lists = reader.keys, reader.lists
    before = lists[number, TAIL]
    while before and keys[before - 1, SINCE] > keys[cell, SINCE]:
        before = keys[before - 1, PREVIOUS]
    if before == 0 or keys[before - 1, NEXT] == 0:
        link(reader, cell, number, before == 0)
        return
    after = keys[before - 1, NEXT]
    keys[cell, TURN] = keys[before - 1, TURN]
    link_between(reader, cell, number, before, after)


@lean_kernel
def link_between(reader: ReaderArrays, cell: int, number: int, before: int, after: int) -> None:
    """Insert a key into the order between two neighbours, both given plus one."""
    keys = reader.keys
    keys[cell, LIST] = number + 1
    keys[cell, NEXT] = after
    keys[cell, PREVIOUS] = before
    keys[before - 1, NEXT] = cell + 1
    keys[after - 1, PREVIOUS] = cell + 1


@lean_kernel
def unlink(reader: ReaderArrays, cell: int) -> None:
    """Remove a key from its list in the order of service."""
    keys, lists = reader.keys, reader.lists
    number = keys[cell, LIST] - 1
    after = keys[cell, NEXT]
    before = keys[cell, PREVIOUS]
    keys[cell, LIST] = 0
    if after:
        keys[after - 1, PREVIOUS] = before
    else:
        lists[number, TAIL] = before
        reader.scores[lists[number, PLACE]] = UNKNOWN
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
def first_key(reader: ReaderArrays, gaps: RealTable, gap_column: int, now: int) -> int:
    """Return the key that is first in the order of service, -1 if none waits."""
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
            number = reader.active[place]
            head, tail = reader.lists[number, HEAD] - 1, reader.lists[number, TAIL] - 1
            _, score = better_end(reader, gaps, gap_column, number, head, tail, now, price)
            scores[place] = score
        if score > most or (score == most and reader.active[place] < best):
            best = reader.active[place]
            most = score
    head, tail = reader.lists[best, HEAD] - 1, reader.lists[best, TAIL] - 1
    cell, _ = better_end(reader, gaps, gap_column, best, head, tail, now, price)
    return int(cell)


@kernel
def next_keys(reader: ReaderArrays, gaps: RealTable, gap_column: int, now: int, out: Ints) -> int:
    """Fill `out` with the keys to be served at `now`, in order; return how many."""
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
    backs = np.empty(facts[LISTS], np.int64)
    scores = np.full(facts[LISTS], UNKNOWN)
    price = price_at(reader, now)
    for place in range(facts[LISTS]):
        fronts[place] = reader.lists[reader.active[place], HEAD]
        backs[place] = reader.lists[reader.active[place], TAIL]
    chosen = np.empty(facts[LISTS], np.int64)
    while count < min(out.size, facts[WAITING]):
        best = -1
        for place in range(facts[LISTS]):
            if fronts[place] == 0:
                continue
            if scores[place] == UNKNOWN:
                number, head, tail = reader.active[place], fronts[place] - 1, backs[place] - 1
                chosen[place], scores[place] = better_end(
                    reader, gaps, gap_column, number, head, tail, now, price
                )
            if (
                best < 0
                or scores[place] > scores[best]
                or (scores[place] == scores[best] and reader.active[place] < reader.active[best])
            ):
                best = place
        if best < 0:
            break
        out[count] = chosen[best]
        count += 1
        scores[best] = UNKNOWN
        if fronts[best] == backs[best]:
            fronts[best] = 0
        elif chosen[best] == fronts[best] - 1:
            fronts[best] = reader.keys[chosen[best], NEXT]
        else:
            backs[best] = reader.keys[chosen[best], PREVIOUS]
    return count


@kernel
def worths_of(
    reader: ReaderArrays, gaps: RealTable, gap_column: int, now: int, slots: Ints, out: Reals
) -> None:
    """Fill `out` with the indices by which the order now ranks waiting keys."""
    price = price_at(reader, now)
    for k in range(slots.size):
        cell = slots[k]
        number = reader.keys[cell, LIST] - 1
        out[k] = key_worth(reader, cell, number, gaps[cell, gap_column], now, price)


@lean_kernel
def blank_key(reader: ReaderArrays, cell: int) -> None:
    """Initialise the row of a new key in a reader's order."""
    for word in range(READER_WORDS):
        reader.keys[cell, word] = 0
    reader.keys[cell, SINCE] = NONE
    reader.keys[cell, LACKS] = NONE
    reader.keys[cell, FLYING] = NONE
    reader.keys[cell, DROPPED] = NONE
    reader.reals[cell, WEIGHT] = 1.0
    reader.reals[cell, UNEVEN] = 1.0
    # a key was never stale before the reader began to measure
    reader.keys[cell, QUEUE_STALENESS + FROM] = reader.facts[BEGAN]
    reader.keys[cell, APPLICATION_STALENESS + FROM] = reader.facts[BEGAN]
