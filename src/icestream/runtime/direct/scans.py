"""The files that Spark's own scans of a batch would read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """A range of bytes of a file, as Spark planned it."""

    uri: str
    start: int
    length: int
    #: milliseconds since 1970
    modified: int


def scans_of(batch: DataFrame) -> list[list[ScannedFile]]:
    """Return the files of each scan that a batch is made of."""
    found: list[list[ScannedFile]] = []
    plan = batch._jdf.queryExecution().logical()
    while plan.getClass().getSimpleName() != "LogicalRDD":
        if plan.children().size() != 1:
            return []
        plan = plan.children().apply(0)
    waiting = [plan.rdd()]
    while waiting:
        rdd = waiting.pop()
        if rdd.getClass().getSimpleName() == "FileScanRDD":
            found.append([each for part in items(rdd.filePartitions()) for each in _files(part)])
        waiting += [each.rdd() for each in items(rdd.dependencies())]
    return found


def _files(partition: Any) -> Iterator[ScannedFile]:
    for file in partition.files():
        yield ScannedFile(
            file.urlEncodedPath(), file.start(), file.length(), file.modificationTime()
        )


def items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence."""
    for place in range(sequence.size()):
        yield sequence.apply(place)
