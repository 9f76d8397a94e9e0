"""Segments of a join written again: rows that are needed, in few large records.

Idea: a segment is released when none of its records is needed, so a few lasting rows would keep all
that arrived with them; small batches would leave small records, each with an index entry; and a
clean-up of few partitions would read a part of every segment. With a snapshot, segments of about
the same size are therefore merged: their needed rows are sorted and written to one segment of this
version, a range of partitions after the other. A row may get a later epoch, up to the next event of
its partition, because generations are ranges of epochs; so rows of many flushes share a record.

Invariants:
1. A merged row belongs to the generation to which it belonged, and is as new
   (`test_oracle_spills_and_clean_ups_at_any_moment`).
2. The log is bounded by what is needed, whatever the mix of lifetimes
   (`test_bounded_lasting_rows_keep_no_others_on_the_log`), and the index by the log, however small
   batches are (`test_bounded_the_index_of_tiny_batches`) and however many there were
   (`test_bounded_index_and_segments_of_a_join_that_stays_on`).

3. A clean-up of some partitions reads about their part of the log, however many versions there were
   (`test_bounded_clean_up_reads_the_log_of_its_partitions`).

Cost: a row is written again once for each power of `FEW` between the sizes of a flush and of all
merged segments, and when less than half of its segment is needed; at most `MOST_WORDS` with a
snapshot, and less in little memory.

References: log-structured merging; lifetimes are those of the log's segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from icestream.core.arrays import Ids, Ints, Mask, Table, numbers_of
from icestream.core.times import INFINITY
from icestream.kernels.multi_join.rows import LOG_RE
from icestream.operators.multi_join.generations import (
    MARKER,
    RECORD,
    WORDS,
    Generations,
    ordinals_of,
)
from icestream.operators.multi_join.logged_rows import EPOCHS, LoggedRows, record_bounds, record_of
from icestream.operators.multi_join.spec import partitions_of
from icestream.state.log.reader import Log
from icestream.state.log.writer import SegmentWriter
from icestream.state.rows import RowCodec

#: segments of about the same size that are merged, at least
FEW = 8
#: sizes are about the same below so many doublings
DOUBLINGS = 3
#: maximum words that are merged at once, and maximum parts, each as large as memory allows: a
#: record is read for all parts that it overlaps
MOST_WORDS = 1 << 22
RANGES = 16
#: records of a segment, unless they would be too small or too large: each covers few partitions
RECORDS = 32
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


def worth_merging(generations: Generations, room: int) -> Ints:
    """Return the ordinals of segments to merge in `room` words, oldest first."""
    most = min(MOST_WORDS, RANGES * room // WORDS_EACH)
    records, segments = generations.records, generations.segments
    places = np.searchsorted(segments[:, 0], ordinals_of(records))
    words = np.bincount(places, records[:, WORDS], len(segments))
    sizes = (np.log2(np.maximum(words, 1)) // DOUBLINGS).astype(np.int64)
    alike = np.bincount(sizes)[sizes] >= FEW
    chosen = (2 * words < segments[:, 1]) | (alike & (FEW * words <= most))
    chosen &= words > 0
    chosen &= np.cumsum(np.where(chosen, words, 0)) <= most
    return np.asarray(segments[chosen, 0])


@dataclass
class SegmentMerge:
    """Writes needed rows of segments again, those of adjacent partitions together."""

    generations: Generations
    needs: Needs
    log: Log
    codecs: Sequence[RowCodec]
    #: which rows of a record, given by its marker, belong to this shard
    holds: Callable[[int, LoggedRows], Mask]
    writer: SegmentWriter
    operator: int
    #: minimum and maximum words of a record
    least: int
    most: int
    #: words that may be in use
    room: int

    def run(self, ordinals: Ints) -> tuple[Table, Table]:
        """Merge segments; return the entries of other records, and of those that were made."""
        records = self.generations.records
        mine = np.isin(ordinals_of(records), ordinals)
        kept, taken = records[~mine].copy(), records[mine].copy()
        del records
        size = min(max(self.least, int(taken[:, WORDS].sum()) // RECORDS), self.most)
        made = [np.empty((0, RECORD), dtype=np.int64)]
        for low, high in self._ranges(taken):
            first, last = self.generations.partitions_of(taken)
            met = taken[(first <= high) & (last >= low), MARKER].view(np.uint64)
            waiting: list[_Rows] = []
            used = 0
            for record in self.log.read_many(met):
                rows = LoggedRows.of(record, self.codecs, self.log.folder)
                if used and WORDS_EACH * (used + len(rows.words)) > self.room:
                    made += self._write(waiting, size)
                    waiting, used = [], 0
                waiting.append(self._needed(rows, self.holds(record.marker, rows), low, high))
                used += int(waiting[-1].sizes.sum())
            made += self._write(waiting, size)
        return kept, np.concatenate(made)

    def _ranges(self, records: Table) -> list[tuple[int, int]]:
        """Return ranges of partitions, both ends inclusive, whose rows should fit into memory."""
        loads = WORDS_EACH * self.generations.by_partition(records, records[:, WORDS])
        ends = np.flatnonzero(np.diff(np.cumsum(loads) // self.room)).tolist()
        return [(low + 1, high) for low, high in pairwise([-1, *ends, len(loads) - 1])]

    def _needed(self, rows: LoggedRows, held: Mask, low: int, high: int) -> _Rows:
        homes = partitions_of(rows.id_high, len(self.needs.floor))
        held &= (homes >= low) & (homes <= high)
        needed = np.flatnonzero(self.needs.rows(homes, rows) & held)
        ends = np.append(rows.starts[1:], len(rows.words))[needed]
        starts = rows.starts[needed]
        return _Rows(
            rows.words[numbers_of(starts, ends)],
            ends - starts,
            np.full(len(needed), rows.port),
            _latest_epochs(self.generations, self.needs, homes[needed], rows.epoch),
            rows.id_high[needed],
        )

    def _write(self, parts: Sequence[_Rows], size: int) -> list[Table]:
        """Write rows in the order of ports, epochs and ids; return the entries of their records."""
        if not parts:
            return []
        rows = _Rows(*(np.concatenate(each) for each in zip(*parts, strict=True)))
        order = np.lexsort((rows.id_high, rows.epochs, rows.ports))
        starts = (np.cumsum(rows.sizes) - rows.sizes)[order]
        sizes, ports, epochs = (each[order] for each in (rows.sizes, rows.ports, rows.epochs))
        id_high = rows.id_high[order]
        bounds = record_bounds(ports * EPOCHS + epochs, sizes, size)
        made = []
        for first, last in pairwise(bounds):
            some = slice(first, last)
            port, epoch = int(ports[first]), int(epochs[first])
            packed = rows.words[numbers_of(starts[some], starts[some] + sizes[some])]
            marker = self.writer.append(
                packed,
                operator=self.operator,
                synopsis=port,
                group=epoch,
                rows=last - first,
                expiry=INFINITY,
            )
            latest = int(rows.words[starts[some] + LOG_RE].max())
            made.append(record_of(port, epoch, marker, id_high[some], len(packed), latest)[None])
        return made


class _Rows(NamedTuple):
    """Rows to be written again."""

    words: Ints
    sizes: Ints
    ports: Ints
    epochs: Ints
    id_high: Ids


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
