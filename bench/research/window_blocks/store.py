"""Where blocks are stored on disk, in two modes behind one interface.

Idea: a store assigns a block a place in a file, finds it again and frees the place. The caller
    moves
the bytes (`move_out`, `move_in`), on any thread, bypassing the page cache. `LogStore` (the default)
writes a block once: places only count up, in files of a few megabytes that are unlinked when none
of their blocks is needed. `SlotStore` is one file whose places are reused: first the one freed
first, else the end of the file; a block is either there or in memory, never both.

Invariants:
1. A block reads back as it was written, in either mode, in any order of calls
   (`test_oracle_stores_answer_as_a_dict`).
2. A log's files are unlinked as soon as their last block is forgotten
   (`test_bounded_a_log_gives_space_back`); slots never take more places than there were blocks at
   once (`test_bounded_slots_are_used_again`).
3. A freed slot is taken again in the order of freeing (`test_slots_are_taken_in_order_of_release`).
4. OS errors become `StorageError`, changed bytes `DamageError`
   (`test_refusals_of_the_disk_name_path_and_remedy`, `test_a_changed_block_is_damage`).

Cost: one system call per transfer. One descriptor per log file.

Limits: the blocks are evicted copies and do not make a query durable: `close` deletes the files,
and a folder is used by one store at a time. If the file system has no direct I/O (`direct` is
False), every write is synced and dropped from the page cache, which is slower.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from bench.research.window_blocks.file_runs import Places, Vacancies
from bench.research.window_blocks.layout import Frames
from bench.research.window_blocks.worker_thread import WorkerThread
from icestream.core.errors import DamageError
from icestream.state.files import storage_error

#: bytes of a log file
FILE_BYTES = 64 << 20


class BlockAddress:
    """The place of a block: a file and an offset."""

    __slots__ = ("direct", "file", "offset", "path")

    def __init__(self, file: int, offset: int, path: str, direct: bool) -> None:
        """Refer to an open file and an offset in it."""
        self.file = file
        self.offset = offset
        self.path = path
        self.direct = direct


class BlockStore(Protocol):
    """Places for blocks; bytes are moved with `move_out` and `move_in`."""

    #: whether a block that comes back into memory gives up its place on disk
    exclusive: bool
    #: whether transfers bypass the page cache
    direct: bool

    def __contains__(self, block: int) -> bool:
        """Return whether a block has a place."""

    def assign(self, block: int, instead: int | None = None) -> BlockAddress:
        """Assign a place to a block; with `instead`, that of another block, which loses it."""

    def find(self, block: int) -> BlockAddress:
        """Return the place of a block."""

    def forget(self, block: int) -> None:
        """Free a block's place."""

    @property
    def file_bytes(self) -> int:
        """Bytes of the files."""

    @property
    def index_bytes(self) -> int:
        """Bytes of the index of block places in memory."""

    def close(self) -> None:
        """Delete the files; closing twice is fine."""


