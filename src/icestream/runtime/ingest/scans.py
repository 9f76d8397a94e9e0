"""The files that Spark's own scans of a batch would read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

#: the kind of rows that Spark reads from files, and what is between names
_SCAN, _BETWEEN = "FileScanRDD", "\0"


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
    leaves = batch._jdf.queryExecution().logical().collectLeaves()
    if leaves.size() != 1:
        return None
    leaf = leaves.apply(0)
    return leaf.rdd() if leaf.getClass().getSimpleName() == "LogicalRDD" else None


def scans_of(batch: DataFrame) -> list[list[ScannedFile]]:
    """Return the files of each of Spark's scans of a batch."""
    rdd = rdd_of(batch)
    if rdd is None:
        return []
    only = _only_scan(rdd)
    found, waiting = [] if only is None else [_files(only)], [rdd] if only is None else []
    while waiting:
        rdd = waiting.pop()
        if rdd.getClass().getSimpleName() == _SCAN:
            found.append(_files(rdd))
        waiting += [each.rdd() for each in items(rdd.dependencies())]
    return found


def _only_scan(rdd: Any) -> Any | None:
    """Return the only scan below rows that are just mapped, as of most streams; else None.

    Each step down costs some calls of the JVM in every batch, all steps at once three.
    """
    below = rdd.getNarrowAncestors()
    kinds = [each.partition("[")[0] for each in below.mkString(_BETWEEN).split(_BETWEEN)]
    if kinds.count(_SCAN) != 1 or not {*kinds} <= {_SCAN, "MapPartitionsRDD"}:
        return None
    return below.apply(kinds.index(_SCAN))


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


def _files(scan: Any) -> list[ScannedFile]:
    return [
        ScannedFile(file.urlEncodedPath(), file.start(), file.length(), file.modificationTime())
        for partition in items(scan.filePartitions())
        for file in partition.files()
    ]


def items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence of Spark's scans."""
    for place in range(sequence.size()):
        yield sequence.apply(place)
