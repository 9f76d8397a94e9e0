"""Files in memory only: what an engine without a disk would have.

Idea: the same query runs with its log in the heap of the process. Nothing is ever written out, so
the window is limited by memory, as in engines that keep windows in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tests.faults.changed_files import FileInMemory


class _NewFile:
    def __init__(self, store: dict[str, bytes], path: str) -> None:
        self._store = store
        self._path = path
        self._parts: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        self._parts.append(bytes(data))

    def sync(self) -> None:
        """Do nothing: these files never survive the process."""

    def close(self) -> None:
        """Make the file readable."""
        self._store[self._path] = b"".join(self._parts)


class MemoryFiles:
    """Files in a dict."""

    def __init__(self) -> None:
        """Start without any."""
        self._store: dict[str, bytes] = {}

    def create(self, path: str) -> _NewFile:
        """Create a file that can be read once it is closed."""
        if path in self._store:
            raise FileExistsError(path)
        return _NewFile(self._store, path)

    def open(self, path: str) -> FileInMemory:
        """Open a file."""
        return FileInMemory(self.read(path))

    def read(self, path: str) -> bytes:
        """Return a whole file."""
        if path not in self._store:
            raise FileNotFoundError(path)
        return self._store[path]

    def put(self, path: str, data: bytes) -> bool:
        """Create a file unless it exists."""
        if path in self._store:
            return False
        self._store[path] = data
        return True

    def rename(self, source: str, target: str) -> None:
        """Give a file another name."""
        self._store[target] = self._store.pop(source)

    def unlink(self, *paths: str) -> None:
        """Delete files."""
        for path in paths:
            self._store.pop(path, None)

    def list(self, folder: str) -> list[str]:
        """Return the names of files in a folder."""
        prefix = f"{folder}/"
        inside = [path[len(prefix) :] for path in self._store if path.startswith(prefix)]
        return sorted(name for name in inside if "/" not in name)

    def walk(self, folder: str) -> Iterator[str]:
        """Yield the paths of all files below a folder, relative to it."""
        prefix = f"{folder}/"
        yield from [path[len(prefix) :] for path in self._store if path.startswith(prefix)]

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        return path in self._store

    def sync_folder(self, folder: str) -> None:
        """Do nothing."""

    def sync_files(self, paths: Collection[str]) -> None:
        """Do nothing."""
