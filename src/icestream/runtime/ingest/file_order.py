"""The order of the files of a batch: that of the log of their source.

Idea: Spark's file source records the files of every batch in its log, by default in the order of
their modification. A scan of them is planned by size, so neither the partitions of a batch nor the
files in a partition are in that order. Here every piece of a file has a *place* in it. If tasks
read the files, pieces are divided by place. If rows come from the JVM, each carries a hash of the
file and the first byte of its piece, and a task splits its input wherever the hash changes.

Invariants:
1. The order of events does not depend on the number of files of a batch, nor on who reads them
   (`test_oracle_ties_go_by_the_log_of_files_however_they_are_read`,
   `test_oracle_ties_go_by_the_log_of_files_beside_events`).
2. Rows of a piece stay together and in their order (`test_rows_are_cut_where_the_piece_changes`).
3. No two parts of a batch have the same place, even if several sources read one folder
   (`test_streams_of_one_folder_lose_no_rows`).

Kafka orders only the rows of a partition: those of a batch are ordered by topic, partition and
offset (`test_partitions_of_kafka_come_by_topic_partition_and_offset`), and later batches follow.

Limits: after a shuffle in the user's query, and after `mapInArrow` and the like, rows do not carry
their file; such rows, those of Arrow files that tasks do not read themselves, and those of other
sources are in the order of Spark's partitions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import xxhash
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from icestream.plan.nodes.queries import SOURCE
from icestream.runtime.ingest.scans import items, kafka_ranges, rdd_of, scans_of

#: column with the hash of the piece of a row
PIECE = "__piece"
#: nodes of a plan that keep the rows of a file together and in order
_NARROW = frozenset(
    {"Project", "Filter", "Generate", "SubqueryAlias", "EventTimeWatermark", "StreamingRelation"}
)
#: Spark's seed of hashes, and the local property with the query of a thread
_SEED = 42
_QUERY = "sql.streaming.queryId"
_BETWEEN = "\0"


def piece_columns(frames: Sequence[DataFrame]) -> list[Column] | None:
    """Return for each frame the column that orders its pieces; None if no frame has one."""
    found = [_piece_column(frame) for frame in frames]
    if not any(each is not None for each in found):
        return None
    nothing = sf.lit(None).cast("bigint")
    return [(nothing if each is None else each).alias(PIECE) for each in found]


def _piece_column(frame: DataFrame) -> Column | None:
    if not all(_nodes(frame._jdf.queryExecution().analyzed())):
        return None
    try:
        file = frame.metadataColumn("_metadata")
        column = sf.xxhash64(file.getField("file_path"), file.getField("file_block_start"))
        _ = frame.select(column).schema
    except AnalysisException:
        return None
    return column


def _nodes(plan: Any) -> Iterator[bool]:
    yield plan.getClass().getSimpleName() in _NARROW
    yield from chain.from_iterable(_nodes(each) for each in items(plan.children()))


def listed_files(spark: SparkSession) -> dict[str, int]:
    """Return the order of the files of the batch; empty if Spark does not report it."""
    query = spark.sparkContext.getLocalProperty(_QUERY)
    running = None if query is None else spark.streams.get(query)
    execution = None if running is None else running._jsq.streamingQuery().lastExecution()
    places: dict[str, int] = {}
    for leaf in items(execution.logical().collectLeaves()) if execution is not None else ():
        if leaf.getClass().getSimpleName() == "LogicalRelation":
            paths = leaf.relation().location().rootPaths().mkString(_BETWEEN)
            for path in paths.split(_BETWEEN):
                places.setdefault(_plain(path), len(places))
    return places


def place_of(uri: str, modified: int, places: Mapping[str, int]) -> tuple[int, int, str]:
    """Return the place of a file in the order: in the log or, if unknown, time and path."""
    path = _plain(unquote(uri))
    return places.get(path, len(places)), modified, path


def _plain(path: str) -> str:
    """Return a path with one slash where a local path may have three."""
    return "file:/" + path[5:].lstrip("/") if path.startswith("file:/") else path


class FilePlaces:
    """The place of each piece of a batch, by the hash that its rows carry."""

    def __init__(
        self, hashes: Mapping[int, int], splits: Sequence[int] = (), sources: int = 1
    ) -> None:
        """Number places from 0; rows without a hash come last. `splits` has places of splits."""
        self._hashes = hashes
        self._splits = splits
        self._sources = sources
        self._behind = 1 + max(hashes.values(), default=-1)

    @classmethod
    def of(cls, batch: DataFrame, spark: SparkSession, sources: int) -> FilePlaces | None:
        """Return the places of a batch whose rows carry their piece, or of a Kafka batch."""
        if PIECE not in batch.columns:
            ranges = None if (rdd := rdd_of(batch)) is None else kafka_ranges(rdd)
            return None if ranges is None else cls({}, _ranks(ranges))
        files = [file for scan in scans_of(batch) for file in scan]
        # one file needs no order
        listed = listed_files(spark) if len({file.uri for file in files}) > 1 else {}
        found = [
            (place_of(file.uri, file.modified, listed), file.start, file.uri) for file in files
        ]
        hashes: dict[int, int] = {}
        for place, (_, start, uri) in enumerate(sorted(found)):
            for spelt in {uri, uri.replace("file:///", "file:/", 1)}:
                hashes[piece_hash(spelt, start)] = place
        return cls(hashes, (), sources)

    def cut(
        self, batches: Iterable[pa.RecordBatch], split: int
    ) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        """Yield the place of each piece of a split with its rows, which must be read in turn."""
        if self._splits:
            yield self._splits[split], iter(batches)
            return
        placed = ((self._place(mark, split, rows), rows) for mark, rows in _runs(batches))
        for place, run in groupby(placed, key=itemgetter(0)):
            yield place, (rows for _, rows in run)

    def _place(self, mark: int | None, split: int, rows: pa.RecordBatch) -> int:
        """Return the place of rows of one piece: sources may read the same file."""
        behind = self._behind + split
        place = behind if mark is None else self._hashes.get(mark, behind)
        return place * self._sources + int(rows.column(SOURCE)[0].as_py())


def _ranks(ranges: Sequence[tuple[str, int, int]]) -> list[int]:
    """Return the place of each range in their order."""
    places = [0] * len(ranges)
    for place, split in enumerate(sorted(range(len(ranges)), key=lambda each: ranges[each])):
        places[split] = place
    return places


def piece_hash(uri: str, start: int) -> int:
    """Return Spark's `xxhash64(file, start)`, to find the order of a piece."""
    file = xxhash.xxh64_intdigest(uri.encode(), _SEED)
    found = xxhash.xxh64_intdigest(struct.pack("<q", start), file)
    return found - (1 << 64) if found >> 63 else found


def _runs(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """Yield runs of rows with the same hash, without the hash."""
    for batch in batches:
        marks = batch.column(PIECE)
        at = batch.schema.get_field_index(PIECE)
        rows = batch.remove_column(at)
        numbers = np.asarray(marks.fill_null(0).to_numpy(zero_copy_only=False))
        there = np.asarray(marks.is_valid().to_numpy(zero_copy_only=False))
        changes = (np.diff(numbers) != 0) | (np.diff(there.astype(np.int8)) != 0)
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
        for first, last in pairwise(bounds):
            if first < last:
                mark = int(numbers[first]) if there[first] else None
                yield mark, rows.slice(first, last - first)
