"""Where the rows of a join are on the log, and which generation of its partition each belongs to.

Idea: rows go to the log in *flushes*, numbered by epochs. A flush is a run of records by port, each
sorted by `id_high`, so a record holds adjacent partitions. When the resident generation of a
partition ends, the partition is *cut* at the epoch of the last flush: rows of that or an earlier
epoch belong to generations that have ended. Generations are therefore ranges of epochs, one list of
cuts for each partition. They take no space on the log, and cleaning up means dropping all cuts but
the last: what came before the clean-up owes nothing among itself. A partition whose rows all return
to memory has no cuts.

Invariants:
1. The generation of a row is the number of cuts of its partition before its epoch
   (`test_parity_generations_beside_a_recount`).
2. A record is dropped only if each of its rows is garbage, or had ended when its partition owed
   nothing (`test_a_record_stays_while_one_of_its_partitions_needs_it`): later rows begin later.

Cost: 64 bytes for each record, 16 for each cut.

References: a generation as a range of versions of a partition group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from icestream.core.arrays import Floats, Ints, Table
from icestream.operators.multi_join.spec import partitions_of
from icestream.state.arena import Arena
from icestream.state.table import CountedTable

#: the index entry of a record: its port, epoch and marker, first and last id_high (as signed
#: numbers), its rows and words, the latest end of a row
PORT = 0
EPOCH = 1
MARKER = 2
FIRST_ID_HIGH = 3
LAST_ID_HIGH = 4
ROWS = 5
WORDS = 6
ENDS = 7
RECORD = 8

#: logged events of partitions: their generation ended; they were cleaned up; discarded; all their
#: rows returned to memory
CUT = 0
CLEANED = 1
DISCARDED = 2
RETURNED = 3


class Generations:
    """Records and cuts of a join."""

    def __init__(self, arena: Arena, name: str, partitions: int, numbers: dict[str, Any]) -> None:
        """Attach to the arena's arrays, or create them; `numbers` is a part of its header."""
        self._partitions = partitions
        self._records = CountedTable(arena, f"{name}.records", RECORD)
        self._cuts = CountedTable(arena, f"{name}.cuts", 2)
        self._segments = CountedTable(arena, f"{name}.segments", 2)
        self._numbers = numbers
        numbers.setdefault("epoch", 0)
        #: words of records that were added since the last segment
        self._unsealed = 0

    # -- records ---------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return int(self._numbers["epoch"])

    def begin_flush(self) -> int:
        self._numbers["epoch"] += 1
        return self.epoch

    def reached(self, epoch: int) -> None:
        """Record an epoch that was found on the log."""
        self._numbers["epoch"] = max(self.epoch, epoch)

    @property
    def records(self) -> Table:
        """Return the index entries of all records, in the order of their markers."""
        return self._records.rows

    def reserve(self, records: int) -> None:
        """Make room for more records; raises `Refused`."""
        self._records.reserve(records)

    def add(self, record: Ints) -> None:
        self._records.append(record)
        self._unsealed += int(record[WORDS])

    def partitions_of(self, records: Table) -> tuple[Ints, Ints]:
        """Return the first and the last partition of records."""
        first, last = (records[:, at].view(np.uint64) for at in (FIRST_ID_HIGH, LAST_ID_HIGH))
        return partitions_of(first, self._partitions), partitions_of(last, self._partitions)

    def by_partition(self, records: Table, weights: Ints) -> Floats:
        """Return the weights of records by partition, as if their rows were spread evenly."""
        first, last = self.partitions_of(records)
        each = weights / (last - first + 1)
        steps = np.bincount(first, each, self._partitions + 1)
        steps -= np.bincount(last + 1, each, self._partitions + 1)
        return np.asarray(np.cumsum(steps)[:-1], dtype=np.float64)

    def forget(self, floor: Ints, since: Ints, after: Ints) -> None:
        """Drop records in which no row is needed.

        A partition needs rows of epochs later than `since`, and rows that end later than `after`,
        but no garbage up to the epoch `floor`.
        """
        records = self.records
        if not len(records):
            return
        first, last = self.partitions_of(records)
        needed = records[:, EPOCH] > least_between(since, first, last)
        needed |= records[:, ENDS] > least_between(after, first, last)
        needed &= records[:, EPOCH] > least_between(floor, first, last)
        if needed.all():
            return
        kept = records[needed]
        del records
        self.load_records(kept)

    def load_merged(self, kept: Table, made: Table) -> None:
        """Replace all records with some of them and those of a new segment."""
        self.load_records(np.concatenate([kept, made]))
        self._unsealed = int(made[:, WORDS].sum())

    def load_records(self, records: Table) -> None:
        self._records.replace(records)
        self._records.trim()

    # -- cuts ------------------------------------------------------------------------------

    @property
    def cuts(self) -> Table:
        """Return partition and epoch of all cuts, sorted."""
        return self._cuts.rows

    def apply(self, events: Table, kind: int) -> None:
        """Apply an event to partitions: rows of (partition, epoch)."""
        cuts = self.cuts
        if kind == CLEANED:
            last = np.append(cuts[1:, 0] != cuts[:-1, 0], True)
            cuts = cuts[last | ~np.isin(cuts[:, 0], events[:, 0])]
        elif kind == CUT:
            cuts = np.concatenate([cuts, events])
            cuts = cuts[np.lexsort((cuts[:, 1], cuts[:, 0]))]
        else:
            cuts = cuts[~np.isin(cuts[:, 0], events[:, 0])]
        self.load_cuts(cuts)

    def load_cuts(self, cuts: Table) -> None:
        self._cuts.replace(cuts)
        self._cuts.trim()

    def counts(self) -> Ints:
        """Return the number of ended generations of each partition."""
        return np.bincount(self.cuts[:, 0], minlength=self._partitions)

    def last_cuts(self) -> Ints:
        """Return the epoch of the last cut of each partition, 0 for none."""
        last = np.zeros(self._partitions, dtype=np.int64)
        cuts = self.cuts
        last[cuts[:, 0]] = cuts[:, 1]
        return last

    def first_cuts(self) -> Ints:
        """Return the epoch of the first cut of each partition, the greatest epoch if none."""
        first = np.full(self._partitions, np.iinfo(np.int64).max)
        cuts = self.cuts[::-1]
        first[cuts[:, 0]] = cuts[:, 1]
        return first

    def cut_begins(self) -> Ints:
        """Return where the cuts of each partition begin, and where the last ones end."""
        begins: Ints = np.searchsorted(self.cuts[:, 0], np.arange(self._partitions + 1))
        return begins

    # -- segments --------------------------------------------------------------------------

    @property
    def segments(self) -> Table:
        """Return ordinals of segments that were written and are not released, and their words."""
        return self._segments.rows.copy()

    def reserve_segment(self) -> None:
        """Make room for one more segment; raises `Refused`."""
        self._segments.reserve(1)

    def add_segment(self, ordinal: int) -> None:
        """Add a segment, with the records that were added since the last one."""
        self._segments.append(np.array([ordinal, self._unsealed]))
        self._unsealed = 0

    def load_segments(self, segments: Table) -> None:
        self._segments.replace(segments)
        self._segments.trim()

    def release(self) -> tuple[int, ...]:
        """Release the segments without any record in the index; return their ordinals."""
        known = self.segments
        needed = np.isin(known[:, 0], ordinals_of(self.records))
        self.load_segments(known[needed])
        return tuple(known[~needed, 0].tolist())

    @property
    def bytes(self) -> int:
        """Return the bytes of records, cuts and segments."""
        return 8 * (RECORD * len(self.records) + 2 * len(self.cuts) + 2 * len(self._segments))


def ordinals_of(records: Table) -> Ints:
    """Return the ordinals of the segments with records of a join."""
    return records[:, MARKER] >> 32 & 0xFFFFFFFF


def least_between(values: Ints, first: Ints, last: Ints) -> Ints:
    """Return the least value, such as a generation, in each of many ranges of partitions."""
    ends = np.column_stack([first, last + 1]).ravel()
    least: Ints = np.minimum.reduceat(np.append(values, np.iinfo(np.int64).max), ends)[::2]
    return least
