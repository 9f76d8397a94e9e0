"""The stack of fronts: what each expiring slice leaves to the fields without an inverse.

Idea: a *flip* walks the panes of the window from new to old and notes, for every entry, the merge
of all later entries of its group. The last note written belongs to the oldest slice, which is the
first to expire: a file that grows at its end and is read from its end is all it takes.

Invariant: blocks come back last in, first out, also after the stack is opened again
(`test_parity_stack_beside_a_list`).

Cost: `front words * 8` bytes per entry of the window, on local disk; memory for one slice.

Limits: the stack is part of the arena's folder, a cache: when it is lost, a flip makes it again.

References: the front stack of two-stacks sliding-window aggregation.
"""

from __future__ import annotations

import os

import numpy as np

from icestream.core.errors import StorageError
from icestream.kernels.words import Table


class FrontStack:
    """Blocks of fronts in one file; the last pushed is the first popped."""

    def __init__(self, path: str, width: int, size: int) -> None:
        """Open the stack in `path`, of which the first `size` bytes are in use."""
        self._path = path
        self._width = width
        #: bytes in use
        self.size = size

    def clear(self) -> None:
        """Drop everything."""
        self.size = 0
        if os.path.exists(self._path):
            os.unlink(self._path)

    def push(self, fronts: Table) -> None:
        """Write one block on top."""
        data = np.ascontiguousarray(fronts)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            written = os.pwrite(handle, data.data, self.size)
        except OSError as error:
            msg = f"cannot write {self._path}: {error.strerror}; free disk space and restart"
            raise StorageError(msg) from error
        finally:
            os.close(handle)
        if written != data.nbytes:
            msg = f"cannot write {self._path}: the disk is full; free disk space and restart"
            raise StorageError(msg)
        self.size += data.nbytes

    def pop(self, rows: int) -> Table:
        """Read back the top block, which has `rows` rows."""
        length = rows * self._width * 8
        self.size -= length
        handle = os.open(self._path, os.O_RDONLY)
        try:
            data = os.pread(handle, length, self.size)
        finally:
            os.close(handle)
        return np.frombuffer(data, dtype=np.int64).reshape(rows, self._width)
