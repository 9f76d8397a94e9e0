"""The disk budget of a query: its log, the exchange between tasks, and caches on the local disk.

Idea: the log is known file by file, so adding it up reads nothing; the local folder has few files
and is measured. Both are compared with the budget once events are in the exchange, and before a
version is committed. A version that does not fit is not committed: what it wrote is removed when
the query goes on with more disk.

Invariants:
1. No version is committed beyond the budget, and a query goes on where it stopped
   (`test_a_query_goes_on_with_more_disk`).

Cost: one visit to each file of the local folder, twice per version.

Limits: a version that fails has written its files by then. Local folders are measured on the host
of the driver. A log in an object store or in HDFS takes no local disk and does not count.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from icestream.core.errors import BudgetError
from icestream.core.units import format_bytes, format_memory

#: ending of the folder with copies of objects, next to the local folder of a query
COPIES = ".copies"


@dataclass(frozen=True)
class DiskUse:
    """Bytes of a query on disk."""

    #: files of the checkpoint that retained versions name
    log: int
    #: arenas, exchange files and caches
    local: int

    @classmethod
    def of(cls, root: str, log: int, local: str) -> DiskUse:
        """Measure the local folder; `log` are the bytes of the checkpoint at `root`."""
        folders = (local, f"{local}{COPIES}")
        return cls(0 if "://" in root else log, sum(map(folder_bytes, folders)))

    @property
    def total(self) -> int:
        return self.log + self.local

    def check(self, budget: int | None) -> None:
        """Raise BudgetError if this is more than the budget."""
        if budget is None or self.total <= budget:
            return
        enough = self.total + self.total // 4
        msg = (
            f"the query takes {format_bytes(self.total)} of disk, {format_bytes(self.log)} of it "
            f"for its log and {format_bytes(self.local)} for exchange, arenas and caches under "
            f"localDir, but it may take {format_bytes(budget)}. Give it at least "
            f'.disk("{format_memory(enough)}") and start it again: it goes on after its last '
            "committed version, and nothing is lost"
        )
        raise BudgetError(msg)


def folder_bytes(folder: str) -> int:
    """Return the bytes that a folder takes on disk, with all below it; 0 if there is none."""
    total, folders = 0, [folder]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:  # removed meanwhile
                continue
    return total
