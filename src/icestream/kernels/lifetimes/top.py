"""Fills segments of time with the best rows.

Idea: rows span ranges of numbered segments. Best first, each row enters the segments of its range
that still have room; full ones are skipped by a forest of pointers to the next one with room, so a
row costs only the segments that it enters.

Invariant: each segment holds the first k rows, by order, that span it
(`test_parity_filling_segments`).

Cost: O(rows + entries) nearly.
"""

from __future__ import annotations

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import kernel


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

    Returns -1 if there are more than `runs` has room for.

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
                if made == len(runs):
                    return -1
                runs[made, 0] = row
                runs[made, 1] = segment
                runs[made, 2] = segment + 1
                runs[made, 3] = entered
                made += 1
            segment = _next_free(ahead, segment + 1)
    return made
