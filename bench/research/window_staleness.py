"""Staleness of window results: exact integrals over the deliveries of a run.

Idea: a window is pending from the arrival of the tuple that makes it full until it, or a newer one
of its key, is delivered. Between two deliveries of a key its staleness is 0 or the ramp `t - open`,
where `open` is when the first window after the delivered one became full; the area under ramps is
the numerator of their average. A window that was skipped stays pending like any other.

Invariants:
1. Integrals are those of the definition, instant by instant
   (`test_oracle_staleness_beside_every_instant`).

Cost: O(tuples log tuples).

References: sections 3.3 and 6.1.2 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.state.queue.windows.spec import UpdateWindows

_NEVER = 2**62


@dataclass(frozen=True, slots=True)
class Ramps:
    """Intervals with the time since which an update was pending."""

    begins: Ints
    ends: Ints
    #: start of the pending; beyond `ends` if nothing was pending
    opens: Ints

    @property
    def area(self) -> float:
        """Return the area under the ramps."""
        high = np.maximum(self.ends - self.opens, 0).astype(np.float64)
        low = np.maximum(self.begins - self.opens, 0).astype(np.float64)
        return float((high * high - low * low).sum() / 2)

    @property
    def most(self) -> int:
        """Return the height of the highest ramp."""
        return int(np.maximum(self.ends - self.opens, 0).max(initial=0))

    def at(self, instant: int) -> int:
        """Return the staleness at an instant, before a delivery at that instant."""
        place = int(np.searchsorted(self.ends, instant))
        return max(0, instant - int(self.opens[place]))


def full_at(windows: UpdateWindows, times: Ints, arrived: Ints, after: Ints) -> Ints:
    """Return when the first window with tuples after each of the given ones became full.

    `times` of one key increase; a window that is not full yet has `2**62`.
    """
    first = int(times[0]) // windows.slide if len(times) else 0
    after = np.maximum(after, first - 1)
    starts = (after + 1) * windows.slide
    known = np.append(times, _NEVER)
    opener = known[np.searchsorted(times, starts)]
    earliest = -((windows.size - 1 - opener) // windows.slide)
    number = np.maximum(after + 1, earliest)
    closer = np.searchsorted(times, number * windows.slide + windows.size - 1)
    full: Ints = np.append(arrived, _NEVER)[closer]
    return full


def application_ramps(
    windows: UpdateWindows,
    times: Ints,
    arrived: Ints,
    delivered: Table,
    until: int,
) -> Ramps:
    """Return the staleness of one key's results from 0 to `until`.

    `delivered` has window and time of each delivery of the key, in their order.
    """
    delivered = delivered[delivered[:, 1] < until]
    numbers = np.concatenate([[-1], np.maximum.accumulate(delivered[:, 0])]).astype(np.int64)
    begins = np.concatenate([[0], delivered[:, 1]]).astype(np.int64)
    ends = np.append(begins[1:], until)
    return Ramps(begins, ends, full_at(windows, times, arrived, numbers))


def average(ramps: list[Ramps], until: int) -> float:
    """Return the staleness averaged over keys and the time from 0 to `until`."""
    return sum(each.area for each in ramps) / (len(ramps) * until)
