"""Mappings of released arenas, kept by the process that made them.

Idea: the first write to a page of a new mapping costs a microsecond or two, often more than the
work of a version there. A process that releases an arena usually claims it again for the next
version, so its mappings wait here under the name of the folder. A shared mapping belongs to a file,
not to a name, and shows the file's content whoever wrote it; it is enough to know that the file is
the same: while it is mapped, no other file has its inode number.

Invariants:
1. A mapping serves only its own file, at its current size
   (`test_a_mapping_serves_only_the_file_it_is_of`).
2. Writes of other processes are visible (`test_a_kept_mapping_shows_what_others_wrote`).
3. Mappings of deleted folders are dropped when a task ends, arenas are swept, or there is no room
   for others (`test_mappings_of_arenas_that_are_gone_are_let_go`).
4. At most `most` mappings are kept (`test_bounded_few_mappings_are_kept`), so few that a process
   still finds files that `select` knows (`test_bounded_a_process_opens_few_files_for_arenas`).

Cost: a check of each folder kept at the end of a task, and whenever a quarter of `most` mappings
have come since the last (`test_folders_are_not_checked_for_every_arena`).

Limits: between two versions the pages count as memory of the process, but in no budget: a task of
the next version claims them, or they are in the page cache anyway. Each mapping is an open file.
"""

from __future__ import annotations

import mmap
import os
import resource
import threading
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

#: device and inode number of a file
Place = tuple[int, int]
#: a mapping, and the array over it
Kept = tuple[mmap.mmap, npt.NDArray[Any]]

#: bytes from which on a mapping is worth more than others
LARGE = 1 << 16
#: mappings kept by a process. Each is an open file, and `select`, which py4j and other libraries of
#: the process use, fails for files beyond the first 1,024.
MOST = min(800, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


class MappingCache:
    """Mappings by the folder of their files."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[str, dict[Place, Kept]] = {}
        #: mappings kept, and those that came since folders were checked
        self._count = self._unchecked = 0
        self._changes = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def keep(self, folder: str, mappings: Mapping[Place, Kept]) -> None:
        """Keep mappings of a folder's files while there is room; small ones in three quarters."""
        full = self._count + len(mappings) > self._most // 2
        if full and 4 * self._unchecked >= self._most:
            self.prune()
        kept = dict[Place, Kept]()
        with self._changes:
            for place, each in mappings.items():
                most = self._most if len(each[0]) >= LARGE else self._most * 3 // 4
                if self._count + len(kept) < most:
                    kept[place] = each
            if kept:
                self._kept[folder] = kept
            self._count += len(kept)
            self._unchecked += len(mappings)

    def take(self, folder: str) -> dict[Place, Kept]:
        """Return the mappings of a folder's files and remove them from the cache."""
        with self._changes:
            taken = self._kept.pop(folder, {})
            self._count -= len(taken)
        return taken

    def prune(self) -> None:
        """Drop the mappings of folders that are gone."""
        self._unchecked = 0
        for folder in list(self._kept):
            if not os.path.isdir(folder):
                self.take(folder)


#: the cache of this process
KEPT = MappingCache()


def place_of(path: str) -> tuple[Place, int]:
    """Return what identifies a mapping, device and inode number of its file, and its size."""
    about = os.stat(path)
    return (about.st_dev, about.st_ino), about.st_size
