"""The resident groups of one partition: running aggregates and keys, in an arena.

Idea: a *partition* is a range of `id_high`. Its groups are dense rows with an index; their keys are
in a key store. All of it is flat arrays. When memory is short, a partition is evicted as an *image*
(its rows and keys, written in chunks) and another one is loaded into the same arrays.

Invariants:
1. An image holds exactly the partition's groups, and loading it restores them
   (`test_an_image_gives_back_the_groups_it_was_made_of`), also if it left out the last words
   (`test_rows_of_a_snapshot_are_filled_up_with_the_next_suffix_and_back`).
2. `admit` either admits all keys of a batch or, refused by the budget, none
   (`test_bounded_a_refused_admission_changes_nothing`).

Cost: a row of `group_width` words, 8 to 16 bytes of index and the key, per group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Table
from icestream.core.errors import CheckpointError
from icestream.kernels import hash_index
from icestream.kernels.grid import groups as kernels
from icestream.kernels.grid import strides
from icestream.operators.folding.exact_rows import packed_at, unpacked_at
from icestream.operators.folding.fields import Layout
from icestream.state.arena import Arena
from icestream.state.budget import Refused
from icestream.state.keys import KeyCodec, KeyStore

#: rows of an image written or read at once
IMAGE_CHUNK = 2048
#: one more than the greatest id_high
ID_HIGH_END = 2**64
#: approximate bytes of a group's key in an image
KEY_BYTES = 24
_STRANGERS = (
    "slices on the log have groups that the checkpoint does not know; restore the checkpoint from "
    "a copy, or start from another one"
)


class ResidentGroups:
    """Rows, index and keys of the groups that are in memory."""

    def __init__(self, layout: Layout, codec: KeyCodec, arena: Arena, scope: str = "") -> None:
        """Attach to the arrays of an arena whose names begin with `scope`, or create them."""
        self._layout = layout
        self._arena = arena
        self._rows = arena.array(f"{scope}rows", np.int64, layout.group_width)
        self._index = arena.array(f"{scope}index", np.int32)
        self._free = arena.array(f"{scope}free", np.int32)
        self._keys = KeyStore(codec, arena, f"{scope}key")
        self._scope = scope
        arena.header.setdefault(f"{scope}groups", {"used": 0, "free": 0})

    @property
    def _counts(self) -> dict[str, int]:
        counts: dict[str, int] = self._arena.header[f"{self._scope}groups"]
        return counts

    @property
    def _fields(self) -> tuple[Ints, Ints]:
        """Return how fields are merged, and where they lie in an entry."""
        return self._layout.ops, self._layout.places

    @property
    def rows(self) -> Table:
        """Return the rows in use, including holes of released groups."""
        table: Table = self._rows.view[: self._counts["used"]]
        return table

    def __len__(self) -> int:
        return self._counts["used"] - self._counts["free"]

    @property
    def image_bytes(self) -> int:
        return len(self) * (self._rows.row_bytes + KEY_BYTES)

    def bytes_of(self, groups: int) -> int:
        """Return about how many bytes so many groups take in memory."""
        return groups * (self._rows.row_bytes + 2 * KEY_BYTES)

    @property
    def capacity(self) -> int:
        """Return the number of groups that fit into the allocated memory."""
        return self._rows.capacity

    def locate(self, entries: Table) -> Ints:
        """Return the row of each entry's group; all groups must exist."""
        slots, missing = self._find(_ids(entries, 0), _ids(entries, 1))
        if missing:
            raise CheckpointError(_STRANGERS)
        return slots

    def admit(self, id_high: Ids, id_low: Ids, last: Ints, keys: pa.Table) -> Ints:
        """Open the groups that do not exist yet, record the latest pane of all; return new ones.

        `keys` may have columns in addition to those of the key.
        Raises `Refused`, with nothing changed, if the budget has no room for the new groups.
        """
        slots, missing = self._find(id_high, id_low)
        fresh = np.flatnonzero(slots < 0)
        if missing:
            (batch,) = keys.take(pa.array(fresh)).combine_chunks().to_batches()
            self._open(id_high[fresh], id_low[fresh], batch)
            slots, _ = self._find(id_high, id_low)
        kernels.touch(self._rows.view, slots, last)
        return fresh

    def without_events(self, id_high: Ids, id_low: Ids) -> Ints:
        """Return which of some existing groups have no event in the window."""
        slots, _ = self._find(id_high, id_low)
        empty: Ints = np.flatnonzero(self._rows.view[slots, kernels.FIELDS] == 0)
        return empty

    def touch(self, entries: Table, pane: int) -> None:
        """Record that the groups of a slice have entries in its pane."""
        slots = self.locate(entries)
        kernels.touch(self._rows.view, slots, np.full(len(slots), pane, dtype=np.int64))

    def add(self, entries: Table, *, behind: bool) -> None:
        """Merge a pane slice into the window; and into the next back if it is `behind`."""
        also = self._layout.next_back_at if behind else 0
        kernels.add_slice(self._rows.view, self.locate(entries), entries, *self._fields, also)

    def expire(self, entries: Table, pane: int, suffixes: Table) -> Ints:
        """Remove a slice of `pane` from the window; return groups whose last pane it was."""
        layout = self._layout
        dead = np.empty(len(entries), dtype=np.int64)
        count = kernels.expire_slice(
            self._rows.view,
            self.locate(entries),
            entries,
            *self._fields,
            layout.group_identity,
            suffixes,
            layout.suffixes_at,
            pane,
            dead,
        )
        return dead[:count]

    def stride(
        self,
        windows: tuple[Ints, int, int],
        slices: tuple[Ints, Ints, Table, Ints, Ints, Table],
        suffixes: tuple[Table, int, int],
        turning: int,
        output: tuple[Table, Ints, Ints, Ints],
        dead: Ints,
        found: Ints,
        state: Ints,
    ) -> int:
        """Process windows given by starts, range and slide; see `kernels.grid.strides.stride`.

        `suffixes` are the suffixes at hand, for how many slices, and before which pane they exist;
        slices from pane `turning` on are also merged into the next back.
        """
        layout = self._layout
        why = strides.stride(
            self._rows.view,
            self._index.view,
            self._counts["used"],
            layout.ops,
            layout.places,
            layout.group_identity,
            *windows,
            *slices,
            suffixes[0],
            layout.suffixes_at,
            *suffixes[1:],
            layout.next_back_at,
            turning,
            *output,
            dead,
            found,
            state,
        )
        if why == strides.IS_MISSING:
            raise CheckpointError(_STRANGERS)
        return why

    def empty(self, end: int) -> Ints:
        """Empty the window; return groups that have nothing from `end` on."""
        rows = self.rows
        dead = np.empty(len(rows), dtype=np.int64)
        count = kernels.empty_rows(rows, len(rows), self._layout.group_identity, end, dead)
        return dead[:count]

    def start_flip(self) -> None:
        """Empty suffixes and backs, also the next ones, before `push_back` and `push_suffix`."""
        rows, identity = self._rows.view, self._layout.group_identity
        kernels.start_flip(rows, self._counts["used"], *self._fields, identity)

    def push_back(self, entries: Table) -> None:
        """Merge a slice into the backs, after a flip has emptied them."""
        kernels.push_back(self._rows.view, self.locate(entries), entries, *self._fields)

    def push_suffix(self, entries: Table) -> Table:
        """Put an older slice before the front; return the suffixes valid once it expires."""
        return self._push_suffix(entries, self._layout.suffixes_at)

    def push_next(self, entries: Table) -> Table:
        """Put an older slice before the next front, as `push_suffix` does."""
        return self._push_suffix(entries, self._layout.next_suffix_at)

    def _push_suffix(self, entries: Table, at: int) -> Table:
        suffixes = np.empty((len(entries), self._layout.suffix_words), dtype=np.int64)
        slots = self.locate(entries)
        kernels.push_suffix(self._rows.view, slots, entries, *self._fields, at, suffixes)
        return suffixes

    def take_next(self) -> None:
        """Replace suffixes and backs with the next ones."""
        layout = self._layout
        kernels.take_next(
            self._rows.view,
            self._counts["used"],
            *self._fields,
            layout.group_identity,
            layout.suffixes_at,
            layout.suffix_words,
        )

    def drop_next(self) -> None:
        """Empty the next suffixes, so that `push_next` can start over."""
        words = slice(self._layout.next_suffix_at, self._layout.next_back_at)
        self.rows[:, words] = self._layout.group_identity[words]

    def emit(
        self, first: int, out: Table, slots: Ints, start: int, *, updates: bool = False
    ) -> tuple[int, int]:
        """Write the fields of groups from row `first` on; see `kernels.grid.groups.emit`."""
        done: tuple[int, int] = kernels.emit(
            self._rows.view,
            first,
            self._counts["used"],
            *self._fields,
            self._layout.suffixes_at,
            out,
            slots,
            start,
            updates,
        )
        return done

    def ids(self, slots: Ints) -> Table:
        """Return id_high and id_low of the given rows."""
        table: Table = self._rows.view[slots, : kernels.ID_LOW + 1]
        return table

    def keys(self, slots: Ints) -> pa.RecordBatch:
        """Return the keys of rows; those of groups that come many times are looked up once."""
        used = self._counts["used"]
        if len(slots) <= 2 * used or not self._keys.codec.schema.names:
            return self._keys.take(slots)
        return self._keys.take(np.arange(used)).take(pa.array(slots))

    def release(self, slots: Ints) -> None:
        """Close groups that have no entries left."""
        if len(slots) == 0:
            return
        slots = np.unique(slots)
        rows, index = self._rows.view, self._index.view
        hash_index.remove_all(index, rows, slots)
        rows[slots] = self._layout.group_identity
        self._keys.free(slots)
        counts = self._counts
        self._free.view[counts["free"] : counts["free"] + len(slots)] = slots
        counts["free"] += len(slots)

    def forget(self) -> None:
        """Remove all groups and keep the memory of their rows."""
        self._keys.forget()
        self._counts.update(used=0, free=0)
        self._index.view[:] = 0

    def clear(self) -> None:
        """Remove all groups and free their memory."""
        self._keys.trim(0)
        self._counts.update(used=0, free=0)
        for array in (self._rows, self._index, self._free):
            array.resize(0)

    def widen(self, layout: Layout) -> None:
        """Take a layout with other digits, while there are no groups."""
        assert self._counts["used"] == 0
        self._layout = layout
        self._rows.restart(layout.group_width)

    def packed(self, rows: Table) -> memoryview:
        return packed_at(rows, *self._layout.group_sums)

    def unpacked(self, payload: memoryview, rows: int) -> Table:
        """Return so many rows from bytes; they may have had fewer digits and no last words."""
        layout = self._layout
        return unpacked_at(payload, layout.group_sums[0], layout.group_width, rows)

    def image(self, low: int, high: int) -> Iterator[tuple[Table, pa.RecordBatch]]:
        """Yield rows and keys of the groups with `low <= id_high < high`, in chunks."""
        live = self._live()
        id_high = self._rows.view[live, kernels.ID_HIGH].view(np.uint64)
        chosen = live[(id_high >= np.uint64(low)) & (id_high <= np.uint64(high - 1))]
        for first in range(0, len(chosen), IMAGE_CHUNK):
            slots = chosen[first : first + IMAGE_CHUNK]
            yield self._rows.view[slots], self._keys.take(slots)

    def load(self, chunks: Iterable[tuple[Table, pa.RecordBatch]]) -> None:
        """Load the groups of an image; words missing from its rows become identities."""
        for table, keys in chunks:
            slots = self._open(_ids(table, 0), _ids(table, 1), keys)
            self._rows.view[slots, : table.shape[1]] = table

    def _find(self, id_high: Ids, id_low: Ids) -> tuple[Ints, int]:
        slots = np.empty(len(id_high), dtype=np.int64)
        if self._index.capacity == 0:
            slots[:] = -1
            return slots, len(id_high)
        return slots, hash_index.find(self._index.view, self._rows.view, id_high, id_low, slots)

    def _open(self, id_high: Ids, id_low: Ids, keys: pa.RecordBatch) -> Ints:
        counts = self._counts
        self._grow(len(id_high), keys)
        reused = min(counts["free"], len(id_high))
        counts["free"] -= reused
        old = self._free.view[counts["free"] : counts["free"] + reused].astype(np.int64)
        slots = np.concatenate(
            [old, np.arange(counts["used"], counts["used"] + len(id_high) - reused)]
        ).astype(np.int64)
        counts["used"] += len(id_high) - reused
        rows = self._rows.view
        # rows at the end are written at once
        new = rows[slots[0] : slots[0] + len(slots)] if reused == 0 and len(slots) else rows[slots]
        new[:] = self._layout.group_identity
        new[:, kernels.ID_HIGH] = id_high.view(np.int64)
        new[:, kernels.ID_LOW] = id_low.view(np.int64)
        new[:, kernels.LAST] = np.iinfo(np.int64).min
        if reused:
            rows[slots] = new
        self._keys.put(slots, keys)
        hash_index.insert_all(self._index.view, rows, slots)
        return slots

    def _grow(self, more: int, keys: pa.RecordBatch) -> None:
        needed = self._counts["used"] + max(0, more - self._counts["free"])
        if needed > self._rows.capacity:
            capacity = max(needed, 16)
            for target in (max(capacity, int(1.5 * self._rows.capacity)), capacity):
                if self._resized(target, last=target == capacity):
                    break
        self._keys.reserve(needed, keys)

    def _resized(self, capacity: int, *, last: bool) -> bool:
        """Grow rows, index and free list together, or change nothing."""
        before = [(a, a.capacity) for a in (self._rows, self._free, self._index)]
        try:
            self._rows.resize(capacity)
            self._free.resize(self._rows.capacity)
            self._reindex(self._places(self._rows.capacity))
        except Refused:
            for array, size in before:
                array.resize(size)
            if last:
                raise
            return False
        return True

    def _reindex(self, places: int) -> None:
        if places != self._index.capacity:
            self._index.resize(places)
            self._index.view[:] = 0
            hash_index.insert_all(self._index.view, self._rows.view, self._live())

    @staticmethod
    def _places(capacity: int) -> int:
        """Return the size of the index: a power of two, whole pages, at most half of it in use."""
        return 1 << max(10, (2 * capacity - 1).bit_length())

    def _live(self) -> Ints:
        counts = self._counts
        mask = np.ones(counts["used"], dtype=np.bool_)
        mask[self._free.view[: counts["free"]]] = False
        return np.flatnonzero(mask)


def _ids(table: Table, column: int) -> Ids:
    return table[:, column].view(np.uint64)
