"""A disk in memory that crashes, tears writes, fails and flips bits on request.

Idea:
    A file has its bytes and the number of synced bytes; a folder has its durable names and the
    changes since its last sync. Every change is a numbered step. A crash at step n, for every n
    and every way in which the unsynced part can survive it, is then a loop in a test.

Invariants:
    1. What was synced, and is named by a synced folder, survives every crash
       (`test_crash_keeps_what_was_synced`).
    2. After a crash the disk refuses everything, so no clean-up code does what a dead process could
       not have done (`test_crash_is_final`).
    3. A rename survives completely or not at all (`test_crash_never_splits_a_rename`).

Limits:
    Folders are durable as soon as they are created, as with `LocalFiles`. Single-threaded.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from typing import TYPE_CHECKING, Literal

from icestream.state.files import OpenFile, folder_of, storage_error, temporary_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from icestream.state.files import NewFile

#: what a crash leaves of unsynced changes
CrashMode = Literal["drop", "tear", "keep"]

_SECTOR = 512


class Crash(BaseException):
    """The process died here; a BaseException, so that no error handler catches it."""


class _Content:
    """The bytes of a file, which names point to."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        #: how many bytes are durable
        self.synced = len(data)

    def survive(self, mode: CrashMode, dice: random.Random) -> bytes:
        if mode == "keep":
            return bytes(self.data)
        if mode == "drop":
            return bytes(self.data[: self.synced])
        end = dice.randint(self.synced, len(self.data))
        torn = max(self.synced, (end - 1) // _SECTOR * _SECTOR) if end else 0
        tail = dice.choice((bytes(self.data[torn:end]), dice.randbytes(end - torn)))
        return bytes(self.data[:torn]) + tail


class _SimulatedNewFile:
    """A file of a simulated disk that is being written."""

    def __init__(self, disk: SimulatedDisk, path: str, content: _Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content

    def write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._disk._step("write", self._path)
        except BaseException:
            if self._disk.torn_writes:
                self._content.data += bytes(data)[: self._disk.dice.randint(0, len(data))]
            raise
        self._content.data += data

    def sync(self) -> None:
        self._disk._step("sync", self._path)
        self._content.synced = len(self._content.data)

    def close(self) -> None:
        pass


class _SimulatedOpenFile(OpenFile):
    """A file of a simulated disk that is being read."""

    def __init__(self, disk: SimulatedDisk, path: str, content: _Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._closed = False
        self.size = len(content.data)
        disk.open_handles += 1

    def read_at(self, offset: int, length: int) -> bytes:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        self._disk._alive()
        self._disk.reads.append((self._path, offset, length))
        return bytes(self._content.data[offset : offset + length])

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._disk.open_handles -= 1


class SimulatedDisk:
    """`Files` in memory; every change is a numbered step that can crash or fail."""

    def __init__(
        self,
        *,
        crash_at: int | None = None,
        tear: int | None = None,
        fail_at: int | None = None,
        error: OSError | None = None,
    ) -> None:
        """Create an empty disk.

        Args:
            crash_at: the step, from 1, at which `Crash` is raised instead of doing it.
            tear: seed of the randomness; if given, the write that crashes or fails is partly done.
            fail_at: the step, from 1, that raises the error once and is not done.
            error: the error at `fail_at`; by default a full disk.
        """
        self.crash_at = crash_at
        self.fail_at = fail_at
        self.torn_writes = tear is not None
        self.dice = random.Random(tear or 0)
        #: the steps done or tried, as (what, path)
        self.trace: list[tuple[str, str]] = []
        #: every read, as (path, offset, length)
        self.reads: list[tuple[str, int, int]] = []
        #: files open for reading
        self.open_handles = 0
        self._error = error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._crashed = False
        self._names: dict[str, _Content] = {}
        self._durable: dict[str, _Content] = {}
        #: changes of names since their folders' last sync, in order; None removes a name
        self._pending: list[dict[str, _Content | None]] = []

    @property
    def steps(self) -> int:
        return len(self.trace)

    def create(self, path: str) -> NewFile:
        """Create a file exclusively; FileExistsError if it exists."""
        path = posixpath.normpath(path)
        self._step("create", path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        content = _Content()
        self._change({path: content})
        return _SimulatedNewFile(self, path, content)

    def open(self, path: str) -> OpenFile:
        """Open a file for reading; it stays readable when unlinked."""
        path = posixpath.normpath(path)
        return _SimulatedOpenFile(self, path, self._content(path))

    def read(self, path: str) -> bytes:
        return bytes(self._content(posixpath.normpath(path)).data)

    def put(self, path: str, data: bytes) -> bool:
        """Create a file durably, atomically and exclusively, step by step as `LocalFiles` does."""
        path = posixpath.normpath(path)
        created = not self.exists(path)
        if created:
            temporary = temporary_name(path)
            file = self.create(temporary)
            try:
                file.write(data)
                file.sync()
                self._step("link", path)
                created = path not in self._names
                if created:
                    self._change({path: self._names[temporary]})
            finally:
                self.unlink(temporary)
        self.sync_folder(folder_of(path))
        return created

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing `target`."""
        source, target = posixpath.normpath(source), posixpath.normpath(target)
        self._step("rename", target)
        content = self._content(source)
        if source != target:
            self._change({source: None, target: content})

    def unlink(self, *paths: str) -> None:
        """Remove files, one step each; missing ones are fine."""
        for path in map(posixpath.normpath, paths):
            self._step("unlink", path)
            if path in self._names:
                self._change({path: None})

    def list(self, folder: str) -> list[str]:
        """Return the names of files and folders in a folder, sorted, without dot-files."""
        self._alive()
        prefix = posixpath.join(posixpath.normpath(folder), "")
        prefix = "" if prefix == "./" else prefix
        inside = (path[len(prefix) :] for path in self._names if path.startswith(prefix))
        names = {name.partition("/")[0] for name in inside}
        return sorted(name for name in names if not name.startswith("."))

    def walk(self, folder: str) -> Iterator[str]:
        """Yield the paths of all files below a folder, relative to it."""
        self._alive()
        prefix = posixpath.join(posixpath.normpath(folder), "")
        yield from (path[len(prefix) :] for path in [*self._names] if path.startswith(prefix))

    def exists(self, path: str) -> bool:
        """Return whether a file, or a folder with a file in it, exists."""
        self._alive()
        path = posixpath.normpath(path)
        return path in self._names or any(name.startswith(path + "/") for name in self._names)

    def sync_folder(self, folder: str) -> None:
        """Make changes of names in a folder durable, and the earlier changes they depend on."""
        folder = posixpath.normpath(folder)
        self._step("sync folder", folder)
        kept: list[dict[str, _Content | None]] = []
        settled: list[dict[str, _Content | None]] = []
        resting: set[str] = set()
        for change in reversed(self._pending):
            here = any(folder_of(path) == folder for path in change)
            if here or not resting.isdisjoint(change):
                settled.append(change)
                resting.update(change)
            else:
                kept.append(change)
        for change in reversed(settled):
            _apply(change, self._durable)
        self._pending = kept[::-1]

    def sync_files(self, paths: Collection[str]) -> None:
        """Make files and their names durable: one step for each file, then one for each folder."""
        for path in paths:
            self._step("sync", posixpath.normpath(path))
            content = self._content(posixpath.normpath(path))
            content.synced = len(content.data)
        for folder in sorted({folder_of(path) for path in paths}):
            self.sync_folder(folder)

    def after_crash(
        self,
        mode: CrashMode,
        *,
        crash_at: int | None = None,
        tear: int | None = None,
        fail_at: int | None = None,
    ) -> SimulatedDisk:
        """Return the disk that the next process finds, with new faults.

        Args:
            mode: `drop` loses everything unsynced; `tear` keeps a random prefix of unsynced bytes,
                perhaps with noise in its last sector, and a random subset of unsynced changes of
                names; `keep` loses nothing.
            crash_at: as for a new disk.
            tear: as for a new disk; also seeds what `mode="tear"` keeps, if given.
            fail_at: as for a new disk.
        """
        dice = self.dice if tear is None else random.Random(tear)
        names = dict(self._durable)
        for change in self._pending:
            if mode == "keep" or (mode == "tear" and dice.random() < 0.5):
                _apply(change, names)
        survivors = {
            id(content): _Content(content.survive(mode, dice)) for content in names.values()
        }
        disk = SimulatedDisk(crash_at=crash_at, tear=tear, fail_at=fail_at)
        disk._names = {path: survivors[id(content)] for path, content in names.items()}
        disk._durable = dict(disk._names)
        return disk

    def flip(self, path: str, index: int, mask: int = 1) -> None:
        """Flip the bits of `mask` in one byte of a file."""
        self._names[posixpath.normpath(path)].data[index] ^= mask

    def files(self) -> dict[str, bytes]:
        """Return the current content of every file, including dot-files."""
        return {path: bytes(content.data) for path, content in sorted(self._names.items())}

    def _step(self, what: str, path: str) -> None:
        """Count a step, and crash or fail if it is the chosen one."""
        self._alive()
        self.trace.append((what, path))
        if self.steps == self.crash_at:
            self._crashed = True
            msg = f"{what} {path}"
            raise Crash(msg)
        if self.steps == self.fail_at:
            raise storage_error(path, self._error) or self._error

    def _alive(self) -> None:
        """Refuse everything after the crash."""
        if self._crashed:
            msg = "the process has already died"
            raise Crash(msg)

    def _content(self, path: str) -> _Content:
        """Return the content of a name; FileNotFoundError if there is none."""
        self._alive()
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._names[path]

    def _change(self, change: dict[str, _Content | None]) -> None:
        """Change names; durable once their folder is synced."""
        _apply(change, self._names)
        self._pending.append(change)


def _apply(change: dict[str, _Content | None], names: dict[str, _Content]) -> None:
    for path, content in change.items():
        if content is None:
            names.pop(path, None)
        else:
            names[path] = content
