"""The only access to durable files: create once, append, sync, publish, read at an offset.

Idea:
    Exactly-once needs very few file operations, and needs them to be durable. All code that
    writes durable files takes a `Files`, so tests can pass a disk that crashes at any step
    (`icestream.testing.simulated_disk.SimulatedDisk`).

Invariants:
    1. `put` leaves either the whole file or none under its name, and never replaces one
       (`test_put_is_exclusive_and_leaves_no_temporary`,
       `test_crash_at_any_step_of_put_leaves_all_or_nothing`).
    2. An OS error with a known remedy becomes a `StorageError` with path and remedy
       (`test_refusals_of_the_disk_name_path_and_remedy`).
    3. Files and folders are accessible to this user alone: modes 0600 and 0700
       (`test_files_and_folders_are_for_the_user_alone`).
    4. A folder created on the way is durable before anything is in it, so `sync_folder` of a file's
       own folder is enough (`test_new_folders_are_synced_into_their_parents`).
    5. Files passed to `sync_files` survive, name and content
       (`test_crash_files_that_are_synced_together_survive_together`).

Cost:
    One system call per `write` and `read_at` (more only beyond 2 GB); nothing is buffered here.
    Files that are synced together are synced concurrently: the journal commits them together,
    so syncing many takes hardly longer than syncing one.

Limits:
    Local (or mounted) file systems with hard links. A crash inside `put` may leave a temporary
    dot-file behind; `list` hides dot-files, which belong to this module. `sync_files` opens files
    again: Linux reports a write error from before the reopening unless the file left its caches.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from icestream.core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import TracebackType

#: modes of new files and folders: state is as private as the events it comes from
PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
#: bytes viewed of a mapped file before it is mapped anew: pages that were viewed are in memory
WINDOW = 4 << 20
#: files synced at the same time
SYNCED_AT_ONCE = 16

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free space on it, then restart",
    errno.EDQUOT: "the disk quota is used up; raise it or free space, then restart",
    errno.EACCES: "permission denied; grant this user read and write access, then restart",
    errno.EPERM: "the file system does not permit this (hard links and unlinking are needed); "
    "grant it or choose another location, then restart",
    errno.EROFS: "the file system is read-only; mount it writable or choose another location",
    errno.EMFILE: "too many open files in this process; raise `ulimit -n`, then restart",
    errno.ENFILE: "too many open files on this host; raise fs.file-max, then restart",
    errno.EIO: "the device reports an input/output error; check the disk before restarting",
}


def storage_error(path: str, error: OSError) -> StorageError | None:
    """Return the error of a file with the remedy, for an OS error; None without a remedy."""
    remedy = _REMEDIES.get(error.errno or 0)
    return None if remedy is None else StorageError(f"{path}: {remedy} ({error.strerror})")


class NewFile(Protocol):
    """A file being created: bytes are appended, and durable once `sync` returns."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of `data`; the buffer may be reused as soon as this returns."""

    def sync(self) -> None:
        """Make all bytes written so far durable (not the name: see `Files.sync_folder`)."""

    def close(self) -> None:
        """Close the handle without syncing; closing twice is fine."""


