"""Windows as updates: the key transition graph, one tuple at a time.

Idea: windows of a key begin at the multiples of the slide and last for the size, in the key's own
time; window number i has the tuples from i * slide to i * slide + size - 1. A window is *full* once
a tuple came at its last instant or later, since times of a key only increase. LAZY takes the newest
full window as the newest update, EAGER the newest that started. A key with an update is in WAIT;
when the operator takes it, it commits to the key's newest window and the key is READY; when the
window has no more tuples yet, the key is IDLE until one comes; when the window is done, it is DONE.

Invariants:
1. States, order of service and tuples read are those of the definition
   (`test_parity_window_queue_beside_its_definition`).
2. A window is done only when it is full, and all of its tuples were read, its first one with the
   mark of its end (`test_oracle_windows_are_delivered_whole`).
3. The newest window takes at most size + slide - 1 tuples of a buffer, and with EAGER that is all;
   LAZY has at most size - 1 more of the committed window, which is full. Asserted with every tuple
   (`test_bounded_buffers_hold_size_plus_slide_minus_one`).

4. A result is due from the time the first window after the last delivered one became full
   (`test_oracle_staleness_of_windows_beside_its_definition`).

Cost: O(1) per tuple, amortised; a commit of LAZY counts the window's tuples.

Limits: a key's first window is the one that its first tuple starts; windows that began before it
do not belong to the key. Times are at least 1, so that marks of ends are positive.

References: sections 6.2 and 7.2 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from icestream.kernels.compile import kernel
from icestream.kernels.queue.windows.lists import (
    HELD,
    IDLE,
    await_service,
    end_service,
    next_waiting,
    stop_holding,
    under_processing,
)
from icestream.kernels.queue.windows.zones import (
    ARRIVED,
    BACK,
    BEFORE,
    CLOCK,
    COMMITS,
    COMMITTED,
    DF,
    DONES,
    EAGER,
    END,
    ENQ,
    ET,
    FIRST,
    FLYING,
    IDLES,
    KEPT,
    LACKS,
    LACKS_LATER,
    LACKS_NEXT,
    LAST,
    LATE,
    MARK,
    MOST_KEPT,
    MOST_LIVE,
    NEWEST,
    NONE,
    PROMISED,
    ROWS,
    SHOWN,
    SIZE,
    SLIDE,
    STATES,
    TIME,
    UNREAD,
    UPDATES,
    UPQ_HEAD,
    WE,
    WS,
    WindowQueueArrays,
    append_place,
    drop_back,
    drop_front,
    drop_middle,
    has_room,
    next_place,
)

#: marks of tuples: the first tuple of a window that is not opened, and any other tuple; a mark
#: above 0 opens a window that ends at that time
DISALLOW = 0
ORDINARY = -1

#: results of `enqueue_one`: no room for the tuple, too late, added, added and an update, in the
#: place of the key's last one
FULL = -1
TOO_LATE = 0
TAKEN = 1
UPDATE = 2
REPLACED = 3


@kernel
def newest_full(previous: int, time: int, size: int, slide: int) -> int:
    """Return the newest window that a tuple completes on its key's transition, NONE if none.

    `previous` is the time of the key's previous tuple, NONE for its first.
    """
    closes = (time - size + 1) // slide
    if closes * slide + size - 1 == time:
        return int(closes)
    return full_by(previous, time, size, slide)


@kernel
def full_by(last: int, time: int, size: int, slide: int) -> int:
    """Return the window full at a time if no tuple comes: a transition without a tuple."""
    number = min((time - size + 1) // slide, last // slide)
    if last == NONE or number * slide + size - 1 < last:
        return NONE
    return int(number)


@kernel
def enqueue_one(windows: WindowQueueArrays, cell: int, time: int, arrived: int) -> int:
    """Add a tuple of a key to its buffer and move the key through its transitions.

    The tuple's row goes to the words after its place, `cells[cell, ET] + TUPLE`, which is that of
    the key's last tuple if that has the same time and is still here.
    """
    facts, cells, words = windows.facts, windows.cells, windows.pool.words
    previous = cells[cell, LAST]
    if time <= cells[cell, CLOCK]:
        place = cells[cell, ET]
        stored = cells[cell, BACK] != NONE and words[place + TIME] == time
        if time == cells[cell, CLOCK] and time == previous and stored:
            return REPLACED
        facts[LATE] += 1
        return TOO_LATE
    back = cells[cell, BACK]
    if (back == NONE or words[back + ENQ] == facts[ROWS]) and not has_room(windows):
        return FULL
    slide = facts[SLIDE]
    number = time // slide
    if cells[cell, FIRST] == NONE:
        cells[cell, FIRST] = number
    starts = previous == NONE or number > previous // slide
    if facts[EAGER] and starts:
        _erase_started(windows, cell)
    place = append_place(windows, cell)
    words[place + TIME] = time
    words[place + ARRIVED] = arrived
    words[place + MARK] = DISALLOW if starts else ORDINARY
    cells[cell, LAST] = time
    cells[cell, CLOCK] = time
    if cells[cell, COMMITTED] != NONE and time <= cells[cell, END]:
        if cells[cell, UNREAD] == 0:
            cells[cell, DF] = place
        cells[cell, UNREAD] += 1
        cells[cell, WE] = place
    updates = _note_started(windows, cell, place, starts)
    full = newest_full(previous, time, facts[SIZE], facts[SLIDE])
    _note_lacking(windows, cell, full, arrived)
    if not facts[EAGER]:
        updates = _note_full(windows, cell, full)
    _check_bound(windows, cell)
    _promote(windows, cell)
    if not updates:
        return TAKEN
    facts[UPDATES] += 1
    await_service(windows, cell, arrived)
    return UPDATE


@kernel
def advance_one(windows: WindowQueueArrays, cell: int, time: int, arrived: int) -> bool:
    """Make the transition of a key without a tuple up to a time; return if it made an update.

    Windows that end until then are full. `arrived` is when this became known.
    """
    facts, cells = windows.facts, windows.cells
    last = cells[cell, LAST]
    if time <= cells[cell, CLOCK] or last == NONE:
        return False
    cells[cell, CLOCK] = time
    if cells[cell, COMMITTED] != NONE and time >= cells[cell, END]:
        _promote(windows, cell)
    number = full_by(last, time, facts[SIZE], facts[SLIDE])
    _note_lacking(windows, cell, number, arrived)
    if facts[EAGER]:
        return False
    if not _note_full(windows, cell, number):
        return False
    facts[UPDATES] += 1
    await_service(windows, cell, arrived)
    return True


@kernel
def _promote(windows: WindowQueueArrays, cell: int) -> None:
    """Move an idle key, whose window continues or ends now, back to those being processed."""
    if windows.cells[cell, STATES] & IDLE:
        windows.cells[cell, STATES] ^= IDLE
        windows.facts[IDLES] -= 1
        under_processing(windows, cell)


@kernel
def _erase_started(windows: WindowQueueArrays, cell: int) -> None:
    """Drop the window that is accumulating, except for tuples that the committed window shares."""
    cells, words = windows.cells, windows.pool.words
    starter = cells[cell, WS]
    if cells[cell, COMMITTED] == NONE or cells[cell, UNREAD] == 0:
        if cells[cell, BACK] != NONE:
            drop_back(windows, cell, starter)
    elif starter != NONE and words[starter + TIME] > cells[cell, END]:
        drop_back(windows, cell, starter)
    else:
        after = next_place(windows, cells[cell, WE])
        if after != NONE:
            drop_back(windows, cell, after)
    cells[cell, WS] = NONE


@kernel
def _note_started(windows: WindowQueueArrays, cell: int, place: int, starts: bool) -> bool:
    """Count a tuple to the newest window, or before it; return whether it started one."""
    cells = windows.cells
    committed = cells[cell, COMMITTED] != NONE
    if windows.facts[EAGER] and starts:
        number = windows.pool.words[place + TIME] // windows.facts[SLIDE]
        inside = committed and windows.pool.words[place + TIME] <= cells[cell, END]
        cells[cell, WS] = place
        cells[cell, NEWEST] = number
        cells[cell, BEFORE] = cells[cell, UNREAD] - (1 if inside else 0)
        cells[cell, KEPT] = 1
        drop_front(windows, cell)
        return True
    if cells[cell, WS] != NONE:
        cells[cell, KEPT] += 1
    elif windows.facts[EAGER]:
        cells[cell, BEFORE] += 1
    else:
        cells[cell, WS] = place
        cells[cell, KEPT] = 1
    return False


@kernel
def _note_lacking(windows: WindowQueueArrays, cell: int, number: int, arrived: int) -> None:
    """Record since when results are due: for the newest full window, if it is new."""
    cells = windows.cells
    if number == NONE or number < cells[cell, FIRST]:
        return
    if cells[cell, LACKS] == NONE and number > cells[cell, SHOWN]:
        cells[cell, LACKS] = arrived
    if cells[cell, LACKS_LATER] == NONE and number > cells[cell, PROMISED]:
        cells[cell, LACKS_LATER] = arrived
    flying = cells[cell, FLYING]
    if flying != NONE and cells[cell, LACKS_NEXT] == NONE and number > flying:
        cells[cell, LACKS_NEXT] = arrived


@kernel
def _note_full(windows: WindowQueueArrays, cell: int, number: int) -> bool:
    """Store the newest full window; return whether it is newer than the one before."""
    facts, cells = windows.facts, windows.cells
    if number < cells[cell, FIRST] or number <= cells[cell, NEWEST]:
        return False
    cells[cell, NEWEST] = number
    _start_at(windows, cell, number * facts[SLIDE])
    drop_middle(windows, cell)
    drop_front(windows, cell)
    return True


@kernel
def _start_at(windows: WindowQueueArrays, cell: int, time: int) -> None:
    """Move WS to the first tuple of a time or later."""
    cells, words = windows.cells, windows.pool.words
    unread_from = words[cells[cell, DF] + TIME] if cells[cell, UNREAD] > 0 else NONE
    place = cells[cell, WS]
    while place != NONE and words[place + TIME] < time:
        passed = words[place + TIME]
        cells[cell, KEPT] -= 1
        if unread_from != NONE and unread_from <= passed <= cells[cell, END]:
            cells[cell, BEFORE] += 1
        place = next_place(windows, place)
    cells[cell, WS] = place


@kernel
def _check_bound(windows: WindowQueueArrays, cell: int) -> None:
    """Assert the maximum number of tuples in a buffer."""
    facts, cells = windows.facts, windows.cells
    kept = cells[cell, KEPT]
    live = kept + cells[cell, BEFORE]
    facts[MOST_KEPT] = max(facts[MOST_KEPT], kept)
    facts[MOST_LIVE] = max(facts[MOST_LIVE], live)
    bound = facts[SIZE] + facts[SLIDE] - 1
    assert kept <= bound
    assert live <= bound + (0 if facts[EAGER] else facts[SIZE] - 1)


@kernel
def commit_one(windows: WindowQueueArrays, cell: int) -> None:
    """Make the transition that commits to a key's newest window; mark its first tuple."""
    facts, cells, words = windows.facts, windows.cells, windows.pool.words
    number = cells[cell, NEWEST]
    end = number * facts[SLIDE] + facts[SIZE] - 1
    cells[cell, COMMITTED] = number
    cells[cell, PROMISED] = number
    cells[cell, LACKS_LATER] = NONE
    cells[cell, END] = end
    cells[cell, DF] = cells[cell, WS]
    words[cells[cell, WS] + MARK] = end
    facts[COMMITS] += 1
    unread = 0
    place = cells[cell, DF]
    while place != NONE and words[place + TIME] <= end:
        unread += 1
        cells[cell, WE] = place
        place = next_place(windows, place)
    cells[cell, UNREAD] = unread
    cells[cell, BEFORE] = 0
    _start_at(windows, cell, (number + 1) * facts[SLIDE])


