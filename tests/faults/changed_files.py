"""Files whose readers see other content than is on the disk.

Idea: the files on the disk stay as they are; reads of some paths are served from memory, so that
many changes of a file can be tried, one after the other, without writing any of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from icestream.state.files import LocalFiles, OpenFile


class ChangedFiles(LocalFiles):
    """The local disk, with the content of some files replaced."""

    def __init__(self, contents: Mapping[str, bytes | bytearray]) -> None:
        """Serve reads of the paths in `contents` with their current values."""
        self._contents = contents

    def open(self, path: str) -> OpenFile:
        """Open a file for reading."""
        data = self._contents.get(path)
        return super().open(path) if data is None else FileInMemory(bytes(data))

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return path in self._contents or super().exists(path)


class FileInMemory:
    """An open file whose bytes are in memory."""

    def __init__(self, data: bytes) -> None:
        """Read from `data`."""
        self._data = data
        self.size = len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return some of the bytes."""
        return self._data[offset : offset + length]

    def mapped(self, offset: int) -> memoryview | None:
        """Return the bytes from an offset on."""
        return memoryview(self._data)[offset:]

    def close(self) -> None:
        """Do nothing."""


class FlippedFiles(ChangedFiles):
    """The local disk with one byte of one file changed."""

    def __init__(self, path: str) -> None:
        """Change nothing yet."""
        self._data = bytearray(LocalFiles().read(path))
        super().__init__({path: self._data})

    @property
    def size(self) -> int:
        """Return the bytes of the file."""
        return len(self._data)

    def flip(self, place: int, mask: int) -> None:
        """Change the bits of a byte; the same call changes them back."""
        self._data[place] ^= mask
