"""Rewrites rows by group, as a batch would write them.

Idea: the store of a shard is restored; groups whose rows differ from the given ones are replaced in
it, and it writes them to the log.

Invariant: after a rewrite the state is what was given
(`test_oracle_the_state_is_what_was_written`).

Limits: timers keep their instants; new groups have none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Slots
from icestream.inspect.access.edited_rows import EditedRows
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.dataflow import StoredTable, group_chunks
from icestream.inspect.rewriting.changes import Rewriter, ShardRewrite, differing
from icestream.state.groups.spec import GroupRows
from icestream.state.groups.store import GroupStore
from icestream.state.identities import distinct
from icestream.state.rows import RowCodec


class GroupRewriter(Rewriter):
    """Writes rows of one table of group state."""

    def __init__(self, table: StoredTable, given: EditedRows, *, keep: bool) -> None:
        """Write the given rows; groups without a row are kept or emptied."""
        super().__init__(given, keep=keep)
        self._table = table
        self._codec = RowCodec(table.table.columns)

    def change(self, source: ScratchShard) -> ShardRewrite | None:
        store = self._table.store(source)
        watermark = source.history[-1].watermark
        groups = rows = 0
        for id_high, id_low in self._identities(store, source.shard):
            store.begin(watermark)
            for some in store.portions(store.locate(id_high, id_low)):
                differ, written = self._portion(store, some)
                groups, rows = groups + differ, rows + written
        if not groups:
            return None
        store.end_version(watermark)
        for lifetime in self._table.component.lifetimes:
            source.space.seal(lifetime)
        return ShardRewrite(groups, rows)

    def _identities(self, store: GroupStore, shard: int) -> Iterator[tuple[Ids, Ids]]:
        """Yield the groups to compare, each once, as many at a time as a chunk may have."""
        id_high, id_low = self._given.groups(shard)
        if not self._keep:
            known = list(group_chunks(store, store.chunk_groups))
            id_high = np.concatenate([id_high, *(each for each, _ in known)])
            id_low = np.concatenate([id_low, *(each for _, each in known)])
            id_high, id_low, _ = distinct(id_high, id_low)
        most = max(1, store.chunk_groups)
        for begin in range(0, len(id_high), most):
            yield id_high[begin : begin + most], id_low[begin : begin + most]

    def _portion(self, store: GroupStore, slots: Slots) -> tuple[int, int]:
        """Replace the differing groups of a portion; return the numbers of groups and rows."""
        number = self._table.place
        there = store.read(number, slots)
        owners, wanted = self._given.rows_of(*store.identities(slots))
        differ = _differing(self._codec, there, GroupRows(owners, wanted), len(slots))
        if not len(differ):
            return 0, 0
        place = np.full(len(slots), -1, dtype=np.int64)
        place[differ] = np.arange(len(differ))
        mine = place[owners] >= 0
        chosen = wanted.filter(pa.array(mine))
        store.rewrite(number, slots[differ], GroupRows(place[owners[mine]], chosen))
        return len(differ), chosen.num_rows


def _differing(codec: RowCodec, one: GroupRows, two: GroupRows, count: int) -> Ints:
    """Return the numbers of groups whose rows differ, or differ in order."""
    return np.flatnonzero(differing(*_words(codec, one, count), *_words(codec, two, count)))


def _words(codec: RowCodec, rows: GroupRows, count: int) -> tuple[Ints, Ints]:
    encoded = codec.encode(rows.rows)
    return encoded.words, encoded.offsets[np.searchsorted(rows.owners, np.arange(count + 1))]
