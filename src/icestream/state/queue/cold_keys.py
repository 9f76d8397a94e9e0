"""Keys of an update queue that are not in memory: sorted files next to the arena's arrays.

Idea: an evicted key is a row: the words of its cell and of its row in every reader. Idle keys and
*open* keys (they wait, or a result is being delivered) have a table each, so that the rows read in
every version are together. For each reader, an index of turns orders the waiting keys; their
values are in a file of words.

Invariants:
1. Rows and values are those put last (`test_oracle_cold_keys_are_a_dictionary`).
2. Turns come in order, each once (`test_oracle_turns_come_in_order`).
3. Like all of the arena, this is a cache of the log (`test_oracle_a_small_budget_serves_the_same`).

Cost: a page of a file for each key that is put or taken, in one pass for many; a version that
reports staleness reads the open rows once.

Limits: finding that a key is new costs a page of each table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Mask
from icestream.core.times import INFINITY, Micros
from icestream.kernels.queue import queue as k
from icestream.kernels.queue import update_batches
from icestream.kernels.queue.order import (
    FLYING,
    READER_WORDS,
    SINCE,
    STALENESS_WORDS,
    TURN,
    ReaderArrays,
)
from icestream.kernels.queue.staleness import AREA, MOST, NONE
from icestream.state.arena import Arena
from icestream.state.identities import identities
from icestream.state.index.sorted_index import ColdIndex
from icestream.state.keys import Identity
from icestream.state.queue.cold_table import ColdTable
from icestream.state.queue.cold_values import ColdValues
from icestream.state.queue.order import KeyOrder
from icestream.state.queue.staleness import bins_of_areas

#: rows, the values of those that wait as words, and where each begins
Rows = tuple[Ints, Ints, Ints]

_PAGE_BYTES = 4096
#: turns that may be out of date, however few keys wait
_LITTLE = 1 << 12
#: flipping this bit makes unsigned turns sort like signed ones
_SIGN = np.int64(-(2**63))
#: areas are summed in two parts, so that whole numbers are exact
_HALF = 2.0**40


class ColdKeys:
    """Rows of keys by id, and which of them wait for a reader next."""

    def __init__(self, arena: Arena, orders: tuple[KeyOrder, ...], work: int, name: str) -> None:
        """Attach to the arena's files, or start without keys; `work` bytes are read at once."""
        self._orders = orders
        readers = len(orders)
        #: words of a row
        self.width = k.CELL_WORDS + readers * READER_WORDS
        self._idle = ColdTable(arena, f"{name}.idle", self.width, k.ARRIVED)
        self._open = ColdTable(arena, f"{name}.open", self.width)
        self._turns = [
            ColdIndex(
                arena, f"{name}.turns{reader}", 3, (), _PAGE_BYTES, work, self._passed(reader)
            )
            for reader in range(readers)
        ]
        self.values = ColdValues(arena, name)
        kinds = [[0] * len(STALENESS_WORDS) for _ in range(readers)]
        #: keys of each kind, keys that wait for any reader, and for each reader; results being
        #: delivered; by reader and kind of staleness twice the area and the largest value of idle
        #: and
        #: forgotten keys, and the number of idle keys per bin of areas; the first turn here
        self._header: dict[str, Any] = arena.header.setdefault(
            f"{name}.cold",
            {
                "idle": 0,
                "open": 0,
                "waiting": 0,
                "flying": 0,
                "waits": [0] * readers,
                "areas": kinds,
                "most": [list(each) for each in kinds],
                "spread": [[{} for _ in STALENESS_WORDS] for _ in kinds],
                "turns": [INFINITY] * readers,
            },
        )

    def __len__(self) -> int:
        """Return how many keys are here."""
        return int(self._header["idle"] + self._header["open"])

    @property
    def waiting(self) -> int:
        """Keys that wait for at least one reader."""
        return int(self._header["waiting"])

    def waits(self, reader: int) -> int:
        """Return how many keys wait for a reader."""
        return int(self._header["waits"][reader])

    def next_turn(self, reader: int) -> int:
        """Return a turn before which no cold key waits for a reader."""
        return int(self._header["turns"][reader]) if self.waits(reader) else INFINITY

    def idle_staleness(self, reader: int, kind: int) -> tuple[float, int]:
        """Return area and largest value of the staleness of idle and of forgotten keys."""
        return self._header["areas"][reader][kind] / 2, self._header["most"][reader][kind]

    def idle_spread(self, reader: int, kind: int) -> dict[int, int]:
        """Return how many idle keys there are for each of `bins_of_areas`."""
        spread: dict[str, int] = self._header["spread"][reader][kind]
        return {int(place): count for place, count in spread.items()}

    def of_reader(self, rows: Ints, reader: int) -> Ints:
        """Return the part of rows that belongs to a reader."""
        first = k.CELL_WORDS + reader * READER_WORDS
        return np.ascontiguousarray(rows[:, first : first + READER_WORDS])

    # -- keys ------------------------------------------------------------------------------

    def put(self, rows: Ints, words: Ints, offsets: Ints) -> None:
        """Add rows of keys that are not here, in any order.

        `words` and `offsets` are the values of waiting keys, in the order of the rows.
        """
        waits = rows[:, k.WAITED_FOR] != 0
        if waits.any():
            rows[waits, k.ADDRESS] = self.values.add(words) + offsets[:-1]
            for reader in range(len(self._orders)):
                self._add_turns(rows[waits], reader)
        is_open = self._is_open(rows)
        self._idle.put(rows[~is_open])
        self._open.put(rows[is_open])
        self._count(rows[~is_open], rows[is_open], 1)

    def look(self, id_high: Identity, id_low: Identity) -> tuple[Mask, Ints]:
        """Return which of some distinct keys are here, and their rows."""
        found, rows = self._idle.fetch(id_high, id_low)
        left = np.flatnonzero(~found)
        there, more = self._open.fetch(id_high[left], id_low[left])
        return _together(found, rows, left[there], more)

    def pop(self, id_high: Identity, id_low: Identity) -> Rows:
        """Remove and return the rows and values of those of some distinct keys that are here."""
        found, idle = self._idle.take(id_high, id_low)
        left = np.flatnonzero(~found)
        there, opened = self._open.take(id_high[left], id_low[left])
        self._count(idle, opened, -1)
        _, rows = _together(found, idle, left[there], opened)
        return (rows, *self._values_of(rows, drop=True))

    def next_keys(self, reader: int, count: int) -> tuple[Identity, Identity]:
        """Return up to `count` keys that wait for a reader, first turns first."""
        found: list[Ints] = []
        wanted, turn = count, INFINITY
        since = self._header["turns"][reader] + 2**63
        for block in self._turns[reader].scan(since=since):
            for first in range(0, len(block), max(1, count)):
                some = block[first : first + max(1, count)]
                valid = some[self._is_due(some, reader)][:wanted]
                found.append(valid)
                wanted -= len(valid)
                if not wanted:
                    turn = int(valid[-1, 0] ^ _SIGN)
                    break
            if not wanted:
                break
        self._header["turns"][reader] = turn
        keys = np.concatenate([np.empty((0, 3), dtype=np.int64), *found])
        return keys[:, 1].copy().view(np.uint64), keys[:, 2].copy().view(np.uint64)

    def idle_rows(self) -> Iterator[Ints]:
        """Yield the rows of idle keys, a batch at a time."""
        return self._idle.scan()

    def open_rows(self) -> Iterator[Ints]:
        """Yield rows of keys that wait, or whose result is being delivered, a batch at a time."""
        return self._open.scan()

    def values_of(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the values of waiting rows as words, and where each begins."""
        return self._values_of(rows, drop=False)

    # -- versions --------------------------------------------------------------------------

    def delivered(self, at: Micros) -> None:
        """Record that all results being delivered have reached the application."""
        if not self._header["flying"]:
            return
        for block in self._open.scan():
            rows = block[self._flies(block)]
            if not len(rows):
                continue
            self._count(rows[:0], rows, -1)
            for reader in range(len(self._orders)):
                first = k.CELL_WORDS + reader * READER_WORDS
                rows[:, first : first + READER_WORDS] = self._settled(rows, reader, at)
            is_open = self._is_open(rows)
            self._open.over(rows[is_open])
            self._open.take(*identities(rows[~is_open]))
            self._idle.put(rows[~is_open])
            self._count(rows[~is_open], rows[is_open], 1)

    def forget(self, before: Micros) -> None:
        """Forget idle keys without an update since `before`, but keep their staleness."""
        areas = [list(each) for each in self._header["areas"]]
        while len(rows := self._some_due(before)):
            self._idle.take(*identities(rows))
            self._count(rows, rows[:0], -1)
        self._header["areas"] = areas

    def keep_staleness(self, reader: int, keys: Ints) -> None:
        """Keep the staleness of keys in memory that are forgotten, given as rows of a reader."""
        self._add_staleness(reader, keys, 1)

    def clean(self) -> None:
        """Rewrite values and turns if most of them are out of date."""
        for reader, turns in enumerate(self._turns):
            if len(turns) > 2 * self.waits(reader) + _LITTLE:
                turns.clear()
                self._header["turns"][reader] = INFINITY
                for rows in self._open.scan():
                    self._add_turns(rows[rows[:, k.WAITED_FOR] != 0], reader)
        if self.values.is_half_dead:
            words = self.values.words
            self.values.begin_anew()
            for rows in self._open.scan():
                self._move_values(rows, words)
            self.values.remove_before()

    # -- internals -------------------------------------------------------------------------

    def _passed(self, reader: int) -> Any:
        return lambda entries: (entries[:, 0] ^ _SIGN) < self._header["turns"][reader]

    def _some_due(self, before: Micros) -> Ints:
        """Return some idle rows whose last update is before a time; none if there are no more."""
        found = [np.empty((0, self.width), dtype=np.int64)]
        for rows in self._idle.due(before):
            found.append(rows)
            if sum(map(len, found)) >= _LITTLE:
                break
        return np.concatenate(found)

    def _add_turns(self, rows: Ints, reader: int) -> None:
        first = k.CELL_WORDS + reader * READER_WORDS
        mine = rows[rows[:, first + SINCE] != NONE]
        if not len(mine):
            return
        turns = mine[:, first + TURN]
        entries = np.column_stack((turns ^ _SIGN, mine[:, k.ID_HIGH], mine[:, k.ID_LOW]))
        header = self._header["turns"]
        header[reader] = min(header[reader], int(turns.min()))
        # turns may be equal: then by id, as unsigned numbers
        order = np.lexsort((entries[:, 1] ^ _SIGN, turns))
        self._turns[reader].merge(entries[order])

    def _is_due(self, entries: Ints, reader: int) -> Mask:
        """Return which turns belong to keys that wait here."""
        there, rows = self._open.fetch(*identities(entries[:, 1:]))
        turns = entries[there, 0] ^ _SIGN
        first = k.CELL_WORDS + reader * READER_WORDS
        there[there] = (rows[:, first + SINCE] != NONE) & (rows[:, first + TURN] == turns)
        return there

    def _flies(self, rows: Ints) -> Mask:
        flying = [self.of_reader(rows, r)[:, FLYING] != NONE for r in range(len(self._orders))]
        return np.asarray(np.logical_or.reduce(flying))

    def _is_open(self, rows: Ints) -> Mask:
        return np.asarray((rows[:, k.WAITED_FOR] != 0) | self._flies(rows))

    def _settled(self, rows: Ints, reader: int, at: Micros) -> Ints:
        """Return a reader's part of rows after all its results were delivered."""
        keys = self.of_reader(rows, reader)
        kernel: ReaderArrays = self._orders[reader].kernel._replace(
            keys=keys, reals=keys.view(np.float64)
        )
        nothing = np.full(len(keys), NONE, dtype=np.int64)
        times = np.full(len(keys), at, dtype=np.int64)
        update_batches.deliver_batch(kernel, np.arange(len(keys)), nothing, nothing, times)
        return keys

    def _count(self, idle: Ints, opened: Ints, sign: int) -> None:
        header = self._header
        header["idle"] += sign * len(idle)
        header["open"] += sign * len(opened)
        header["waiting"] += sign * int((opened[:, k.WAITED_FOR] != 0).sum())
        header["flying"] += sign * int(self._flies(opened).sum())
        for reader in range(len(self._orders)):
            waits = self.of_reader(opened, reader)[:, SINCE] != NONE
            header["waits"][reader] += sign * int(waits.sum())
            keys = self.of_reader(idle, reader)
            self._add_staleness(reader, keys, sign)
            self._add_spread(reader, keys, sign)

    def _add_staleness(self, reader: int, keys: Ints, sign: int) -> None:
        areas, most = self._header["areas"][reader], self._header["most"][reader]
        for kind, (totals, _) in enumerate(STALENESS_WORDS):
            areas[kind] += sign * _doubled(keys.view(np.float64)[:, totals + AREA])
            most[kind] = max(most[kind], int(keys[:, totals + MOST].max(initial=0)))

    def _add_spread(self, reader: int, keys: Ints, sign: int) -> None:
        for kind, (totals, _) in enumerate(STALENESS_WORDS):
            spread: dict[str, int] = self._header["spread"][reader][kind]
            bins = bins_of_areas(keys.view(np.float64)[:, totals + AREA])
            places, counts = np.unique(bins, return_counts=True)
            for place, count in zip(places.tolist(), counts.tolist(), strict=True):
                left = spread.get(str(place), 0) + sign * count
                spread[str(place)] = left
                if not left:
                    del spread[str(place)]

    def _values_of(self, rows: Ints, *, drop: bool) -> tuple[Ints, Ints]:
        waits = rows[rows[:, k.WAITED_FOR] != 0]
        words, offsets = self.values.read(waits[:, k.ADDRESS], waits[:, k.SIZE])
        if drop:
            self.values.drop(len(words))
        return words, offsets

    def _move_values(self, rows: Ints, words: int) -> None:
        """Copy the values of waiting open rows from the previous file, of `words` words."""
        waits = rows[rows[:, k.WAITED_FOR] != 0]
        begins, sizes = waits[:, k.ADDRESS], waits[:, k.SIZE]
        if len(sizes):
            first = self.values.add(self.values.read_before(words, begins, sizes))
            waits[:, k.ADDRESS] = first + np.cumsum(sizes) - sizes
            self._open.over(waits)


def _together(found: Mask, rows: Ints, others: Ints, more: Ints) -> tuple[Mask, Ints]:
    """Return which keys were found in either place, and all rows in their order."""
    places = np.concatenate((np.flatnonzero(found), others))
    found[others] = True
    return found, np.concatenate((rows, more))[np.argsort(places)]


def _doubled(areas: npt.NDArray[np.float64]) -> int:
    """Return twice the sum of areas, which are multiples of one half, exactly."""
    twice = 2 * areas
    high = np.floor(twice / _HALF)
    low = twice - high * _HALF
    return int(high.astype(np.int64).sum()) * 2**40 + int(low.astype(np.int64).sum())
