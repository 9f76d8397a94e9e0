"""Distinct values of many groups with their counts, by merging the ascending runs that are there.

Idea: values of a group come in ascending runs: lists that were counted before, or single events.
Neighbouring runs are merged in pairs until one is left; equal values become one, with the sum of
their counts, as soon as they meet.

Invariants:
1. Values and counts are those of a dictionary of counters
   (`test_parity_tallies_of_runs`).

Cost: O(n log r) for n values in r runs, in order through memory.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints
from icestream.kernels.compile import kernel


@kernel
def tally_runs(
    keys: Ints,
    counts: Ints,
    bounds: Ints,
    out: Ints,
    out_counts: Ints,
    out_bounds: Ints,
    spare: Ints,
    spare_counts: Ints,
    ends: Ints,
) -> int:
    """Count the distinct keys of each group; return how many there are in all.

    The keys of group g are at `bounds[g] : bounds[g + 1]`, its distinct ones, ascending, go to
    `out[out_bounds[g] : out_bounds[g + 1]]`. `out` is as long as `keys`; `spare` and `ends` are as
    long as the largest group.
    """
    base = 0
    out_bounds[0] = 0
    for group in range(bounds.size - 1):
        # the runs, without repetitions inside each
        place, runs = base, 0
        for i in range(bounds[group], bounds[group + 1]):
            key = keys[i]
            fresh = i == bounds[group] or key < keys[i - 1]
            if not fresh and key == out[place - 1]:
                out_counts[place - 1] += counts[i]
                continue
            if fresh:
                runs += 1
            out[place] = key
            out_counts[place] = counts[i]
            place += 1
            ends[runs - 1] = place - base
        is_out = True
        while runs > 1:
            if is_out:
                runs = _merge_pairs(out, out_counts, base, spare, spare_counts, 0, ends, runs)
            else:
                runs = _merge_pairs(spare, spare_counts, 0, out, out_counts, base, ends, runs)
            is_out = not is_out
        size = 0 if runs == 0 else ends[0]
        if not is_out:
            out[base : base + size] = spare[:size]
            out_counts[base : base + size] = spare_counts[:size]
        base += size
        out_bounds[group + 1] = base
    return base


@kernel
def _merge_pairs(
    source: Ints,
    source_counts: Ints,
    first: int,
    target: Ints,
    target_counts: Ints,
    start: int,
    ends: Ints,
    runs: int,
) -> int:
    """Merge runs that end at `ends`, counted from `first`, in pairs; return how many are left."""
    place, left, begin = start, 0, first
    for run in range(0, runs, 2):
        i, i_end = begin, first + ends[run]
        j, j_end = i_end, first + ends[min(run + 1, runs - 1)]
        begin = j_end
        while i < i_end and j < j_end:
            a, b = source[i], source[j]
            target[place] = min(a, b)
            target_counts[place] = np.int64(0)
            if a <= b:
                target_counts[place] += source_counts[i]
                i += 1
            if b <= a:
                target_counts[place] += source_counts[j]
                j += 1
            place += 1
        while i < i_end:
            target[place] = source[i]
            target_counts[place] = source_counts[i]
            i += 1
            place += 1
        while j < j_end:
            target[place] = source[j]
            target_counts[place] = source_counts[j]
            j += 1
            place += 1
        ends[left] = place - start
        left += 1
    return left
