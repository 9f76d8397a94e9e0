"""Keys of an update queue that are not in memory: two tables and a file of values.

Idea: an evicted key is a row: the words of its cell and of its row in every reader. Idle keys and
*open* keys (they wait, or a result is being delivered) have a table each, so that the rows read in
every version are together, and idle ones are short. The updates of a batch change the rows of all
their keys in one pass through each table, in the order of the files; no key is loaded for them.
The tables' fences tell where the keys are whose turn is next; many of them are served where they
are, in one pass, too.

Invariants:
1. Rows and values are those put last (`test_oracle_cold_keys_are_a_dictionary`).
2. Turns come in order, each once (`test_oracle_turns_come_in_order`).
3. Like all of the arena, this is a cache of the log (`test_oracle_a_small_budget_serves_the_same`).

Cost: for an update of a key, its value is appended, and each table's region of the key is read, and
written if it changed; for a batch of many keys that is the file, read and written once from its
begin to its end. A version that reports staleness reads the open rows once.

Limits: finding that a key is new costs a region of each table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Mask
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.queue import queue as k
from icestream.kernels.queue import update_batches
from icestream.kernels.queue.cold_rows import serve_rows, update_rows
from icestream.kernels.queue.order import (
    APPLICATION_STALENESS,
    FLYING,
    INPUT,
    LACKS,
    LINKS,
    QUEUE_STALENESS,
    READER_WORDS,
    SINCE,
    STALENESS_WORDS,
    TURN,
    ReaderArrays,
)
from icestream.kernels.queue.staleness import AREA, BINS, FROM, NONE
from icestream.state.arena import Arena
from icestream.state.keys import Identity
from icestream.state.queue.cells import KeyUpdates
from icestream.state.queue.cold_table import ColdTable, marks_of
from icestream.state.queue.cold_values import ColdValues
from icestream.state.queue.order import KeyOrder
from icestream.state.queue.staleness import bins_of_areas

#: rows, the values of those that wait as words, and where each begins
Rows = tuple[Ints, Ints, Ints]

#: words of an idle key, in its cell and for each reader
_IDLE_CELL = (k.ID_HIGH, k.ID_LOW, k.ARRIVED, k.GAP, k.COUNT)
_IDLE = tuple(
    totals + word for totals in (QUEUE_STALENESS, APPLICATION_STALENESS) for word in (AREA, FROM)
)
#: rows in memory for each of the next keys
SPARE = 5 / 4
#: part of the keys that fit which is looked for, so that few are put back
_NEARLY = 7 / 8
#: words of a key that is served where it is
S_ID_HIGH, S_ID_LOW, S_ARRIVED, S_ADDRESS, S_SIZE, S_SINCE, S_TURN = range(7)
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
        blank = np.zeros(self.width, dtype=np.int64)
        blank[k.ADDRESS] = -1
        starts = [k.CELL_WORDS + number * READER_WORDS for number in range(readers)]
        for start in starts:
            blank[[start + word for word in (SINCE, FLYING, LACKS, TURN)]] = NONE
            blank[[start + word + FROM for word, _ in STALENESS_WORDS]] = MINUS_INFINITY
        idle = [*_IDLE_CELL, *(start + word for start in starts for word in (*_IDLE, INPUT))]
        unused = {start + LINKS for start in starts}
        opened = [word for word in range(self.width) if word not in unused]
        dues = [start + word for word in (TURN, FLYING) for start in starts]
        self._idle = ColdTable(arena, f"{name}.idle", blank, idle, [k.ARRIVED], work)
        self._open = ColdTable(arena, f"{name}.open", blank, opened, dues, work)
        self.values = ColdValues(arena, name)
        kinds = len(STALENESS_WORDS)
        #: number of idle keys by reader, kind of staleness, and bin of their area
        self._spread = arena.array(f"{name}.spread", np.int64, 1, readers * kinds * BINS)
        #: keys that wait for any reader, and for each; by reader and kind of staleness twice the
        #: area of idle and forgotten keys
        self._header: dict[str, Any] = arena.header.setdefault(
            f"{name}.cold",
            {
                "waiting": 0,
                "waits": [0] * readers,
                "areas": [[0] * kinds for _ in range(readers)],
            },
        )

    def __len__(self) -> int:
        return len(self._idle) + len(self._open)

    @property
    def waiting(self) -> int:
        return int(self._header["waiting"])

    def waits(self, reader: int) -> int:
        return int(self._header["waits"][reader])

    def next_turn(self, reader: int) -> int:
        """Return a turn before which no cold key waits for a reader."""
        return int(self._open.fences(reader).min(initial=INFINITY))

    def idle_area(self, reader: int, kind: int) -> float:
        """Return the area of the staleness of idle and of forgotten keys."""
        return float(self._header["areas"][reader][kind] / 2)

    def idle_spread(self, reader: int, kind: int) -> Ints:
        """Return how many idle keys there are for each of `bins_of_areas`."""
        first = (reader * len(STALENESS_WORDS) + kind) * BINS
        spread: Ints = self._spread.view[first : first + BINS]
        return spread

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
            first = k.CELL_WORDS + reader * READER_WORDS
            rows[rows[:, first + SINCE] == NONE, first + TURN] = NONE
        self._put(rows)

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
        self._count_idle(idle, -1)
        self._count_open(opened, -1)
        _, rows = _together(found, idle, left[there], opened)
        return (rows, *self._values_of(rows, drop=True))

    def pop_next(self, reader: int, count: int, most: int) -> Iterator[Rows]:
        """Remove at most `count` keys, those served first, and yield them in order, `most` a time.

        There may be fewer or none as long as the next turn is a later one. `count * SPARE` rows are
        in memory.
        """
        turn = k.CELL_WORDS + reader * READER_WORDS + TURN
        first, found = self._open.blank(int(SPARE * count) + 1), 0
        spare = len(first) - count
        for rows in self._open.take_due(reader, self._horizon(reader, count)):
            self._count_open(rows, -1)
            for some in np.split(rows, range(spare, len(rows), spare)):
                if found + len(some) > len(first):
                    found = self._put_back(first[:found], turn, count)
                first[found : found + len(some)] = some
                found += len(some)
        found = self._put_back(first[:found], turn, count)
        order = np.argsort(first[:found, turn])
        for part in np.split(order, range(most, found, most)):
            rows = first[part]
            yield (rows, *self._values_of(rows, drop=True))

    def next_turns(self, reader: int, count: int) -> Ints:
        """Return the turns of the next `count` keys or of fewer, not sorted, but without gaps.

        There may be none as long as the next turn is a later one.
        """
        before = self._horizon(reader, int(SPARE * count / _NEARLY))
        turns = self._open.due_words(reader, before)
        if not len(turns):
            self.serve(reader, before, 0)
        return np.partition(turns, count - 1)[:count] if len(turns) > count else turns

    def serve(self, reader: int, before: int, now: Micros) -> tuple[Ints, Ints, Ints]:
        """Serve the keys that wait for a turn before `before`, where they are.

        Returns: words `S_...` of each key in the order of turns; their values and the bounds of
        each.
        """
        first = k.CELL_WORDS + reader * READER_WORDS
        words = [k.ID_HIGH, k.ID_LOW, k.ARRIVED, k.ADDRESS, k.SIZE, first + SINCE, first + TURN]
        found = [np.empty((0, len(words)), dtype=np.int64)]
        order = self._orders[reader]

        def change(rows: Ints) -> None:
            found.append(rows[:, words])
            self._count_open(rows, -1)
            keys = self.of_reader(rows, reader)
            keys[:, QUEUE_STALENESS + FROM] = np.maximum(
                keys[:, QUEUE_STALENESS + FROM], order.began
            )
            kernel = order.kernel._replace(keys=keys, reals=keys.view(np.float64))
            serve_rows(kernel, np.ascontiguousarray(rows[:, k.ARRIVED]), now)
            rows[:, first : first + READER_WORDS] = keys
            rows[:, k.WAITED_FOR] &= ~(1 << order.bit)
            self.values.drop(int(rows[rows[:, k.WAITED_FOR] == 0, k.SIZE].sum()))
            self._count_open(rows, 1)

        self._open.change_due(reader, before, change)
        served = np.concatenate(found)
        served = served[np.argsort(served[:, S_TURN])]
        return served, *self.values.read(served[:, S_ADDRESS], served[:, S_SIZE])

    def _put_back(self, rows: Ints, turn: int, count: int) -> int:
        """Move the rows of the first turns to the front, put the others back; return how many."""
        if len(rows) <= count:
            return len(rows)
        rows[:] = rows[np.argpartition(rows[:, turn], count)]
        self._put(rows[count:])
        return count

    def update(self, facts: Ints, updates: KeyUpdates, chosen: Ints, most: int) -> None:
        """Let chosen updates change keys that are here or new, `most` of them at a time.

        `facts` are those of the cells in memory.
        """
        id_high, id_low = updates.id_high[chosen], updates.id_low[chosen]
        marks = marks_of(id_high, id_low)
        order = np.argsort(marks, kind="stable")
        if _are_mixed(marks[order], id_high[order], id_low[order]):
            order = np.lexsort((id_low, id_high, marks))
        updates, marks = updates.take(chosen[order]), marks[order]
        id_high, id_low = updates.id_high, updates.id_low
        addresses = self.values.add(updates.words) + updates.offsets[:-1]
        sizes = np.diff(updates.offsets)
        is_next = (id_high[1:] != id_high[:-1]) | (id_low[1:] != id_low[:-1])
        heads = np.flatnonzero(np.concatenate(([True], is_next)))
        bounds = np.append(heads, len(marks))
        readers = tuple(order.kernel for order in self._orders)
        # a key was never stale before its reader began to measure
        measured = [
            (k.CELL_WORDS + reader * READER_WORDS + totals + FROM, order)
            for reader, order in enumerate(self._orders)
            for totals in (QUEUE_STALENESS, APPLICATION_STALENESS)
        ]
        for begin in range(0, len(heads), most):
            part = heads[begin : begin + most]
            found, idle = self._idle.take(id_high[part], id_low[part])
            self._count_idle(idle, -1)
            rows = self._open.blank(len(part))
            rows[:, k.ID_HIGH], rows[:, k.ID_LOW] = (
                each[part].view(np.int64) for each in (id_high, id_low)
            )
            rows[found] = idle
            starts = bounds[begin : begin + len(part) + 1]

            def change(some: slice, there: Mask, rows: Ints = rows, starts: Ints = starts) -> Mask:
                mine = rows[some]
                self._count_open(mine[there], -1)
                for word, order in measured:
                    np.maximum(mine[:, word], order.began, out=mine[:, word])
                dead = update_rows(
                    facts,
                    readers,
                    mine,
                    mine.view(np.float64),
                    starts[some.start : some.stop + 1],
                    updates.arrived,
                    updates.folded,
                    updates.turns,
                    addresses,
                    sizes,
                )
                self.values.drop(dead)
                is_open = self._is_open(mine)
                self._count_open(mine[is_open], 1)
                return is_open

            self._open.change(marks[part], rows, change)
            self._put(rows[~self._is_open(rows)])

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
        readers = range(len(self._orders))
        for reader in readers:
            for rows in self._open.take_due(len(self._orders) + reader, INFINITY):
                self._count_open(rows, -1)
                for each in readers:
                    first = k.CELL_WORDS + each * READER_WORDS
                    rows[:, first : first + READER_WORDS] = self._settled(rows, each, at)
                self._put(rows)

    def forget(self, before: Micros) -> None:
        """Forget idle keys without an update since `before`, but keep their staleness."""
        areas = [list(each) for each in self._header["areas"]]
        for rows in self._idle.take_due(0, before):
            self._count_idle(rows, -1)
        self._header["areas"] = areas

    def keep_staleness(self, reader: int, keys: Ints) -> None:
        """Keep the staleness of keys in memory that are forgotten, given as rows of a reader."""
        self._add_areas(reader, keys, 1)

    def clean(self) -> None:
        """Rewrite values if most of them are out of date."""
        if self.values.is_half_dead:
            words = self.values.words
            self.values.begin_anew()
            for rows in self._open.scan():
                self._move_values(rows, words)
            self.values.remove_before()

    # -- internals -------------------------------------------------------------------------

    def _horizon(self, reader: int, count: int) -> int:
        """Return a turn before which nearly `count` cold keys wait, by the first turns of regions.

        A region has n waiting keys. If a part q of all keys waits before a turn, that is before the
        first turn of a region with probability (1 - q) ** n; turns go on as they begin.
        """
        waiting = self.waits(reader)
        if waiting <= count:
            return INFINITY
        fences = self._open.fences(reader)
        wanted, each = _NEARLY * count / waiting, max(1.0, waiting / len(fences))
        part = min(wanted, 1 / each)
        place = int((1 - (1 - part) ** each) * (len(fences) - 1))
        first, turn = (int(np.partition(fences, at)[at]) for at in (0, place))
        return int(first + (turn - first) * wanted / part) + 1 if turn < INFINITY else INFINITY

    def _put(self, rows: Ints) -> None:
        is_open = self._is_open(rows)
        self._idle.put(rows[~is_open])
        self._open.put(rows[is_open])
        self._count_idle(rows[~is_open], 1)
        self._count_open(rows[is_open], 1)

    def _is_open(self, rows: Ints) -> Mask:
        is_open: Mask = rows[:, k.WAITED_FOR] != 0
        for reader in range(len(self._orders)):
            is_open |= rows[:, k.CELL_WORDS + reader * READER_WORDS + FLYING] != NONE
        return is_open

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

    def _count_open(self, rows: Ints, sign: int) -> None:
        self._header["waiting"] += sign * int(np.count_nonzero(rows[:, k.WAITED_FOR]))
        for reader in range(len(self._orders)):
            waits = rows[:, k.CELL_WORDS + reader * READER_WORDS + SINCE] != NONE
            self._header["waits"][reader] += sign * int(np.count_nonzero(waits))

    def _count_idle(self, rows: Ints, sign: int) -> None:
        for reader in range(len(self._orders)):
            areas = self._add_areas(reader, self.of_reader(rows, reader), sign)
            for kind, area in enumerate(areas):
                counts = np.bincount(bins_of_areas(area), minlength=BINS)
                self.idle_spread(reader, kind)[:] += sign * counts

    def _add_areas(self, reader: int, keys: Ints, sign: int) -> list[npt.NDArray[np.float64]]:
        found = [keys.view(np.float64)[:, totals + AREA] for totals, _ in STALENESS_WORDS]
        areas = self._header["areas"][reader]
        for kind, area in enumerate(found):
            areas[kind] += sign * _doubled(area)
        return found

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
            self._open.put(waits)


def _together(found: Mask, rows: Ints, others: Ints, more: Ints) -> tuple[Mask, Ints]:
    """Return which keys were found in either place, and all rows in their order."""
    places = np.concatenate((np.flatnonzero(found), others))
    found[others] = True
    return found, np.concatenate((rows, more))[np.argsort(places)]


def _are_mixed(marks: Ints, id_high: Identity, id_low: Identity) -> bool:
    """Return whether different keys with equal marks are next to each other."""
    differ = (id_high[1:] != id_high[:-1]) | (id_low[1:] != id_low[:-1])
    return bool((differ & (marks[1:] == marks[:-1])).any())


def _doubled(areas: npt.NDArray[np.float64]) -> int:
    """Return twice the sum of areas, which are multiples of one half, exactly."""
    twice = 2 * areas
    high = np.floor(twice / _HALF)
    low = twice - high * _HALF
    return int(high.astype(np.int64).sum()) * 2**40 + int(low.astype(np.int64).sum())
