"""Counted intervals: how many equal events are alive, over maximal times of constant count.

Idea: what matters is not how lifetimes were cut but how many events of a kind are alive at each
instant. Events of one kind and group, added and retracted, are merged ("levelled") into intervals
that do not overlap; equal answers have equal intervals. A *kind* is a number for equal payloads, an
*owner* is the position of a group among those at hand.

Invariants:
1. At every instant, intervals count what the events they were made of count; no two intervals of
   one kind touch with the same count
   (`test_oracle_levelled_events_count_the_same_at_every_instant`).
2. `revised` retracts what was shown and adds the new answer; it does not touch what lies before the
   watermark or what stays the same (`test_oracle_revisions_leave_the_past_alone`).

Cost: O(n log n), all in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from icestream.core.arrays import Ints, Mask, slice_bounds
from icestream.core.times import Micros


@dataclass(frozen=True, slots=True)
class CountedIntervals:
    """Lifetimes of kinds in groups, with the number of events alive, which may be negative."""

    owner: Ints
    kind: Ints
    le: Ints
    re: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.owner)

    def where(self, chosen: Mask) -> CountedIntervals:
        return self.at(np.flatnonzero(chosen))

    def at(self, places: Ints) -> CountedIntervals:
        return CountedIntervals(*(column[places] for column in self._columns()))

    def and_(self, other: CountedIntervals) -> CountedIntervals:
        pairs = zip(self._columns(), other._columns(), strict=True)
        return CountedIntervals(*(np.concatenate(pair) for pair in pairs))

    def before(self, instant: Micros) -> CountedIntervals:
        past = self.where(self.le < instant)
        return CountedIntervals(
            past.owner, past.kind, past.le, np.minimum(past.re, instant), past.count
        )

    def since(self, instant: Micros) -> CountedIntervals:
        ahead = self.where(self.re > instant)
        le = np.maximum(ahead.le, instant)
        return CountedIntervals(ahead.owner, ahead.kind, le, ahead.re, ahead.count)

    def negative(self) -> CountedIntervals:
        return CountedIntervals(self.owner, self.kind, self.le, self.re, -self.count)

    def levelled(self, *, cut: bool = False) -> CountedIntervals:
        """Add up overlapping intervals; with `cut`, keep a cut wherever one begins or ends."""
        owner, kind, count = (
            np.concatenate([each, each]) for each in (self.owner, self.kind, self.count)
        )
        count[len(self) :] *= -1
        instant = np.concatenate([self.le, self.re])
        owner, kind, instant, steps = _added_up((owner, kind, instant), count, zeros=cut)
        level = np.cumsum(steps)
        alive = np.flatnonzero(level)
        return CountedIntervals(
            owner[alive], kind[alive], instant[alive], instant[alive + 1], level[alive]
        )

    def consolidated(self) -> CountedIntervals:
        """Add up intervals with equal lifetimes and drop those that add up to zero."""
        return CountedIntervals(*_added_up((self.owner, self.kind, self.le, self.re), self.count))

    def _columns(self) -> tuple[Ints, ...]:
        return self.owner, self.kind, self.le, self.re, self.count


def revised(
    shown: CountedIntervals, answer: CountedIntervals, watermark: Micros
) -> CountedIntervals:
    """Return an answer's counted intervals from the watermark on, and before it those shown."""
    return shown.before(watermark).and_(answer).levelled()


@dataclass(frozen=True, slots=True)
class TimeSegments:
    """The times between neighbouring instants at which intervals of a group begin or end."""

    owner: Ints
    le: Ints
    #: first instant after the segment; meaningless for the last segment of each group
    re: Ints

    @classmethod
    def of(cls, stretches: CountedIntervals) -> TimeSegments:
        """Cut the time of each group wherever an interval begins or ends."""
        owner = np.concatenate([stretches.owner, stretches.owner])
        owner, instant, _ = _added_up(
            (owner, np.concatenate([stretches.le, stretches.re])), np.ones_like(owner)
        )
        return cls(owner, instant, np.append(instant[1:], instant[:1]))

    def spans(self, stretches: CountedIntervals) -> tuple[Ints, Ints]:
        """Return the first segment of each interval, and the one after its last."""
        owners = np.concatenate([stretches.owner, stretches.owner, self.owner])
        instants = np.concatenate([stretches.le, stretches.re, self.le])
        mine = np.arange(len(owners)) >= 2 * len(stretches)
        order = np.lexsort((~mine, instants, owners))
        found = np.empty(len(owners), dtype=np.int64)
        found[order] = np.cumsum(mine[order]) - 1
        return found[: len(stretches)], found[len(stretches) : 2 * len(stretches)]

    def totals(self, stretches: CountedIntervals) -> Ints:
        """Return how many events are alive in each segment; negative counts are ignored."""
        there = stretches.where(stretches.count > 0)
        first, last = self.spans(there)
        steps = np.zeros(len(self.owner) + 1, dtype=np.int64)
        np.add.at(steps, first, there.count)
        np.subtract.at(steps, last, there.count)
        return np.cumsum(steps[:-1])


def _added_up(keys: tuple[Ints, ...], counts: Ints, *, zeros: bool = False) -> tuple[Ints, ...]:
    """Sort by some columns and add up counts where they agree; drop zero sums unless `zeros`."""
    order = np.lexsort(keys[::-1])
    columns = [key[order] for key in keys]
    first = slice_bounds(*columns)[:-1]
    totals = np.add.reduceat(counts[order], first) if len(first) else counts[:0]
    left = np.full(len(first), fill_value=True) if zeros else totals != 0
    return (*(column[first[left]] for column in columns), totals[left])
