"""Segments of a join written again: rows that are needed, in few large records.

Idea: a segment is released when none of its records is needed, so a few lasting rows would keep all
that arrived with them, and small batches would leave small records, each with an index entry.
With a snapshot, some segments are therefore merged: their needed rows are sorted and written to one
segment of this version. A row may get a later epoch, up to the next event of its partition, because
generations are ranges of epochs; so rows of many flushes share a record.

Invariants:
1. A merged row belongs to the generation to which it belonged, and is as new
   (`test_oracle_spills_and_clean_ups_at_any_moment`).
2. The log is bounded by what is needed, whatever the mix of lifetimes
   (`test_bounded_lasting_rows_keep_no_others_on_the_log`), and the index by the log, however small
   batches are (`test_bounded_the_index_of_tiny_batches`).

Cost: needed rows are read and written once more when they are less than half of their segment, and
when their records are small; at most `room` words with a snapshot.

References: log-structured merging; lifetimes are those of the log's segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from icestream.core.arrays import Ints, Mask, Table
from icestream.core.times import INFINITY
from icestream.kernels.multi_join.rows import LOG_RE
from icestream.kernels.ranges import numbers_of
from icestream.operators.multi_join.flushing import record_bounds, record_of
from icestream.operators.multi_join.generations import (
    MARKER,
    RECORD,
    WORDS,
    Generations,
    ordinals_of,
)
from icestream.operators.multi_join.logged_rows import EPOCHS, LoggedRows
from icestream.operators.multi_join.spec import partitions_of
from icestream.state.log.reader import Log
from icestream.state.log.writer import SegmentWriter
from icestream.state.rows import RowCodec

#: segments with small records that are merged, at least
FEW = 8
#: a record is small below 1/SMALL of its possible size
SMALL = 4
#: words that merging needs for each word of a row
WORDS_EACH = 4


@dataclass(frozen=True)
class Needs:
    """Which rows the partitions need, and the events that separate epochs."""

    #: epoch up to which rows are garbage
    floor: Ints
    #: rows of later epochs are needed, and rows that end later than `after`
    since: Ints
    after: Ints
    #: epochs of the last clean-up, and at which it last owed nothing
    cleaned: Ints
    settled: Ints

    def rows(self, homes: Ints, rows: LoggedRows) -> Mask:
        """Return which rows, given their partitions, are needed."""
        needed: Mask = (rows.epoch > self.since[homes]) | (rows.re > self.after[homes])
        return needed & (rows.epoch > self.floor[homes])


def worth_merging(generations: Generations, record_words: int, room: int) -> Ints:
    """Return the ordinals of segments to merge, oldest first, whose rows fit into `room` words."""
    records, segments = generations.records, generations.segments
    places = np.searchsorted(segments[:, 0], ordinals_of(records))
    words = np.bincount(places, records[:, WORDS], len(segments))
    counts = np.bincount(places, minlength=len(segments))
    small = SMALL * words < record_words * counts
    chosen = 2 * words < segments[:, 1]
    if np.count_nonzero(small) >= FEW:
        chosen |= small
    chosen &= counts > 0
    chosen &= np.cumsum(np.where(chosen, words, 0)) <= room // WORDS_EACH
    return np.asarray(segments[chosen, 0])


def merge(
    ordinals: Ints,
    generations: Generations,
    needs: Needs,
    log: Log,
    codecs: Sequence[RowCodec],
    holds: Callable[[int, LoggedRows], Mask],
    writer: SegmentWriter,
    operator: int,
    record_bytes: int,
) -> tuple[Table, Table]:
    """Write the needed rows of segments; return the entries of other records, and of those made.

    `holds` tells which rows of a record, given by its marker, belong to this shard.
    """
    records = generations.records
    mine = np.isin(ordinals_of(records), ordinals)
    markers = np.sort(records[mine, MARKER].view(np.uint64))
    kept, parts, columns, used = records[~mine].copy(), [], [], 0
    del records
    for record in log.read_many(markers):
        rows = LoggedRows.of(record, codecs, log.folder)
        homes = partitions_of(rows.id_high, len(needs.floor))
        needed = np.flatnonzero(needs.rows(homes, rows) & holds(record.marker, rows))
        if not len(needed):
            continue
        ends = np.append(rows.starts[1:], len(rows.words))
        sizes = (ends - rows.starts)[needed]
        epochs = _latest_epochs(generations, needs, homes[needed], rows.epoch)
        parts.append(rows.words[numbers_of(rows.starts[needed], ends[needed])])
        starts = used + np.cumsum(sizes) - sizes
        ports = np.full(len(needed), rows.port)
        columns.append((ports, epochs, rows.id_high[needed].view(np.int64), starts, sizes))
        used += int(sizes.sum())
    if not columns:
        return kept, np.empty((0, RECORD), dtype=np.int64)
    words = np.concatenate(parts)
    del parts
    ports, epochs, id_high, starts, sizes = (
        np.concatenate(each) for each in zip(*columns, strict=True)
    )
    order = np.lexsort((id_high.view(np.uint64), epochs, ports))
    ports, epochs, id_high, starts, sizes = (
        each[order] for each in (ports, epochs, id_high, starts, sizes)
    )
    bounds = record_bounds(ports * EPOCHS + epochs, sizes, record_bytes // 8)
    made = np.empty((len(bounds) - 1, RECORD), dtype=np.int64)
    for number, (first, last) in enumerate(pairwise(bounds)):
        some = slice(first, last)
        port, epoch = int(ports[first]), int(epochs[first])
        packed = words[numbers_of(starts[some], starts[some] + sizes[some])]
        marker = writer.append(
            packed,
            operator=operator,
            synopsis=port,
            group=epoch,
            rows=last - first,
            expiry=INFINITY,
        )
        latest = int(words[starts[some] + LOG_RE].max())
        ids = id_high[some].view(np.uint64)
        made[number] = record_of(port, epoch, marker, ids, len(packed), latest)
    return kept, made


def _latest_epochs(generations: Generations, needs: Needs, homes: Ints, epoch: int) -> Ints:
    """Return the last epoch that means the same for rows of an epoch, by their partitions."""
    cuts = generations.cuts
    keys = cuts[:, 0] * EPOCHS + cuts[:, 1]
    places = np.searchsorted(keys, homes * EPOCHS + epoch)
    keys = np.append(keys, np.iinfo(np.int64).max)
    latest = np.full(len(homes), generations.epoch)
    cut = keys[places] < (homes + 1) * EPOCHS
    latest[cut] = np.minimum(latest[cut], keys[places[cut]] % EPOCHS)
    for events in (needs.cleaned[homes], needs.settled[homes]):
        later = events >= epoch
        latest[later] = np.minimum(latest[later], events[later])
    return latest
