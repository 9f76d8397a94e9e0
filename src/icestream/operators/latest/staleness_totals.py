"""How stale the answers of a shard were: since the beginning, and since the previous version.

Idea: a queue has exact integrals and profiles of the staleness of the application and of the queue
since it began. Their values at the end of the previous version are stored in the arena as well; the
difference is the staleness in between. `ReaderStaleness` measures keys that wait for a reader,
`WindowStaleness` those of windows. A key counts from the beginning, at first as fresh, until it is
forgotten; a key of windows counts from the version that has its first update.

Invariants:
1. The areas of all versions add up to the total (`test_oracle_versions_add_up_to_the_whole`,
   `test_oracle_staleness_of_windows_beside_its_definition`).
2. No average exceeds its largest value (`test_an_average_is_never_above_the_largest`,
   `test_forgotten_keys_count_in_averages_as_long_as_they_were_known`,
   `test_replayed_updates_are_as_stale_as_they_are_old`).

Cost: one visit of every key in memory, and of every waiting one outside, per version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from icestream.core.arrays import Floats, Ints
from icestream.core.times import Micros
from icestream.kernels.queue.order import APPLICATION, LARGEST, QUEUE
from icestream.kernels.queue.queue import COUNT
from icestream.kernels.queue.staleness import BINS, PROFILE, bin_edges
from icestream.operators.latest.report import StalenessIntegral
from icestream.state.arena import Arena
from icestream.state.queue.arrays import Arrays
from icestream.state.queue.cold_keys import ColdKeys
from icestream.state.queue.reader import QueueReader
from icestream.state.queue.staleness import add_ramps, averages_of_bins, bins_of_areas, ramps

#: kinds of staleness, in the order of reports
KINDS = (APPLICATION, QUEUE)


class StalenessPeriods(NamedTuple):
    """Staleness of one kind, since the beginning and since the previous version."""

    whole: StalenessIntegral
    lately: StalenessIntegral


@dataclass
class StalenessSums:
    """The sums over all keys since the beginning, for one kind of staleness."""

    profile: Floats
    #: number of keys by the bin of their area
    spread: Ints
    area: float = 0.0
    #: largest value of settled ramps, and of open ones
    most: Micros = 0
    open_most: Micros = 0
    #: keys times microseconds, since the beginning and since the previous version
    extent: float = 0.0
    extent_lately: float = 0.0
    #: microseconds since the beginning
    span: Micros = 0

    def add(self, keys: Ints, kind: int, now: Micros) -> None:
        """Add keys of a reader, with their open ramps."""
        areas, begins, ends = ramps(keys, kind, now)
        add_ramps(self.profile, begins, ends)
        np.add.at(self.spread, bins_of_areas(areas), 1)
        self.area += float(areas.sum())
        self.open_most = max(self.open_most, int(ends.max(initial=0.0)))


class StalenessTotals:
    """The sums of the previous version, of both kinds."""

    def __init__(self, arrays: Arrays, name: str = "books") -> None:
        """Attach to the arrays `name.*`, or begin with nothing."""
        self._areas = arrays.array(f"{name}.areas_before", np.float64, 1, len(KINDS))
        self._profiles = arrays.array(f"{name}.profiles", np.float64, PROFILE, len(KINDS) * BINS)

    def close(self, sums: Sequence[StalenessSums]) -> tuple[StalenessPeriods, StalenessPeriods]:
        """Return the staleness of the application and of the queue; the next version goes on."""
        application, queue = (self._closed(kind, each) for kind, each in enumerate(sums))
        return application, queue

    def _closed(self, kind: int, sums: StalenessSums) -> StalenessPeriods:
        averages = averages_of_bins(sums.spread, sums.span)
        most = max(sums.most, sums.open_most)
        whole = StalenessIntegral.of(sums.area, sums.extent, most, sums.profile, averages)
        before = self._profiles.view[kind * BINS : (kind + 1) * BINS]
        since = sums.profile - before
        # an update may arrive long after it was due: then it was stale for longer than the version
        lately = StalenessIntegral.of(
            sums.area - float(self._areas.view[kind]),
            max(sums.extent_lately, float(since[:, 1].sum())),
            min(max(sums.open_most, largest_end(since)), most),
            since,
        )
        before[:], self._areas.view[kind] = sums.profile, sums.area
        return StalenessPeriods(whole, lately)


class ReaderStaleness:
    """The staleness of the answers of one reader in a shard."""

    def __init__(
        self, arena: Arena, queue: QueueReader, name: str = "books", cold: ColdKeys | None = None
    ) -> None:
        """Attach to the arena's arrays, or create them; `cold` has keys that are not in memory."""
        self._queue = queue
        self._cold = cold
        self._totals = StalenessTotals(arena, name)
        self._last: dict[str, Any] = arena.header.setdefault(name, {"at": None, "forgotten": 0.0})
        #: keys that this version forgot
        self._dropped = 0

    def forget(self, keys: int) -> None:
        """Record that so many keys are known no longer than until the end of this version."""
        self._dropped += keys

    def close(self, now: Micros) -> tuple[StalenessPeriods, StalenessPeriods]:
        """Return the staleness of the application and of the queue up to now."""
        here = np.flatnonzero(self._queue.cells.column(COUNT) > 0)
        count = len(here) + (0 if self._cold is None else len(self._cold)) + self._dropped
        if not count:
            nothing = StalenessPeriods(StalenessIntegral(), StalenessIntegral())
            return nothing, nothing
        began, before = self._queue.order.began, self._last["at"]
        sums = [self._settled(kind) for kind in KINDS]
        for keys in chain((self._queue.order.kernel.keys[here],), self._open_rows()):
            for kind in KINDS:
                sums[kind].add(keys, kind, now)
        for each in sums:
            each.span = now - began
            each.extent = count * float(now - began) + self._last["forgotten"]
            each.extent_lately = count * float(max(0, now - (began if before is None else before)))
        self._last["at"] = now
        self._last["forgotten"] += self._dropped * float(now - began)
        self._dropped = 0
        return self._totals.close(sums)

    def _settled(self, kind: int) -> StalenessSums:
        """Return what is known without visiting single keys."""
        reader, bit = self._queue.order.kernel, self._queue.order.bit
        profile = reader.application_profile if kind == APPLICATION else reader.queue_profile
        found = StalenessSums(profile.copy(), np.zeros(BINS, dtype=np.int64))
        found.most = int(reader.facts[LARGEST + kind])
        if self._cold is not None:
            found.area = self._cold.idle_area(bit, kind)
            found.spread += self._cold.idle_spread(bit, kind)
        return found

    def _open_rows(self) -> Iterator[Ints]:
        """Yield the rows of keys outside memory that have an open ramp."""
        if self._cold is not None:
            for rows in self._cold.open_rows():
                yield self._cold.of_reader(rows, self._queue.order.bit)


def largest_end(profile: Floats) -> int:
    """Return the upper end of the last bin in which a ramp of staleness ends."""
    # a ramp that begins and ends in one bin leaves its length, but adds up to no ramp there
    ended = np.flatnonzero((profile[:, 0] > 0) | ((profile[:, 0] == 0) & (profile[:, 1] > 0)))
    edges = bin_edges()
    return int(np.ceil(edges[min(ended[-1], len(edges) - 1)])) if len(ended) else 0
