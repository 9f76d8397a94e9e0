"""The live segments of one shard in columns, and what of them its manifest has.

Idea: segments are appended in the order of ordinals. One that ends is marked, and the columns are
made anew once an eighth has ended. A new layer has what versions added since the last one and is
live; it takes the place of the last layers as long as these are not twice as large, so that layers
grow like the digits of a counter.

Invariants:
1. Layers have at most twice as many segments as are live, and some
   (`test_bounded_layers_of_a_manifest`).

Cost: 53 bytes of memory for a segment. To look for what has expired, a pass over a column.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from icestream.core.times import MINUS_INFINITY
from icestream.state.versions.manifests import (
    RELEASED,
    SEGMENT,
    Ints,
    Layer,
    LayerContent,
    Rows,
)

Item = TypeVar("Item", bound=np.generic)

#: how a segment ends: with its expiry, with a newer snapshot; or it has ended
EXPIRES, REPLACED, ENDED = range(3)
_NEVER = 2**63 - 1
#: places of fields in a row
_BYTES, _SHARED = ((SEGMENT.names or ()).index(name) for name in ("bytes", "shared"))
#: segments that have ended, or that layers have too many of, before it is worth an effort
_SOME = 64


@dataclass
class WrittenLayer:
    """A layer of a manifest, and what it takes to merge it with others."""

    place: Layer
    since: int
    until: int
    #: segments, live and released
    size: int
    released: Rows

    @classmethod
    def of(cls, place: Layer, content: LayerContent) -> WrittenLayer:
        size = len(content.rows) + len(content.released)
        return cls(place, content.since, content.until, size, content.released)


@dataclass
class ShardSegments:
    """The segments of one shard in the order of ordinals, of which some may have ended."""

    rows: Rows = field(default_factory=lambda: np.empty(0, SEGMENT))
    expiry: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    ends: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    begins: Ints | None = None
    size: int = 0
    ended: int = 0
    bytes: int = 0
    #: live segments that other shards may list too
    shared: int = 0
    #: the first expiry of what expires
    first_expiry: int = _NEVER
    layers: list[WrittenLayer] = field(default_factory=list)
    #: ordinal and version of what was released since the last layer
    released: list[tuple[int, int]] = field(default_factory=list)
    #: the last version whose commit has the manifest
    stamped: int = 0

    def __len__(self) -> int:
        return self.size - self.ended

    def add(self, row: tuple[int, ...], expiry: int, how: int, begins: int | None) -> None:
        """Add a live segment with an ordinal above all others."""
        place = self.size
        if place == len(self.rows):
            self._move(slice(0, place), place + 1)
        self.rows[place], self.expiry[place], self.ends[place] = row, expiry, how
        if begins is not None:
            if self.begins is None:
                self.begins = np.full(len(self.rows), MINUS_INFINITY, np.int64)
            self.begins[place] = begins
        elif self.begins is not None:
            self.begins[place] = MINUS_INFINITY
        self.size = place + 1
        self.bytes += row[_BYTES]
        self.shared += row[_SHARED]
        if how == EXPIRES and expiry < self.first_expiry:
            self.first_expiry = expiry

    def append(
        self, rows: Rows, expiry: Ints, ends: npt.NDArray[np.uint8], begins: Ints | None
    ) -> None:
        """Add many live segments with ordinals above all others."""
        first, end = self.size, self.size + len(rows)
        if end > len(self.rows):
            self._move(slice(0, first), end)
        self.rows[first:end], self.expiry[first:end], self.ends[first:end] = rows, expiry, ends
        if begins is not None:
            if self.begins is None:
                self.begins = np.full(len(self.rows), MINUS_INFINITY, np.int64)
            self.begins[first:end] = begins
        self.size = end
        self.bytes += int(rows["bytes"].sum())
        self.shared += int(rows["shared"].sum())
        self._find_first_expiry()

    def live(self) -> npt.NDArray[np.intp]:
        """Return the places of live segments."""
        return np.flatnonzero(self.ends[: self.size] != ENDED)

    def expired(self, horizon: int) -> Rows:
        """End what expires at or before the horizon, and return it."""
        size = self.size
        due = (self.expiry[:size] <= horizon) & (self.ends[:size] == EXPIRES)
        found = self._end(np.flatnonzero(due))
        self._find_first_expiry()
        return found

    def outdated(self, base: int) -> Rows:
        """End what a snapshot of version `base` replaces, and return it."""
        places = np.flatnonzero(self.ends[: self.size] == REPLACED)
        return self._end(places[self.rows["version"][places] < base])

    def without(self, ordinals: Collection[int]) -> Rows:
        """End segments that are needed no more, and return those that were live."""
        known, wanted = self.rows["ordinal"][: self.size], np.array(sorted(ordinals))
        places = np.searchsorted(known, wanted)
        inside = places < self.size
        places, wanted = places[inside], wanted[inside]
        places = places[(known[places] == wanted) & (self.ends[places] != ENDED)]
        found = self._end(places)
        self.released += zip(found["ordinal"].tolist(), found["version"].tolist(), strict=True)
        return found

    def _end(self, places: npt.NDArray[np.intp]) -> Rows:
        found = self.rows[places]
        self.ends[places] = ENDED
        self.ended += len(places)
        self.bytes -= int(found["bytes"].sum())
        self.shared -= int(found["shared"].sum())
        if self.ended > max(_SOME, self.size // 8):
            self._move(self.live(), 0)
        return found

    def _find_first_expiry(self) -> None:
        expires = self.ends[: self.size] == EXPIRES
        self.first_expiry = int(np.min(self.expiry[: self.size], where=expires, initial=_NEVER))

    def _move(self, places: slice | npt.NDArray[np.intp], room: int) -> None:
        """Move the segments at some places to new columns with room for a few more."""
        kept = places.stop if isinstance(places, slice) else len(places)
        room = max(room, kept) + max(room, kept) // 8 + 8

        def moved(column: npt.NDArray[Item]) -> npt.NDArray[Item]:
            new = np.empty(room, column.dtype)
            new[:kept] = column[places]
            return new

        self.rows, self.expiry, self.ends = moved(self.rows), moved(self.expiry), moved(self.ends)
        self.begins = None if self.begins is None else moved(self.begins)
        if not isinstance(places, slice):
            self.size, self.ended = kept, 0

    # -- manifests -------------------------------------------------------------------------

    def next_layer(self, version: int, lifetimes: Sequence[str]) -> LayerContent | None:
        """Drop the layers that a new one replaces, and return it; None if nothing changed."""
        written = sum(each.size for each in self.layers)
        if written > 2 * len(self) + _SOME:
            self.layers, self.released = [], []
        since = self.layers[-1].until if self.layers else 0
        places = self._since(since)
        released = np.array(self.released, RELEASED)
        if self.layers and not len(places) and not len(released):
            return None
        while self.layers and self.layers[-1].size <= 2 * (len(places) + len(released)):
            last = self.layers.pop()
            since, released = last.since, np.concatenate([last.released, released])
            places = self._since(since)
        released = released[released["version"] <= since]
        self.released = []
        if not len(places) and not len(released):
            return None
        begins = None if self.begins is None else self.begins[places]
        rows, expiry = self.rows[places], self.expiry[places]
        return LayerContent(since, version, rows, expiry, begins, released, lifetimes)

    def _since(self, version: int) -> npt.NDArray[np.intp]:
        """Return the places of live segments that versions after one have added."""
        first = int(np.searchsorted(self.rows["version"][: self.size], version, side="right"))
        return first + np.flatnonzero(self.ends[first : self.size] != ENDED)
