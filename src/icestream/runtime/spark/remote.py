"""Checkpoints on HDFS, which both Spark and Arrow can access.

Idea: tasks read and write segments and results through `pyarrow.fs`; a file there is durable once
it is closed. Arrow cannot create a file only if it does not exist. Only commits need this, and the
driver makes them with Spark's checkpoint file manager, as Spark does for its own commits.

Invariants:
1. `put` creates a complete file or none, and never replaces one
   (`test_a_second_put_of_one_path_is_refused`). It reads the file back and returns what is there,
   so that a lost answer, or a close that failed unnoticed, leaves no doubt about a commit
   (`test_put_reads_back_what_became_of_it`).
2. Everything but `put` works in a task without a JVM (`test_tasks_need_no_jvm`).

Limits: `put` is exclusive because HDFS renames without replacing. Object stores have no such
rename: `icestream.state.stores` reaches them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from icestream.core.errors import DefinitionError, StorageError
from icestream.state.files import NewFile, OpenFile, folder_of

#: storages on which creating a file fails if another program created it first, at any moment
EXCLUSIVE = ("hdfs", "viewfs")


class RemoteFiles:
    """Files named by URIs."""

    def create(self, path: str) -> NewFile:
        """Create a file; it appears, complete, once it is closed."""
        system, place = _find(path)
        with _refusals(path):
            system.create_dir(folder_of(place), recursive=True)
            return _RemoteNewFile(path, system.open_output_stream(place))

    def open(self, path: str) -> OpenFile:
        system, place = _find(path)
        return _RemoteOpenFile(system.open_input_file(place))

    def read(self, path: str) -> bytes:
        with closing(self.open(path)) as file:
            return file.read_at(0, file.size)

    def put(self, path: str, data: bytes) -> bool:
        """Create a file with this content, on the driver; False if another one exists."""
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
        system, place = _find(source)
        system.move(place, _find(target)[1])

    def unlink(self, *paths: str) -> None:
        """Remove files; missing ones are fine."""
        for path in paths:
            system, place = _find(path)
            if system.get_file_info(place).type != pafs.FileType.NotFound:
                system.delete_file(place)

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if it is missing, or a file."""
        system, place = _find(folder)
        if system.get_file_info(place).type == pafs.FileType.File:
            return []
        found = system.get_file_info(pafs.FileSelector(place, allow_not_found=True))
        return sorted(info.base_name for info in found if not info.base_name.startswith("."))

    def walk(self, folder: str) -> Iterator[str]:
        system, place = _find(folder)
        chosen = pafs.FileSelector(place, allow_not_found=True, recursive=True)
        if system.get_file_info(place).type == pafs.FileType.Directory:
            for info in system.get_file_info(chosen):
                if info.type == pafs.FileType.File:
                    yield posixpath.relpath(info.path, place)

    def exists(self, path: str) -> bool:
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


class _RemoteOpenFile(OpenFile):
    def __init__(self, file: Any) -> None:
        self._file = file
        self.size: int = file.size()

    def read_at(self, offset: int, length: int) -> bytes:
        data: bytes = self._file.read_at(min(length, max(0, self.size - offset)), offset)
        return data

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
    try:
        return pafs.FileSystem.from_uri(f"{scheme}://{host}/")[0]
    except pa.ArrowInvalid as error:
        msg = f"checkpoints cannot be stored on {scheme}://{host}: {error}. Choose another location"
        raise DefinitionError(msg) from None


def _find(path: str) -> tuple[Any, str]:
    parts = urlsplit(path)
    return _system(parts.scheme, parts.netloc), parts.path
