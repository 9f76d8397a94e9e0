"""The progress of a node: timestamps over each connection, and changes between them.

Idea: rows, timestamps and modifications travel in order over each connection. The least timestamp
of all connections is that of the node; windows that end by it are processed, then completed, and
the others are active. A modification has arrived when it has arrived over all connections; it
affects the windows that are active then. For these to be the same at every node, a timestamp that
follows the modification on one connection counts only when the modification has arrived over all of
them.

Invariants:
1. The node's timestamp is that of the slowest connection (`test_the_slowest_connection_counts`).
2. At a modification every node has the same active windows, however its connections interleave
   (`test_oracle_a_modification_finds_the_same_windows_active_at_every_node`).
3. Phases go one way: active, processing, completed (`test_phases_go_one_way`).

Limits: modifications are numbered in order; the next one is held back like a timestamp until the
    one
before has arrived over all connections.

References: Madsen, Zhou, Su (2016), section 6.2. It promises the same windows without holding back
timestamps, which does not hold if connections differ
(`test_counted_at_once_timestamps_would_part_the_nodes`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from bench.research.routes import ALWAYS
from icestream.core.times import Micros


class Phase(StrEnum):
    """The phase of a window instance at a node."""

    ACTIVE = "active"
    PROCESSING = "processing"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Modified:
    """A modification arrived over all connections; windows ending after `active` are active."""

    number: int
    active: Micros


class Punctuations:
    """The progress of the connections of a node."""

    def __init__(self, connections: Iterable[int]) -> None:
        """Start without any timestamps."""
        self._timestamps = dict.fromkeys(connections, ALWAYS)
        self._modified = dict.fromkeys(self._timestamps, 0)
        #: held back behind a modification that is missing on other connections: a timestamp or None
        self._held: dict[int, deque[Micros | None]] = {each: deque() for each in self._timestamps}
        self._number = 0
        self._completed = ALWAYS

    @property
    def timestamp(self) -> Micros:
        """Return the time that all connections have reached: windows that end by it are full."""
        return min(self._timestamps.values())

    def phase(self, end: Micros) -> Phase:
        """Return the phase of a window instance by where it ends."""
        if end > self.timestamp:
            return Phase.ACTIVE
        return Phase.COMPLETED if end <= self._completed else Phase.PROCESSING

    def completed(self, until: Micros) -> None:
        """Record that windows that end by a time have been processed."""
        self._completed = max(self._completed, min(until, self.timestamp))

    def on_timestamp(self, connection: int, instant: Micros) -> None:
        """Handle: no row before a time will come over a connection."""
        if self._ahead(connection):
            self._held[connection].append(instant)
        else:
            self._timestamps[connection] = max(self._timestamps[connection], instant)

    def on_modification(self, connection: int) -> list[Modified]:
        """Handle a modification; return those that have now arrived over all connections."""
        if self._ahead(connection):
            self._held[connection].append(None)
            return []
        self._modified[connection] += 1
        found = []
        while min(self._modified.values()) > self._number:
            found.append(Modified(self._number, self.timestamp))
            self._number += 1
            for each in self._held:
                self._release(each)
        return found

    def _ahead(self, connection: int) -> bool:
        return self._modified[connection] > self._number

    def _release(self, connection: int) -> None:
        held = self._held[connection]
        while held and not self._ahead(connection):
            instant = held.popleft()
            if instant is None:
                self._modified[connection] += 1
            else:
                self._timestamps[connection] = max(self._timestamps[connection], instant)
