"""How stale the answers of a shard were: since the beginning, and since the version before.

Idea: the queue keeps exact integrals and profiles of the application's staleness since it began;
what they were at the end of the version before is kept beside them in the arena, so that the
difference is the time between.

Invariants:
1. Versions together have the area of all of them (`test_oracle_versions_add_up_to_the_whole`).
2. No average exceeds its largest value (`test_an_average_is_never_above_the_largest`).

Cost: a look at every key in memory, and at every one outside that waits, once in a version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.core.times import Micros
from icestream.kernels.updates.order import APPLICATION_BOOK, LACKS
from icestream.kernels.updates.queue import COUNT
from icestream.kernels.updates.staleness import (
    AREA,
    BINS,
    FROM,
    MOST,
    NONE,
    PROFILE,
    bin_edges,
)
from icestream.operators.updates.telling import Stale
from icestream.state.arena import Arena
from icestream.state.update_queue.cold_keys import ColdKeys
from icestream.state.update_queue.reader import QueueReader

Reals = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Books:
    """The staleness of the answers that one reader gives in a shard."""

    def __init__(
        self, arena: Arena, queue: QueueReader, name: str = "books", cold: ColdKeys | None = None
    ) -> None:
        """Attach to the arena's arrays, or begin; `cold` has keys that are not in memory."""
        self._queue = queue
        self._cold = cold
        self._last: dict[str, Any] = arena.header.setdefault(name, {"area": 0.0, "at": None})
        self._profile = arena.array(f"{name}.profile", np.float64, PROFILE, BINS)

    def close(self, now: Micros) -> tuple[Stale, Stale]:
        """Return the staleness since the beginning and since this was last called."""
        reader = self._queue.order.kernel
        profile = reader.application_profile.copy()
        area, most, longest, count = 0.0, 0, 0, 0
        if self._cold is not None:
            area, most = self._cold.idle_staleness(self._queue.order.bit)
            count = len(self._cold)
        here = np.flatnonzero(self._queue.cells.column(COUNT) > 0)
        count += len(here)
        if not count:
            return Stale(), Stale()
        for keys in (reader.keys[here], *self._open_rows()):
            of_some, oldest = _open_ramps(keys, now, profile)
            area += of_some
            longest = max(longest, oldest)
            most = max(most, int(keys[:, APPLICATION_BOOK + MOST].max(initial=0)))
        began = self._queue.order.began
        whole = Stale.of(area, count * float(now - began), max(longest, most), profile)
        at = self._queue.order.began if self._last["at"] is None else self._last["at"]
        since = profile - self._profile.view[:BINS]
        # an update may be told of long after it was due: then it was stale for longer than `at`
        lately = Stale.of(
            area - self._last["area"],
            max(count * float(max(0, now - at)), float(since[:, 1].sum())),
            min(max(longest, _largest(since)), whole.most),
            since,
        )
        self._last.update(area=area, at=now)
        self._profile.view[:BINS] = profile
        return whole, lately

    def _open_rows(self) -> Iterator[Ints]:
        """Yield what is known of keys outside memory with something open."""
        if self._cold is not None:
            for rows in self._cold.open_rows():
                yield self._cold.of_reader(rows, self._queue.order.bit)


def _open_ramps(keys: Ints, now: Micros, profile: Reals) -> tuple[float, int]:
    """Return the area of keys, with ramps that are open, and the oldest; add these to a profile."""
    pending = keys[:, LACKS]
    begin = np.maximum(keys[:, APPLICATION_BOOK + FROM], pending)
    is_open = (pending != NONE) & (now > begin)
    ends = (now - pending[is_open]).astype(np.float64)
    begins = (begin - pending)[is_open].astype(np.float64)
    for values, sign in ((ends, 1.0), (begins, -1.0)):
        places = np.searchsorted(bin_edges(), values, side="right")
        np.add.at(profile[:, 0], places, sign)
        np.add.at(profile[:, 1], places, sign * values)
    area = float(keys.view(np.float64)[:, APPLICATION_BOOK + AREA].sum())
    area += float(((ends - begins) * (ends + begins)).sum() / 2)
    return area, int(ends.max()) if len(ends) else 0


def _largest(profile: Reals) -> int:
    """Return the end of the last bin in which a ramp ends."""
    ended = np.flatnonzero(profile[:, 0] > 0)
    edges = bin_edges()
    return int(np.ceil(edges[min(ended[-1], len(edges) - 1)])) if len(ended) else 0
