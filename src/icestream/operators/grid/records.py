"""Records of running rows on the log: keys of new groups, and all groups of a snapshot.

Idea: a version logs the keys of new groups; a snapshot has rows and keys of all groups, chunk by
chunk. All have the class `BASE`; `operator` is the number of what has rows of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from icestream.operators.grid.groups import ResidentGroups
from icestream.operators.grid.partitions import Partition
from icestream.operators.logged_operator import records_of
from icestream.operators.protocol import PastVersion, Shard
from icestream.state.log.ipc import read_table, write_table
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import BASE

#: kinds of records
NEW_KEYS = 1
GROUP_ROWS = 2
GROUP_KEYS = 3


def log_keys(shard: Shard, keys: pa.Table, operator: int = 0) -> None:
    """Write records of the keys of groups that are new."""
    shard.segment(BASE).append(
        write_table(keys), operator=operator, synopsis=NEW_KEYS, rows=keys.num_rows
    )


def logged_keys(shard: Shard, past: PastVersion) -> Iterator[pa.Table]:
    """Yield the keys that records of a past version have."""
    for record in records_of(shard, past, BASE):
        if record.synopsis == NEW_KEYS:
            yield read_table(record.payload)


def save_groups(
    shard: Shard,
    groups: ResidentGroups,
    partition: Partition,
    width: int | None = None,
    operator: int = 0,
) -> None:
    """Write records of the first `width` words, or all, and keys of a partition's groups."""
    writer = shard.segment(BASE)
    for whole, keys in groups.image(partition.low, partition.high):
        rows = whole[:, :width]
        writer.append(groups.packed(rows), operator=operator, synopsis=GROUP_ROWS, rows=len(rows))
        writer.append(write_table(keys), operator=operator, synopsis=GROUP_KEYS, rows=len(rows))


def group_records(
    reader: SegmentReader, operator: int = 0
) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield rows and keys of groups from records of a snapshot."""
    rows = memoryview(b"")
    for record in reader.scan():
        if record.operator == operator and record.synopsis == GROUP_ROWS:
            rows = record.payload
        elif record.operator == operator and record.synopsis == GROUP_KEYS:
            yield rows, record.payload
