"""Checkpoints on HDFS, S3, GCS or any storage that both Spark and Arrow can access.

Idea: tasks read and write segments and results through `pyarrow.fs`; a file there is durable once
it is closed. Arrow cannot create a file only if it does not exist. Only commits need this, and the
driver makes them with Spark's checkpoint file manager, as Spark does for its own commits.

Invariants:
1. `put` creates a complete file or none, and never replaces one
   (`test_a_second_put_of_one_path_is_refused`); if several race for a name, one wins
   (`test_one_of_several_puts_wins`). It reads the file back and returns what is there, so that a
   lost answer, or a close that failed unnoticed, leaves no doubt about a commit
   (`test_put_reads_back_what_became_of_it`).
2. Everything but `put` works in a task without a JVM (`test_tasks_need_no_jvm`).

Limits: whether `put` is exclusive depends on the storage, as for Spark's own checkpoints. Local
files are linked and HDFS renames without replacing, so one of two wins. Object stores have no such
rename (`EXCLUSIVE` lists the storages that do): two programs that create a file at the same moment
may both believe that they have won; a warning is issued once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from icestream.core.errors import DefinitionError, StorageError
from icestream.state.files import LocalFiles, NewFile, OpenFile, folder_of

#: schemes of Hadoop that have another name in Arrow
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3", "wasbs": "abfs", "abfss": "abfs"}
#: storages on which creating a file fails if another program created it first, at any moment
EXCLUSIVE = frozenset({"file", "hdfs", "viewfs"})

_LOG = logging.getLogger(__name__)


class RemoteFiles:
    """Files named by URIs."""

    def create(self, path: str) -> NewFile:
        """Create a file; it appears, complete, once it is closed."""
        system, place = _find(path)
        with _refusals(path):
            system.create_dir(folder_of(place), recursive=True)
            return _RemoteNewFile(path, system.open_output_stream(place))

    def open(self, path: str) -> OpenFile:
        """Open a file for reading; FileNotFoundError if there is none."""
        system, place = _find(path)
        return _RemoteOpenFile(system.open_input_file(place))

    def read(self, path: str) -> bytes:
        """Read a whole file."""
        file = self.open(path)
        try:
            return file.read_at(0, file.size)
        finally:
            file.close()

    def put(self, path: str, data: bytes) -> bool:
        """Create a file with this content, on the driver; False if another one exists."""
        if _is_local(path):
            return LocalFiles().put(_find(path)[1], data)
        if urlsplit(path).scheme not in EXCLUSIVE:
            _warn_of(urlsplit(path).scheme)
        spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession
        if spark is None:
            msg = f"{path} can only be created by the driver, with a running Spark session"
            raise StorageError(msg)
        jvm: Any = spark._jvm
        place = jvm.org.apache.hadoop.fs.Path(path)
        package = jvm.org.apache.spark.sql.execution.streaming.checkpointing
        manager = package.CheckpointFileManager.create(
            place.getParent(), spark._jsparkSession.sessionState().newHadoopConf()
        )

        def create() -> None:
            manager.mkdirs(place.getParent())
            stream = manager.createAtomic(place, False)
            stream.write(bytearray(data))
            stream.close()

        return False if self.exists(path) else _created(self, path, data, create)

    def rename(self, source: str, target: str) -> None:
        """Rename a file on the same storage."""
        system, place = _find(source)
        system.move(place, _find(target)[1])

    def unlink(self, path: str) -> None:
        """Remove a file; a missing one is fine."""
        system, place = _find(path)
        if system.get_file_info(place).type != pafs.FileType.NotFound:
            system.delete_file(place)

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if it is missing."""
        system, place = _find(folder)
        found = system.get_file_info(pafs.FileSelector(place, allow_not_found=True))
        return sorted(info.base_name for info in found if not info.base_name.startswith("."))

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        system, place = _find(path)
        return bool(system.get_file_info(place).type != pafs.FileType.NotFound)

    def sync_folder(self, folder: str) -> None:
        """Do nothing: a closed file is durable."""

    def sync_files(self, paths: Collection[str]) -> None:
        """Do nothing: closed files are durable."""


def _created(files: RemoteFiles, path: str, data: bytes, create: Callable[[], None]) -> bool:
    """Create a file and return, from what is there afterwards, whether it is ours."""
    failure: Py4JJavaError | None = None
    try:
        create()
    except Py4JJavaError as error:
        failure = error
    try:
        return files.read(path) == data
    except FileNotFoundError:
        reason = "its storage accepted it but does not have it" if failure is None else failure
        raise _refused(path, getattr(reason, "java_exception", reason)) from failure


def _is_local(path: str) -> bool:
    """Return whether this process can link files there."""
    return urlsplit(path).scheme == "file"


@lru_cache(maxsize=16)
def _warn_of(scheme: str) -> None:
    """Warn once that a storage cannot create files exclusively."""
    _LOG.warning(
        "%s:// cannot create a file exclusively through Spark: two programs that open one "
        "checkpoint at the same moment may both believe that they own it. Start one at a time",
        scheme,
    )


class _RemoteNewFile:
    def __init__(self, path: str, stream: Any) -> None:
        self._path = path
        self._stream = stream

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with _refusals(self._path):
            self._stream.write(data)

    def sync(self) -> None:
        with _refusals(self._path):
            self._stream.flush()

    def close(self) -> None:
        with _refusals(self._path):
            self._stream.close()


class _RemoteOpenFile:
    def __init__(self, file: Any) -> None:
        self._file = file
        self.size: int = file.size()

    def read_at(self, offset: int, length: int) -> bytes:
        data: bytes = self._file.read_at(min(length, max(0, self.size - offset)), offset)
        return data

    def mapped(self, offset: int) -> memoryview | None:
        del offset
        return None

    def close(self) -> None:
        self._file.close()


@contextmanager
def _refusals(path: str) -> Iterator[None]:
    """Turn errors of the storage into errors with advice."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: str, reason: object) -> StorageError:
    return StorageError(f"cannot write {path}: {reason}; check space and access, then restart")


@lru_cache(maxsize=16)
def _system(scheme: str, host: str) -> Any:
    known = _ARROW_SCHEMES.get(scheme, scheme)
    try:
        return pafs.FileSystem.from_uri(f"{known}://{host}/")[0]
    except pa.ArrowInvalid as error:
        msg = f"checkpoints cannot be stored on {scheme}://{host}: {error}. Choose another location"
        raise DefinitionError(msg) from None


def _find(path: str) -> tuple[Any, str]:
    parts = urlsplit(path)
    system = _system(parts.scheme, parts.netloc)
    bucket = "" if parts.scheme in ("file", "hdfs", "viewfs") else parts.netloc
    return system, f"{bucket}{parts.path}" if bucket else parts.path
