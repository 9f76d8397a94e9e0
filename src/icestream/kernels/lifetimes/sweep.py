"""Sweeping over edges: step functions of words, and their changes.

Idea: an *edge* adds words to everything from its time on. The edges of a group, in order of time,
are a step function; one pass computes two of them together, that of the *stored* edges and that of
all edges, and returns the segments in which they differ. Edges that the watermark has passed are
merged into one, which holds their sum.

Invariants:
1. The segments returned are exactly those of one function that the other does not have, and the
   edges returned have the function of all edges from the watermark on
   (`test_parity_sweeping_beside_the_obvious_loop`).
2. Sweeping over edges that a sweep returned repeats its segments
   (`test_sweeping_again_repeats_every_segment_to_the_bit`).
3. A sum over no values is exactly zero, whatever was subtracted
   (`test_a_sum_over_nothing_is_exactly_zero`).

Cost: O(edges x fields) after sorting.

Limits: operations of sums only; an edge without any words marks where a function begins.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel, lean_kernel
from icestream.kernels.double_sums import negate_digits
from icestream.kernels.field_words import merge_field, op_words

Flags = npt.NDArray[np.bool_]
_NEVER = 2**63 - 1


@kernel
def scale_rows(rows: Table, counts: Ints, ops: Ints, places: Ints) -> None:
    """Multiply fields of a row, in a sweep over edges, by a positive or negative integer."""
    power = np.empty((1, rows.shape[1]), dtype=np.int64)
    for i in range(rows.shape[0]):
        left = abs(counts[i])
        if left != 1:
            power[0] = rows[i]
            for f in range(ops.size):
                for w in range(op_words(ops[f])):
                    rows[i, places[f] + w] = 0
            while left > 0:
                for f in range(ops.size):
                    if left & 1:
                        merge_field(rows, i, places[f], power, 0, places[f], ops[f])
                    merge_field(power, 0, places[f], power, 0, places[f], ops[f])
                left >>= 1
        if counts[i] < 0:
            for f in range(ops.size):
                negate_field(rows, i, places[f], ops[f])


@lean_kernel
def negate_field(rows: Table, i: int, at: int, op: int) -> None:
    """Change the sign of a field in a sweep over edges."""
    if op == 0:
        rows[i, at] = -rows[i, at]
    elif op == 1:
        rows[i, at] = -rows[i, at]
        rows[i, at + 1] = ~rows[i, at + 1]
        if rows[i, at] == 0:
            rows[i, at + 1] += 1
    else:
        negate_digits(rows, i, at, op - 16)


@kernel
def fold_equal(
    slots: Ints,
    le: Ints,
    re: Ints,
    rows: Table,
    ops: Ints,
    places: Ints,
    index: Ints,
    heads: Ints,
) -> int:
    """Add up rows of a sweep with equal slot and lifetime, and move the sums to the front.

    `heads` is filled with the first row of each sum; `index` is zeros, its length a power of two
    above the number of rows. Sums that are zero are left out. Return the number of sums.
    """
    mask = index.size - 1
    count = 0
    for row in range(slots.size):
        mixed = (slots[row] * 0x9E3779B97F4A7C1 ^ le[row] * 0xD1B54A32D192ED0) + re[row]
        # lifetimes in a row must not fill the index in a row
        mixed = (mixed ^ (mixed >> 32)) * 0x1B873593CC9E2D51
        place = (mixed ^ (mixed >> 29)) & mask
        number = index[place] - 1
        while number >= 0 and (
            slots[heads[number]] != slots[row]
            or le[heads[number]] != le[row]
            or re[heads[number]] != re[row]
        ):
            place = (place + 1) & mask
            number = index[place] - 1
        if number < 0:
            rows[count] = rows[row]
            heads[count] = row
            count += 1
            index[place] = count
        else:
            for f in range(ops.size):
                merge_field(rows, number, places[f], rows, row, places[f], ops[f])
    left = 0
    for number in range(count):
        if not _is_zero(rows, number):
            rows[left] = rows[number]
            heads[left] = heads[number]
            left += 1
    return left


@lean_kernel
def _is_zero(rows: Table, i: int) -> bool:
    """Return whether a row adds nothing."""
    found = np.int64(0)
    for w in range(rows.shape[1]):
        found |= rows[i, w]
    return bool(found == 0)


@lean_kernel
def _are_equal(rows: Table, i: int, j: int) -> bool:
    differ = np.int64(0)
    for w in range(rows.shape[1]):
        differ |= rows[i, w] ^ rows[j, w]
    return bool(differ == 0)


@lean_kernel
def add_row(total: Table, i: int, row: Table, j: int, ops: Ints, places: Ints) -> None:
    """Add a row to the total of a sweep."""
    for f in range(ops.size):
        merge_field(total, i, places[f], row, j, places[f], ops[f])


@kernel
def _take_step(
    i: int,
    group: Ints,
    time: Ints,
    order: Ints,
    kept: Table,
    added: Table,
    ops: Ints,
    places: Ints,
    steps: Table,
    cuts: Flags,
) -> int:
    """Add up the edges of a group at one time, stored ones and all; return where they end.

    `cuts` is set to whether they cut the stored function, that of all, and whether one is a mark.
    """
    steps[:] = 0
    cuts[:] = False
    first = i
    while i < group.size and group[i] == group[first] and time[i] == time[first]:
        row = order[i]
        is_kept = row < kept.shape[0]
        words = kept if is_kept else added
        if not is_kept:
            row -= kept.shape[0]
        if _is_zero(words, row):
            cuts[0] = cuts[0] or is_kept
            cuts[1] = cuts[2] = True
        for f in range(ops.size):
            if is_kept:
                merge_field(steps, 0, places[f], words, row, places[f], ops[f])
            merge_field(steps, 1, places[f], words, row, places[f], ops[f])
        i += 1
    for which in range(2):
        cuts[which] = cuts[which] or not _is_zero(steps, which)
    return i


@kernel
def sweep_edges(
    group: Ints,
    time: Ints,
    order: Ints,
    kept: Table,
    added: Table,
    watermark: int,
    ops: Ints,
    places: Ints,
    shows_nothing: bool,
    edge_group: Ints,
    edge_time: Ints,
    edge_words: Table,
    parts: Table,
    part_words: Table,
) -> tuple[int, int]:
    """Sweep over edges sorted by (group, time), stored ones first; return edges and segments.

    `order` has the row of each edge in the stored words and, counted on, in the added ones. The
    first word counts events: a segment is returned where it is positive, or from the begin of a
    function on if `shows_nothing`. A row of `parts` is group, from, to, and 1 for segments of all
    edges or -1 for those of stored ones. There must be room for as many edges as come in plus one
    per group, and for twice as many segments.
    """
    width = added.shape[1]
    # of stored edges, then of all
    totals = np.zeros((2, width), dtype=np.int64)
    steps = np.zeros((2, width), dtype=np.int64)
    cuts = np.zeros(3, dtype=np.bool_)
    begun = np.zeros(2, dtype=np.bool_)
    starts = np.zeros(2, dtype=np.int64)
    edges = 0
    emitted = 0
    i = 0
    while i < group.size:
        g = group[i]
        first = edges
        totals[:] = 0
        begun[:] = False
        ended = False
        while not ended:
            ended = i == group.size or group[i] != g
            t = np.int64(_NEVER)
            cuts[:] = True
            if not ended:
                t = time[i]
                i = _take_step(i, group, time, order, kept, added, ops, places, steps, cuts)
            both = cuts[0] and cuts[1] and begun[0] and begun[1] and starts[0] == starts[1]
            if not (both and _are_equal(totals, 0, 1)):
                for which in range(2):
                    shown = totals[which, 0] > 0 or shows_nothing
                    if cuts[which] and begun[which] and shown:
                        parts[emitted, 0] = g
                        parts[emitted, 1] = starts[which]
                        parts[emitted, 2] = t
                        parts[emitted, 3] = 2 * which - 1
                        part_words[emitted] = totals[which]
                        emitted += 1
            if ended:
                break
            passed = t < watermark or (t == watermark and (begun[1] or cuts[2]))
            for which in range(2):
                if cuts[which]:
                    add_row(totals, which, steps, which, ops, places)
                    starts[which] = t
                    begun[which] = True
            if not cuts[1]:
                continue
            if passed:
                edges = first
                if shows_nothing:
                    edge_group[edges] = g
                    edge_time[edges] = t
                    edge_words[edges] = 0
                    edges += 1
            if not passed or not _is_zero(totals, 1):
                edge_group[edges] = g
                edge_time[edges] = t
                edge_words[edges] = totals[1] if passed else steps[1]
                edges += 1
    return edges, emitted
