"""Pairs of changes and stored rows, group by group, whose lifetimes share an instant.

Idea: changes are sorted by group once (`rows_by_group`); state is read in portions of groups; a
kernel returns pairs of positions, a bounded number at a time, whatever the fan-out.

Invariants:
1. Each pair of a group with a common instant is returned once (`test_oracle_join_in_any_chunks`).
2. No list of pairs is longer than `PAIRS_AT_ONCE` (`test_bounded_output_comes_in_small_chunks`).

Cost: O(changes log changes + rows read + pairs); rows of a group that are out of order are sorted
if that saves many comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Mask
from icestream.kernels.lifetimes.pairs import is_in_order, narrow, pair_up, partnered
from icestream.operators.lifetimes.changes import LE, RE, column_of

#: maximum number of pairs returned together
PAIRS_AT_ONCE = 1 << 16
#: sorting the rows pays off from this many comparisons per stored row
_WORTH_SORTING = 32


@dataclass(frozen=True)
class Lifetimes:
    """Rows of several groups, sorted by group."""

    le: Ints
    re: Ints
    #: where the rows of each group begin, and the end of the last
    bounds: Ints


@dataclass(frozen=True)
class Pairs:
    """Positions of probing and stored rows, and the instants that they share."""

    probes: Ints
    stored: Ints
    le: Ints
    re: Ints

    def where(self, chosen: Mask) -> Pairs:
        """Return some of the pairs."""
        columns = (self.probes, self.stored, self.le, self.re)
        return Pairs(*(column[chosen] for column in columns))


def bounds_of(owners: Ints, count: int) -> Ints:
    """Return where the rows of each of `count` owners begin, and the end, to find pairs."""
    return np.searchsorted(owners, np.arange(count + 1))


def lifetimes_of(rows: pa.RecordBatch, bounds: Ints) -> Lifetimes:
    """Return the lifetimes of rows, to find pairs."""
    return Lifetimes(column_of(rows, LE), column_of(rows, RE), bounds)


def pairs_of(probes: Lifetimes, stored: Lifetimes) -> Iterator[Pairs]:
    """Find pairs of rows, of the same group, whose lifetimes share an instant."""
    le, re, order, firsts, lasts = _candidates(probes, stored)
    room = min(PAIRS_AT_ONCE, int((lasts - firsts).sum()))
    state, count = np.zeros(2, dtype=np.int64), room
    while count == room > 0:
        left, right = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
        count = pair_up(probes.le, probes.re, firsts, lasts, le, re, state, left, right)
        left, right = left[:count], right[:count]
        if count:
            yield Pairs(
                left,
                right if order is None else order[right],
                np.maximum(probes.le[left], le[right]),
                np.minimum(probes.re[left], re[right]),
            )


def having_pairs(probes: Lifetimes, stored: Lifetimes) -> Mask:
    """Return which probing rows have pairs."""
    le, re, _, firsts, lasts = _candidates(probes, stored)
    found = np.zeros(len(probes.le), dtype=np.bool_)
    partnered(probes.le, probes.re, firsts, lasts, le, re, found)
    return found


def _candidates(probes: Lifetimes, stored: Lifetimes) -> tuple[Ints, Ints, Ints | None, Ints, Ints]:
    """Return stored lifetimes, their order if it changed, and which may pair with each probe."""
    members = np.repeat(np.arange(len(probes.bounds) - 1), np.diff(probes.bounds))
    firsts, lasts = stored.bounds[members], stored.bounds[members + 1]
    le, re, order = stored.le, stored.re, None
    sorted_already = is_in_order(stored.bounds, le)
    if not sorted_already and int((lasts - firsts).sum()) > _WORTH_SORTING * len(le):
        owners = np.repeat(np.arange(len(stored.bounds) - 1), np.diff(stored.bounds))
        order = np.lexsort((le, owners))
        le, re = le[order], re[order]
    if sorted_already or order is not None:
        narrow(probes.le, probes.re, stored.bounds, le, re, firsts, lasts)
    return le, re, order, firsts, lasts
