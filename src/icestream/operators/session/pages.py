"""The open sessions of a shard: sorted pages in a file of the arena, few of them in memory.

Idea: each page has all sessions with `id_high` in its range. The directory, which is all that stays
in memory, has the position of each page and when its first session ends. A pass reads only the
pages that fragments may fall into or that have sessions due, and writes only those that fragments
changed: sessions that a watermark has closed are skipped when a page is read, and dropped when it
is next written. Adjacent pages are cut again when they are written.

Invariants:
1. Every group is in one page, and pages are in the order of `id_high`
   (`test_parity_pages_beside_a_sorted_list`).
2. A pass touches only pages with changes (`test_a_pass_reads_only_pages_with_news`).
3. The file has at most about twice the bytes of its pages, plus what a pass writes
   (`test_bounded_the_file_follows_its_pages`).

Cost: a pass reads the pages with changes and writes those with fragments; when garbage would exceed
what is left of the file, the rest is copied too. Memory: 64 bytes per page, and a few pages.

Limits: the sessions of one group are in one page, which must fit into memory. The file is a cache,
like the whole arena; the operating system caches its hot parts in memory, outside the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from icestream.core.times import INFINITY, Micros
from icestream.operators.session.fragments import LAST_ID_HIGH, Fragments
from icestream.operators.session.page_file import PAGE, Directory, PageFile, PageWriter
from icestream.operators.session.rows import Sessions
from icestream.operators.session.spec import SessionSpec
from icestream.state.arena import Arena
from icestream.state.table import CountedTable


class Pages:
    """The pages of one shard."""

    def __init__(
        self, spec: SessionSpec, arena: Arena, page_bytes: int, most_bytes: int = INFINITY
    ) -> None:
        """Attach to the arena's pages, or start with none; no page may exceed `most_bytes`."""
        self._spec = spec
        self._arena = arena
        self._sizes = page_bytes, most_bytes
        self._table = CountedTable(arena, "pages", PAGE)
        self._facts: dict[str, int] = arena.header.setdefault("pages", {"file": 0, "size": 0})

    @property
    def directory(self) -> Directory:
        """Return a copy of the directory, in the order of id_high."""
        return self._table.records.copy()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def size(self) -> int:
        return int(self.directory["length"].sum())

    def contents(self) -> Iterator[Sessions]:
        """Yield the sessions of every page in order, including those already closed."""
        with self._file(self._facts["file"]) as file:
            for page in self.directory:
                yield file.read(page)

    def fill(self, contents: Iterator[Sessions]) -> None:
        """Replace all pages with new ones that hold the given sorted sessions."""
        number = self._facts["file"] + 1
        with self._file(number) as file:
            cutter = PageWriter(file, 0, *self._sizes)
            for sessions in contents:
                cutter.add(sessions)
            cutter.finish()
        self._replace(cutter, number)

    def advance(
        self, fragments: Fragments, closed: Micros, watermark: Micros
    ) -> Iterator[Sessions]:
        """Merge fragments and yield the sessions that end at or before the watermark.

        Those that end at or before `closed` were yielded by an earlier pass. The pages are
        consistent once the iterator is exhausted.
        """
        directory = self._covering()
        touched = fragments.touched(directory["low"])
        visited = np.flatnonzero(touched | (directory["earliest"] <= watermark))
        if len(visited) == 0:
            return
        number, size = self._facts["file"], self._facts["size"]
        kept = int(directory["length"][~touched].sum())
        anew = size - kept > kept
        lasts = np.append(directory["low"][1:] - np.uint64(1), LAST_ID_HIGH)
        with self._file(number) as old, self._file(number + anew) as new, fragments.ahead() as news:
            cutter = PageWriter(new, 0 if anew else size, *self._sizes)
            passing = _Pass(self._spec, old, cutter, closed, watermark, moving=anew)
            reached = 0
            for at in visited.tolist():
                passing.keep(directory[reached:at])
                yield from passing.visit(directory[at : at + 1], news.up_to(lasts[at]))
                reached = at + 1
            passing.keep(directory[reached:])
            cutter.finish()
        self._replace(cutter, number + anew)

    def _covering(self) -> Directory:
        """Return a directory that covers every id_high: if it is empty, by one empty page."""
        directory = self.directory
        if len(directory) == 0:
            directory = np.zeros(1, dtype=PAGE)
            directory["earliest"] = INFINITY
        directory["low"][0] = 0
        return directory

    def _replace(self, cutter: PageWriter, number: int) -> None:
        """Switch to the pages that were written or copied, in the file of that number."""
        pages = cutter.directory
        self._table.replace(pages[pages["length"] > 0])
        before = self._facts["file"]
        self._facts.update(file=number, size=cutter.place)
        if before != number and os.path.exists(self._file(before).path):
            os.unlink(self._file(before).path)

    def _file(self, number: int) -> PageFile:
        return PageFile(self._arena.path(f"sessions-{number}"), self._spec)


@dataclass(frozen=True)
class _Pass:
    """One pass over the pages, from their file to what the writer writes."""

    spec: SessionSpec
    old: PageFile
    cutter: PageWriter
    closed: Micros
    watermark: Micros
    #: whether pages that stay are copied to another file
    moving: bool

    def keep(self, pages: Directory) -> None:
        self.cutter.keep(pages, self.old if self.moving else None)

    def visit(
        self, page: Directory, news: Iterator[tuple[np.uint64, Sessions]]
    ) -> Iterator[Sessions]:
        """Merge fragments into a page; yield its sessions that are due."""
        waiting = self._open_sessions(page[0])
        left: list[Sessions] = []
        changed = False
        for last, fragments in news:
            part, waiting = waiting.split_after(last)
            if len(fragments):
                part = part.merged(fragments)
                changed = True
            due = part.ends <= self.watermark
            if due.any():
                yield part.where(due)
                part = part.where(~due)
            left.append(part)
            while changed and left:
                self.cutter.add(left.pop(0))
        if not changed:
            self._leave(page, Sessions.concatenated(left))

    def _open_sessions(self, page: np.void) -> Sessions:
        if page["length"] == 0:
            return Sessions.none(self.spec)
        sessions = self.old.read(page)
        return sessions.where(sessions.ends > self.closed)

    def _leave(self, page: Directory, left: Sessions) -> None:
        """Record what is left of a page without fragments; rewrite it if less than half is left."""
        if 2 * len(left) < page[0]["rows"]:
            self.cutter.add(left)
        elif len(left):
            page["open"], page["groups"] = len(left), left.groups
            page["earliest"] = left.ends.min()
            self.keep(page)
