"""How stale the answers of a shard were: since the beginning, and since the version before.

Idea: the queue keeps exact integrals and profiles of the application's staleness since it began;
what they were at the end of the version before is kept beside them in the arena, so that the
difference is the time between.

Invariants:
1. Versions together have the area of all of them (`test_oracle_versions_add_up_to_the_whole`).
2. No average exceeds its largest value (`test_an_average_is_never_above_the_largest`).

Cost: a look at every key, once in a version.
"""

from __future__ import annotations

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
from icestream.state.update_queue.reader import QueueReader

Reals = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Books:
    """The staleness of the answers that one reader gives in a shard."""

    def __init__(self, arena: Arena, queue: QueueReader, name: str = "books") -> None:
        """Attach to the arena's arrays, or begin."""
        self._queue = queue
        self._last: dict[str, Any] = arena.header.setdefault(name, {"area": 0.0, "at": None})
        self._profile = arena.array(f"{name}.profile", np.float64, PROFILE, BINS)

    def forgotten(self, cells: Ints) -> None:
        """Keep the staleness of keys that are about to be forgotten."""
        areas = self._queue.order.kernel.reals[cells, APPLICATION_BOOK + AREA]
        self._last["gone"] = self._last.get("gone", 0.0) + float(areas.sum())

    def close(self, now: Micros) -> tuple[Stale, Stale]:
        """Return the staleness since the beginning and since this was last called."""
        cells = np.flatnonzero(self._queue.cells.column(COUNT) > 0)
        if not len(cells):
            return Stale(), Stale()
        reader = self._queue.order.kernel
        keys = reader.keys[cells]
        pending = keys[:, LACKS]
        begin = np.maximum(keys[:, APPLICATION_BOOK + FROM], pending)
        is_open = (pending != NONE) & (now > begin)
        ends = (now - pending[is_open]).astype(np.float64)
        begins = (begin - pending)[is_open].astype(np.float64)
        area = float(reader.reals[cells, APPLICATION_BOOK + AREA].sum())
        area += self._last.get("gone", 0.0)
        area += float(((ends - begins) * (ends + begins)).sum() / 2)
        profile = reader.application_profile.copy()
        for values, sign in ((ends, 1.0), (begins, -1.0)):
            places = np.searchsorted(bin_edges(), values, side="right")
            np.add.at(profile[:, 0], places, sign)
            np.add.at(profile[:, 1], places, sign * values)
        longest = int(ends.max()) if len(ends) else 0
        whole = Stale.of(
            area,
            len(cells) * float(now - self._queue.order.began),
            max(longest, int(keys[:, APPLICATION_BOOK + MOST].max())),
            profile,
        )
        at = self._queue.order.began if self._last["at"] is None else self._last["at"]
        since = profile - self._profile.view[:BINS]
        # an update may be told of long after it was due: then it was stale for longer than `at`
        lately = Stale.of(
            area - self._last["area"],
            max(len(cells) * float(max(0, now - at)), float(since[:, 1].sum())),
            min(max(longest, _largest(since)), whole.most),
            since,
        )
        self._last.update(area=area, at=now)
        self._profile.view[:BINS] = profile
        return whole, lately


def _largest(profile: Reals) -> int:
    """Return the end of the last bin in which a ramp ends."""
    ended = np.flatnonzero(profile[:, 0] > 0)
    edges = bin_edges()
    return int(np.ceil(edges[min(ended[-1], len(edges) - 1)])) if len(ended) else 0
