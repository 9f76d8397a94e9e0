"""A real disk that is slow now and then, and full from time to time.

Idea: files go to the local disk; some syncs wait, and some new files are refused like on a full
    disk.
It is plain data, so it can be sent to tasks like the real one; each process has its own random
numbers.

Invariants:
1. A refusal is the `StorageError` that a full disk gives (`test_a_full_disk_is_reported_as_one`).
"""

from __future__ import annotations

import errno
import random
import time
from dataclasses import dataclass

from icestream.state.files import LocalFiles, NewFile, storage_error


@dataclass(frozen=True)
class FailingDisk(LocalFiles):
    """The local disk, with faults."""

    #: share of new files that find the disk full
    full: float = 0.0
    #: share of folder syncs that wait, and their maximum seconds
    slow: float = 0.0
    longest: float = 0.5

    def create(self, path: str) -> NewFile:
        """Create a file, unless the disk is full."""
        if random.random() < self.full:
            refusal = storage_error(path, OSError(errno.ENOSPC, "No space left on device"))
            assert refusal is not None
            raise refusal
        return super().create(path)

    def sync_folder(self, folder: str) -> None:
        """Make the content of a folder durable, sometimes with a delay."""
        if random.random() < self.slow:
            time.sleep(random.uniform(0, self.longest))
        super().sync_folder(folder)
