"""The rows of a join in memory, of all ports, in flat arrays of the shard's arena.

Idea: one heap of rows, one table of keys with the chains of each port, one index, and the facts of
each partition. Rows are only appended. Spilled partitions and ended rows are removed by compaction,
after which the arrays free their memory. Rows before `logged` are on the log.

Invariants:
1. A refused reservation changes no state (`test_a_refused_chunk_changes_nothing`).
2. Bytes by partition are those of the rows in memory (`test_sizes_are_those_of_resident_rows`).
3. Rows and keys of each port are those in memory (`test_streams_are_those_of_resident_rows`).

Cost: 4 words and the payload for each row; for each key 2 words, one for each port, and an index of
4 bytes at most 5/8 full.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ids, Ints, Table
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.kernels.multi_join import resident as k
from icestream.state.arena import Arena, ArenaArray
from icestream.state.budget import Refused

#: size of the smallest index
FEWEST = 1024


class Resident:
    """Rows by key and port."""

    def __init__(
        self, arena: Arena, name: str, ports: int, partitions: int, numbers: dict[str, Any]
    ) -> None:
        """Attach to the arena's arrays, or create them; `numbers` is a part of its header."""
        self.partitions = partitions
        self._heap = arena.array(f"{name}.heap", np.int64)
        self._keys = arena.array(f"{name}.keys", np.int64, k.HEADS + ports)
        self._index = arena.array(f"{name}.index", np.int32, capacity=FEWEST)
        self._facts = arena.array(f"{name}.partitions", np.int64, k.FACTS, partitions)
        self._numbers = numbers
        if "words" not in numbers:
            numbers.update(words=0, keys=0, places=FEWEST, logged=0, fresh=0)
            #: no row ends before this instant
            numbers["soonest"] = INFINITY
            #: rows of each port
            numbers["ports"] = [0] * ports
            self.facts[:, k.LATEST] = self.facts[:, k.PASSED] = MINUS_INFINITY
            self.facts[:, k.FIRST] = INFINITY

    # -- what is resident ---------------------------------------------------------------------

    @property
    def heap(self) -> Ints:
        """Return the words of all rows; invalid after a reservation."""
        return self._heap.view[: self._numbers["words"]]

    @property
    def keys(self) -> Table:
        """Return the keys; invalid after a reservation."""
        return self._keys.view[: self._numbers["keys"]]

    @property
    def facts(self) -> Table:
        """Return the facts of each partition, with columns as in the kernels."""
        return self._facts.view[: self.partitions]

    @property
    def words(self) -> int:
        return int(self._numbers["words"])

    @property
    def logged(self) -> int:
        """Return the words of rows that are on the log."""
        return int(self._numbers["logged"])

    @property
    def fresh(self) -> int:
        """Return the number of rows that are not on the log."""
        return int(self._numbers["fresh"])

    def streams(self) -> tuple[Ints, Ints]:
        """Return the number of rows of each port, and of their keys."""
        keys = np.count_nonzero(self.keys[:, k.HEADS :], axis=0).astype(np.int64)
        return np.array(self._numbers["ports"], dtype=np.int64), keys

    def all_logged(self) -> None:
        """Record that all rows are on the log."""
        self._numbers.update(logged=self.words, fresh=0)

    # -- rows arrive -------------------------------------------------------------------------

    def reserve(self, rows: int, words: int) -> None:
        """Make room for rows whose payloads have `words` words; raises `Refused`."""
        _grow(self._heap, self.words + words + k.HEAD * rows)
        keys = self._numbers["keys"] + rows
        _grow(self._keys, keys)
        places = self._numbers["places"]
        while 8 * keys > 5 * places:
            places *= 2
        if places > self._numbers["places"]:
            self._make_index(places)

    def open(self, id_high: Ids, id_low: Ids, port: int) -> tuple[Ints, Ints]:
        """Return the key of each row, and the rows whose key has rows on all other ports."""
        slots, hits = np.empty(len(id_high), dtype=np.int64), np.empty(len(id_high), dtype=np.int64)
        self._numbers["keys"], count = k.open_keys(
            self._places, self._keys.view, self._numbers["keys"], id_high, id_low, port, slots, hits
        )
        return slots, hits[:count]

    def link(
        self, slots: Ints, port: int, le: Ints, re: Ints, words: Ints, begins: Ints, *, fresh: bool
    ) -> None:
        """Store rows; those that are not `fresh` are on the log and counted in their partition."""
        self._numbers["words"] = k.link(
            self._heap.view,
            self.words,
            self._keys.view,
            slots,
            port,
            le,
            re,
            words,
            begins,
            self.facts,
            fresh,
        )
        self._numbers["ports"][port] += len(slots)
        self._numbers["soonest"] = min(self._numbers["soonest"], int(re.min(initial=INFINITY)))
        if fresh:
            self._numbers["fresh"] += len(slots)
        else:
            self.all_logged()

    # -- rows leave ----------------------------------------------------------------------------

    def ended(self, watermark: int) -> int:
        """Return the words of rows that ended at or before a watermark."""
        if watermark < self._numbers["soonest"]:
            return 0
        ended, soonest = k.ended_words(self._heap.view, self.words, watermark)
        if not ended:
            self._numbers["soonest"] = soonest
        return ended

    def drop(self, doomed: npt.NDArray[np.bool_], watermark: int) -> None:
        """Drop the rows of partitions, and those that ended; all rows are on the log."""
        words, keys = k.compact(
            self._heap.view,
            self.words,
            self._keys.view,
            self._numbers["keys"],
            doomed,
            watermark,
            self.facts,
        )
        self._numbers.update(words=words, keys=keys, logged=words, fresh=0)
        self._numbers["soonest"] = MINUS_INFINITY
        counts = np.zeros(len(self._numbers["ports"]), dtype=np.int64)
        k.rows_by_port(self._heap.view, words, counts)
        self._numbers["ports"] = counts.tolist()
        self._heap.resize(words)
        self._keys.resize(keys)
        places = FEWEST
        while 2 * keys > places:
            places *= 2
        self._make_index(min(places, self._numbers["places"]))

    @property
    def _places(self) -> k.Index:
        return self._index.view[: self._numbers["places"]]

    def _make_index(self, places: int) -> None:
        self._index.resize(places)
        self._numbers["places"] = places
        self._places[:] = 0
        k.index_keys(self._places, self._keys.view, self._numbers["keys"])


def _grow(array: ArenaArray, capacity: int) -> None:
    """Make room with some to spare, or at least for `capacity`."""
    if array.capacity >= capacity:
        return
    try:
        array.resize(capacity + capacity // 8)
    except Refused:
        array.resize(capacity)
