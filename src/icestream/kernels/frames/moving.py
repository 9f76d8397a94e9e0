"""Windows that move with events: tuples enter and leave the running rows of their groups in order.

Idea: a *tuple* is an entry of one event with its time behind it; of what sums of doubles add up it
has the doubles themselves (`kernels.double_sums.add_raw`). `advance` merges the tuples that
enter with those that leave, by a key that both carry (their time, or their position in the stream):
a tuple leaves once its key is `reach` behind the one that enters. Fields without an inverse use the
*front* that a flip computed for the time after the tuple left, as in `kernels.grid.groups`; while
the whole window is among the tuples passed, `advance` flips by itself. `roll` does the same for
groups that count their own events, each over a *ring* of its last events.

A group's row has words of its own for each frame: the fields, a front for those without an inverse,
then as many of these as the frame needs: how many of its events entered (COUNT), the flip that last
reset it or the number of its ring (MARK), and the time at which its next row is due (DUE). `places`
are the positions of the fields in a tuple, `at` those in a row: frames that share a row differ in
`at`, and maybe in fields.

Invariants:
1. After every event, front merged with back equals folding the window again
   (`test_parity_advance_beside_recomputation`, `test_parity_roll_beside_recomputation`).
2. A flip costs one step per tuple of the window, however many groups there are.

Cost: O(fields) for a tuple that enters and for one that leaves, amortised over flips.

References: two-stacks aggregation for operations without an inverse.
"""

from __future__ import annotations

from icestream.core.arrays import Ints, Mask, Slots, Table
from icestream.kernels.compile import kernel, lean_kernel
from icestream.kernels.double_sums import RAW, add_raw, raw_words
from icestream.kernels.field_words import has_inverse, merge_field, op_words, unmerge_field
from icestream.kernels.prefetch import prefetch

#: words of a group's row behind its suffixes
COUNT = 0
MARK = 1
DUE = 2
EXTRAS = 3

#: why `advance` returned: all entered, more leaving tuples are needed, or `out` is full
DONE = 0
SHORT = 1
FULL = 2

#: words of the progress of `advance`: tuples entered, tuples that left, rows of `out` filled,
#: tuples that have a front, flips, tuples shown after all of their time
ENTERED = 0
LEFT = 1
FILLED = 2
FLIPPED = 3
FLIPS = 4
SHOWN = 5
PROGRESS = 6

#: what `advance` shows in place of every n-th event of a group: nothing, or every event after all
#: others of its time
SILENT = 0
WITH_PEERS = -1

#: tuples after the current one whose rows are fetched before they are needed
AHEAD = 16

#: never due
NEVER = 2**63 - 1


@kernel
def _tuple_words(op: int) -> int:
    """Return how many words of a tuple the operation of a moving frame takes."""
    return raw_words(op) if op >= RAW else op_words(op)


@lean_kernel
def enter(rows: Table, slot: int, tuples: Table, k: int, ops: Ints, places: Ints, at: Ints) -> None:
    """Let a tuple enter a moving frame: merge it into the running fields of its group."""
    for f in range(ops.size):
        if ops[f] >= RAW:
            add_raw(rows, slot, at[f], tuples, k, places[f], ops[f], False)
        else:
            merge_field(rows, slot, at[f], tuples, k, places[f], ops[f])


@lean_kernel
def leave(
    rows: Table,
    slot: int,
    tuples: Table,
    k: int,
    suffixes: Table,
    m: int,
    suffixes_at: int,
    ops: Ints,
    places: Ints,
    at: Ints,
) -> None:
    """Let a tuple leave a moving frame: subtract it, or take the front after it."""
    for f in range(ops.size):
        if ops[f] >= RAW:
            add_raw(rows, slot, at[f], tuples, k, places[f], ops[f], True)
        elif has_inverse(ops[f]):
            unmerge_field(rows, slot, at[f], tuples, k, places[f], ops[f])
    for w in range(suffixes.shape[1]):
        rows[slot, suffixes_at + w] = suffixes[m, w]


@lean_kernel
def forget_backs(rows: Table, slot: int, ops: Ints, at: Ints, identity: Ints) -> None:
    """Empty the running fields of moving frames that have no inverse."""
    for f in range(ops.size):
        if not has_inverse(ops[f]):
            for w in range(at[f], at[f] + op_words(ops[f])):
                rows[slot, w] = identity[w]


@lean_kernel
def show(
    rows: Table, slot: int, ops: Ints, at: Ints, suffixes_at: int, out: Table, target: int
) -> None:
    """Write a group's fields in a moving frame, backs merged with suffixes, to a row of `out`."""
    for w in range(out.shape[1]):
        out[target, w] = rows[slot, at[0] + w]
    suffix = suffixes_at
    for f in range(ops.size):
        if not has_inverse(ops[f]):
            merge_field(out, target, at[f] - at[0], rows, slot, suffix, ops[f])
            suffix += op_words(ops[f])


