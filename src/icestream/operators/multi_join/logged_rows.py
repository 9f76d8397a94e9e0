"""Rows of a join in a record of the log: of one port, in the order of `id_high`.

Idea: Rows that arrived since the last flush are the end of the heap. They are sorted by port and
`id_high`, cut into records of some kilobytes, and indexed with the ranges they cover.

Invariants:
1. A record that does not hold such rows is rejected before a kernel reads it
   (`test_a_record_that_makes_no_sense_is_damage`).
2. A flush writes each new row once, under the next epoch (`test_every_row_is_logged_once`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from icestream.core.arrays import Ids, Ints
from icestream.core.errors import DamageError
from icestream.core.times import INFINITY
from icestream.kernels.multi_join import resident as k
from icestream.kernels.multi_join.rows import (
    LOG_HEAD,
    LOG_ID_HIGH,
    LOG_ID_LOW,
    LOG_LE,
    LOG_RE,
    list_rows,
    log_starts,
    pack_rows,
)
from icestream.operators.multi_join.generations import Generations
from icestream.operators.multi_join.resident import Resident
from icestream.state.log.format import Record, show_marker
from icestream.state.log.writer import SegmentWriter
from icestream.state.rows import RowCodec

#: maximum number of epochs
EPOCHS = 1 << 31


@dataclass(frozen=True)
class LoggedRows:
    """Rows in the format of the log."""

    port: int
    epoch: int
    words: Ints
    starts: Ints

    @classmethod
    def of(cls, record: Record, codecs: Sequence[RowCodec], folder: str) -> LoggedRows:
        """Find the rows of a record, given the codec of each port; DamageError names the folder."""
        words = checked_words(record, codecs, folder)
        starts = np.empty(len(words) // (LOG_HEAD + 1) + 1, dtype=np.int64)
        count = log_starts(words, starts)
        if count < 1:
            raise DamageError(folder, no_rows(record))
        rows = cls(record.synopsis, record.group, words, starts[:count])
        ends = np.append(rows.starts[1:], len(words))
        fit = codecs[rows.port].fits(words, rows.payloads, ends)
        if not fit or (rows.id_high[1:] < rows.id_high[:-1]).any():
            raise DamageError(folder, no_rows(record))
        return rows

    @property
    def id_high(self) -> Ids:
        return self.words[self.starts + LOG_ID_HIGH].view(np.uint64)

    @property
    def id_low(self) -> Ids:
        return self.words[self.starts + LOG_ID_LOW].view(np.uint64)

    @property
    def le(self) -> Ints:
        return self.words[self.starts + LOG_LE]

    @property
    def re(self) -> Ints:
        return self.words[self.starts + LOG_RE]

    @property
    def payloads(self) -> Ints:
        return self.starts + LOG_HEAD

    def where(self, chosen: Any) -> LoggedRows:
        return LoggedRows(self.port, self.epoch, self.words, self.starts[chosen])


def checked_words(record: Record, codecs: Sequence[RowCodec], folder: str) -> Ints:
    """Return the words of a record of logged join rows; DamageError if it cannot be one."""
    known = record.synopsis < len(codecs) and 0 <= record.group < EPOCHS
    if not known or not len(record.payload) or len(record.payload) % 8:
        raise DamageError(folder, no_rows(record))
    return np.frombuffer(record.payload, dtype=np.int64)


def no_rows(record: Record) -> str:
    """Return the message for a record on the log that does not hold join rows."""
    return f"record {show_marker(record.marker)} does not hold rows of a join"


#: bytes that sorting needs for each row
SORTING = 64


def flush(
    resident: Resident,
    generations: Generations,
    writer: SegmentWriter,
    operator: int,
    record_bytes: int,
) -> int:
    """Flush the rows of a join that are not on the log; return the bytes. The index needs room."""
    count = resident.fresh
    places, ports = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    id_high = np.empty(count, dtype=np.uint64)
    list_rows(resident.heap, resident.logged, resident.words, resident.keys, places, ports, id_high)
    order = _by_port_and_id_high(ports, id_high)
    places, ports, id_high = places[order], ports[order], id_high[order]
    sizes = (resident.heap[places + k.HEAD] >> 32) + LOG_HEAD
    ends = resident.heap[places + k.RE]
    epoch, written = generations.begin_flush(), 0
    bounds = record_bounds(ports, sizes, record_bytes // 8)
    for first, last in pairwise(bounds):
        words = np.empty(int(sizes[first:last].sum()), dtype=np.int64)
        pack_rows(resident.heap, resident.keys, places[first:last], words)
        port = int(ports[first])
        marker = writer.append(
            words, operator=operator, synopsis=port, group=epoch, rows=last - first, expiry=INFINITY
        )
        latest = int(ends[first:last].max())
        generations.add(
            record_of(port, epoch, marker, id_high[first:last], len(words), latest),
        )
        written += words.nbytes
    resident.all_logged()
    return written


def _by_port_and_id_high(ports: Ints, id_high: Ids) -> Ints:
    """Return the order by port and id_high; rows of a port form long sorted runs."""
    parts = []
    for port in np.flatnonzero(np.bincount(ports)):
        mine = np.flatnonzero(ports == port)
        parts.append(mine[np.argsort(id_high[mine], kind="stable")])
    return np.concatenate(parts)


def record_bounds(ports: Ints, sizes: Ints, words: int) -> list[int]:
    """Return where the records of a flush begin, and the end, for rows sorted by port."""
    if not len(ports):
        return [0]
    bounds = [0]
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(ports)) + 1).tolist(), len(ports)]):
        cuts = np.cumsum(sizes[first:last]) // max(1, words)
        bounds += (first + 1 + np.flatnonzero(np.diff(cuts))).tolist()
        bounds.append(last)
    return bounds


def most_records(rows: int, words: int, ports: int, record_bytes: int) -> int:
    """Return the maximum number of records for a flush of so many rows and words."""
    return min(rows, (words + LOG_HEAD * rows) // max(1, record_bytes // 8) + ports)


def record_of(port: int, epoch: int, marker: int, id_high: Ids, words: int, latest: int) -> Ints:
    """Return the index entry of a record that a join flushed."""
    first, last = id_high[[0, -1]].view(np.int64).tolist()
    place = marker - 2**64 if marker >= 2**63 else marker
    return np.array([port, epoch, place, first, last, len(id_high), words, latest])
