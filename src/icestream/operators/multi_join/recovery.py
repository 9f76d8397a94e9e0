"""A join on the log: events of its partitions, snapshots, and recovery.

Idea: rows are on the log anyway. In addition a version logs which partitions were cut, cleaned up
or discarded, and from time to time a snapshot: the index of records, the cuts, and the facts of
partitions. A restore loads the last snapshot, applies the events since, adds the records written
since, and reads the rows of resident generations.

Invariants:
1. A restored join owes and emits what the original would have
   (`test_crash_restored_joins_emit_the_same_results`).

Cost: a restore reads the last snapshot, everything since, and the records with resident rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from icestream.core.arrays import Floats, Ints, Mask, Table
from icestream.core.times import INFINITY
from icestream.kernels.multi_join import resident as k
from icestream.operators.multi_join.generations import (
    CLEANED,
    CUT,
    DISCARDED,
    ENDS,
    EPOCH,
    FIRST_ID_HIGH,
    LAST_ID_HIGH,
    MARKER,
    PORT,
    RECORD,
    RETURNED,
    ROWS,
    WORDS,
    Generations,
    least_between,
)
from icestream.operators.multi_join.logged_rows import EPOCHS, LoggedRows, record_of
from icestream.operators.multi_join.resident import Resident
from icestream.operators.multi_join.spec import JOINED, partitions_of
from icestream.operators.protocol import PastVersion, Shard
from icestream.state.identities import EVERY_ID, IdRange, keep_ids, kept_ids
from icestream.state.log.format import MAX_PAYLOAD, Record, SegmentInfo, whole
from icestream.state.log.reader import SegmentReader
from icestream.state.rows import RowCodec
from icestream.state.versions.commits import BASE

#: words of a row in memory besides those on the log: its place in a chain, its key, its index
ROW_WORDS = 6
#: kinds of records other than rows, stored in place of a port
EVENTS = 0xFFE0
NUMBERS = 0xFFE1
PARTITIONS = 0xFFE2
RECORDS = 0xFFE3
CUTS = 0xFFE4
SEGMENTS = 0xFFE5


@dataclass
class JoinRecovery:
    """Writes and reads the log of one join."""

    number: int
    shard: Shard
    resident: Resident
    generations: Generations
    #: part of the arena's header with the join's other numbers
    numbers: dict[str, Any]
    record_bytes: int
    #: codecs of rows, by port
    codecs: Sequence[RowCodec]

    # -- writing ---------------------------------------------------------------------------

    def log_events(self, events: Sequence[tuple[int, Table]]) -> int:
        """Write events of partitions, in order: kind, and rows of (partition, epoch)."""
        rows = [np.column_stack([each, np.full(len(each), kind)]) for kind, each in events]
        return self._append(EVENTS, np.concatenate(rows)) if rows else 0

    def save(self) -> int:
        """Write a snapshot; return its bytes."""
        text = json.dumps({name: self.numbers[name] for name in ("epoch", "watermark")}).encode()
        self.shard.segment(BASE).append(text, operator=self.number, synopsis=NUMBERS)
        written = self._append(PARTITIONS, self.resident.facts)
        written += self._append(RECORDS, self.generations.records)
        written += self._append(CUTS, self.generations.cuts)
        return written + self._append(SEGMENTS, self.generations.segments)

    @property
    def size(self) -> int:
        """Return the approximate size of a snapshot in bytes."""
        return self.generations.bytes + self.resident.facts.nbytes

    def _append(self, kind: int, rows: Table) -> int:
        writer = self.shard.segment(BASE)
        some = max(1, self.record_bytes // (8 * rows.shape[1]))
        for first in range(0, len(rows), some):
            part = np.ascontiguousarray(rows[first : first + some])
            writer.append(part, operator=self.number, synopsis=kind, rows=len(part))
        return rows.nbytes

    # -- reading ---------------------------------------------------------------------------

    def restore(self, history: Sequence[PastVersion]) -> tuple[int, int]:
        """Restore everything but rows from a history; return versions and bytes replayed."""
        since = [past for past in history if not self._load(past)]
        for past in since:
            for lifetime, info in past.segments:
                if lifetime == BASE:
                    self._recall(info)
        for past in since:
            for lifetime, info in past.segments:
                if lifetime == JOINED:
                    self._know(info)
        return len(since), sum(info.bytes for past in since for _, info in past.segments)

    def resident_rows(self, watermark: int) -> Iterator[LoggedRows]:
        """Yield rows that have not ended, from records with resident generations."""
        records = self.generations.records
        if not len(records):
            return
        since = least_between(self._ended, *self.generations.partitions_of(records))
        wanted = (records[:, EPOCH] > since) & (records[:, ENDS] > watermark)
        markers = np.sort(records[wanted, MARKER].view(np.uint64))
        del records
        for record in self.shard.log.read_many(markers):
            rows = self.rows_of(record)
            yield rows.where(rows.re > watermark)

    def sizes_on_log(self, watermark: int) -> Floats:
        """Return the bytes that each partition is expected to take in memory, by the index."""
        records = self.generations.records
        records = records[records[:, ENDS] > watermark]
        words = records[:, WORDS] + ROW_WORDS * records[:, ROWS]
        return 8.0 * self.generations.by_partition(records, words)

    def away_rows(self, partitions: Mask, watermark: int) -> Iterator[LoggedRows]:
        """Yield rows of partitions that have not ended and are not resident."""
        records, floor = self.generations.records, np.array(self.resident.facts[:, k.FLOOR])
        first, last = self.generations.partitions_of(records)
        asked = np.concatenate([[0], np.cumsum(partitions)])
        wanted = (asked[last + 1] > asked[first]) & (records[:, ENDS] > watermark)
        markers = np.sort(records[wanted, MARKER].view(np.uint64))
        del records
        for record in self.shard.log.read_many(markers):
            rows = self.rows_of(record)
            homes = partitions_of(rows.id_high, self.resident.partitions)
            needed = partitions[homes] & (rows.re > watermark) & ~self.is_resident(rows)
            needed &= rows.epoch > floor[homes]
            if needed.any():
                yield rows.where(needed)

    def is_resident(self, rows: LoggedRows) -> Mask:
        """Return which rows belong to a generation that has not ended."""
        ended: Mask = (
            self._ended[partitions_of(rows.id_high, self.resident.partitions)] < rows.epoch
        )
        return ended

    def note(self, kind: int, events: Table) -> None:
        """Apply an event to partitions: rows of (partition, epoch)."""
        self.generations.apply(events, kind)
        facts, partitions = self.resident.facts, events[:, 0]
        if kind in (CUT, DISCARDED):
            facts[partitions, k.MEMBERS] = facts[partitions, k.OUTPUTS] = 0
        facts[:, k.OLDER] = self.generations.counts()
        if kind in (CLEANED, DISCARDED):
            facts[partitions, k.FIRST] = INFINITY
            facts[partitions, k.NEWS] = 0
        if kind == RETURNED:
            facts[partitions, k.MEMBERS] = np.maximum(facts[partitions, k.MEMBERS], 1)
        if kind == CLEANED:
            facts[partitions, k.CLEANED] = events[:, 1]
        if kind == DISCARDED:
            facts[partitions, k.FLOOR] = events[:, 1]

    @property
    def _ended(self) -> Ints:
        """Return, by partition, the epoch up to which rows are not in the resident generation."""
        ended: Ints = np.maximum(self.generations.last_cuts(), self.resident.facts[:, k.FLOOR])
        return ended

    def _load(self, past: PastVersion) -> bool:
        """Load the snapshot of a version, if it has one, or those of several parents."""
        keep_ids(self.numbers, past.keeps)
        with ExitStack() as stack:
            snapshots = []
            for lifetime, info in past.segments:
                if lifetime == BASE:
                    reader = stack.enter_context(closing(self.shard.reader(info)))
                    texts = list(self._records(reader, NUMBERS))
                    if texts:
                        header = json.loads(bytes(texts[-1].payload))
                        epoch = whole(header["epoch"], 0, EPOCHS - 1)
                        self.generations.reached(epoch)
                        watermark = whole(header["watermark"])
                        self.numbers["watermark"] = max(watermark, self.numbers["watermark"])
                        snapshots.append(reader)
            if snapshots:
                self._take(snapshots, past.parents or (EVERY_ID,))
        return bool(snapshots)

    def _take(self, snapshots: Sequence[SegmentReader], parts: Sequence[IdRange]) -> None:
        """Take over the part of each snapshot that is in its range of ids."""
        partitions = self.resident.partitions
        found, cuts, segments = [], [], []
        for reader, part in zip(snapshots, parts, strict=True):
            low, high = (
                int(partitions_of(np.array([each], dtype=np.uint64), partitions)[0])
                for each in (part.low, part.high - 1)
            )
            facts = self._rows(reader, PARTITIONS, k.FACTS)
            self.resident.facts[low : high + 1] = facts[low : high + 1]
            records = self._rows(reader, RECORDS, RECORD)
            ends = (records[:, at].view(np.uint64) for at in (FIRST_ID_HIGH, LAST_ID_HIGH))
            *clipped, inside = part.clip(*ends)
            for at, each in zip((FIRST_ID_HIGH, LAST_ID_HIGH), clipped, strict=True):
                records[:, at] = each.view(np.int64)
            found.append(records[inside])
            some = self._cuts(reader, CUTS, 2)
            cuts.append(some[(some[:, 0] >= low) & (some[:, 0] <= high)])
            segments.append(self._rows(reader, SEGMENTS, 2))
        self.resident.facts[:, k.BYTES] = 0
        records = _once(np.concatenate(found))
        first, last = self.generations.partitions_of(records)
        _within(records[:, PORT], len(self.codecs))
        _within(records[:, EPOCH], EPOCHS)
        _within(records[:, ROWS], MAX_PAYLOAD // 8)
        _within(records[:, WORDS], MAX_PAYLOAD // 8)
        _within(last - first, self.resident.partitions)
        self.generations.load_records(records)
        self.generations.load_cuts(np.concatenate(cuts))
        self.generations.load_segments(_most_words(np.concatenate(segments)))

    def _recall(self, info: SegmentInfo) -> None:
        """Apply the events that a version logged."""
        with closing(self.shard.reader(info)) as reader:
            events = self._cuts(reader, EVENTS, 3)
        breaks = np.flatnonzero(np.diff(events[:, 2])) + 1
        for part in np.split(events, breaks):
            if len(part):
                self.note(int(part[0, 2]), part[:, :2])
                self.generations.reached(int(part[:, 1].max()))

    def _know(self, info: SegmentInfo) -> None:
        """Add the records of a segment to the index, and their rows to the facts of partitions."""
        facts, ended = self.resident.facts, self._ended
        oldest = self.generations.first_cuts()
        with closing(self.shard.reader(info)) as reader:
            for record in reader.scan():
                if record.operator != self.number:
                    continue
                rows = self.rows_of(record)
                re, id_high, epoch = rows.re, rows.id_high, rows.epoch
                latest = int(re.max())
                self.generations.add(
                    record_of(rows.port, epoch, record.marker, id_high, len(rows.words), latest)
                )
                self.generations.reached(epoch)
                partitions = partitions_of(id_high, self.resident.partitions)
                np.maximum.at(facts[:, k.LATEST], partitions, re)
                new = facts[partitions, k.CLEANED] < epoch
                np.add.at(facts[:, k.NEWS], partitions[new], 1)
                later = new & (oldest[partitions] < epoch)
                np.minimum.at(facts[:, k.FIRST], partitions[later], rows.le[later])
                np.add.at(facts[:, k.MEMBERS], partitions[ended[partitions] < epoch], 1)
        self.generations.add_segment(info.ordinal)

    def rows_of(self, record: Record) -> LoggedRows:
        """Return the rows of a record, without those of other shards."""
        rows = LoggedRows.of(record, self.codecs, self.shard.log.folder)
        mine = self.holds(record.marker, rows)
        return rows if mine.all() else rows.where(mine)

    def holds(self, marker: int, rows: LoggedRows) -> Mask:
        """Return which rows of a record belong to this shard, and are not in another record.

        A parent may have written its rows of a record that it shared again.
        """
        keeps = kept_ids(self.numbers)
        if keeps is None:
            return EVERY_ID.holds(rows.id_high)
        mine = keeps.holds(rows.id_high)
        records = self.generations.records
        for entry in records[records[:, MARKER].view(np.uint64) == np.uint64(marker)]:
            first, last = entry[[FIRST_ID_HIGH, LAST_ID_HIGH]].view(np.uint64).tolist()
            mine &= IdRange(first, last + 1).holds(rows.id_high)
        return mine

    def _records(self, reader: SegmentReader, kind: int) -> Iterator[Record]:
        directory = reader.directory
        mine = (directory["operator"] == self.number) & (directory["synopsis"] == kind)
        return reader.read_many(directory["marker"][mine])

    def _cuts(self, reader: SegmentReader, kind: int, width: int) -> Table:
        """Read rows that begin with a partition and an epoch."""
        rows = self._rows(reader, kind, width)
        _within(rows[:, 0], self.resident.partitions)
        _within(rows[:, 1], EPOCHS)
        return rows

    def _rows(self, reader: SegmentReader, kind: int, width: int) -> Table:
        parts = [
            np.frombuffer(record.payload, dtype=np.int64).reshape(-1, width)
            for record in self._records(reader, kind)
        ]
        return np.concatenate([np.empty((0, width), dtype=np.int64), *parts])


def _once(records: Table) -> Table:
    """Return records in the order of markers; those that parents share, once."""
    records = records[np.argsort(records[:, MARKER].view(np.uint64), kind="stable")]
    same = np.flatnonzero(records[1:, MARKER] == records[:-1, MARKER])
    for at in same[::-1].tolist():
        # parents are in the order of ids
        records[at, LAST_ID_HIGH] = records[at + 1, LAST_ID_HIGH]
    return np.delete(records, same + 1, axis=0)


def _most_words(segments: Table) -> Table:
    """Return segments in the order of ordinals; those that parents share, once."""
    ordinals, places = np.unique(segments[:, 0], return_inverse=True)
    words = np.zeros(len(ordinals), dtype=np.int64)
    np.maximum.at(words, places, segments[:, 1])
    return np.column_stack([ordinals, words])


def _within(numbers: Ints, end: int) -> None:
    """Reject numbers read from the log that are not in [0, end)."""
    if ((numbers < 0) | (numbers >= end)).any():
        msg = f"a number of a join's snapshot is not from 0 to {end - 1}"
        raise ValueError(msg)
