"""A queue of windows: tuples in, the tuples of the newest windows out, marked for the operator.

Idea: `enqueue` takes batches of tuples in the order of arrival; `dequeue` returns, in the order in
which keys are served, the tuples of committed windows. The first tuple of such a window carries its
end as a mark, first tuples of windows that are skipped carry 0, others -1; an operator that follows
the marks opens exactly the windows it has to deliver. A window whose last tuple came before its
last instant is ended by a record without a row.

Invariants:
1. The output is whole windows, each the newest when it was committed
   (`test_oracle_windows_are_delivered_whole`), however it is cut
   (`test_a_limit_of_windows_ends_a_read_after_their_last_record`).
2. A refused `enqueue` takes no tuple (`test_a_refused_batch_changes_nothing`,
   `test_bounded_a_batch_beyond_the_budget_takes_no_tuple`).

Cost: O(1) per tuple; a tuple takes 24 bytes and its row, a zone 48, a key 232.

Limits: rows of fixed width: pass only the columns that the operator needs. Times of a key
increase. Keys are forgotten by taking over the content of the others (`snapshot`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Table
from icestream.core.errors import DefinitionError, InputError
from icestream.kernels.hash_index import insert_all
from icestream.kernels.queue.windows import tuple_batches as kernels
from icestream.kernels.queue.windows import zones as z
from icestream.kernels.queue.windows.key_times import advance_all
from icestream.state.queue.arrays import Arrays, grow_ahead
from icestream.state.queue.pages import OnDemandPages, PagePool
from icestream.state.queue.windows.spec import UpdateWindows
from icestream.state.rows import RowCodec

Bools = npt.NDArray[np.bool_]

#: tuples of a zone by default
BLOCK_ROWS = 16
_CONSTANTS = [z.SIZE, z.SLIDE, z.EAGER, z.FIFO, z.ROWS, z.WIDTH]


class WindowArrays:
    """The arrays of a window queue: facts, cells of keys, and zones from a pool of pages."""

    def __init__(
        self,
        size: int,
        slide: int,
        *,
        eager: bool,
        fifo: bool,
        width: int,
        block_rows: int = BLOCK_ROWS,
        pool: PagePool | None = None,
        name: str = "windows",
    ) -> None:
        """Attach to the arrays `name.*` of the pool's arrays, or start empty.

        Args:
            size: size of the windows.
            slide: slide of the windows.
            eager: whether a window is committed as soon as it starts.
            fifo: whether an update moves its key to the end of the queue.
            width: words of a row.
            block_rows: tuples of a zone.
            pool: pool of the zones; by default its own.
            name: prefix of the arrays' names.
        """
        self._pool = PagePool() if pool is None else pool
        arrays: Arrays = self._pool.arrays
        #: size, slide, semantics, order, tuples of a zone, words of a tuple
        self._constants = size, slide, eager, fifo, block_rows, z.TUPLE + width
        unit = z.ZONE + block_rows * (z.TUPLE + width)
        self._pages = OnDemandPages(self._pool, unit, name=f"{name}.zones")
        is_new = arrays.array(f"{name}.facts", np.int64).capacity == 0
        self._facts = arrays.array(f"{name}.facts", np.int64, 1, z.FACTS)
        self._cells = arrays.array(f"{name}.cells", np.int64, z.CELL)
        self._index = arrays.array(f"{name}.index", np.int32, 1, 64)
        if is_new:
            self.clear()
        self._facts.view[_CONSTANTS] = self._constants

    def clear(self) -> None:
        """Forget all keys and tuples, and those of other queues that share the pool."""
        facts = self._facts.view
        facts[:] = 0
        facts[[z.WQ_HEAD, z.WQ_TAIL, z.UPQ_HEAD, z.UPQ_TAIL]] = z.NONE
        facts[_CONSTANTS] = self._constants
        self._index.view[:] = 0
        self._pages.clear()

    @property
    def kernel(self) -> z.WindowQueueArrays:
        """The arrays, for kernels; never keep them across a call that may grow them."""
        return z.WindowQueueArrays(self.facts, self.cells, self._pool.kernel, self._pages.kernel)

    @property
    def facts(self) -> Ints:
        facts: Ints = self._facts.view
        return facts

    @property
    def cells(self) -> Table:
        cells: Table = self._cells.view
        return cells

    @property
    def keys(self) -> int:
        return int(self.facts[z.KEYS])

    @property
    def zones(self) -> int:
        return self._pages.used

    @property
    def zone_bytes(self) -> int:
        return 8 * self._pages.unit * self.zones

    def growth(self, keys: int, tuples: int) -> int:
        """Return the bytes by which arrays grow, at most, for tuples of so many keys."""
        # arrays that grow get room to spare
        is_full = self.keys + keys > self._cells.capacity
        cells = 2 * (self.keys + keys) - self._cells.capacity if is_full else 0
        zones = max(0, keys + tuples // int(self.facts[z.ROWS]) - self._pages.room)
        return 8 * (z.CELL * cells + self._pages.unit * zones)

    @property
    def pages(self) -> int:
        return self._pages.pages

    def reserve_cells(self, cells: int) -> None:
        """Make room for `cells` keys; the index is then at most half full."""
        grow_ahead([(self._cells, cells)])
        if self._index.capacity < 2 * cells:
            self._index.resize(1 << (2 * cells - 1).bit_length())
            self._index.view[:] = 0
            insert_all(self._index.view, self.cells, np.arange(self.keys))

    def find_cells(self, id_high: Ids, id_low: Ids) -> Ints:
        """Return the cells of keys, created for new ones."""
        found = np.empty(len(id_high), dtype=np.int64)
        done = 0
        while True:
            done, self.facts[z.KEYS] = kernels.find_cells(
                self.cells, self._index.view, self.keys, id_high, id_low, done, found
            )
            if done == len(id_high):
                return found
            self.reserve_cells(max(32, self.keys + 1))

    def reserve_zones(self, zones: int) -> None:
        """Make sure that `zones` more zones can be taken."""
        self._pages.reserve(zones)

    def reserve_tuples(self, found: Ints) -> None:
        """Make sure that a tuple can be added to each of some cells, in any order of times."""
        if self._pages.room >= len(found):
            return
        _, counts = np.unique(found, return_counts=True)
        facts = self.facts
        most = 2 * int(facts[z.SIZE]) + int(facts[z.SLIDE])
        self.reserve_zones(int((np.minimum(counts, most) // int(facts[z.ROWS]) + 1).sum()))


@dataclass(frozen=True)
class WindowTuples:
    """Records that were read, in the order of service."""

    id_high: Ids
    id_low: Ids
    #: number of the key in its queue
    cells: Ints
    times: Ints
    arrived: Ints
    #: mark: above 0 the end of the window to open, 0 the first tuple of a window that is not
    #: opened, -1 any other
    marks: Ints
    #: which records are tuples; the others only end a window
    is_tuple: Bools
    #: rows of the tuples, one per tuple
    rows: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.times)


class WindowQueue:
    """Windows of keys under update semantics."""

    def __init__(
        self,
        schema: pa.Schema,
        windows: UpdateWindows,
        *,
        schedule: Literal["inplace", "fifo"] = "inplace",
        pool: PagePool | None = None,
        block_rows: int = BLOCK_ROWS,
        name: str = "windows",
    ) -> None:
        """Create an empty queue, or attach to the arrays `name.*` of the pool's arrays.

        Args:
            schema: schema of the rows; columns of fixed width.
            windows: size, slide and semantics.
            schedule: whether a waiting key keeps its position or moves to the end with updates.
            pool: pool of the zones; by default its own.
            block_rows: tuples of a zone.
            name: prefix of the arrays' names.
        """
        self._codec = RowCodec(schema)
        if not self._codec.is_fixed:
            msg = "rows of windows have fixed width: pass only numbers and times to the queue"
            raise DefinitionError(msg)
        if schedule not in ("inplace", "fifo"):
            msg = f"schedule must be 'inplace' or 'fifo'; got {schedule!r}"
            raise DefinitionError(msg)
        self.windows = windows
        self._arrays = WindowArrays(
            windows.size,
            windows.slide,
            eager=windows.eager,
            fifo=schedule == "fifo",
            width=self._codec.width,
            block_rows=block_rows,
            pool=pool,
            name=name,
        )

    def __len__(self) -> int:
        return int(self._arrays.facts[z.WAITING])

    @property
    def facts(self) -> dict[str, int]:
        """Counts of keys by state, of tuples, windows, zones and pages."""
        places = {
            "waiting": z.WAITING,
            "ready": z.READIES,
            "idle": z.IDLES,
            "late": z.LATE,
            "updates": z.UPDATES,
            "commits": z.COMMITS,
            "done": z.DONES,
            "most_kept": z.MOST_KEPT,
            "most_live": z.MOST_LIVE,
        }
        counts = {name: int(self._arrays.facts[place]) for name, place in places.items()}
        return {**counts, "zones": self._arrays.zones, "pages": self._arrays.pages}

    @property
    def arrays(self) -> WindowArrays:
        return self._arrays

    @property
    def table(self) -> Table:
        """The cells of known keys; `kernels.queue.windows.transitions` has their columns."""
        return self._arrays.cells[: self._arrays.keys]

    def decoded(self, words: Table) -> pa.RecordBatch:
        return self._codec.decode(np.ascontiguousarray(words).reshape(-1), len(words))

    def enqueue(
        self, id_high: Ids, id_low: Ids, times: Ints, arrived: Ints, rows: pa.RecordBatch
    ) -> None:
        """Add tuples in the order of arrival.

        Args:
            id_high: high words of the keys' ids.
            id_low: low words of the keys' ids.
            times: times of the tuples in the windows, at least 1; older ones of a key are dropped.
            arrived: arrival times, for staleness.
            rows: the columns that the operator needs.

        Raises InputError for times below 1, `Refused` when there is not enough memory: no tuple is
        added then.
        """
        if len(times) and int(times.min()) < 1:
            msg = f"times of windows must be >= 1; got {int(times.min())}"
            raise InputError(msg)
        found = self._arrays.find_cells(id_high, id_low)
        words = self._codec.encode(rows).words.reshape(len(found), self._codec.width)
        self._arrays.reserve_tuples(found)
        kernels.enqueue_many(self._arrays.kernel, found, times, arrived, words)

    def cells(self, id_high: Ids, id_low: Ids) -> Ints:
        """Return the numbers of keys: 0, 1, 2, ... in the order of first arrival."""
        return self._arrays.find_cells(id_high, id_low)

    def advance_all(self, time: int, arrived: int) -> int:
        """Record that no tuple of any known key comes before a time; return the updates by it."""
        return int(advance_all(self._arrays.kernel, self._arrays.keys, time, arrived))

    def dequeue(self, count: int, windows: int | None = None) -> WindowTuples:
        """Return up to `count` records of the windows served next (one more if one ends).

        Stop after the last record of as many `windows`; by default only the records are limited.
        """
        records = np.empty((count + 1, kernels.RECORD), dtype=np.int64)
        words = np.empty((count + 1, self._codec.width), dtype=np.int64)
        most = count if windows is None else windows
        found = kernels.dequeue_many(self._arrays.kernel, records, words, most)
        cells, times, arrived, marks, is_tuple = np.ascontiguousarray(records[:found].T)
        there = is_tuple != 0
        identity = np.ascontiguousarray(self._arrays.cells[cells, :2]).view(np.uint64)
        rows = self.decoded(words[:found][there])
        return WindowTuples(
            identity[:, 0], identity[:, 1], cells, times, arrived, marks, there, rows
        )
