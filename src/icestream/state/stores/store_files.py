"""`Files` in an object store: whole objects, created once, read through copies on the local disk.

Idea: a file that is written lies on the local disk until it is synced; then it is one object, and
durable. Files that are synced together are sent at the same time. Reading fetches chunks, unless
this host has written or read them before.

Invariants:
1. All that holds of files holds of objects (`test_files_in_a_store`).
2. A query gives the same rows as on a local disk, killed and started again at any request
   (`test_crash_a_query_in_a_store`).
3. What a process writes it can read before it is an object
   (`test_a_file_is_read_before_it_is_synced`).

Cost: one request to sync or put a file, to list a folder, or to remove any number of files; none to
read what this host has a copy of. Memory: a chunk for each read, and for each of up to
`SENT_AT_ONCE` files that are sent, two for files larger than a chunk.

Limits: `rename` copies. Options, which may be secrets, travel to tasks with the work itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from icestream.core.errors import DefinitionError
from icestream.state.files import Files, LocalFiles, NewFile, OpenFile, storage_error
from icestream.state.stores.bucket import CHUNK, SCHEMES, Bucket, open_bucket, store_scheme
from icestream.state.stores.copies import LIMIT, Copy, LocalCopies, NewCopy
from icestream.state.stores.packs import OpenMember, PackedFile, directory, members_of, pack_of

#: directories of packs in memory
DIRECTORIES = 64
#: files that are sent at the same time
SENT_AT_ONCE = 8

Result = TypeVar("Result")
Connect = Callable[[str, tuple[tuple[str, str], ...]], Bucket]


class StoreFiles:
    """Files named by URIs of an object store."""

    #: files of one attempt can be one object
    packs = True

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        copies: str | None = None,
        limit: int = LIMIT,
        connect: Connect = open_bucket,
    ) -> None:
        """Connect when something is read or written.

        Args:
            options: options of the store, in addition to its environment variables.
            copies: a folder on the local disk of each host; by default a temporary one.
            limit: the most bytes of copies.
            connect: opens a bucket.
        """
        self._options = tuple(sorted((options or {}).items()))
        self._folder = copies
        self._limit = limit
        self._connect = connect
        self._set_up()

    def _set_up(self) -> None:
        self._copies: LocalCopies | None = None
        #: files that are being written
        self._new: dict[str, NewCopy] = {}
        #: directories of packs that were read last
        self._members: OrderedDict[str, Mapping[str, PackedFile]] = OrderedDict()

    def __getstate__(self) -> dict[str, object]:
        """Leave out what belongs to this process."""
        return {name: getattr(self, name) for name in _CARRIED}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__.update(state)
        self._set_up()

    def __repr__(self) -> str:
        """Name no option: some are secrets."""
        return "StoreFiles()"

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the store, for other libraries that reach it."""
        return dict(self._options)

    def repeated(
        self, kind: str, path: str, act: Callable[[], Result], failures: tuple[type[Exception], ...]
    ) -> Result:
        """Let another library do something in the store, as often as requests are repeated."""
        bucket, key = self._find(path)
        return bucket.repeated(kind, key, act, failures)

    def create(self, path: str) -> NewFile:
        """Create a file; it is an object, whole and durable, once it is synced."""
        try:
            new = NewCopy(self.copies.begin(), path)
        except OSError as error:
            raise storage_error(self.copies.folder, error) or error from error
        self._new[path] = new
        return _NewObject(self, path, new)

    def open(self, path: str) -> OpenFile:
        new = self._new.get(path)
        if new is not None:
            return _Unfinished(self, path, new)
        return self._member(path) or _StoredObject(self, path)

    def _member(self, path: str) -> OpenMember | None:
        """Open a file in its pack; None if there is no such pack, or the file is not in it."""
        pack = pack_of(path)
        if pack is None:
            return None
        try:
            file = _StoredObject(self, pack)
        except FileNotFoundError:
            return None
        try:
            if pack not in self._members:
                self._members[pack] = members_of(pack, file)
            self._members.move_to_end(pack)
            while len(self._members) > DIRECTORIES:
                self._members.popitem(last=False)
            member = self._members[pack].get(path.rpartition("/")[2])
        except BaseException:
            file.close()
            raise
        if member is None:
            file.close()
            return None
        return OpenMember(file, member, lambda: self._unpacked(pack, path))

    def _unpacked(self, pack: str, path: str) -> OpenFile:
        """Open a file whose pack, known from a copy, has been removed meanwhile."""
        self.copies.drop(pack)
        self._members.pop(pack, None)
        return _StoredObject(self, path)

    def unpack(self, paths: Sequence[str]) -> None:
        """Make objects of files in packs, by their own names."""
        for path in paths:
            with contextlib.closing(self.open(path)) as file:
                bucket, key = self._find(path)
                places = range(0, file.size, CHUNK)
                bucket.put(key, [partial(file.read_at, place, CHUNK) for place in places])

    def read(self, path: str) -> bytes:
        """Return a whole file, which is not copied; FileNotFoundError if there is none."""
        if pack_of(path) is not None:
            with contextlib.closing(self.open(path)) as file:
                return file.read_at(0, file.size)
        bucket, key = self._find(path)
        return bucket.get(key).data

    def put(self, path: str, data: bytes) -> bool:
        """Create a file durably, atomically and exclusively; False if it existed already.

        After a lost answer it may be ours although False is returned: compare the content.
        """
        bucket, key = self._find(path)
        return bucket.create(key, data)

    def rename(self, source: str, target: str) -> None:
        """Copy a file over another one and remove it; one in a pack stays there too."""
        bucket, key = self._find(source)
        if pack_of(source) is not None:
            data = self.read(source)
            bucket.put(self._find(target)[1], [lambda: data])
            return
        bucket.copy(key, self._find(target)[1])
        self.copies.drop(target)
        self.unlink(source)

    def unlink(self, *paths: str) -> None:
        """Remove objects; missing ones are fine. A pack is removed by its own name."""
        written = [path for path in paths if path not in self._new]
        for path in {*paths} & self._new.keys():
            self._new.pop(path).discard()
        if written:
            bucket, _ = self._find(written[0])
            bucket.delete([self._find(path)[1] for path in written])
        for path in written:
            self.copies.drop(path)

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted, without dot-files."""
        bucket, key = self._find(folder)
        return sorted(name for name in bucket.names(key) if not name.startswith("."))

    def sizes(self, folder: str, first: str = "", end: str | None = None) -> dict[str, int]:
        """Return the bytes of objects by their paths in a folder, from `first` to before `end`."""
        bucket, key = self._find(folder)
        start = f"{key}/" if key else ""
        last = None if end is None else f"{start}{end}"
        found = bucket.walk(key, f"{start}{first}" if first else "", last)
        return {path[len(start) :]: size for path, size in found.items()}

    def walk(self, folder: str) -> Iterator[str]:
        yield from self.sizes(folder)

    def exists(self, path: str) -> bool:
        bucket, key = self._find(path)
        member = self._member(path)
        if member is not None:
            member.close()
            return True
        return bucket.exists(key) or bool(bucket.names(key))

    def sync_folder(self, folder: str) -> None:
        """Do nothing: an object is durable."""

    def sync_files(self, paths: Collection[str]) -> None:
        """Make objects of files that were written and closed."""
        packs: dict[str, list[str]] = {}
        for path in paths:
            if path in self._new:
                packs.setdefault(pack_of(path) or path, []).append(path)
        if len(packs) < 2:
            for pack, members in packs.items():
                self._publish_together(pack, members)
            return
        with ThreadPoolExecutor(min(len(packs), SENT_AT_ONCE)) as pool:
            list(pool.map(self._publish_together, packs, packs.values()))

    def _publish_together(self, pack: str, paths: Sequence[str]) -> None:
        """Make one object of files; of one that is in no pack, its own."""
        if pack == paths[0]:
            self.publish(pack)
            return
        files = [(path, self._new[path]) for path in paths]
        head = directory([(path.rpartition("/")[2], file.size) for path, file in files])
        chunks = (chunk() for _, file in files for chunk in file.chunks())
        if len(head) + sum(file.size for _, file in files) <= CHUNK:
            self._send_and_copy(pack, b"".join((head, *chunks)))
        else:
            together = self.create(pack)
            for data in (head, *chunks):
                together.write(data)
            together.sync()
        for path, file in files:
            del self._new[path]
            file.discard()

    def _send_and_copy(self, path: str, data: bytes) -> None:
        """Make an object of bytes, and a copy while the store takes them."""
        bucket, key = self._find(path)
        copy = NewCopy(self.copies.begin(), path)
        with ThreadPoolExecutor(1) as other:
            copying = other.submit(copy.fill, data)
            try:
                bucket.put(key, [lambda: data])
            finally:
                copied = copying.result()
        if copied:
            self.copies.keep(copy)
        copy.discard()

    @property
    def copies(self) -> LocalCopies:
        if self._copies is None:
            folder = self._folder
            if folder is None:
                folder = tempfile.mkdtemp(prefix="icestream-")
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._copies = LocalCopies(folder, self._limit)
            self._copies.remove_unfinished()
        return self._copies

    def fetch(self, path: str, chunk: int) -> tuple[bytes, int]:
        """Return a chunk of an object and the size of all of it, and keep a copy."""
        bucket, key = self._find(path)
        data, size = bucket.get(key, chunk * CHUNK, (chunk + 1) * CHUNK)
        self.copies.add(path, chunk, data, size)
        return data, size

    def publish(self, path: str) -> None:
        """Make an object of a file that was written; do nothing if it is one or was removed."""
        new = self._new.get(path)
        if new is None:
            return
        bucket, key = self._find(path)
        new.finish()
        bucket.put(key, new.chunks())
        self.copies.keep(new)
        del self._new[path]
        new.discard()

    def _find(self, path: str) -> tuple[Bucket, str]:
        parts = urlsplit(path)
        bucket = self._connect(f"{parts.scheme}://{parts.netloc}", self._options)
        return bucket, parts.path.strip("/")


_CARRIED = ("_options", "_folder", "_limit", "_connect")


class _NewObject:
    """A file that becomes an object when it is synced; it can be read before."""

    def __init__(self, files: StoreFiles, path: str, new: NewCopy) -> None:
        self._files = files
        self._path = path
        self._new = new

    def write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._new.write(data)
        except OSError as error:
            raise storage_error(self._files.copies.folder, error) or error from error

    def sync(self) -> None:
        self._files.publish(self._path)

    def close(self) -> None:
        """Do nothing: the local file is closed once there is an object."""


class _Unfinished(OpenFile):
    """A file that is being written, open for reading."""

    def __init__(self, files: StoreFiles, path: str, new: NewCopy) -> None:
        self._files = files
        self._path = path
        self._new = new
        self.size = new.size
        #: the object that the file has become
        self._stored: OpenFile | None = None

    def read_at(self, offset: int, length: int) -> bytes:
        if self._stored is None and not self._new.is_open:
            self._stored = self._files.open(self._path)
        if self._stored is not None:
            return self._stored.read_at(offset, length)
        return self._new.read(offset, min(length, max(0, self.size - offset)))

    def close(self) -> None:
        if self._stored is not None:
            self._stored.close()


class _StoredObject(OpenFile):
    """An object, open for reading."""

    def __init__(self, files: StoreFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._closed = False
        #: chunks with a copy, and the last one fetched if it could not be copied
        self._open: dict[int, Copy] = {}
        self._fetched: tuple[int, bytes] | None = None
        first = files.copies.find(path, 0)
        if first is None:
            self.size = self._fetch(0)
        else:
            self._open[0] = first
            self.size = first.size

    def read_at(self, offset: int, length: int) -> bytes:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        parts = []
        end = min(offset + length, self.size)
        while offset < end:
            chunk, inside = divmod(offset, CHUNK)
            size = min(CHUNK - inside, end - offset)
            parts.append(self._read(chunk, inside, size))
            if not parts[-1]:
                break
            offset += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self, chunk: int, offset: int, length: int) -> bytes:
        copy = self._open.get(chunk) or self._files.copies.find(self._path, chunk)
        if copy is not None:
            self._open[chunk] = copy
            with contextlib.suppress(ValueError, OSError):
                return copy.read(offset, length)
            self._open.pop(chunk).close()
            self._files.copies.drop(self._path)
        if self._fetched is None or self._fetched[0] != chunk:
            self._fetch(chunk)
        assert self._fetched is not None
        return self._fetched[1][offset : offset + length]

    def _fetch(self, chunk: int) -> int:
        """Fetch a chunk, which is held until another one is; return the size of the object."""
        data, size = self._files.fetch(self._path, chunk)
        self._fetched = chunk, data
        return size

    def close(self) -> None:
        for copy in self._open.values():
            copy.close()
        self._open = {}
        self._fetched = None
        self._closed = True


def files_at(location: str) -> Files:
    """Return the files of a location that is read without its query: a folder or a store's URI."""
    if store_scheme(location) is not None:
        return StoreFiles()
    if "://" in location:
        msg = f"{location}: only folders and object stores ({', '.join(SCHEMES)}) can be read here"
        raise DefinitionError(msg)
    return LocalFiles()
