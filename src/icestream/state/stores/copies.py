"""Copies of objects on the local disk: bounded, shared by the processes of a host, verified.

Idea: an object is never changed, so a copy of it stays right. Copies are files of at most `CHUNK`
bytes, followed by a checksum for each page. What a task writes is a copy before it is an object;
what it reads is fetched once, however many tasks and runs on this host read it again. When the
folder exceeds its limit, the copies that were not used for longest go.

Invariants:
1. A damaged copy is never returned: it is removed and fetched again
   (`test_a_damaged_copy_is_fetched_again`).
2. The folder has at most `limit` bytes plus a sixteenth for each process that writes
   (`test_bounded_copies_on_the_local_disk`).
3. A disk without space for copies slows reading down and fails nothing
   (`test_copies_need_no_space`).

Cost: 8 bytes and one checksum of a page of 256 KB for each read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import uuid
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import NamedTuple

import psutil
import xxhash

from icestream.state.files import PRIVATE_FILE, PRIVATE_FOLDER
from icestream.state.stores.bucket import CHUNK

#: bytes with one checksum
PAGE = 256 << 10
#: bytes of copies on a host by default
LIMIT = 1 << 30

#: at the end of a copy: bytes of the object and of this chunk, checksum of all before
_END = struct.Struct("<QQQ")
#: start of the names of folders with files that are being written
_NEW = "new-"


class Copy:
    """A chunk of an object on the local disk, open for reading."""

    def __init__(self, descriptor: int, seed: int) -> None:
        """Read and verify the checksums; ValueError if they are damaged."""
        self._descriptor = descriptor
        self._seed = seed
        length = os.fstat(descriptor).st_size
        end = os.pread(descriptor, _END.size, max(0, length - _END.size))
        if len(end) < _END.size:
            raise ValueError
        self.size, self.bytes, checksum = _END.unpack(end)
        pages = -(-self.bytes // PAGE)
        if self.bytes > CHUNK or length != self.bytes + 8 * pages + _END.size:
            raise ValueError
        sums = os.pread(descriptor, 8 * pages, self.bytes)
        if xxhash.xxh3_64_intdigest(sums + end[:16], seed) != checksum:
            raise ValueError
        self._sums = struct.unpack(f"<{pages}Q", sums)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the chunk; ValueError if they are damaged."""
        first, end = offset // PAGE * PAGE, min(offset + length, self.bytes)
        if end <= offset:
            return b""
        last = min(-(-end // PAGE) * PAGE, self.bytes)
        data = os.pread(self._descriptor, last - first, first)
        view = memoryview(data)
        for place in range(first, last, PAGE):
            page = view[place - first : place - first + PAGE]
            if xxhash.xxh3_64_intdigest(page, self._seed) != self._sums[place // PAGE]:
                raise ValueError
        return bytes(view[offset - first : end - first])

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalCopies:
    """The copies of one query on this host."""

    def __init__(self, folder: str, limit: int = LIMIT) -> None:
        """Use a folder, created when something is written."""
        self.folder = folder
        self._limit = limit
        #: bytes written since the folder was last measured; it is when the first copy comes
        self._unmeasured = limit

    def find(self, path: str, chunk: int) -> Copy | None:
        """Return a chunk of an object; None if there is no copy of it."""
        place = self._place(path, chunk)
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            found = Copy(descriptor, _seed(path, chunk))
        except (OSError, ValueError):
            os.close(descriptor)
            self.drop(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(descriptor)
        return found

    def add(self, path: str, chunk: int, data: bytes, size: int) -> None:
        """Keep what was fetched; a disk that refuses is no harm."""
        with contextlib.suppress(OSError):
            new = NewCopy(self.begin(), path)
            new.skip(chunk)
            if new.fill(data):
                self.keep(new, size)
            new.discard()

    def begin(self) -> str:
        """Return the folder of this process for files that are being written."""
        folder = os.path.join(self.folder, f"{_NEW}{os.getpid()}")
        os.makedirs(folder, PRIVATE_FOLDER, exist_ok=True)
        return folder

    def keep(self, new: NewCopy, size: int | None = None) -> None:
        """Make what was written copies of an object of some size."""
        with contextlib.suppress(OSError):
            for number, place in new.sealed(new.size if size is None else size):
                self._unmeasured += os.stat(place).st_size
                os.replace(place, self._place(new.path, number))
        if self._unmeasured > self._limit // 16:
            self._measure()

    def drop(self, path: str) -> None:
        with contextlib.suppress(OSError):
            for chunk in count():
                os.unlink(self._place(path, chunk))

    def remove_unfinished(self) -> None:
        """Remove what processes that are gone have left."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                process = name.removeprefix(_NEW)
                if process != name and process.isdigit() and not psutil.pid_exists(int(process)):
                    shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)

    def _measure(self) -> None:
        """Remove the copies that were not used for longest, as far as there are too many."""
        self._unmeasured = 0
        found = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if not entry.name.startswith(_NEW):
                        about = entry.stat()
                        found.append((about.st_mtime_ns, about.st_size, entry.path))
        excess = sum(size for _, size, _ in found) - self._limit
        for _, size, place in sorted(found):
            if excess <= 0:
                return
            excess -= size
            with contextlib.suppress(OSError):
                os.unlink(place)

    def _place(self, path: str, chunk: int) -> str:
        return os.path.join(self.folder, f"{xxhash.xxh3_128_hexdigest(path.encode())}.{chunk}")


class _Chunk(NamedTuple):
    """A chunk that is written."""

    descriptor: int
    place: str
    sums: list[int]


class NewCopy:
    """The chunks of an object that is being written, in a folder of their own."""

    def __init__(self, folder: str, path: str) -> None:
        """Write chunks of the object at `path`."""
        self.path = path
        #: bytes written
        self.size = 0
        self._start = os.path.join(folder, uuid.uuid4().hex)
        self._first = 0
        self._chunks: list[_Chunk] = []
        #: checksum of the unfinished page
        self._page: xxhash.xxh3_64 | None = None

    @property
    def is_open(self) -> bool:
        """Return whether its bytes can still be read here."""
        return bool(self._chunks) or not self.size

    def skip(self, chunk: int) -> None:
        self._first = chunk

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data).cast("B") if len(data) else memoryview(b"")
        while rest:
            inside = self.size % CHUNK
            if inside == 0:
                self._begin_chunk()
            if inside % PAGE == 0:
                self._end_page()
                seed = _seed(self.path, self._first + len(self._chunks) - 1)
                self._page = xxhash.xxh3_64(seed=seed)
            part = rest[: PAGE - inside % PAGE]
            done = os.write(self._chunks[-1].descriptor, part)
            assert self._page is not None
            self._page.update(part[:done])
            self.size += done
            rest = rest[done:]

    def finish(self) -> None:
        """End the last page; nothing is written after this."""
        self._end_page()

    def fill(self, data: bytes) -> bool:
        """Write all there is; return whether the disk took it."""
        try:
            self.write(data)
        except OSError:
            return False
        self.finish()
        return True

    def read(self, offset: int, length: int) -> bytes:
        parts = []
        end = min(offset + length, self.size)
        while offset < end:
            chunk, inside = divmod(offset, CHUNK)
            size = min(CHUNK - inside, end - offset)
            parts.append(os.pread(self._chunks[chunk].descriptor, size, inside))
            offset += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def chunks(self) -> list[Callable[[], bytes]]:
        return [partial(self.read, first, CHUNK) for first in range(0, self.size, CHUNK)]

    def sealed(self, size: int) -> list[tuple[int, str]]:
        """Write the checksums of each chunk of an object of `size` bytes; return their files."""
        found = []
        for index, (descriptor, place, sums) in enumerate(self._chunks):
            number = self._first + index
            held = min(CHUNK, self.size - index * CHUNK)
            end = struct.pack("<QQ", size, held)
            packed = struct.pack(f"<{len(sums)}Q", *sums)
            checksum = xxhash.xxh3_64_intdigest(packed + end, _seed(self.path, number))
            os.pwrite(descriptor, packed + _END.pack(size, held, checksum), held)
            found.append((number, place))
        return found

    def discard(self) -> None:
        """Close and remove all that was not kept."""
        for descriptor, place, _ in self._chunks:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(place)
        self._chunks = []

    def __del__(self) -> None:
        """Leave nothing of a task that failed."""
        self.discard()

    def _begin_chunk(self) -> None:
        self._end_page()
        place = f"{self._start}.{len(self._chunks)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._chunks.append(_Chunk(os.open(place, flags, PRIVATE_FILE), place, []))

    def _end_page(self) -> None:
        if self._page is not None:
            self._pages_of.append(self._page.intdigest())
            self._page = None

    @property
    def _pages_of(self) -> list[int]:
        """Return the checksums of the chunk that the unfinished page is in."""
        return self._chunks[(self.size - 1) // CHUNK].sums


def _seed(path: str, chunk: int) -> int:
    """Return what makes the checksums of every chunk of every object differ."""
    return xxhash.xxh3_64_intdigest(f"{path}.{chunk}".encode())
