"""The stack of suffixes: what remains for fields without an inverse when a slice expires.

Idea: panes of the window are walked from new to old (`two_stacks`), and for every entry the merge
of all later entries of its group, its *suffix*, is written down. The last suffix written belongs to
the oldest slice, which expires first, so a file that grows at its end and is read from its end is
enough.

Invariant: blocks are read last in, first out, also after the stack was reopened or has replaced
another (`test_parity_stack_beside_a_list`, `test_a_stack_takes_the_place_of_another`).

Cost: `suffix words * 8` bytes per entry of the window, on local disk; memory for one slice.

Limits: the stack is part of the arena's folder, a cache: if it is lost, a flip rebuilds it.

References: the front stack of two-stacks sliding-window aggregation.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

import numpy as np

from icestream.core.arrays import Table
from icestream.core.errors import StorageError
from icestream.state.arena import write_at


class SuffixStack:
    """Blocks of suffixes in one file; the last pushed is the first popped."""

    def __init__(self, path: str, width: int, size: int) -> None:
        """Open the stack in `path`, of which the first `size` bytes are in use."""
        self._path = path
        self._width = width
        #: bytes in use
        self.size = size
        self._handle: int | None = None
        self._close: Callable[[], object] = _nothing

    def clear(self) -> None:
        self.size = 0
        self._shut()
        if os.path.exists(self._path):
            os.unlink(self._path)

    def replace(self, other: SuffixStack) -> None:
        """Drop everything and take over the contents of another stack, which is then empty."""
        self.clear()
        if other.size:
            other._shut()
            os.replace(other._path, self._path)
            self.size, other.size = other.size, 0

    def push(self, suffixes: Table) -> None:
        """Write one block on top."""
        data = np.ascontiguousarray(suffixes)
        write_at(self._path, self._file, data.data, self.size)
        self.size += data.nbytes

    def pop(self, rows: int) -> Table:
        """Read back the top block, which has `rows` rows."""
        length = rows * self._width * 8
        self.size -= length
        block = np.empty((rows, self._width), dtype=np.int64)
        missing = self.size < 0
        if missing or (length and os.preadv(self._file, [block.data], self.size) != length):
            msg = f"{self._path} ends too early; remove its folder and restart"
            raise StorageError(msg)
        return block

    def _shut(self) -> None:
        self._close()
        self._handle = None

    @property
    def _file(self) -> int:
        """Return the open file; it is closed when the stack is cleared or garbage-collected."""
        if self._handle is None:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._close = weakref.finalize(self, os.close, self._handle)
        return self._handle


def _nothing() -> None:
    """Do nothing."""