class OpenFile(Protocol):
    """A file being read."""

    #: bytes in the file when it was opened
    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`, or what is there if the file ends before."""

    def mapped(self, offset: int) -> memoryview | None:
        """Return a view of the file from `offset` on, paged in on access; None if not possible.

        ValueError if the file became shorter.
        """
        return None

    def close(self) -> None:
        """Close the handle; closing twice is fine."""


class Files(Protocol):
    """The file operations that durable state needs. Paths are strings with `/`."""

    def create(self, path: str) -> NewFile:
        """Create a file exclusively, and its parent folders; FileExistsError if it exists."""

    def open(self, path: str) -> OpenFile:
        """Open a file for reading; FileNotFoundError if there is none."""

    def read(self, path: str) -> bytes:
        """Return a whole file; FileNotFoundError if there is none."""

    def put(self, path: str, data: bytes) -> bool:
        """Create a file durably, atomically and exclusively; False if it existed already."""

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing `target`; durable after `sync_folder` of the target's folder."""

    def unlink(self, *paths: str) -> None:
        """Remove files; missing ones are fine. Durable after `sync_folder`."""

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted, without dot-files; none of a file or nothing."""

    def walk(self, folder: str) -> Iterator[str]:
        """Yield the paths of all files below a folder, relative to it; none of a file or nothing.

        Those whose names begin with a dot are among them.
        """

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""

    def sync_folder(self, folder: str) -> None:
        """Make creations, renames and removals in a folder durable."""

    def sync_files(self, paths: Collection[str]) -> None:
        """Make files that were written and closed durable, with their names, together."""


def folder_of(path: str) -> str:
    """Return the folder that holds the file `path`; `.` for a bare name."""
    return os.path.dirname(path) or "."


def temporary_name(path: str) -> str:
    """Return a fresh dot-name next to the file `path`, for one that is not published yet."""
    return os.path.join(folder_of(path), f".{os.path.basename(path)}.{uuid.uuid4().hex}")


def write_file(files: Files, path: str, data: bytes | memoryview = b"") -> None:
    """Create a file with durable content; its name is durable after `sync_folder`."""
    file = files.create(path)
    try:
        file.write(data)
        file.sync()
    finally:
        file.close()


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Replace a file durably, in one step."""
    hidden = temporary_name(path)
    write_file(files, hidden, data)
    files.rename(hidden, path)
    files.sync_folder(folder_of(path))


class _refusals_named:  # noqa: N801 - a block, not a thing; every read enters one
    """Turn OS errors inside the block that have a remedy into `StorageError`; pass on others."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError) and (refusal := storage_error(self._path, error)):
            raise refusal from error


def mapped(descriptor: int, size: int, offset: int = 0) -> memoryview:
    """Map an open file of `size` bytes from `offset` on, until the view is dropped."""
    first = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    pages = mmap.mmap(descriptor, size - first, access=mmap.ACCESS_READ, offset=first)
    return memoryview(pages)[offset - first :]


def release(view: memoryview, first: int = 0, length: int | None = None) -> None:
    """Release pages of a mapped file from the process, all or some; an access brings them back."""
    owner: Any = view.obj
    if isinstance(owner, mmap.mmap):
        begin = first // mmap.PAGESIZE * mmap.PAGESIZE
        owner.madvise(mmap.MADV_DONTNEED, begin, len(owner) if length is None else length)


def _sync(path: str, flags: int = 0) -> None:
    """Make the content of a file, or the names in a folder, durable."""
    with _refusals_named(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_all(paths: list[str]) -> None:
    for path in paths:
        _sync(path)


class _LocalNewFile:
    """A file descriptor open for appending."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with _refusals_named(self._path):
            written = os.write(self._descriptor, data)
            if written == len(data):
                return
            rest = memoryview(data)[written:]
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def sync(self) -> None:
        with _refusals_named(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with _refusals_named(self._path):
                os.close(descriptor)


class _LocalOpenFile:
    """A file descriptor open for reading at offsets."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        with _refusals_named(self._path):
            data = os.pread(self._descriptor, length, offset)
            if len(data) == length or offset + len(data) >= self.size:
                return data
            parts = [data]
            while data:
                offset += len(data)
                length -= len(data)
                data = os.pread(self._descriptor, length, offset)
                parts.append(data)
            return b"".join(parts)

    def mapped(self, offset: int) -> memoryview | None:
        with _refusals_named(self._path):
            return mapped(self._descriptor, self.size, offset)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class LocalFiles:
    """`Files` on a local file system, with real syncs. Stateless, so closures can carry it."""

    #: modes of what is created, less the user's umask
    file_mode = PRIVATE_FILE
    folder_mode = PRIVATE_FOLDER

    def create(self, path: str) -> NewFile:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with _refusals_named(path):
            try:
                return _LocalNewFile(path, os.open(path, flags, self.file_mode))
            except (FileNotFoundError, NotADirectoryError):
                self._make_folder(folder_of(path))
                return _LocalNewFile(path, os.open(path, flags, self.file_mode))

    def open(self, path: str) -> OpenFile:
        with _refusals_named(path):
            return _LocalOpenFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def read(self, path: str) -> bytes:
        with contextlib.closing(self.open(path)) as file:
            return file.read_at(0, file.size)

    def put(self, path: str, data: bytes) -> bool:
        """Create a file durably, atomically and exclusively; False if it existed already.

        Even when it returns False, the existing file's name is durable, so a caller may rely on it.
        """
        created = not self.exists(path) and self._publish(path, data)
        self.sync_folder(folder_of(path))
        return created

    def _publish(self, path: str, data: bytes) -> bool:
        """Link a complete, synced file to `path`; False if another was there first."""
        temporary = temporary_name(path)
        file = self.create(temporary)
        try:
            file.write(data)
            file.sync()
            with _refusals_named(path):
                os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            file.close()
            self.unlink(temporary)
        return True

    def rename(self, source: str, target: str) -> None:
        with _refusals_named(target):
            os.rename(source, target)

    def unlink(self, *paths: str) -> None:
        for path in paths:
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                refusal = storage_error(path, error)
                if refusal is None:
                    raise
                raise refusal from error

    def list(self, folder: str) -> list[str]:
        missing = (FileNotFoundError, NotADirectoryError)
        with _refusals_named(folder), contextlib.suppress(*missing):
            return sorted(name for name in os.listdir(folder) if not name.startswith("."))
        return []

    def walk(self, folder: str) -> Iterator[str]:
        for inside, _, names in os.walk(folder):
            for name in names:
                yield os.path.relpath(os.path.join(inside, name), folder)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def sync_folder(self, folder: str) -> None:
        _sync(folder, os.O_DIRECTORY)

    def sync_files(self, paths: Collection[str]) -> None:
        if not paths:
            return
        names = list(paths)
        threads = min(len(names), SYNCED_AT_ONCE)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(_sync_all, (names[at::threads] for at in range(threads))))
        for folder in sorted({folder_of(path) for path in names}):
            self.sync_folder(folder)

    def _make_folder(self, folder: str) -> None:
        """Create a folder and its missing parents, each durable in its parent."""
        if os.path.isdir(folder):
            return
        parent = folder_of(folder.rstrip("/"))
        self._make_folder(parent)
        try:
            os.mkdir(folder, self.folder_mode)
        except FileExistsError:
            pass
        except (FileNotFoundError, NotADirectoryError) as error:
            msg = f"{folder}: {parent} takes no folders; choose another location"
            raise StorageError(msg) from error
        self.sync_folder(parent)
