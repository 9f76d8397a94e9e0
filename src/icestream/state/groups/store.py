"""Rows by group, hot ones in memory and cold ones on the log: the state of operators.

Idea: a directory records for every group what is in memory and what is on the log; a heap has the
words in memory; a mover moves groups between the two; entries of long-cold groups are in sorted
files. An operator requests rows of many groups at once and never learns where they were. When there
is no room, the cold state manager evicts groups, and then those accessed longest ago are evicted. A
cold group is served from the log on its first read and returns to memory on the second.

Invariants:
1. The contract of `Groups` (`tests/state/groups/test_contract.py`).
2. Directory, heap and work buffers stay within the share (`test_bounded_ten_times_the_budget`,
   `test_bounded_groups_of_sixteen_bytes`).
3. All state is in the arena between two versions (`test_a_store_goes_on_in_another_task`).
4. Reading a cold group takes no memory and evicts no others, unless it was read before
   (`test_a_cold_group_comes_back_when_it_is_asked_for_again`).
5. After a version, less than half the words of a large group are worn
   (`test_bounded_worn_groups_are_consolidated`), and memory and log are a small multiple of the
   live bytes (`icestream.state.groups.cleaning`).

Cost: attaching is O(1); calls are O(rows and groups accessed), plus reads from the log. The first
chunk and the end of a version scan all groups of the directory.

Limits: `read` needs the rows of a group to fit into memory; `pieces` does not. A group with
more rows than work buffers can hold stays on the log. A chunk may access at most `chunk_groups`
groups.

References: ICE, incremental cold-state management; admission to a cache on the second request (2Q).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Slots
from icestream.core.times import INFINITY, Micros
from icestream.kernels.groups import directory_passes as passes
from icestream.kernels.groups import heap as k
from icestream.kernels.groups import inline_groups
from icestream.state.groups.cleaning import Cleaner
from icestream.state.groups.directory import (
    ENTRY,
    GroupDirectory,
    entry_width,
    is_empty_entry,
    part,
)
from icestream.state.groups.eviction import GroupEviction
from icestream.state.groups.extents import ExtentLog
from icestream.state.groups.facts import Fact, Facts
from icestream.state.groups.heap import Heap
from icestream.state.groups.kinds import KindParts
from icestream.state.groups.memory import PORTION, Gathered, Memory
from icestream.state.groups.migration import Mover
from icestream.state.groups.options import Past, StoreOptions, StoreSpace
from icestream.state.groups.recovery import StoreRecovery
from icestream.state.groups.spec import GroupPieces, GroupRows, Groups, Kinds, Synopsis, Wear
from icestream.state.groups.writing import ExtentWriter, InlineGroupWriter
from icestream.state.index.sorted_index import ColdIndex
from icestream.state.rows import Encoded, RowCodec

#: parts of the share: work buffers, directory, heap; the rest is for page fences and lists
WORK = 3 / 32
GROUPS = 11 / 32
HEAP = 15 / 32
#: a group of more than this part of the heap is not read as a whole where it need not be
LARGE = 4
#: advice about rows that do not fit is for this part more than the largest group has: groups that
#: come later in the version may have a little more
MARGIN = 8
#: worn words of a group that are not worth consolidating it
FEW_WORN = 64


class GroupStore(Groups):
    """The groups of one grouped sub-query in one shard."""

    def __init__(
        self,
        synopses: Sequence[Synopsis],
        space: StoreSpace,
        options: StoreOptions | None = None,
        *,
        scope: int = 0,
        share: int | None = None,
        shared_heap: int | None = None,
    ) -> None:
        """Attach to this store's arrays in the shard's arena, or start.

        Args:
            synopses: kinds of rows stored for each group.
            space: arena, log and segments of the shard.
            options: what is written, and when.
            scope: number of the store in its shard.
            share: bytes this store may hold; all of the shard's budget by default.
            shared_heap: bytes of rows in memory of all stores of the shard together; by default
                this store has a heap of its own, of half its share.
        """
        self.name = f"groups-{scope}"
        self.options = options or StoreOptions()
        self._synopses = tuple(synopses)
        self._space = space
        share = space.account.budget.total if share is None else share
        self._work = int(share * WORK)
        #: words of a large group that are read at once
        self._piece_words = min(self._work // 3 // 8, PORTION)
        space.account.reserve(self._work)
        arena, count = space.arena, len(self._synopses)
        self.facts = Facts(arena, self.name)
        #: bytes that the directory may always take
        self.least_directory = int(share * GROUPS / 2)
        self.directory = GroupDirectory(arena, self.name, count, int(share * GROUPS))
        words = self.options.block_words
        if shared_heap is None:
            self.heap = Heap(arena, self.name, self.directory, words, int(share * HEAP))
        else:
            self.heap = Heap(arena, "shared", self.directory, words, shared_heap)
        self._codecs = [RowCodec(synopsis.schema) for synopsis in self._synopses]
        self.index = ColdIndex(
            arena,
            self.name,
            entry_width(count),
            tuple(range(2 + ENTRY.index(k.DUE), entry_width(count), len(ENTRY))),
            self.options.page_bytes,
            self._work // 4,
            lambda entries: is_empty_entry(entries, self.facts[Fact.WATERMARK]),
            inline_groups.BESIDE + self._keeps_inline,
        )
        self.log = ExtentLog(space, scope, self.name, self.options.record_bytes)
        expiries = [
            -1 if synopsis.expiry is None else codec.place(synopsis.expiry)
            for synopsis, codec in zip(self._synopses, self._codecs, strict=True)
        ]
        ranks = [
            (-1, False)
            if synopsis.rank is None
            else (
                codec.place(synopsis.rank),
                pa.types.is_floating(synopsis.schema.field(synopsis.rank).type),
            )
            for synopsis, codec in zip(self._synopses, self._codecs, strict=True)
        ]
        widths = [codec.width if codec.is_fixed else 0 for codec in self._codecs]
        self.memory = Memory(self.directory, self.heap, self.facts, expiries, widths, self._work)
        writer = ExtentWriter(self.memory, self.log, self.options.durability, ranks)
        self._inline_writer = InlineGroupWriter(writer, widths)
        self.mover = Mover(self.memory, writer, self.options, self._codecs)
        self.eviction = GroupEviction(self.name, self.mover, self.index, space.account.budget)
        self._cleaner = Cleaner(arena, self.name, self.facts, self.log, self.memory.expiry_at)
        self._history = StoreRecovery(self, space, scope, self.log, self._cleaner)
        self._wears = [
            (number, synopsis.wear, -1 if sign is None else self._codecs[number].place(sign))
            for number, synopsis in enumerate(self._synopses)
            if synopsis.wear is not None
            for sign in [synopsis.wear.sign]
        ]
        #: whether a timer was set in this version
        self._reminded = False
        #: ordinals of segments that this store no longer needs
        self.released: tuple[int, ...] = ()

    # -- groups ----------------------------------------------------------------------------

    def watermark(self) -> Micros:
        return int(self.facts[Fact.WATERMARK])

    def begin(self, watermark: Micros) -> None:
        self.facts.next(Fact.CHUNK)
        self.facts[Fact.WATERMARK] = max(watermark, self.facts[Fact.WATERMARK])
        if self.facts[Fact.SWEEP]:
            self.facts[Fact.SWEEP] = 0
            self.mover.expire()
            self.eviction.sweep()
        self.eviction.relieve()

    def locate(self, id_high: Ids, id_low: Ids) -> Slots:
        return self.eviction.locate(np.ascontiguousarray(id_high), np.ascontiguousarray(id_low))

    def knows(self, id_high: Ids, id_low: Ids) -> Mask:
        """Return which groups may have state, without opening them."""
        return self.eviction.knows(np.ascontiguousarray(id_high), np.ascontiguousarray(id_low))

    def identities(self, slots: Slots) -> tuple[Ids, Ids]:
        return self.memory.identities(slots)

    def portions(self, slots: Slots, synopses: Sequence[int] = ()) -> Iterator[Slots]:
        yield from self.eviction.parts(slots, self.memory.words(slots, synopses))

    def read(self, synopsis: int, slots: Slots) -> GroupRows:
        if len(slots) == 1:
            self._check_size(synopsis, slots)
        live, held, cold = self.mover.read(synopsis, slots)
        sizes = np.diff(live.offsets)
        self.eviction.hits.append(slots[sizes > 0])
        for_less = np.flatnonzero(2 * sizes < held)
        if len(for_less):
            self._shrink(synopsis, slots[for_less], live.of(for_less))
        if len(cold):
            self.eviction.opened.append(slots[cold])
            self._admit(synopsis, slots, cold, live)
        return self._rows(synopsis, live)

    def fits(self, synopsis: int, slots: Slots) -> bool:
        if len(slots) != 1:
            return True
        return int(self._words(synopsis, slots)[0]) <= self._whole_words

    def pieces(self, synopsis: int, slots: Slots, kinds: Kinds | None = None) -> GroupPieces:
        """Return the rows of distinct groups of a portion, in any number of batches that fit."""
        most = self._piece_words if kinds is None else self._whole_words
        if len(slots) != 1 or self._words(synopsis, slots)[0] <= most:
            return GroupPieces(1, lambda _: self.read(synopsis, slots))
        slot = int(slots[0])
        self.mover.evict(slots)
        if self.mover.is_scattered(synopsis, slot):
            self.mover.rewrite_pieces(synopsis, slot, mirrored=True)
        found = self.mover.pieces(synopsis, slot, most)

        def read(number: int) -> GroupRows:
            return self._rows(synopsis, self.mover.piece(synopsis, found, number))

        pieces = GroupPieces(found.count, read)
        if kinds is None:
            return pieces
        count = int(-(-2 * self._words(synopsis, slots)[0] // most))
        folder = os.path.dirname(self._space.arena.path(self.name))
        name = self._synopses[synopsis].name
        check = partial(self._check_bytes, f"all rows {name!r} of one kind in a group")
        parts = KindParts(count, self._codecs[synopsis], folder, check)
        for piece in pieces:
            parts.add(piece.rows, kinds)
        return parts.pieces()

    def read_best(self, synopsis: int, slots: Slots, counts: Ints) -> GroupRows:
        live = self.mover.read_best(synopsis, slots, counts)
        self.eviction.hits.append(slots[np.diff(live.offsets) > 0])
        return self._rows(synopsis, live)

    def append(self, synopsis: int, slots: Slots, rows: pa.RecordBatch) -> None:
        self._append(synopsis, slots, rows, worn=True)

    def rewrite(self, synopsis: int, slots: Slots, rows: GroupRows) -> None:
        slots = np.ascontiguousarray(slots)
        bounds = np.zeros(len(slots) + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows.owners, minlength=len(slots)), out=bounds[1:])
        most = self._rows_at_once(synopsis, rows.rows)
        for first, last in self._encodable(most, bounds):
            begin, end = int(bounds[first]), int(bounds[last])
            some = rows.rows.slice(begin, min(end - begin, most))
            within = np.minimum(bounds[first : last + 1] - begin, most)
            self._replace(synopsis, slots[first:last], some, within)
            # of a group that is large itself, the rest is appended
            rest = rows.rows.slice(begin + some.num_rows, end - begin - some.num_rows)
            self._append(synopsis, np.repeat(slots[first], rest.num_rows), rest, worn=False)

    def remind(self, slots: Slots, due: Ints, synopsis: int = 0) -> None:
        at, table = part(synopsis), self.directory.table
        self._reminded = True
        new = table[slots, at + k.DUE] != due
        table[slots, at + k.DUE] = due
        table[slots[new], at + k.FLAGS] |= k.REMINDED

    def hasten(self, slots: Slots, due: Ints, synopsis: int = 0) -> None:
        sooner = due < self.directory.table[slots, part(synopsis) + k.DUE]
        self.remind(slots[sooner], due[sooner], synopsis)

    def due(self, watermark: Micros, synopsis: int = 0) -> Slots:
        """Return groups with a synopsis that is due; repeat until none is returned.

        Groups of the cold index are returned in portions that the directory has room for.
        """
        return self.eviction.due(synopsis, watermark, self.chunk_groups)

    # -- memory ----------------------------------------------------------------------------

    def lend(self, more: int) -> None:
        """Let work buffers take `more` bytes on top of their own until the next call."""
        self.memory.work = self._work + more

    @property
    def chunk_groups(self) -> int:
        """Groups that one chunk may access, whatever happens to the limits."""
        return self.directory.fitting(self.least_directory) * 5 // 8

    def bytes_unlogged(self) -> int:
        """Bytes of rows in memory that the end of the version writes to the log."""
        words = 0
        for synopsis in range(len(self._synopses) if self.options.durability == "log" else 0):
            slots = self.directory.listed(passes.list_news, part(synopsis), INFINITY)
            words += int(self.memory.news(synopsis, slots).sum())
        return 8 * words

    @property
    def has_cold_groups(self) -> bool:
        """Return whether a group ever left memory or the directory."""
        return self.facts[Fact.LEFT] > 0 or self.index.runs > 0

    def bytes_known(self) -> int:
        """Bytes that the rows of all groups of the directory would take in memory."""
        words = self.heap.block_words
        return passes.known_words(self.directory.table, words) // words * self.heap.block_bytes

    # -- versions --------------------------------------------------------------------------

    def is_crowded(self, watermark: Micros) -> bool:
        """Return whether the version should end with a snapshot, because too much is dead."""
        self.facts[Fact.WATERMARK] = max(watermark, self.facts[Fact.WATERMARK])
        return self._cleaner.is_crowded(self)

    def end_version(
        self, watermark: Micros, *, snapshot: bool = False, whole: bool = False
    ) -> None:
        """Write what a restore needs, before the segments of this version are sealed.

        With `whole`, a snapshot refers to no segment of earlier versions. Nothing may be read
        between this call and sealing.
        """
        self.facts.next(Fact.CHUNK)
        self.facts[Fact.WATERMARK] = max(watermark, self.facts[Fact.WATERMARK])
        self.mover.expire()
        self._consolidate_worn()
        self.released = ()
        if snapshot or (self.options.durability == "evict" and self._cleaner.is_crowded(self)):
            self.released = self._cleaner.clean(self, whole=whole)
        if self.options.durability == "log":
            self.eviction.write_news()
            if self._reminded:
                self.mover.log_reminders()
        if 16 * self.directory.bytes > 17 * self.directory.ample:
            self.eviction.shrink(self.directory.ample)
        self._cleaner.note_written()
        if snapshot and self.options.durability == "log":
            self._history.save()
        self._count_reads()
        self.log.rest()
        self.facts[Fact.SWEEP] = 1

    @property
    def segments(self) -> list[int]:
        """Ordinals of the segments that this store needs."""
        ordinals: list[int] = self._cleaner.segments[:, 0].tolist()
        return ordinals

    @property
    def snapshot_bytes(self) -> int:
        return self._history.size

    @property
    def written(self) -> int:
        """Bytes written to the log so far."""
        return sum(self.facts[f] for f in (Fact.LOGGED, Fact.EVICTED, Fact.CONSOLIDATED))

    def restore(self, history: Sequence[Past]) -> None:
        """Restore the end of `history`, which begins with a snapshot or with nothing."""
        self._history.restore(history, self.options.durability)

    @property
    def statistics(self) -> dict[str, Any]:
        """Return this store's part of the progress report."""
        self._count_reads()
        counted = {fact.name.lower(): self.facts[fact] for fact in Fact if fact >= Fact.LOGGED}
        return {
            **counted,
            "groups": self.directory.groups,
            "indexed": len(self.index),
            "resident_bytes": self.eviction.bytes_held(),
            "directory_bytes": self.directory.held,
        }

    def consolidate(self, synopsis: int, slots: Slots) -> None:
        """Write groups whole, in one extent each; large ones that were cold become cold again."""
        for some in self.portions(slots, [synopsis]):
            if len(some) == 1 and self._words(synopsis, some)[0] > self.memory.at_once:
                self.mover.evict(some)
                self.mover.rewrite_pieces(synopsis, int(some[0]), mirrored=False)
                continue
            with self.eviction.pins(some):
                cold = self.eviction.bring_in(synopsis, some)
                self.mover.consolidate(synopsis, some)
                large = self.memory.column(synopsis, k.WORDS, cold) > self._keeps_inline
                self.mover.release(synopsis, cold[large])

    def consolidate_inline(self, rows: Ints, last: int) -> Mask:
        return self._inline_writer.consolidate(rows, last)

    # -- internals -------------------------------------------------------------------------

    def _consolidate_worn(self) -> None:
        """Rewrite groups in which half of the words cancel or replace others."""
        for synopsis, wear, _ in self._wears:
            slots = self.directory.every()
            worn = self.memory.column(synopsis, k.FLAGS, slots) >> k.FLAG_BITS
            slots, worn = slots[worn >= FEW_WORN], worn[worn >= FEW_WORN]
            words = self._words(synopsis, slots)
            slots, words = slots[words <= 2 * worn], words[words <= 2 * worn]
            large = words > self.memory.at_once
            for slot in slots[large].tolist() if wear.kinds is not None else ():
                self._consolidate_large(synopsis, wear, slot)
            slots = slots[~large]
            for some in self.portions(slots, (synopsis,)) if len(slots) else ():
                with self.eviction.pins(some):
                    found = self._rows(synopsis, self.mover.read(synopsis, some).live)
                    self.rewrite(synopsis, some, wear.consolidated(found))

    def _consolidate_large(self, synopsis: int, wear: Wear, slot: int) -> None:
        """Rewrite a group that does not fit into the work buffers, kinds after kinds."""
        slots = np.array([slot])
        parts = self.pieces(synopsis, slots, wear.kinds)
        nothing = pa.RecordBatch.from_pylist([], schema=self._synopses[synopsis].schema)
        found = wear.consolidated(parts.read(0))
        self.rewrite(synopsis, slots, GroupRows(np.empty(0, dtype=np.int64), nothing))
        for number in range(parts.count):
            found = wear.consolidated(parts.read(number)) if number else found
            self._append(synopsis, slots[found.owners], found.rows, worn=False)

    @property
    def _whole_words(self) -> int:
        """Words of a group that is read as a whole where it need not be."""
        return min(max(self.memory.at_once, self.heap.limit // LARGE // 8), PORTION)

    @property
    def _keeps_inline(self) -> int:
        """Words of a group that can be stored inline with its entry: about a row of each synopsis.

        0 if rows expire, because groups then have many of them.
        """
        expire = any(synopsis.expiry is not None for synopsis in self._synopses)
        if expire or len(self._codecs) > inline_groups.MOST_SYNOPSES:
            return 0
        return min(self.options.carried_words, sum(codec.width for codec in self._codecs))

    def _append(self, synopsis: int, slots: Slots, rows: pa.RecordBatch, *, worn: bool) -> None:
        """Append rows, which may make others superfluous if they are `worn`."""
        most = self._rows_at_once(synopsis, rows)
        for first in range(0, rows.num_rows, most):
            encoded = self._codecs[synopsis].encode(rows.slice(first, most))
            some = np.ascontiguousarray(slots[first : first + most])
            for number, _, sign_at in self._wears if worn else ():
                if number == synopsis:
                    self.heap.wear(synopsis, some, encoded, sign_at)
            self._append_encoded(synopsis, some, encoded)

    def _append_encoded(self, synopsis: int, slots: Slots, encoded: Encoded) -> None:
        expiry_at, watermark = self.memory.expiry_at[synopsis], self.facts[Fact.WATERMARK]
        done = 0
        while True:
            done = self.heap.append(synopsis, slots, encoded, done, expiry_at, watermark)
            if done == len(slots):
                self._evict_large(synopsis, slots)
                return
            row, rest = encoded.offsets[done + 1] - encoded.offsets[done], encoded.offsets[-1]
            least = int(row) // self.heap.block_words + 2
            wished = int(rest - encoded.offsets[done]) // self.heap.block_words
            self.eviction.make_room(least, max(least, wished))

    def _evict_large(self, synopsis: int, slots: Slots) -> None:
        """Evict groups with more words in memory than can be written at once."""
        large = self.memory.column(synopsis, k.WORDS, slots) > self.memory.at_once
        if large.any():
            self.eviction.evict(np.unique(slots[large]))

    def _check_size(self, synopsis: int, slots: Slots) -> None:
        """Raise BudgetError if the rows of a group do not fit into memory as a whole."""
        name = self._synopses[synopsis].name
        self._check_bytes(
            f"all rows {name!r} of one group",
            8 * int(self._words(synopsis, slots)[0]),
            lambda: 8 * int(self._words(synopsis, self.directory.every()).max()),
        )

    def _check_bytes(self, what: str, size: int, largest: Callable[[], int] | None = None) -> None:
        """Raise BudgetError if rows do not fit into memory together.

        Its advice is for the `largest` ones that will have to fit, and for a little more.
        """
        if size > 8 * self.heap.most * self.heap.block_words and self.eviction.pressure is not None:
            self.eviction.pressure.take_back()
        if size > 8 * self.heap.most * self.heap.block_words:
            most = size if largest is None else max(size, largest())
            raise self.eviction.failure(size, what, most + most // MARGIN)

    def _words(self, synopsis: int, slots: Slots) -> Ints:
        """Return the words of groups in one synopsis, in memory and on the log."""
        return self.memory.words(slots, [synopsis])

    def _encodable(self, most: int, bounds: Ints) -> Iterator[tuple[int, int]]:
        """Cut groups into parts of so many rows, at least one group each."""
        first = 0
        while first < len(bounds) - 1:
            last = int(np.searchsorted(bounds, bounds[first] + most, side="right")) - 1
            last = min(max(first + 1, last), len(bounds) - 1)
            yield first, last
            first = last

    def _rows_at_once(self, synopsis: int, rows: pa.RecordBatch) -> int:
        """Return how many rows are encoded at once: their values take half of the work buffers."""
        codec, count = self._codecs[synopsis], max(1, int(rows.num_rows))
        # counting the bytes of many columns takes long
        size = 8 * len(codec.schema) * count if codec.is_fixed else int(rows.nbytes)
        most: int = min(self.memory.work // 2, 8 * PORTION)
        return max(1, most * count // max(1, size))

    def _replace(self, synopsis: int, slots: Slots, rows: pa.RecordBatch, bounds: Ints) -> None:
        encoded = self._codecs[synopsis].encode(rows)
        expiry_at, watermark = self.memory.expiry_at[synopsis], self.facts[Fact.WATERMARK]
        is_logged, done = self.options.durability == "log", 0
        while True:
            done = self.heap.replace(
                synopsis, slots, encoded, bounds, done, expiry_at, watermark, is_logged=is_logged
            )
            if done == len(slots):
                self._evict_large(synopsis, slots)
                return
            places = encoded.offsets[bounds[[done, done + 1, -1]]]
            least, wished = (np.diff(places).cumsum() // self.heap.block_words).tolist()
            self.eviction.make_room(least + 2, max(least + 2, wished))

    def _admit(self, synopsis: int, slots: Slots, cold: Ints, live: Gathered) -> None:
        """Load cold groups of those read into memory if they were read before.

        A small one is loaded at once: it is stored inline from then on. A large one stays cold.
        """
        again = self.memory.has(synopsis, k.ASKED, slots[cold]) | (not self.options.second_ask)
        words = np.diff(live.offsets)[cold]
        again |= words <= self._keeps_inline
        again &= words <= self.memory.at_once
        self.mover.pass_by(synopsis, slots, cold[~again], live)
        if again.any():
            cold = cold[again]
            with self.eviction.pins(slots[cold]):
                self.eviction.keep(synopsis, slots[cold], live.of(cold))

    def _rows(self, synopsis: int, live: Gathered) -> GroupRows:
        rows = self._codecs[synopsis].decode(live.words, int(live.rows.sum()))
        return GroupRows(np.repeat(np.arange(len(live.rows)), live.rows), rows)

    def _shrink(self, synopsis: int, slots: Slots, live: Gathered) -> None:
        """Keep only the rows in memory that have not expired."""
        self.heap.drop(synopsis, slots)
        self.heap.install(synopsis, slots, live.words, live.offsets, live.cleans)

    def _count_reads(self) -> None:
        traffic = self.log.traffic
        self.facts[Fact.EXTENTS_READ] += traffic.extents_read
        self.facts[Fact.BYTES_READ] += traffic.bytes_read
        traffic.extents_read = traffic.bytes_read = 0