class LogStore:
    """Every block is written once; a file is unlinked when none of its blocks is needed."""

    exclusive = False

    def __init__(self, folder: str, block_bytes: int, file_bytes: int = FILE_BYTES) -> None:
        """Keep files of about `file_bytes` in a folder, which is created."""
        os.makedirs(folder, exist_ok=True)
        self._folder = folder
        self._block_bytes = block_bytes
        self._per_file = max(1, file_bytes // block_bytes)
        self._places = Places()
        self._next = 0
        #: needed blocks and open file, by number of the file
        self._needed: dict[int, int] = {}
        self._files: dict[int, _File] = {}
        self._removals = WorkerThread("window-block-removal")
        self.direct = True

    def __contains__(self, block: int) -> bool:
        """Return whether a block has a place."""
        return self._places.get(block) is not None

    def assign(self, block: int, instead: int | None = None) -> BlockAddress:
        """Assign the next place to a block."""
        place = self._next
        number = place // self._per_file
        if number not in self._files:
            opened = _File(os.path.join(self._folder, f"blocks-{number:08}"))
            self._files[number] = opened
            self._needed[number] = 0
            self.direct = opened.direct
        self._next += 1
        self._needed[number] += 1
        self._places.put(block, place)
        if instead is not None:
            self.forget(instead)
        return self._at(place)

    def find(self, block: int) -> BlockAddress:
        """Return the place of a block."""
        place = self._places.get(block)
        if place is None:
            raise KeyError(block)
        return self._at(place)

    def forget(self, block: int) -> None:
        """Free a block's place; unlink its file if it was the last one needed."""
        number = self._places.pop(block) // self._per_file
        self._needed[number] -= 1
        self._remove(number)

    @property
    def file_bytes(self) -> int:
        """Bytes of the files."""
        return (
            sum(min(self._next - number * self._per_file, self._per_file) for number in self._files)
            * self._block_bytes
        )

    @property
    def index_bytes(self) -> int:
        """Bytes of the index of block places in memory."""
        return self._places.bytes + 200 * len(self._files)

    def close(self) -> None:
        """Delete the files."""
        self._removals.close()
        for opened in self._files.values():
            opened.remove()
        self._files.clear()

    def _at(self, place: int) -> BlockAddress:
        number, inside = divmod(place, self._per_file)
        opened = self._files[number]
        return BlockAddress(opened.file, inside * self._block_bytes, opened.path, opened.direct)

    def _remove(self, number: int) -> None:
        """Unlink a file that is complete and has no needed block."""
        complete = self._next >= (number + 1) * self._per_file
        if complete and self._needed.get(number) == 0:
            del self._needed[number]
            while self._removals.pending > 1:
                self._removals.collect()
            self._removals.give(self._files.pop(number).remove)


class SlotStore:
    """One file whose places are reused, the one freed first before others."""

    exclusive = True

    def __init__(self, folder: str, block_bytes: int) -> None:
        """Keep the file in a folder, which is created."""
        os.makedirs(folder, exist_ok=True)
        self._block_bytes = block_bytes
        self._file = _File(os.path.join(folder, "slots"))
        self._places = Places()
        self._free = Vacancies()
        self._end = 0
        self.direct = self._file.direct

    def __contains__(self, block: int) -> bool:
        """Return whether a block has a place."""
        return self._places.get(block) is not None

    def assign(self, block: int, instead: int | None = None) -> BlockAddress:
        """Assign the place of another block, else the one freed first, else the end of the file."""
        place = self._free.take() if instead is None else self._places.pop(instead)
        if place is None:
            place = self._end
            self._end += 1
        self._places.put(block, place)
        return self._at(place)

    def find(self, block: int) -> BlockAddress:
        """Return the place of a block."""
        place = self._places.get(block)
        if place is None:
            raise KeyError(block)
        return self._at(place)

    def forget(self, block: int) -> None:
        """Free a block's place."""
        self._free.put(self._places.pop(block))

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self._end * self._block_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of the index of block places in memory."""
        return self._places.bytes + self._free.bytes

    def close(self) -> None:
        """Delete the file."""
        self._file.remove()

    def _at(self, place: int) -> BlockAddress:
        return BlockAddress(
            self._file.file, place * self._block_bytes, self._file.path, self._file.direct
        )


def move_out(frames: Frames, frame: int, block: int, place: BlockAddress) -> None:
    """Write a block from a frame to its place in the store."""
    data = frames.seal(frame, block)
    with _refusals_named(place.path):
        written = 0
        while written < len(data):
            written += os.pwrite(place.file, data[written:], place.offset + written)
        if not place.direct:
            os.fdatasync(place.file)
            os.posix_fadvise(place.file, place.offset, len(data), os.POSIX_FADV_DONTNEED)


def move_in(frames: Frames, frame: int, block: int, place: BlockAddress) -> None:
    """Read a block from its place in the store into a frame, and check it."""
    data = frames.block(frame)
    with _refusals_named(place.path):
        read = os.preadv(place.file, [data], place.offset)
        if not place.direct:
            os.posix_fadvise(place.file, place.offset, len(data), os.POSIX_FADV_DONTNEED)
    if read != len(data):
        raise DamageError(place.path, f"window block {block} ends after {read} bytes")
    frames.check(frame, block, place.path)


class _File:
    """A file opened for direct I/O if the file system allows it."""

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.path = path
        with suppress(FileNotFoundError):
            # left over from a store that was not closed
            os.unlink(path)
        with _refusals_named(path):
            try:
                self.file = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
                self.direct = hasattr(os, "O_DIRECT")
            except OSError as error:
                if storage_error(path, error) is not None:
                    raise
                with suppress(FileNotFoundError):
                    os.unlink(path)
                self.file = os.open(path, flags, 0o600)
                self.direct = False

    def remove(self) -> None:
        """Close and unlink; twice is fine."""
        if self.file >= 0:
            with suppress(FileNotFoundError):
                os.unlink(self.path)
            os.close(self.file)
            self.file = -1


@contextmanager
def _refusals_named(path: str) -> Iterator[None]:
    """Turn OS errors inside the block that have a remedy into `StorageError`; pass on others."""
    try:
        yield
    except OSError as error:
        refusal = storage_error(path, error)
        if refusal is None:
            raise
        raise refusal from error
