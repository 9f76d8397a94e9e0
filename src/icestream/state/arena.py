"""Hot state as flat arrays over memory-mapped files, handed from one task to the next.

Idea: an arena is a folder with one file per array, so an array grows by `posix_fallocate` and a
remap, never by a copy. A task claims an arena by renaming its folder to a private name, works in
place, and releases it by renaming it to a name of its own attempt: no locks, one owner at a time.
An arena is a cache of the log: a task that finds it missing or unusable rebuilds it.

Invariants:
    1. `arena.bytes` equals what the account holds for it after every call, even a failed one
       (`test_oracle_any_sequence_of_resizes_keeps_content_and_books`).
    2. A failed resize changes nothing (`test_a_refused_resize_changes_nothing`,
       `test_a_full_disk_is_a_storage_error_and_changes_nothing`).
    3. New bytes are zero (`test_new_bytes_are_zero_also_after_shrinking`).
    4. An arena is claimed at most once (`test_only_one_of_many_claims_at_once_succeeds`).
    5. Only an arena that was released completely since this machine booted can be claimed
       (`test_crash_before_release_leaves_nothing_to_claim`,
       `test_an_arena_of_an_earlier_boot_is_not_claimed`).
    6. Parts of an arena are independent of each other and are restored with it
       (`test_parts_of_an_arena_have_arrays_and_books_of_their_own`).

Cost: claim and release are one rename, one small JSON file and one `mmap` per array; the process
that released an arena still has its mappings (`state.mapping_cache`). Nothing is
synced: after a power failure the boot id in the header differs and the arena is rebuilt.

Limits: Linux. Where the boot id cannot be read, a power failure goes unnoticed.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from icestream.core.errors import StorageError
from icestream.core.units import format_bytes
from icestream.state.budget import Account
from icestream.state.files import PRIVATE_FILE, PRIVATE_FOLDER
from icestream.state.mapping_cache import KEPT, Kept, Place, place_of

if TYPE_CHECKING:
    from types import TracebackType

PAGE = 4096
_FORMAT = 6
_HEADER = "header.json"
_ARRAY = ".array"
_WORKING = "working."
#: errors of a rename to a name that is taken
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class ArenaArray:
    """A growing array of numbers, or of rows of `width` numbers, over one mapped file."""

    def __init__(
        self,
        path: str,
        dtype: np.dtype[Any],
        width: int,
        account: Account,
        mapped: int = 0,
        place: Place = (0, 0),
        kept: Kept | None = None,
    ) -> None:
        """Map `mapped` bytes of an existing file at `place`, already reserved, or start empty.

        `kept` is a mapping of that file and the array over it, if there is one.
        """
        self.path = path
        self.dtype = dtype
        self.width = width
        #: the account that holds the bytes
        self.account = account
        #: the mapped file
        self._place = place
        self._map: mmap.mmap | None
        #: bytes mapped and reserved
        self.bytes = mapped
        #: over the mapping, shape (capacity,) or (capacity, width); never keep it across a resize
        self.view: npt.NDArray[Any]
        if kept is not None and len(kept[0]) == mapped and _has(kept[1], dtype, width):
            self._map, self.view = kept
        else:
            self._map = _mapped(path, mapped) if mapped else None
            self.view = self._over(self._map)

    @property
    def capacity(self) -> int:
        """Rows that fit in the mapped pages."""
        return len(self.view)

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * self.width

    def bytes_for(self, capacity: int) -> int:
        """Bytes of the whole pages that `capacity` rows occupy."""
        return -(-capacity * self.row_bytes // PAGE) * PAGE

    def resize(self, capacity: int) -> None:
        """Make room for `capacity` rows, in whole pages; rows below that keep their content.

        Raises `Refused` when the account cannot reserve the growth, StorageError when the disk is
        full, BufferError when an array that shrinks still has a view; each of them changes nothing.
        """
        if capacity < 0:
            msg = f"capacity must not be negative; got {capacity}"
            raise ValueError(msg)
        target, before = self.bytes_for(capacity), self.bytes
        if target > before:
            self.account.reserve(target - before)
            try:
                with _storage(self.path, target - before):
                    self._allocate(before, target)
                    self._remap(target)
            except BaseException:
                with suppress(OSError):
                    os.truncate(self.path, before)
                self.account.release(target - before)
                raise
        elif target < before:
            self._remap(target)
            os.truncate(self.path, target)
            self.account.release(before - target)
            self._clear_cut_row()

    def restart(self, width: int) -> None:
        """Drop all rows, and have rows of another width from now on."""
        self.resize(0)
        self.width = width
        self.view = self._over(None)

    def unmap(self) -> tuple[Place, Kept] | None:
        """Drop the mapping and the array over it; return them with the file they belong to.

        Views that still exist keep their pages until they are garbage-collected.
        """
        left = None if self._map is None else (self._place, (self._map, self.view))
        self.view = self._over(None)
        self._map = None
        self.bytes = 0
        return left

    def _clear_cut_row(self) -> None:
        """Zero the rest of a row that the last page cuts, in case the array grows again."""
        if self._map is not None:
            used = self.capacity * self.row_bytes
            self._map[used:] = bytes(self.bytes - used)

    def _allocate(self, before: int, target: int) -> None:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(handle, before, target - before)
        finally:
            os.close(handle)

    def _remap(self, target: int) -> None:
        old = self._map
        self.view = self._over(None)
        try:
            self._map = self._mapping(old, target)
            self.bytes = target
        finally:
            self.view = self._over(self._map)

    def _mapping(self, old: mmap.mmap | None, target: int) -> mmap.mmap | None:
        try:
            if target == 0:
                if old is not None:
                    old.close()
                return None
            if old is not None:
                old.resize(target)
                return old
        except BufferError as viewed:
            if target < self.bytes:
                msg = f"{self.path} cannot shrink while a view of it exists; drop the view first"
                raise BufferError(msg) from viewed
        self._place, _ = place_of(self.path)
        return _mapped(self.path, target)

    def _over(self, mapping: mmap.mmap | None) -> npt.NDArray[Any]:
        if mapping is None:
            return _empty(self.dtype, self.width)
        rows = len(mapping) // self.row_bytes
        flat: npt.NDArray[Any] = np.frombuffer(mapping, self.dtype, rows * self.width)
        return flat if self.width == 1 else flat.reshape(-1, self.width)


def _mapped(path: str, size: int) -> mmap.mmap:
    """Map the first bytes of a file, for reading and writing."""
    handle = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(handle, size)
    finally:
        os.close(handle)


def _has(view: npt.NDArray[Any], dtype: np.dtype[Any], width: int) -> bool:
    """Return whether an array has rows of a width and type."""
    return view.dtype == dtype and view.shape[1:] == (() if width == 1 else (width,))


@cache
def _empty(dtype: np.dtype[Any], width: int) -> npt.NDArray[Any]:
    """Return an array without rows."""
    return np.empty(0 if width == 1 else (0, width), dtype)


class Arena:
    """The arrays of one shard and a small header, owned by one task at a time."""

    def __init__(self, parent: str, name: str, account: Account) -> None:
        """Attach to the folder `parent/name`; use `create` or `claim`."""
        self.parent = parent
        #: the private working name of the folder, for the `keep` of a `sweep`
        self.name = name
        self._folder = f"{parent}/{name}"
        #: JSON scalars and lists, written at release, read at claim
        self.header: dict[str, Any] = {}
        self._account = account
        self._arrays: dict[str, ArenaArray] = {}
        self._open = True

    @classmethod
    def create(cls, parent: str, account: Account) -> Arena:
        """Create an empty arena in a fresh folder under `parent`."""
        arena = cls(parent, _working_name(), account)
        with _storage(arena._folder, PAGE):
            os.makedirs(arena._folder, PRIVATE_FOLDER)
        return arena

    @classmethod
    def claim(cls, parent: str, name: str, account: Account) -> Arena | None:
        """Take over the arena released as `name`; None if it is missing or cannot be trusted.

        Raises `Refused` when the account cannot reserve its bytes; the arena stays claimable.
        """
        folder = f"{parent}/{_plain(name)}"
        released = _read_header(folder)
        places = None if released is None else _places(folder, released["arrays"])
        if released is None or places is None:
            return None
        reserved = sum(mapped for _, _, mapped in released["arrays"].values())
        account.reserve(reserved)
        arena = cls(parent, _working_name(), account)
        try:
            os.rename(folder, arena._folder)
        except OSError:
            account.release(reserved)
            return None
        arena.header = released["header"]
        kept = KEPT.take(folder)
        try:
            with _storage(arena._folder, reserved):
                for array, (dtype, width, mapped) in released["arrays"].items():
                    path, place = f"{arena._folder}/{array}{_ARRAY}", places[array]
                    mapping = kept.get(place)
                    arena._arrays[array] = ArenaArray(
                        path, np.dtype(dtype), width, account, mapped, place, mapping
                    )
        except BaseException:
            account.release(reserved - arena.bytes)
            arena.discard()
            raise
        return arena

    @property
    def bytes(self) -> int:
        """Mapped bytes of all arrays: what the account holds for this arena."""
        return sum(array.bytes for array in self._arrays.values())

    def array(
        self, name: str, dtype: np.dtype[Any] | type, width: int = 1, capacity: int = 0
    ) -> ArenaArray:
        """Open the array `name`, creating it if it is new, with room for `capacity` rows at least.

        Raises ValueError when it exists with another dtype or width, and whatever `resize` raises.
        """
        self._check_open()
        array = self._arrays.get(name)
        if array is not None and capacity == 0 and (array.dtype, array.width) == (dtype, width):
            return array
        kind = np.dtype(dtype)
        if kind.kind not in "biuf" or width < 1:
            msg = f"arena arrays store rows of plain numbers; got {width} of {kind}"
            raise ValueError(msg)
        if array is None:
            path = f"{self._folder}/{_plain(name)}{_ARRAY}"
            array = ArenaArray(path, kind, width, self._account)
            if capacity:
                array.resize(capacity)
            self._arrays[name] = array
        elif (array.dtype, array.width) != (kind, width):
            msg = (
                f"array {name!r} of this arena has rows of {array.width} of {array.dtype}, not "
                f"{width} of {kind}; discard the arena and rebuild it"
            )
            raise ValueError(msg)
        elif array.capacity < capacity:
            array.resize(capacity)
        return array

    def part(self, scope: str, account: Account) -> Arena:
        """Return the arrays, files and header of one part, whose bytes another account holds.

        The part is released and discarded with the whole arena. Raises `Refused` when the account
        cannot take over its bytes.
        """
        return _Part(self, scope, account)

    def path(self, name: str) -> str:
        """Return the path for a file next to the arrays; it moves with the arena, uncounted."""
        self._check_open()
        if name == _HEADER or name.endswith(_ARRAY):
            msg = f"{name!r} is a name reserved by the arena"
            raise ValueError(msg)
        return f"{self._folder}/{_plain(name)}"

    def release(self, name: str) -> None:
        """Write the header and leave the arena under `parent/name` for the next task.

        Raises FileExistsError if that name is taken: a name includes the attempt and is used once.
        """
        self._check_open()
        target = f"{self.parent}/{_plain(name)}"
        arrays = {
            key: (array.dtype.str, array.width, array.bytes)
            for key, array in self._arrays.items()
            if array.bytes
        }
        content = {
            "format": _FORMAT,
            "boot": _boot_id(),
            "arrays": arrays,
            "header": self.header,
        }
        text = _ENCODER.encode(content)
        with _storage(self._folder, len(text)):
            _overwrite(f"{self._folder}/{_HEADER}", text.encode())
        try:
            os.rename(self._folder, target)
        except OSError as error:
            if error.errno in _TAKEN:
                msg = f"{target} exists; release under a name of this attempt"
                raise FileExistsError(msg) from error
            with _storage(self._folder, len(text)):
                raise
        KEPT.keep(target, self._close())

    def discard(self) -> None:
        """Remove the arena and return its bytes; safe after release, or twice."""
        if self._open:
            self._close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _close(self) -> dict[Place, Kept]:
        """Return the bytes to the accounts; return the mappings."""
        self._open = False
        held = Counter[Account]()
        for array in self._arrays.values():
            held[array.account] += array.bytes
        for account, size in held.items():
            account.release(size)
        return dict(filter(None, [array.unmap() for array in self._arrays.values()]))

    def _check_open(self) -> None:
        if not self._open:
            msg = f"the arena {self.name} was released or discarded"
            raise ValueError(msg)


class _Part(Arena):
    """The arrays, files and header of one part of an arena."""

    def __init__(self, whole: Arena, scope: str, account: Account) -> None:
        super().__init__(whole.parent, whole.name, account)
        self.header = whole.header.setdefault(scope, {})
        self._whole = whole
        self._scope = scope
        for array in self._mine():
            array.account.release(array.bytes)
            account.reserve(array.bytes)
            array.account = account

    @property
    def bytes(self) -> int:
        return sum(array.bytes for array in self._mine())

    def array(
        self, name: str, dtype: np.dtype[Any] | type, width: int = 1, capacity: int = 0
    ) -> ArenaArray:
        array = self._whole.array(self._scope + name, dtype, width)
        array.account = self._account
        if array.capacity < capacity:
            array.resize(capacity)
        return array

    def path(self, name: str) -> str:
        return self._whole.path(self._scope + name)

    def _mine(self) -> list[ArenaArray]:
        arrays = self._whole._arrays.items()
        return [array for name, array in arrays if name.startswith(self._scope)]


def write_at(path: str, handle: int, data: bytes | memoryview, place: int) -> None:
    """Write to an open file in the folder of an arena, whole or not at all."""
    try:
        written = os.pwrite(handle, data, place)
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}; free disk space and restart"
        raise StorageError(msg) from error
    if written != memoryview(data).nbytes:
        msg = f"cannot write {path}: the disk is full; free disk space and restart"
        raise StorageError(msg)


def is_working(name: str) -> bool:
    """Return whether this is the private name of an arena in use by a task."""
    return name.startswith(_WORKING)


def sweep(parent: str, keep: set[str]) -> list[str]:
    """Remove the arenas under `parent` not in `keep`, even those in use; return their names.

    Other files and folders are left alone.
    """
    with suppress(FileNotFoundError):
        return discard(parent, set(os.listdir(parent)) - keep)
    return []


def discard(parent: str, names: Iterable[str]) -> list[str]:
    """Remove arenas; return the names of those that existed.

    An arena is renamed before it is removed, so that no task claims half of it.
    """
    removed = []
    for name in sorted(names):
        folder, doomed = (os.path.join(parent, part) for part in (name, _working_name()))
        if is_working(name) or os.path.isfile(os.path.join(folder, _HEADER)):
            with suppress(FileNotFoundError):
                os.rename(folder, doomed)
                shutil.rmtree(doomed, ignore_errors=True)
                removed.append(name)
    KEPT.prune()
    return removed


def remove(folder: str) -> None:
    """Remove a folder with all arenas in it, and drop their cached mappings."""
    shutil.rmtree(folder, ignore_errors=True)
    KEPT.prune()


def _read_header(folder: str) -> dict[str, Any] | None:
    """Read the header of a released arena; None unless it is complete."""
    try:
        content: dict[str, Any] = json.loads(_content(f"{folder}/{_HEADER}"))
        if (content["format"], content["boot"]) != (_FORMAT, _boot_id()):
            return None
        if not isinstance(content["header"], dict):
            return None
        for dtype, width, _ in content["arrays"].values():
            np.dtype(dtype)
            if width < 1:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return content


def _places(folder: str, arrays: dict[str, tuple[str, int, int]]) -> dict[str, Place] | None:
    """Return where the files of arrays are; None if one is missing or has another size."""
    found = {}
    try:
        for name, (_, _, mapped) in arrays.items():
            found[name], size = place_of(f"{folder}/{name}{_ARRAY}")
            if size != mapped:
                return None
    except OSError:
        return None
    return found


@cache
def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _content(path: str) -> bytes:
    """Return what a file contains."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, os.fstat(handle).st_size)
    finally:
        os.close(handle)


def _overwrite(path: str, content: bytes) -> None:
    """Overwrite a file in place; truncating it first would write it out when it is closed."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        with memoryview(content) as left:
            done = 0
            while done < len(left):
                done += os.write(handle, left[done:])
        os.ftruncate(handle, len(content))
    finally:
        os.close(handle)


def _working_name() -> str:
    return _WORKING + os.urandom(16).hex()


def _plain(name: str) -> str:
    if not name or name in (".", "..") or "/" in name or is_working(name):
        msg = f"{name!r} is not a valid name for an arena or a file in one"
        raise ValueError(msg)
    return name


class _storage:  # noqa: N801 - a block, not a thing; every claim and release enters one
    """Turn an OSError inside the block into an error that states the remedy."""

    __slots__ = ("_needed", "_path")

    def __init__(self, path: str, needed: int) -> None:
        self._path, self._needed = path, needed

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        cause: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(cause, OSError):
            msg = (
                f"{self._path}: {cause.strerror}. Icestream needs {format_bytes(self._needed)} "
                "there for hot state: free space or grant access on that disk, or place the arenas "
                "elsewhere."
            )
            raise StorageError(msg) from cause