@kernel
def serve_one(windows: WindowQueueArrays) -> tuple[int, int]:
    """Make the transition to service: return the key and the place of its next tuple, or NONE.

    The first key being processed goes on; if there is none, the first waiting key that is not being
    processed is committed. For a key without a tuple, only its window has to be closed.
    """
    cells = windows.cells
    cell = windows.facts[UPQ_HEAD]
    if cell == NONE:
        cell = next_waiting(windows)
        if cell == NONE:
            return NONE, NONE
        commit_one(windows, cell)
        under_processing(windows, cell)
    if cells[cell, UNREAD] == 0:
        return int(cell), NONE
    return int(cell), int(cells[cell, DF])


@kernel
def read_one(windows: WindowQueueArrays, cell: int) -> None:
    """Move a key past the tuple that `serve_one` returned: the transition after it was copied."""
    cells, words = windows.cells, windows.pool.words
    place = cells[cell, DF]
    starter = cells[cell, WS]
    if starter == NONE or words[place + TIME] < words[starter + TIME]:
        cells[cell, BEFORE] -= 1
    cells[cell, UNREAD] -= 1
    if cells[cell, UNREAD] > 0:
        cells[cell, DF] = next_place(windows, place)
    drop_front(windows, cell)


@kernel
def finish_one(windows: WindowQueueArrays, cell: int) -> bool:
    """Make a key's transition after its tuple was processed; return if its window is done."""
    facts, cells = windows.facts, windows.cells
    if cells[cell, UNREAD] > 0:
        return False
    end_service(windows, cell)
    if cells[cell, CLOCK] < cells[cell, END]:
        cells[cell, STATES] |= IDLE
        facts[IDLES] += 1
        return False
    cells[cell, FLYING] = cells[cell, COMMITTED]
    cells[cell, LACKS_NEXT] = cells[cell, LACKS_LATER]
    cells[cell, COMMITTED] = NONE
    facts[DONES] += 1
    if cells[cell, STATES] & HELD:
        stop_holding(windows, cell)
    return True
