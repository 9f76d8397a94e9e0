"""The ramps of staleness of answers over windows: to the application, and in the queue.

Idea: the queue records, for each key, since when an answer is due (a window after the delivered one
is complete) and since when the key waits. A ramp is closed when rows reach the application, when a
key is committed to, and at the end of every version; its area, its end and its place in a profile
are added to sums that are in the arena with the queue.

Invariants:
1. Areas are those of the definition (`test_oracle_staleness_of_windows_beside_its_definition`).

Cost: one visit of every key per version; 32 bytes for each.

Limits: ramps closed after the last snapshot are closed again, up to then, after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from icestream.core.arrays import Floats, Ints
from icestream.core.times import Micros
from icestream.kernels.queue.order import APPLICATION, QUEUE
from icestream.kernels.queue.staleness import BINS, PROFILE
from icestream.kernels.queue.windows import zones as z
from icestream.kernels.queue.windows.lists import WAIT
from icestream.operators.latest.saved_arrays import State
from icestream.operators.latest.staleness_totals import (
    KINDS,
    StalenessPeriods,
    StalenessSums,
    StalenessTotals,
)
from icestream.operators.latest.update_stream import KeptKeys
from icestream.state.queue.arrays import Arrays, grow_ahead
from icestream.state.queue.staleness import add_ramps, bins_of_areas
from icestream.state.queue.windows.queue import WindowQueue

#: numbers of each kind: area, keys times time, largest; then when all was last settled
AREA, EXTENT, MOST = range(3)
_AT = 6


class WindowStaleness:
    """The staleness of the keys of one queue of windows."""

    def __init__(self, arrays: Arrays, queue: WindowQueue) -> None:
        """Attach to the arrays `books.*`, or create them."""
        self._queue = queue
        #: up to when the ramps of each key are settled, and their areas, by kind
        self._settled = arrays.array("books.settled", np.int64, 2)
        self._areas = arrays.array("books.areas", np.float64, 2)
        self._profile = arrays.array("books.profile", np.float64, PROFILE, 2 * BINS)
        self._sums = arrays.array("books.totals", np.float64, 1, _AT + 1)
        self._totals = StalenessTotals(arrays)

    def state(self) -> State:
        """Return all sums, for `recall`."""
        keys = len(self._queue.table)
        self._make_room()
        busy = np.flatnonzero(self._profile.view.any(axis=1))
        return {
            "books.settled": self._settled.view[:keys],
            "books.areas": self._areas.view[:keys],
            "books.places": busy,
            "books.profile": self._profile.view[busy],
            "books.totals": self._sums.view,
        }

    @staticmethod
    def taken_over(states: Sequence[State], keys: KeptKeys) -> State:
        """Return the sums of several parents; of what is not known by key, the share of keys."""
        profile, totals = np.zeros((2 * BINS, PROFILE)), np.zeros_like(states[0]["books.totals"])
        kinds = np.array([0, 3])
        for state, share in zip(states, keys.shares(), strict=True):
            profile[state["books.places"]] += share * state["books.profile"]
            own = state["books.totals"]
            for sums in (kinds + AREA, kinds + EXTENT):
                totals[sums] += share * own[sums]
            for most in (kinds + MOST, np.array([_AT])):
                totals[most] = np.maximum(totals[most], own[most])
        busy = np.flatnonzero(profile.any(axis=1))
        return {
            **{name: keys.by_key(states, name) for name in ("books.settled", "books.areas")},
            "books.places": busy,
            "books.profile": profile[busy],
            "books.totals": totals,
        }

    def recall(self, state: State) -> None:
        """Restore what `state` returned; ValueError if it has other keys."""
        self._make_room()
        keys = len(self._queue.table)
        self._settled.view[:keys] = state["books.settled"]
        self._areas.view[:keys] = state["books.areas"]
        self._profile.view[:] = 0.0
        self._profile.view[state["books.places"]] = state["books.profile"]
        self._sums.view[:] = state["books.totals"]
        self._totals.close([self._closed(kind, 0.0) for kind in KINDS])

    def _make_room(self) -> None:
        keys = len(self._queue.table)
        grow_ahead([(self._settled, keys), (self._areas, keys)])

    def areas(self, kind: int) -> Floats:
        """Return the area of each key, in microseconds squared."""
        areas: Floats = self._areas.view[: len(self._queue.table), kind]
        return areas

    def begins(self, at: Micros) -> None:
        """Set the first instant that counts, unless it is set already."""
        if self._sums.view[_AT] == 0:
            self._sums.view[_AT] = at

    def delivered(self, at: Micros | None) -> None:
        """Record that all answers reached the application, at an instant if it is known."""
        cells = self._queue.table
        flying = np.flatnonzero(cells[:, z.FLYING] != z.NONE)
        if at is not None:
            due = flying[cells[flying, z.LACKS] != z.NONE]
            self._settle(APPLICATION, due, cells[due, z.LACKS], at)
        cells[flying, z.LACKS] = cells[flying, z.LACKS_NEXT]
        cells[flying, z.SHOWN] = cells[flying, z.FLYING]
        cells[flying, z.FLYING] = z.NONE
        cells[flying, z.LACKS_NEXT] = z.NONE

    def committed(self, keys: Ints, at: Micros) -> None:
        """Record that keys stopped waiting."""
        self._settle(QUEUE, keys, self._queue.table[keys, z.SINCE], at)

    def close(self, now: Micros) -> tuple[StalenessPeriods, StalenessPeriods]:
        """Return the staleness of the application and of the queue up to now."""
        cells, sums = self._queue.table, self._sums.view
        due = np.flatnonzero(cells[:, z.LACKS] != z.NONE)
        self._settle(APPLICATION, due, cells[due, z.LACKS], now)
        waiting = np.flatnonzero(cells[:, z.STATES] & WAIT)
        self._settle(QUEUE, waiting, cells[waiting, z.SINCE], now)
        lately = len(cells) * max(0.0, now - float(sums[_AT]))
        for kind in KINDS:
            sums[3 * kind + EXTENT] += lately
        sums[_AT] = max(sums[_AT], now)
        return self._totals.close([self._closed(kind, lately) for kind in KINDS])

    def _closed(self, kind: int, lately: float) -> StalenessSums:
        """Return the sums of a kind, all of whose ramps are settled."""
        area, extent, most = self._sums.view[3 * kind : 3 * kind + _AT // 2].tolist()
        return StalenessSums(
            self._profile.view[kind * BINS : (kind + 1) * BINS].copy(),
            np.bincount(bins_of_areas(self.areas(kind)), minlength=BINS),
            area,
            int(most),
            extent=max(extent, float(self._profile.view[kind * BINS : (kind + 1) * BINS, 1].sum())),
            extent_lately=lately,
            span=int(extent / max(1, len(self._queue.table))),
        )

    def _settle(self, kind: int, keys: Ints, opens: Ints, at: Micros) -> None:
        """Close the ramps of keys at an instant."""
        self._make_room()
        settled, totals = self._settled.view, self._sums.view
        begin = np.maximum(settled[keys, kind], opens)
        live = at > begin
        keys, opens, begin = keys[live], opens[live], begin[live]
        ends, begins = (at - opens).astype(np.float64), (begin - opens).astype(np.float64)
        areas = (ends - begins) * (ends + begins) / 2
        self._areas.view[keys, kind] += areas
        totals[3 * kind + AREA] += areas.sum()
        totals[3 * kind + MOST] = max(totals[3 * kind + MOST], ends.max(initial=0.0))
        add_ramps(self._profile.view[kind * BINS : (kind + 1) * BINS], begins, ends)
        settled[keys, kind] = at
