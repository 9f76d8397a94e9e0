"""One flipped byte in a file, as whoever reads it sees it.

Idea: the file on the disk stays as it is; reads of one path are answered from a copy in memory with
a byte changed, so that every position of a file can be tried in turn.
"""

from __future__ import annotations

from icestream.state.files import LocalFiles, OpenFile


class FlippedFiles(LocalFiles):
    """The local disk with one byte of one file changed."""

    def __init__(self, path: str) -> None:
        """Change nothing yet."""
        self._path = path
        self._data = bytearray(LocalFiles().read(path))

    @property
    def size(self) -> int:
        """Return the bytes of the file."""
        return len(self._data)

    def flip(self, place: int, mask: int) -> None:
        """Change the bits of a byte; the same call changes them back."""
        self._data[place] ^= mask

    def open(self, path: str) -> OpenFile:
        """Open a file for reading."""
        return _InMemory(bytes(self._data)) if path == self._path else super().open(path)


class _InMemory:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def close(self) -> None:
        pass
