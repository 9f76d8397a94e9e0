from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from icestream.plan.nodes.queries import SOURCE
from icestream.runtime.ingest.file_order import PIECE, FilePlaces, piece_hash, place_of
from icestream.runtime.ingest.scans import kafka_ranges


def _rows(*marks: int | None, source: int = 0) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "n": list(range(len(marks))),
            SOURCE: pa.array([source] * len(marks), pa.int32()),
            PIECE: pa.array(marks, pa.int64()),
        }
    )


def test_rows_are_cut_where_the_piece_changes() -> None:
    # hashes   7 7 | 9 9 9 | null | 5 5
    # batches  7 7   9 , 9 9   null   5 , 5
    batches = [_rows(7, 7, 9), _rows(), _rows(9, 9, None, 5), _rows(5)]
    cut = FilePlaces({5: 0, 7: 1, 9: 2}).cut(batches, split=4)
    found = [
        (place, [row for rows in part for row in rows["n"].to_pylist()]) for place, part in cut
    ]
    assert found == [(1, [0, 1]), (2, [2, 0, 1]), (7, [2]), (0, [3, 0])]
    assert list(FilePlaces({}).cut([], split=0)) == []


def test_pieces_without_a_known_file_come_behind_by_split() -> None:
    places = [
        next(FilePlaces({5: 3}).cut([_rows(mark)], split))[0]
        for mark in (None, 8)
        for split in (0, 2)
    ]
    assert places == [4, 6, 4, 6]
    of_two = FilePlaces({5: 3}, sources=2)
    found = [next(of_two.cut([_rows(5, source=each)], split=each))[0] for each in range(2)]
    assert found == [6, 7]


def test_partitions_of_kafka_come_by_topic_partition_and_offset() -> None:
    ranges = [("b", 0, 7), ("a", 10, 0), ("a", 9, 50), ("a", 9, 20)]
    below = _kafka(ranges)
    above = _java("MapPartitionsRDD", dependencies=_Seq(_java("OneToOneDependency", rdd=below)))
    assert kafka_ranges(above) == ranges
    shuffled = _java("ShuffledRowRDD", dependencies=_Seq(_java("ShuffleDependency", rdd=below)))
    assert kafka_ranges(shuffled) is None
    batch = Mock(columns=["n"])
    plan = _java("Project", collectLeaves=_Seq(_java("LogicalRDD", rdd=above)))
    batch._jdf.queryExecution.return_value.logical.return_value = plan
    places = FilePlaces.of(batch, Mock(), 1)
    assert places is not None
    found = [next(places.cut([_rows(1)], split))[0] for split in range(4)]
    assert found == [3, 2, 1, 0]


class _Seq(list[Any]):
    """A sequence of Scala."""

    def __init__(self, *values: Any) -> None:
        super().__init__(values)

    def size(self) -> int:
        return len(self)

    def apply(self, place: int) -> Any:
        return self[place]


def _java(name: str, **answers: Any) -> Mock:
    """Return an object of a class of that name, whose methods answer so."""
    made = Mock(**{f"{method}.return_value": value for method, value in answers.items()})
    made.getClass.return_value.getSimpleName.return_value = name
    return made


def _kafka(ranges: list[tuple[str, int, int]]) -> Mock:
    partitions = []
    for topic, partition, offset in ranges:
        where = _java("TopicPartition", topic=topic, partition=partition)
        offsets = _java("KafkaOffsetRange", topicPartition=where, fromOffset=offset)
        kafka = _java("KafkaBatchInputPartition", offsetRange=offsets)
        partitions.append(_java("DataSourceRDDPartition", inputPartition=kafka))
    return _java("DataSourceRDD", partitions=partitions)


def test_files_without_a_place_come_by_time_and_path() -> None:
    listed = {"file:/data/b b": 0, "s3a://x/a": 1}
    uris = ["file:///data/z", "s3a://x/a", "file:///data/y", "file:///data/b%20b"]
    times = [3, 2, 3, 9]
    ranked = sorted(
        zip(uris, times, strict=True), key=lambda each: place_of(each[0], each[1], listed)
    )
    assert [uri for uri, _ in ranked] == [uris[3], uris[1], uris[2], uris[0]]


@pytest.mark.spark
def test_hashes_are_those_of_spark(spark: object) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as sf

    assert isinstance(spark, SparkSession)
    for uri, start in (("file:/a/b%20c", 0), ("s3a://x/" + "y" * 90, 2**40 + 1)):
        (row,) = (
            spark.range(1).select(sf.xxhash64(sf.lit(uri), sf.lit(start).cast("bigint"))).collect()
        )
        assert row[0] == piece_hash(uri, start)
