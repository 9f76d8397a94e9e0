"""Answers of object functions over windows that slide over states.

Idea: states of a group follow each other, and a window has a run of them. Functions that count
values let them enter and leave (`kernels.sliding_counts`). For all others, states are combined in
pairs, pairs of pairs and so on, and a window is combined from the few of these that it has, in
order. All groups and windows are computed together, a level at a time.

Invariant: answers are those of combining each window anew
(`test_oracle_sliding_equals_combining_each_window`).

Cost: for n states, O(log n) for a value that enters, or O(1) combinations for each state and
O(log n) for each window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Floats, Ints, Table
from icestream.kernels.sliding_counts import DISTINCT, LISTED, slide_counts
from icestream.operators.object_aggregates.ragged import bounds_of, rank

#: combines runs of states, given their bounds
Combine = Callable[[pa.Array, Ints], pa.Array]


@dataclass(frozen=True, slots=True)
class Slides:
    """Windows over the states of groups; those of a group follow each other and never move back."""

    #: the group of each state, ascending
    groups: Ints
    #: the states of window i are those from `first[i]` up to `last[i]`, of one group
    first: Ints
    last: Ints

    def combined(self, states: pa.Array, combine: Combine) -> pa.Array:
        """Return the state of each window, none of which is empty."""
        begins = np.searchsorted(self.groups, self.groups)
        #: place of each state of the level in its group, and the first one of each window's group
        place = np.arange(len(begins)) - begins
        at = begins[self.first]
        low, high = self.first - at, self.last - at
        levels, offset = [states], 0
        left: list[tuple[Ints, Ints]] = []
        right: list[tuple[Ints, Ints]] = []
        while True:
            odd = np.flatnonzero((low < high) & (low % 2 == 1))
            left.append((odd, offset + at[odd] + low[odd]))
            low[odd] += 1
            odd = np.flatnonzero((low < high) & (high % 2 == 1))
            high[odd] -= 1
            right.append((odd, offset + at[odd] + high[odd]))
            if not (low < high).any():
                break
            is_second = place % 2 == 1
            pairs = np.flatnonzero(is_second)
            both = np.stack([pairs - 1, pairs], axis=1).ravel()
            bounds = np.arange(0, len(both) + 1, 2)
            levels.append(combine(levels[-1].take(pa.array(both)), bounds))
            offset += len(place)
            at = np.append(0, np.cumsum(is_second))[at]
            place, low, high = place[pairs] // 2, low // 2, high // 2
        parts = [*left, *reversed(right)]
        windows = np.concatenate([window for window, _ in parts])
        order = np.argsort(windows, kind="stable")
        chosen = np.concatenate([found for _, found in parts])[order]
        taken = pa.concat_arrays(levels).take(pa.array(chosen))
        return combine(taken, bounds_of(windows[order], len(self.first)))

    def counted(
        self,
        values: pa.Array,
        counts: Ints | None,
        starts: Ints,
        kind: int,
        fractions: Floats,
    ) -> tuple[Table, pa.Array]:
        """Return what a kind of answer is for each window, and the values that codes stand for.

        State s has the values from `starts[s]` up to `starts[s + 1]`.
        """
        owners = np.repeat(self.groups, np.diff(starts))
        ranks, distinct = rank(values)
        many = max(1, len(distinct))
        found, codes = np.unique(owners * many + ranks, return_inverse=True)
        group, chosen = np.divmod(found, many)
        mine = self.groups[self.first]
        lows, highs = (np.searchsorted(group, mine, side=side) for side in ("left", "right"))
        sizes = highs - lows
        if counts is None:
            counts = np.ones(len(codes), dtype=np.int64)
        out = np.empty((len(mine), 1 + 2 * len(fractions)), dtype=np.int64)
        tree = np.empty(4 * max(1, int(sizes.max(initial=0))), dtype=np.int64)
        listed = np.empty(0, dtype=np.int64)
        arguments = (codes.astype(np.int64), counts, starts, self.first, self.last, lows, sizes)
        if kind == LISTED:
            slide_counts(*arguments, DISTINCT, fractions, tree, out, listed)
            listed = np.empty(int(out[:, 0].sum()), dtype=np.int64)
            slide_counts(*arguments, LISTED, fractions, tree, out, listed)
            return out, distinct.take(pa.array(chosen[listed]))
        slide_counts(*arguments, kind, fractions, tree, out, listed)
        return out, distinct.take(pa.array(chosen))
