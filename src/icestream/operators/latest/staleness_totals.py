"""How stale the answers of a shard were: since the beginning, and since the previous version.

Idea: the queue has exact integrals and profiles of the staleness of the application and of the
queue since it began. Their values at the end of the previous version are stored in the arena as
well; the difference is the staleness in between. A key counts from the beginning, at first as
fresh, until it is forgotten.

Invariants:
1. The areas of all versions add up to the total (`test_oracle_versions_add_up_to_the_whole`).
2. No average exceeds its largest value (`test_an_average_is_never_above_the_largest`,
   `test_forgotten_keys_count_in_averages_as_long_as_they_were_known`,
   `test_replayed_updates_are_as_stale_as_they_are_old`).

Cost: one visit of every key in memory, and of every waiting one outside, per version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints
from icestream.core.times import Micros
from icestream.kernels.queue.order import APPLICATION, LARGEST, QUEUE, STALENESS_WORDS
from icestream.kernels.queue.queue import COUNT
from icestream.kernels.queue.staleness import BINS, PROFILE, bin_edges
from icestream.operators.latest.report import StalenessIntegral
from icestream.state.arena import Arena
from icestream.state.queue.cold_keys import ColdKeys
from icestream.state.queue.reader import QueueReader
from icestream.state.queue.staleness import add_ramps, averages_of_bins, bins_of_areas, ramps

Reals = npt.NDArray[np.float64]


class StalenessPeriods(NamedTuple):
    """Staleness of one kind, since the beginning and since the previous version."""

    whole: StalenessIntegral
    lately: StalenessIntegral


@dataclass
class _Sums:
    """The sums over the keys of a reader, for one kind of staleness."""

    profile: Reals
    #: number of keys by the bin of their area
    spread: Ints
    area: float = 0.0
    #: largest value of settled ramps, and of open ones
    most: Micros = 0
    open_most: Micros = 0

    def add(self, keys: Ints, kind: int, now: Micros) -> None:
        """Add keys, with their open ramps."""
        areas, begins, ends = ramps(keys, kind, now)
        add_ramps(self.profile, begins, ends)
        np.add.at(self.spread, bins_of_areas(areas), 1)
        self.area += float(areas.sum())
        self.open_most = max(self.open_most, int(ends.max(initial=0.0)))


class StalenessTotals:
    """The staleness of the answers of one reader in a shard."""

    def __init__(
        self, arena: Arena, queue: QueueReader, name: str = "books", cold: ColdKeys | None = None
    ) -> None:
        """Attach to the arena's arrays, or create them; `cold` has keys that are not in memory."""
        self._queue = queue
        self._cold = cold
        self._last: dict[str, Any] = arena.header.setdefault(
            name, {"areas": [0.0] * len(STALENESS_WORDS), "at": None, "forgotten": 0.0}
        )
        #: keys that this version forgot
        self._dropped = 0
        self._profiles = arena.array(
            f"{name}.profiles", np.float64, PROFILE, len(STALENESS_WORDS) * BINS
        )

    def forget(self, keys: int) -> None:
        """Record that so many keys are known no longer than until the end of this version."""
        self._dropped += keys

    def close(self, now: Micros) -> tuple[StalenessPeriods, StalenessPeriods]:
        """Return the staleness of the application and of the queue up to now."""
        here = np.flatnonzero(self._queue.cells.column(COUNT) > 0)
        count = len(here) + (0 if self._cold is None else len(self._cold))
        if not count + self._dropped:
            nothing = StalenessPeriods(StalenessIntegral(), StalenessIntegral())
            return nothing, nothing
        reader = self._queue.order.kernel
        kinds = (APPLICATION, QUEUE)
        sums = [self._settled(kind) for kind in kinds]
        for keys in chain((reader.keys[here],), self._open_rows()):
            for kind in kinds:
                sums[kind].add(keys, kind, now)
        count += self._dropped
        application, queue = (self._closed(kind, sums[kind], count, now) for kind in kinds)
        self._last["at"] = now
        self._last["forgotten"] += self._dropped * float(now - self._queue.order.began)
        self._dropped = 0
        return application, queue

    def _settled(self, kind: int) -> _Sums:
        """Return what is known without visiting single keys."""
        reader, bit = self._queue.order.kernel, self._queue.order.bit
        profile = reader.application_profile if kind == APPLICATION else reader.queue_profile
        found = _Sums(profile.copy(), np.zeros(BINS, dtype=np.int64))
        found.most = int(reader.facts[LARGEST + kind])
        if self._cold is not None:
            found.area = self._cold.idle_area(bit, kind)
            found.spread += self._cold.idle_spread(bit, kind)
        return found

    def _closed(self, kind: int, sums: _Sums, count: int, now: Micros) -> StalenessPeriods:
        began, before = self._queue.order.began, self._last["at"]
        extent = count * float(now - began) + self._last["forgotten"]
        averages = averages_of_bins(sums.spread, now - began)
        most = max(sums.most, sums.open_most)
        whole = StalenessIntegral.of(sums.area, extent, most, sums.profile, averages)
        kept = self._profiles.view[kind * BINS : (kind + 1) * BINS]
        since = sums.profile - kept
        time = float(max(0, now - (began if before is None else before)))
        # an update may arrive long after it was due: then it was stale for longer than `at`
        lately = StalenessIntegral.of(
            sums.area - self._last["areas"][kind],
            max(count * time, float(since[:, 1].sum())),
            min(max(sums.open_most, largest_end(since)), whole.most),
            since,
        )
        self._last["areas"][kind] = sums.area
        kept[:] = sums.profile
        return StalenessPeriods(whole, lately)

    def _open_rows(self) -> Iterator[Ints]:
        """Yield the rows of keys outside memory that have an open ramp."""
        if self._cold is not None:
            for rows in self._cold.open_rows():
                yield self._cold.of_reader(rows, self._queue.order.bit)


def largest_end(profile: Reals) -> int:
    """Return the upper end of the last bin in which a ramp of staleness ends."""
    # a ramp that begins and ends in one bin leaves its length, but adds up to no ramp there
    ended = np.flatnonzero((profile[:, 0] > 0) | ((profile[:, 0] == 0) & (profile[:, 1] > 0)))
    edges = bin_edges()
    return int(np.ceil(edges[min(ended[-1], len(edges) - 1)])) if len(ended) else 0
