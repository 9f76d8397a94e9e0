"""Fills segments of time with the best rows, and sums over the rows that span them.

Idea: rows span ranges of numbered segments. Best first, each row enters the segments of its range
that still have room; full ones are skipped by a forest of pointers to the next one with room, so a
row costs only the segments that it enters.

Invariants:
1. Each segment holds the first k rows, by order, that span it (`test_parity_filling_segments`).
2. Sums equal those over the rows that span a segment (`test_parity_covering_segments`).

Cost: O(rows + entries) nearly; O(rows x fields).
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel
from icestream.kernels.field_words import merge_field
from icestream.kernels.lifetimes.sweep import add_row, negate_field


@kernel
def _next_free(ahead: Ints, segment: int) -> int:
    """Return the first segment with room from one on, with path compression."""
    end = segment
    while ahead[end] != end:
        end = ahead[end]
    while ahead[segment] != end:
        after = ahead[segment]
        ahead[segment] = end
        segment = after
    return end


@kernel
def fill_segments(
    order: Ints, first: Ints, last: Ints, counts: Ints, k: int, ahead: Ints, room: Ints, runs: Table
) -> int:
    """Fill segments with the top rows in `order`, at most k in each; return the runs made.

    A row spans the segments from `first` up to `last`, and counts `counts` times. `ahead` counts up
    from 0 and is one longer than the number of segments, `room` is k for each segment. A run is a
    row, its first segment, the one after its last and how often the row entered each.
    """
    made = 0
    for i in range(order.size):
        row = order[i]
        segment = _next_free(ahead, first[row])
        begun = made
        while segment < last[row]:
            entered = min(counts[row], room[segment])
            room[segment] -= entered
            if room[segment] == 0:
                ahead[segment] = segment + 1
            if made > begun and runs[made - 1, 2] == segment and runs[made - 1, 3] == entered:
                runs[made - 1, 2] = segment + 1
            else:
                runs[made, 0] = row
                runs[made, 1] = segment
                runs[made, 2] = segment + 1
                runs[made, 3] = entered
                made += 1
            segment = _next_free(ahead, segment + 1)
    return made


@kernel
def cover_segments(
    first: Ints, last: Ints, rows: Table, ops: Ints, places: Ints, guards: Ints, out: Table
) -> None:
    """Add every row of a top-k to all segments it spans; `out` is zero, one longer than them."""
    for i in range(first.size):
        for f in range(ops.size):
            merge_field(out, first[i], places[f], rows, i, places[f], ops[f])
            negate_field(rows, i, places[f], ops[f])
            merge_field(out, last[i], places[f], rows, i, places[f], ops[f])
            negate_field(rows, i, places[f], ops[f])
    total = np.zeros((1, out.shape[1]), dtype=np.int64)
    for segment in range(out.shape[0]):
        add_row(total, 0, out, segment, ops, places, guards)
        for f in range(out.shape[1]):
            out[segment, f] = total[0, f]
