"""The files that Spark's own scans of a batch would read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """A range of bytes of a file, as Spark planned it."""

    uri: str
    start: int
    length: int
    #: milliseconds since 1970
    modified: int


def rdd_of(batch: DataFrame) -> Any | None:
    """Return the rows of a micro-batch as Spark's scans read them; None for any other frame."""
    plan = batch._jdf.queryExecution().logical()
    while plan.getClass().getSimpleName() != "LogicalRDD":
        if plan.children().size() != 1:
            return None
        plan = plan.children().apply(0)
    return plan.rdd()


def scans_of(batch: DataFrame) -> list[list[ScannedFile]]:
    """Return the files of each of Spark's scans of a batch."""
    found: list[list[ScannedFile]] = []
    rdd = rdd_of(batch)
    waiting = [] if rdd is None else [rdd]
    while waiting:
        rdd = waiting.pop()
        if rdd.getClass().getSimpleName() == "FileScanRDD":
            found.append([each for part in items(rdd.filePartitions()) for each in _files(part)])
        waiting += [each.rdd() for each in items(rdd.dependencies())]
    return found


def kafka_ranges(rdd: Any) -> list[tuple[str, int, int]] | None:
    """Return topic, partition and first offset of each of Spark's scans of a Kafka batch.

    None if it is not one plain scan of Kafka.
    """
    while rdd.getClass().getSimpleName() != "DataSourceRDD":
        below = list(items(rdd.dependencies()))
        if len(below) != 1 or below[0].getClass().getSimpleName() != "OneToOneDependency":
            return None
        rdd = below[0].rdd()
    found = []
    for kafka in (each for partition in rdd.partitions() for each in _inputs(partition)):
        if kafka.getClass().getSimpleName() != "KafkaBatchInputPartition":
            return None
        offsets = kafka.offsetRange()
        where = offsets.topicPartition()
        found.append((where.topic(), where.partition(), offsets.fromOffset()))
    return found


def _inputs(partition: Any) -> list[Any]:
    """Return what a partition reads: one input, or several in Spark 4.1."""
    try:
        return [partition.inputPartition()]
    except Py4JError:
        return list(items(partition.inputPartitions()))


def _files(partition: Any) -> Iterator[ScannedFile]:
    for file in partition.files():
        yield ScannedFile(
            file.urlEncodedPath(), file.start(), file.length(), file.modificationTime()
        )


def items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence of Spark's scans."""
    for place in range(sequence.size()):
        yield sequence.apply(place)
