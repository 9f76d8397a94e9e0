"""Rows of a join in a record of the log: of one port, in the order of `id_high`.

Invariants:
1. A record that does not hold such rows is rejected before a kernel reads it
   (`test_a_record_that_makes_no_sense_is_damage`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from icestream.core.arrays import Ids, Ints
from icestream.core.errors import DamageError
from icestream.kernels.multi_join.rows import (
    LOG_HEAD,
    LOG_ID_HIGH,
    LOG_ID_LOW,
    LOG_LE,
    LOG_RE,
    log_starts,
)
from icestream.state.log.format import Record, show_marker
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
