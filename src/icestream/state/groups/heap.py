"""The hot rows of a store: a heap of small blocks in the arena that grows up to a limit.

Idea: `kernels.groups.heap` moves words; here is where the blocks are and when there are more of
them. The heap grows by a quarter at a time and says so when it cannot: what then leaves memory is
decided by whoever asked.

Invariants:
1. A heap has at most `limit` bytes (`test_bounded_a_heap_keeps_its_limit`).
2. A heap that cannot grow is unchanged (`test_a_refused_heap_is_as_it_was`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from icestream.core.arrays import Ints, Slots
from icestream.kernels.groups import heap as kernels
from icestream.kernels.groups import inline_groups
from icestream.state.arena import Arena
from icestream.state.budget import Refused
from icestream.state.groups.directory import GroupDirectory, part
from icestream.state.rows import Encoded

LEAST_BLOCKS = 64


class Heap:
    """Words in memory, by group and synopsis."""

    def __init__(
        self,
        arena: Arena,
        name: str,
        directory: GroupDirectory,
        block_words: int,
        limit: int,
    ) -> None:
        """Attach to the arena's blocks, or start with none; the limit is `limit` bytes.

        Stores may share the blocks of one name.
        """
        self.limit = limit
        self.block_words = block_words
        self._directory = directory
        self._blocks = arena.array(f"{name}.blocks", np.int64, block_words)
        self._links = arena.array(f"{name}.links", np.int32)
        self._facts = arena.array(f"{name}.heap", np.int64, 1, kernels.HEAP_FACTS)

    @property
    def block_bytes(self) -> int:
        return 8 * self.block_words + 4

    @property
    def most(self) -> int:
        """Blocks that fit into the limit."""
        return max(LEAST_BLOCKS, self.limit // self.block_bytes)

    @property
    def free(self) -> int:
        """Blocks that can be taken without growing."""
        facts = self._facts.view
        return int(self._blocks_there - facts[kernels.USED] + facts[kernels.FREE_COUNT])

    @property
    def taken(self) -> int:
        """Blocks that hold words."""
        facts = self._facts.view
        return int(facts[kernels.USED] - facts[kernels.FREE_COUNT])

    @property
    def owned(self) -> int:
        """Blocks that hold words of this store."""
        return int(self._directory.owned_blocks[0])

    @property
    def bytes(self) -> int:
        """Bytes of all blocks, free ones too."""
        return self._blocks.bytes + self._links.bytes

    def blocks_for(self, words: Ints) -> Ints:
        """Return the blocks needed for chains of this many words."""
        return -(-words // self.block_words)

    def grow(self, blocks: int) -> None:
        """Have at least `blocks` free ones; raise `Refused` if limit or budget do not allow it."""
        missing = blocks - self.free
        if missing <= 0:
            return
        there = self._blocks_there
        if there + missing > self.most:
            owner = "rows of groups"
            raise Refused(owner, missing * self.block_bytes, 0)
        wished = min(self.most, max(there + missing, there + there // 4, LEAST_BLOCKS))
        try:
            self._resize(wished)
        except Refused:
            self._resize(there + missing)

    def append(
        self,
        synopsis: int,
        slots: Slots,
        rows: Encoded,
        first: int,
        expiry_at: int,
        watermark: int,
    ) -> int:
        """Append rows from `first` on until blocks run out; return the first row not appended."""
        with self._counted():
            return kernels.append(
                self._directory.table,
                part(synopsis),
                *self._memory,
                slots,
                rows.words,
                rows.offsets,
                first,
                expiry_at,
                watermark,
            )

    def wear(self, synopsis: int, slots: Slots, rows: Encoded, sign_at: int) -> None:
        """Count the worn words of groups to which rows are appended."""
        table = self._directory.table
        kernels.wear(table, part(synopsis), slots, rows.words, rows.offsets, sign_at)

    def install(
        self, synopsis: int, slots: Slots, words: Ints, offsets: Ints, cleans: Ints
    ) -> None:
        """Give runs of words to distinct groups that have none; enough blocks must be free."""
        table = self._directory.table
        with self._counted():
            kernels.install(table, part(synopsis), *self._memory, slots, words, offsets, cleans)

    def replace(
        self,
        synopsis: int,
        slots: Slots,
        rows: Encoded,
        bounds: Ints,
        first: int,
        expiry_at: int,
        watermark: int,
        *,
        is_logged: bool,
    ) -> int:
        """Replace the rows of distinct groups from `first` on until blocks run out.

        Group k has the rows between its bounds. Returns the first group that was not replaced.
        """
        with self._counted():
            return kernels.replace(
                self._directory.table,
                part(synopsis),
                *self._memory,
                slots,
                rows.words,
                rows.offsets,
                bounds,
                first,
                expiry_at,
                watermark,
                is_logged,
            )

    def drop(self, synopsis: int, slots: Slots) -> None:
        """Free the words of groups."""
        table, facts = self._directory.table, self._facts.view
        with self._counted():
            kernels.drop(table, part(synopsis), self.block_words, self._links.view, facts, slots)

    def sort_free(self) -> None:
        """Sort the free blocks, so that those taken next are adjacent."""
        _, links, facts = self._memory
        kernels.sort_free(links, facts, np.zeros(len(links), dtype=np.bool_))

    def gather(self, synopsis: int, slots: Slots, skipped: Ints, out: Ints, places: Ints) -> None:
        """Copy the words of groups, without the first `skipped`, to places; move the places on."""
        blocks, links, _ = self._memory
        table = self._directory.table
        kernels.gather(table, part(synopsis), blocks, links, slots, skipped, out, places)

    def stow(self, slots: Slots, halved: int, rows: Ints) -> None:
        """Fill in rows with the entries of groups, and all words of small ones; free all words."""
        directory = self._directory
        with self._counted():
            inline_groups.stow(
                directory.table, directory.entry_columns, *self._memory, slots, halved, rows
            )

    def unpack(self, slots: Slots, rows: Ints) -> None:
        """Restore inline words to groups that have none, while there is room."""
        synopses, at = self._directory.synopses, self._packed_at
        blocks = inline_groups.blocks_needed(rows, at, synopses, self.block_words)
        if blocks:
            with suppress(Refused):
                self.grow(blocks)
            with self._counted():
                inline_groups.unpack(self._directory.table, *self._memory, slots, rows, at)

    @property
    def _packed_at(self) -> int:
        """Where inline words begin in a row."""
        return int(inline_groups.packed_at(len(self._directory.entry_columns)))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the blocks that this store takes and frees."""
        before = self.taken
        yield
        self._directory.owned_blocks[0] += self.taken - before

    @property
    def _blocks_there(self) -> int:
        return min(self._blocks.capacity, self._links.capacity)

    @property
    def _memory(self) -> tuple[Ints, kernels.Links, Ints]:
        there = self._blocks_there
        return self._blocks.view[:there], self._links.view[:there], self._facts.view

    def _resize(self, blocks: int) -> None:
        self._links.resize(max(blocks, self._links.capacity))
        self._blocks.resize(max(blocks, self._blocks.capacity))
