"""Errors of Spark's query as errors of Icestream: what is wrong and what to do, in one line.

Idea: what Spark says often names neither the file nor the remedy. Known sentences become advice. A
query that Spark cannot begin may have damaged files among Spark's own, which it stores in the
checkpoint (`spark/`): these are read, and the first that is not what Spark writes is named.

Invariants:
1. A truncated, emptied or missing file of Spark's is a `DamageError` that names it
   (`test_a_damaged_file_of_spark_is_named`).

Limits: Spark's files have no checksums of ours. One that still is what Spark writes, with another
number in it, is not noticed here; the driver refuses batches that do not follow.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from icestream.core.errors import (
    CheckpointError,
    DamageError,
    IcestreamError,
    InputError,
    StorageError,
)
from icestream.state.files import Files

#: what Spark's error says, the error it becomes, and what to do
_KNOWN_FAILURES: tuple[tuple[str, type[IcestreamError], str], ...] = (
    (
        "sources in the checkpoint offsets",
        CheckpointError,
        "the checkpoint was started with another number of sources. A ticker is one of them: the "
        "option 'ticker' adds it. Start the query with the sources it was started with, or with a "
        "new checkpoint",
    ),
    (
        "No space left on device",
        StorageError,
        "Spark cannot write its part of the checkpoint, or its temporary files: the disk is full; "
        "free space on it, then restart. Nothing is lost",
    ),
    (
        "FAILED_READ_FILE",
        InputError,
        "Spark cannot read a file of the source: [{}. Repair or remove the file, or let Spark skip "
        "it (spark.sql.files.ignoreCorruptFiles), then restart",
    ),
)
#: what Spark says of a file that is missing, or that is not what it wrote
_NAMED = (
    (re.compile(r"(\S+) doesn't exist \(latestId"), "it is missing"),
    (re.compile(r"Checksum error: (\S+)"), "it is damaged"),
    (re.compile(r"Failed to read log file (\S+)\. "), "it is incomplete"),
)
_NO_METADATA = "MISSING_METADATA_FILE"
_NO_BATCH = re.compile(r"batch (\d+) doesn't exist")


@dataclass(frozen=True)
class SparkFiles:
    """Spark's part of a checkpoint."""

    folder: str
    #: opens the storage
    files: Callable[[], Files]

    def translated(self, failure: BaseException, *, begins: bool = False) -> BaseException:
        """Return the error of a failed query, with advice in place of Spark's where there is some.

        A query that `begins`, or that Spark gave up between two batches, may have damaged files.
        """
        if not isinstance(failure, PySparkException | Py4JJavaError):
            return failure
        said = str(failure)
        found = _known(said)
        if found is None and begins:
            found = self._damage(said)
        if found is None:
            return failure
        found.__cause__ = failure
        return found

    def _damage(self, said: str) -> DamageError | None:
        """Return which of Spark's files is missing or damaged; None if none is found."""
        if _NO_METADATA in said:
            return DamageError(f"{self.folder}/metadata", "Spark's file with its id is missing")
        for pattern, what in _NAMED:
            named = pattern.search(said)
            if named is not None and f"{self.folder}/" in named[1]:
                return DamageError(named[1].removeprefix("file:"), f"{what}; Spark needs it")
        with suppress(Exception):
            files = self.files()
            if (batch := _NO_BATCH.search(said)) is not None:
                for part in self._parts(files):
                    names = files.list(f"{self.folder}/{part}")
                    if batch[1] not in names and f"{batch[1]}.compact" not in names:
                        path = f"{self.folder}/{part}/{batch[1]}"
                        return DamageError(path, "it is missing; Spark needs it")
            for path, check in self._logs(files):
                try:
                    check(files.read(path).decode())
                except (AttributeError, KeyError, TypeError, ValueError):
                    return DamageError(path, "this is not what Spark wrote there")
        return None

    def _logs(self, files: Files) -> Iterator[tuple[str, Callable[[str], None]]]:
        """Yield Spark's files, with what reads them; ValueError if one is damaged."""
        if files.exists(f"{self.folder}/metadata"):
            yield f"{self.folder}/metadata", _check_metadata
        for part in ("commits", *self._parts(files)):
            for name in files.list(f"{self.folder}/{part}"):
                if name.removesuffix(".compact").isdigit():
                    check = _check_log if part.startswith("sources/") else _check_batch
                    yield f"{self.folder}/{part}/{name}", check

    def _parts(self, files: Files) -> list[str]:
        """Return the folders of offsets and of what sources note, with a file for each batch."""
        return ["offsets", *(f"sources/{n}" for n in files.list(f"{self.folder}/sources"))]


def _known(said: str) -> IcestreamError | None:
    for sign, kind, advice in _KNOWN_FAILURES:
        if sign in said:
            line = next(each for each in said.splitlines() if sign in each)
            return kind(advice.format(line[line.find(sign) :].split(" SQLSTATE")[0].rstrip(". ")))
    return None


def _check_metadata(text: str) -> None:
    uuid.UUID(dict(json.loads(text))["id"])


def _check_log(text: str) -> None:
    """Check a file of a log: its version, then what the sources of Spark write, mostly JSON."""
    version, *lines = text.removeprefix("\0").splitlines()
    if not re.fullmatch(r"v\d+", version):
        raise ValueError
    for line in lines:
        if line.startswith(("{", "[")):
            json.loads(line)


def _check_batch(text: str) -> None:
    """Check offsets or the commit of a batch, which say more than a version."""
    _check_log(text)
    if "{" not in text:
        raise ValueError