@kernel
def show_slots(
    rows: Table, slots: Slots, count: int, ops: Ints, at: Ints, suffixes_at: int, out: Table
) -> None:
    """Show what moving frames hold for the first `count` groups in `slots`, in rows of `out`."""
    for i in range(count):
        show(rows, slots[i], ops, at, suffixes_at, out, i)


@kernel
def push_suffixes(
    rows: Table,
    slots: Slots,
    tuples: Table,
    first: int,
    last: int,
    ops: Ints,
    places: Ints,
    at: Ints,
    identity: Ints,
    suffixes_at: int,
    flip: int,
    suffixes: Table,
) -> None:
    """Push tuples of a moving frame onto its suffixes, latest first; record each front.

    A group that flip number `flip` has not reached yet starts with empty front and back.
    """
    extras = suffixes_at + suffixes.shape[1]
    for k in range(last - 1, first - 1, -1):
        slot = slots[k]
        if rows[slot, extras + MARK] != flip:
            rows[slot, extras + MARK] = flip
            forget_backs(rows, slot, ops, at, identity)
            for w in range(suffixes_at, extras):
                rows[slot, w] = identity[w]
        for w in range(suffixes.shape[1]):
            suffixes[k, w] = rows[slot, suffixes_at + w]
        suffix = suffixes_at
        for f in range(ops.size):
            if not has_inverse(ops[f]):
                merge_field(rows, slot, suffix, tuples, k, places[f], ops[f])
                suffix += op_words(ops[f])


@lean_kernel
def _fetch(rows: Table, slots: Slots, k: int, first: int, end: int) -> None:
    """Fetch the words of a frame in the row of a tuple that comes soon."""
    if k < slots.size:
        prefetch(rows, slots[k], first)
        prefetch(rows, slots[k], end - 1)


@kernel
def advance(
    rows: Table,
    entering: Table,
    slots: Slots,
    keys: Ints,
    last: int,
    leaving: Table,
    leaving_slots: Slots,
    leaving_keys: Ints,
    suffixes: Table,
    same: bool,
    reach: int,
    bound: int,
    every: int,
    ops: Ints,
    places: Ints,
    at: Ints,
    identity: Ints,
    suffixes_at: int,
    out: Table,
    out_slots: Slots,
    out_times: Ints,
    progress: Ints,
) -> int:
    """Move a frame: tuples up to `last` enter, others leave before them; return why it stopped.

    A window is shown after every `every`-th event of its group; see SILENT and WITH_PEERS for other
    values. After the last tuple, those with a key of at most `bound` leave. With `same`, the tuples
    that leave are those that entered here, and suffixes are made as they are needed; else it stops
    when all that were passed have left. `progress` is where to begin and, afterwards, how far it
    came.
    """
    width = suffixes.shape[1]
    extras = suffixes_at + width
    time = entering.shape[1] - 1
    e, m, count = progress[ENTERED], progress[LEFT], progress[FILLED]
    shown = progress[SHOWN] if every == WITH_PEERS else e
    reason = -1
    while reason < 0:
        if every == WITH_PEERS and shown < e and (e == last or keys[e] != keys[shown]):
            while shown < e and count < out.shape[0]:
                show(rows, slots[shown], ops, at, suffixes_at, out, count)
                out_slots[count] = slots[shown]
                out_times[count] = entering[shown, time]
                count += 1
                shown += 1
            if shown < e:
                reason = FULL
                continue
        limit = keys[e] - reach if e < last else bound
        size = e if same else leaving_slots.size
        while m < size and leaving_keys[m] <= limit:
            _fetch(rows, leaving_slots, m + AHEAD, at[0], extras)
            if same and width > 0 and m >= progress[FLIPPED]:
                progress[FLIPS] += 1
                progress[FLIPPED] = e
                push_suffixes(
                    rows,
                    slots,
                    entering,
                    m,
                    e,
                    ops,
                    places,
                    at,
                    identity,
                    suffixes_at,
                    progress[FLIPS],
                    suffixes,
                )
            slot = leaving_slots[m]
            leave(rows, slot, leaving, m, suffixes, m, suffixes_at, ops, places, at)
            if rows[slot, at[0]] == 0:
                for w in range(at[0], extras):
                    rows[slot, w] = identity[w]
            m += 1
        if not same and m == size:
            reason = SHORT
        elif e == last:
            reason = DONE
        elif every > 0 and count == out.shape[0]:
            reason = FULL
        else:
            _fetch(rows, slots, e + AHEAD, at[0], extras)
            slot = slots[e]
            enter(rows, slot, entering, e, ops, places, at)
            if every > 1:
                rows[slot, extras + COUNT] += 1
            if every == 1 or (every > 1 and rows[slot, extras + COUNT] % every == 0):
                show(rows, slot, ops, at, suffixes_at, out, count)
                out_slots[count] = slot
                out_times[count] = entering[e, time]
                count += 1
            e += 1
            if every != WITH_PEERS:
                shown = e
    progress[ENTERED], progress[LEFT], progress[FILLED], progress[SHOWN] = e, m, count, shown
    return reason


