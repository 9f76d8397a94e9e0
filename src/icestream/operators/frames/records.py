"""Records of a frame operator on the log, other than its tuples.

Idea: a version logs the keys of new groups; a snapshot has rows and keys of all groups, the
directories of blocks, the rings, and the position of the windows. All have the class BASE.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from icestream.operators.folding.fold import ID_HIGH_COLUMN
from icestream.operators.frames.lift import within
from icestream.operators.frames.tuples import ARRIVALS, SETTLED
from icestream.operators.grid.partitions import Partition
from icestream.operators.protocol import PastVersion, Shard
from icestream.state.log.ipc import read_table
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import BASE

#: kinds of records of the class BASE; pieces of rings store their frame as `operator`
NEW_KEYS = 1
GROUP_ROWS = 2
GROUP_KEYS = 3
BLOCKS = {ARRIVALS: 4, SETTLED: 5}
RING_PIECE = 6
POSITION = 7


def logged_keys(shard: Shard, past: PastVersion) -> Iterator[pa.Table]:
    """Yield the keys of a frame operator that records of a past version have."""
    for lifetime, info in past.segments:
        if lifetime == BASE:
            with closing(shard.reader(info)) as reader:
                for record in reader.scan():
                    if record.synopsis == NEW_KEYS:
                        yield read_table(record.payload)


def group_records(reader: SegmentReader) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield rows and keys of groups from records of a frame operator's snapshot."""
    rows = memoryview(b"")
    for record in reader.scan():
        if record.synopsis == GROUP_ROWS:
            rows = record.payload
        elif record.synopsis == GROUP_KEYS:
            yield rows, record.payload


def inside(keys: pa.Table, partition: Partition) -> pa.Table:
    """Return keys, from records of a frame operator, of the groups inside a partition."""
    return keys.filter(pa.array(within(keys.column(ID_HIGH_COLUMN).to_numpy(), partition)))
