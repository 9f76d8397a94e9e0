"""Sorted sessions in a local file, cut into pages that are found by `id_high`.

Idea: a page is some kilobytes of sessions, written once; the caller keeps its row of the directory.
Pages are cut where `id_high` changes, so that all sessions of a group are in one page.

Invariants:
1. A page is read as it was written, or the error names the failing disk
   (`test_a_page_that_rotted_is_named`).
2. Pages have about the requested size, and are in the order of `id_high`
   (`test_parity_pages_beside_a_sorted_list`).
3. A group whose sessions do not fit into memory is an error, not a larger page
   (`test_bounded_a_group_with_too_many_sessions_says_so`).
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import xxhash

from icestream.core.errors import BudgetError, StorageError
from icestream.core.times import INFINITY
from icestream.core.units import format_bytes
from icestream.operators.session.rows import Sessions
from icestream.operators.session.spec import SessionSpec
from icestream.state.arena import write_at

PAGE = np.dtype(
    [
        #: first id_high of its range
        ("low", np.uint64),
        ("place", np.int64),
        ("length", np.int64),
        ("checksum", np.uint64),
        #: number of sessions in it, including closed ones
        ("rows", np.int64),
        #: number of open sessions and of their groups
        ("open", np.int64),
        ("groups", np.int64),
        #: when the first open session ends
        ("earliest", np.int64),
    ]
)

Directory = npt.NDArray[np.void]


class PageFile:
    """A file of pages, open within its context."""

    def __init__(self, path: str, spec: SessionSpec) -> None:
        """Name the file; it is created when it is opened."""
        self.path = path
        self._spec = spec
        self._handle = -1

    def __enter__(self) -> Self:
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._handle)

    def read(self, page: np.void) -> Sessions:
        return Sessions.from_bytes(self.bytes_of(page), int(page["rows"]), self._spec)

    def bytes_of(self, page: np.void) -> bytes:
        data = os.pread(self._handle, int(page["length"]), int(page["place"]))
        if xxhash.xxh3_64_intdigest(data) != int(page["checksum"]):
            msg = (
                f"{self.path} does not hold what was written to it: the local disk is failing. "
                "Restart the query with its arenas on another disk; it rebuilds this file"
            )
            raise StorageError(msg)
        return data

    def write(self, data: bytes, place: int) -> None:
        write_at(self.path, self._handle, data, place)


class PageWriter:
    """Writes sessions, given in order, as pages of about equal size."""

    def __init__(
        self, file: PageFile, place: int, page_bytes: int, most_bytes: int = INFINITY
    ) -> None:
        """Write to an open file from `place` on; no page may exceed `most_bytes`."""
        self._file = file
        self._page_bytes = page_bytes
        self._most_bytes = most_bytes
        self._waiting: list[Sessions] = []
        self._bytes = 0
        #: where the next page goes
        self.place = place
        self._pages: list[Directory] = [np.empty(0, dtype=PAGE)]

    @property
    def directory(self) -> Directory:
        """Return the pages written and copied so far."""
        return np.concatenate(self._pages)

    def add(self, sessions: Sessions) -> None:
        """Add the next sessions; their groups must come after all earlier ones."""
        if len(sessions) == 0:
            return
        self._waiting.append(sessions)
        self._bytes += sessions.nbytes
        if self._bytes >= 2 * self._page_bytes:
            whole = Sessions.concatenated(self._waiting)
            first = self._cut(whole, self._bytes // self._page_bytes)
            rest = whole.between(first, len(whole))
            self._waiting, self._bytes = [rest], rest.nbytes

    def keep(self, pages: Directory, moved_from: PageFile | None = None) -> None:
        """Append existing pages unchanged; copy them if they are in another file."""
        if len(pages) == 0:
            return
        self.finish()
        if moved_from is not None:
            for page in pages:
                page["place"] = self._append(moved_from.bytes_of(page))
        self._pages.append(pages)

    def finish(self) -> None:
        if self._waiting:
            whole = Sessions.concatenated(self._waiting)
            first = self._cut(whole, -(-self._bytes // self._page_bytes))
            self._write(whole.between(first, len(whole)))
        self._waiting, self._bytes = [], 0

    def _cut(self, whole: Sessions, parts: int) -> int:
        """Cut sessions into `parts`, write all but the last; return where the last begins."""
        id_high, first = whole.id_high, 0
        for part in range(1, parts):
            # groups with the same id_high stay together
            last = int(np.searchsorted(id_high, id_high[part * len(id_high) // parts]))
            if last > first:
                self._write(whole.between(first, last))
                first = last
        return first

    def _write(self, sessions: Sessions) -> None:
        data = sessions.to_bytes()
        if len(data) > self._most_bytes:
            msg = (
                f"the open sessions of one group take {format_bytes(len(data))}, but a shard can "
                f"hold only {format_bytes(self._most_bytes)} of them in memory. Give the query "
                "more with .memory(...), or use a longer gap or a shorter slack"
            )
            raise BudgetError(msg)
        facts = (
            sessions.id_high[0],
            self._append(data),
            len(data),
            xxhash.xxh3_64_intdigest(data),
            len(sessions),
            len(sessions),
            sessions.groups,
            sessions.ends.min(),
        )
        self._pages.append(np.array([facts], dtype=PAGE))

    def _append(self, data: bytes) -> int:
        place = self.place
        self._file.write(data, place)
        self.place += len(data)
        return place
