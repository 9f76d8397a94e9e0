"""What was written to a segment that is not finished, so that it can be read before it is.

Idea: a group that leaves memory in the middle of a batch may be asked for in the same batch, but
its segment is readable only once it is sealed. Its record is therefore kept in a plain file of the
arena too, until the segment of the next version begins. The file is never synced, and truncated
before the kernel would write it back in most cases.

Invariants:
1. A record that was kept is read back until another segment of its class begins
   (`test_a_tail_reads_what_it_kept`).

Cost: one more copy of what leaves memory inside a batch; nothing for what a version's end writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from icestream.state.arena import Arena
from icestream.state.log.format import ordinal_of


class Tail:
    """Records of open segments, by marker."""

    def __init__(self, arena: Arena, name: str) -> None:
        """Start empty."""
        self._arena = arena
        self._name = f"{name}.tail"
        #: where records are in the file, by ordinal and marker
        self._places: dict[int, dict[int, tuple[int, int]]] = {}
        self._size = 0

    def keep(self, marker: int, payload: memoryview) -> None:
        """Keep a record that was just appended."""
        ordinal = ordinal_of(marker)
        with self._file(os.O_WRONLY | os.O_CREAT | (0 if self._size else os.O_TRUNC)) as handle:
            os.pwrite(handle, payload, self._size)
        self._places.setdefault(ordinal, {})[marker] = (self._size, len(payload))
        self._size += len(payload)

    def begin(self, ordinals: set[int]) -> None:
        """Forget records of segments that are not being written."""
        if not set(self._places) <= ordinals:
            self._places = {n: kept for n, kept in self._places.items() if n in ordinals}
        if not self._places and self._size:
            self._size = 0
            with suppress(FileNotFoundError):
                os.unlink(self._arena.path(self._name))

    def holds(self, marker: int) -> bool:
        """Tell whether a record is here."""
        return marker in self._places.get(ordinal_of(marker), {})

    def read(self, marker: int) -> bytes:
        """Return the payload of a record that is here."""
        place, length = self._places[ordinal_of(marker)][marker]
        with self._file(os.O_RDONLY) as handle:
            return os.pread(handle, length, place)

    @contextmanager
    def _file(self, flags: int) -> Iterator[int]:
        handle = os.open(self._arena.path(self._name), flags, 0o600)
        try:
            yield handle
        finally:
            os.close(handle)