@kernel
def roll(
    rows: Table,
    entering: Table,
    order: Ints,
    starts: Ints,
    slots: Slots,
    rings: Table,
    ring_at: Ints,
    in_ring: Ints,
    length: int,
    every: int,
    slide: int,
    ops: Ints,
    places: Ints,
    at: Ints,
    identity: Ints,
    suffixes_at: int,
    out: Table,
    out_times: Ints,
    shown: Mask,
) -> None:
    """Let tuples enter the rings of a frame's groups, each pushing out the one `length` before it.

    The tuples of run i, of the group in row `slots[i]`, are `order[starts[i]:starts[i + 1]]`; slot
    s of its ring is row `ring_at[i] + s` of `rings`. A tuple shows at most one window, in its own
    row of `out`: with a `slide` of time the one that was due before it, else the one after it if it
    is the `every`-th of its group. Fields lie `in_ring` in a ring's rows, a front behind them.
    """
    suffixes = rings[:, in_ring[-1] + _tuple_words(ops[-1]) :]
    width = suffixes.shape[1]
    extras = suffixes_at + width
    time = entering.shape[1] - 1
    for i in range(slots.size):
        slot = slots[i]
        for k in range(starts[i], starts[i + 1]):
            e = order[k]
            if slide > 0:
                if rows[slot, extras + DUE] <= entering[e, time]:
                    show(rows, slot, ops, at, suffixes_at, out, e)
                    out_times[e] = rows[slot, extras + DUE]
                    shown[e] = True
                rows[slot, extras + DUE] = (entering[e, time] // slide + 1) * slide
            count = rows[slot, extras + COUNT]
            here = ring_at[i] + count % length
            if count >= length:
                leave(rows, slot, rings, here, suffixes, here, suffixes_at, ops, in_ring, at)
            for f in range(ops.size):
                for w in range(_tuple_words(ops[f])):
                    rings[here, in_ring[f] + w] = entering[e, places[f] + w]
            enter(rows, slot, entering, e, ops, places, at)
            count += 1
            rows[slot, extras + COUNT] = count
            if width > 0 and count % length == 0:
                first = ring_at[i]
                forget_backs(rows, slot, ops, at, identity)
                for w in range(suffixes_at, extras):
                    rows[slot, w] = identity[w]
                _flip_ring(rows, slot, rings, suffixes, first, length, ops, in_ring, suffixes_at)
            if slide == 0 and count % every == 0:
                show(rows, slot, ops, at, suffixes_at, out, e)
                out_times[e] = entering[e, time]
                shown[e] = True


@lean_kernel
def _flip_ring(
    rows: Table,
    slot: int,
    rings: Table,
    suffixes: Table,
    first: int,
    length: int,
    ops: Ints,
    in_ring: Ints,
    suffixes_at: int,
) -> None:
    """Record the front after every tuple of a full ring; the group's front is all of them."""
    for here in range(first + length - 1, first - 1, -1):
        for w in range(suffixes.shape[1]):
            suffixes[here, w] = rows[slot, suffixes_at + w]
        suffix = suffixes_at
        for f in range(ops.size):
            if not has_inverse(ops[f]):
                merge_field(rows, slot, suffix, rings, here, in_ring[f], ops[f])
                suffix += op_words(ops[f])


@kernel
def show_due(
    rows: Table,
    first: int,
    used: int,
    watermark: int,
    ops: Ints,
    at: Ints,
    suffixes_at: int,
    extras: int,
    out: Table,
    out_slots: Slots,
    out_times: Ints,
    start: int,
) -> tuple[int, int]:
    """Show groups of a moving frame whose next row is due, from `first` on, in `out[start:]`.

    Returns (first row not visited, rows of `out` filled); stops when `out` is full.
    """
    due = extras + DUE
    count = start
    for slot in range(first, used):
        if rows[slot, due] > watermark:
            continue
        if count == out.shape[0]:
            return slot, count
        show(rows, slot, ops, at, suffixes_at, out, count)
        out_slots[count] = slot
        out_times[count] = rows[slot, due]
        rows[slot, due] = NEVER
        count += 1
    return used, count


@kernel
def show_standing(
    rows: Table,
    first: int,
    used: int,
    ops: Ints,
    at: Ints,
    suffixes_at: int,
    out: Table,
    out_slots: Slots,
    start: int,
) -> tuple[int, int]:
    """Show every group with tuples in a moving frame; returns the same as `show_due`."""
    count = start
    for slot in range(first, used):
        if rows[slot, at[0]] == 0:
            continue
        if count == out.shape[0]:
            return slot, count
        show(rows, slot, ops, at, suffixes_at, out, count)
        out_slots[count] = slot
        count += 1
    return used, count
