"""Rows of state that somebody edited, written back as a new version of a stopped query.

Idea: the inverse of an export. A shard is restored beside the checkpoint as for reading; groups
whose rows differ from those given are replaced in its store, which writes them to the log as a
batch would. One commit makes all shards change together: a version of maintenance, with no rows of
its own, that the query goes on from. The versions before it stay, and so does the way back.

Invariants:
1. Rows that were exported and not edited change nothing
   (`test_rows_that_nobody_edited_make_no_version`).
2. After a rewrite the state is what was given, and the checkpoint verifies
   (`test_oracle_the_state_is_what_was_written`).
3. A query goes on from it as if the rows had always been there
   (`test_oracle_a_query_goes_on_from_rewritten_groups`), and batches that its sink had not taken
   are delivered all the same (`test_crash_a_batch_before_a_rewrite_is_delivered_after_it`).
4. Killed anywhere, it is done or it is not (`test_crash_every_step_of_a_rewrite`).
5. A running query is left alone (`test_a_running_query_is_not_rewritten`).

Cost: each shard with such rows is restored and read once; the log grows by the groups that differ.

Limits: grouped state only. What windows keep cannot be told from the rows they would emit, so
history is taken in anew with `bootstrap`. Timers keep their instants; a group that is new has none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.errors import CheckpointError, DefinitionError
from icestream.inspect.adapters.dataflow import Stored, every_group, stored
from icestream.inspect.checkpoint import Checkpoint
from icestream.inspect.edited import Edited, edited
from icestream.inspect.reading import Reading
from icestream.inspect.scratch import Target, restorable
from icestream.plan.legend import Groups
from icestream.runtime.history import running
from icestream.state.files import folder_of
from icestream.state.log.format import SegmentInfo
from icestream.state.sense import sensible
from icestream.state.synopses.directory import distinct
from icestream.state.synopses.rows import RowCodec
from icestream.state.synopses.spec import GroupRows, Ids, Slots
from icestream.state.synopses.store import GroupStore
from icestream.state.versions import REWRITTEN, SEGMENTS, LiveSegment, survivors


@dataclass(frozen=True)
class Rewrite:
    """What a rewrite did."""

    #: the version it made; the one that was there if nothing differs
    version: int
    operator: str
    kept: str
    #: groups whose rows differ now, and the rows that they have
    groups: int
    rows: int
    #: bytes that the log grew by
    bytes: int


def rewrite(reading: Reading, rows: pa.Table, *, others: str = "drop") -> Rewrite:
    """Replace rows of one table of the newest version; commits a new one.

    Args:
        reading: chooses the table; its version must be the last.
        rows: columns of the table, as an export has them. A group is told by `__group` or, where
            that is null or absent, by its key columns.
        others: what becomes of groups that no row names: "drop" or "keep".
    """
    if others not in ("drop", "keep"):
        msg = f"others must be 'drop' or 'keep'; got {others!r}"
        raise DefinitionError(msg)
    at = reading.checkpoint
    _check_stopped(at)
    commit = reading.commit
    if commit.version != at.versions[-1]:
        msg = (
            f"version {commit.version} is not the last: state is rewritten from version "
            f"{at.versions[-1]} on. Go back with `icestream state repair` first, or export the last"
        )
        raise CheckpointError(msg)
    legend = at.legend
    if not isinstance(legend, Groups):
        msg = (
            "only grouped state can be rewritten; windows and waiting updates are built anew from "
            "history: see StreamWriter.bootstrap"
        )
        raise CheckpointError(msg)
    if legend.options.durability != "log":
        msg = "a query that writes only what leaves memory cannot be restored, nor rewritten"
        raise CheckpointError(msg)
    if len(reading.tables) != 1:
        there = ", ".join(f"{each.operator!r} {each.name!r}" for each in reading.tables)
        msg = f"choose one kind of rows by operator and kept; there are: {there}"
        raise DefinitionError(msg)
    table = stored(legend, commit, reading.tables[0])
    given = edited(rows, table, commit)
    return _Rewriting(reading, table, given, keep=others == "keep").run()


class _Rewriting:
    """One rewrite of one table."""

    def __init__(self, reading: Reading, table: Stored, given: Edited, *, keep: bool) -> None:
        self._reading = reading
        self._at: Checkpoint = reading.checkpoint
        self._table = table
        self._given = given
        self._keep = keep
        self._codec = RowCodec(table.table.columns)
        self._attempt = os.urandom(8).hex()
        self._ordinal = reading.commit.next_ordinal
        self._groups = self._rows = 0

    def run(self) -> Rewrite:
        """Write all shards, then commit."""
        added: list[LiveSegment] = []
        version = self._reading.commit.version + 1
        for shard in self._table.table.shards:
            if not self._keep or self._given.has(shard):
                for lifetime, info in self._shard(shard):
                    added.append(LiveSegment(shard, version, lifetime, info))
        told = self._table.table
        if not self._groups:
            return Rewrite(version - 1, told.operator, told.name, 0, 0, 0)
        self._commit(version, added)
        size = sum(each.info.bytes for each in added)
        return Rewrite(version, told.operator, told.name, self._groups, self._rows, size)

    def _commit(self, version: int, added: list[LiveSegment]) -> None:
        before, store = self._reading.commit, self._at.store
        self._at.files.sync_folder(f"{self._at.root}/{SEGMENTS}")
        told: Mapping[str, Any] = {
            "operator": self._table.table.operator,
            "kept": self._table.table.name,
            "groups": self._groups,
            "rows": self._rows,
        }
        commit = replace(
            before,
            version=version,
            added=tuple(added),
            released=(),
            results=(),
            late=(),
            next_ordinal=self._ordinal,
            decisions={**before.decisions, "flush": True, REWRITTEN: told},
            live=None,
        )
        live = survivors(self._at.live(before.version), commit)
        store.create(store.with_listing(commit, live))

    def _shard(self, shard: int) -> list[tuple[str, SegmentInfo]]:
        """Replace the groups of a shard that differ; return the segments that say so."""
        commit, reading = self._reading.commit, self._reading
        target = Target(self._at.files, self._ordinal, self._attempt)
        with (
            sensible(self._at.store.path(commit.version)),
            restorable(self._at, commit, shard, reading.memory, target) as (space, history),
        ):
            store = self._table.store(space, history)
            watermark = history[-1].watermark
            differ = 0
            for hi, lo in self._identities(store, shard):
                store.begin(watermark)
                for some in store.portions(store.locate(hi, lo)):
                    differ += self._portion(store, some)
            if not differ:
                return []
            self._groups += differ
            store.end_version(watermark)
            sealed = [(each, space.seal(each)) for each in self._table.lifetimes]
            self._ordinal = space.next_ordinal
            return [(lifetime, info) for lifetime, info in sealed if info is not None]

    def _identities(self, store: GroupStore, shard: int) -> Iterator[tuple[Ids, Ids]]:
        """Yield the groups to look at, each once, as many at a time as a chunk may name."""
        hi, lo = self._given.groups(shard)
        if not self._keep:
            known = every_group(store)
            hi = np.concatenate([hi, *(each for each, _ in known)])
            lo = np.concatenate([lo, *(each for _, each in known)])
            hi, lo, _ = distinct(hi, lo)
        most = max(1, store.chunk_groups)
        for begin in range(0, len(hi), most):
            yield hi[begin : begin + most], lo[begin : begin + most]

    def _portion(self, store: GroupStore, slots: Slots) -> int:
        """Replace the groups of a portion that differ; return how many."""
        number = self._table.place
        there = store.read(number, slots)
        owners, wanted = self._given.rows_of(*store.identities(slots))
        differ = _differing(self._codec, there, GroupRows(owners, wanted), len(slots))
        if not len(differ):
            return 0
        place = np.full(len(slots), -1, dtype=np.int64)
        place[differ] = np.arange(len(differ))
        mine = place[owners] >= 0
        chosen = wanted.filter(pa.array(mine))
        store.rewrite(number, slots[differ], GroupRows(place[owners[mine]], chosen))
        self._rows += chosen.num_rows
        return len(differ)


def _differing(codec: RowCodec, one: GroupRows, two: GroupRows, count: int) -> npt.NDArray[Any]:
    """Return the numbers of groups whose rows differ, or come in another order."""
    words, bounds = zip(*(_words(codec, each, count) for each in (one, two)), strict=True)
    sizes = [np.diff(each) for each in bounds]
    same = sizes[0] == sizes[1]
    lengths = np.where(same, sizes[0], 0)
    owner = np.repeat(np.arange(count), lengths)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    unequal = words[0][bounds[0][owner] + within] != words[1][bounds[1][owner] + within]
    same[owner[unequal]] = False
    return np.flatnonzero(~same)


def _words(
    codec: RowCodec, rows: GroupRows, count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the words of the rows and where those of each group begin."""
    encoded = codec.encode(rows.rows)
    return encoded.words, encoded.offsets[np.searchsorted(rows.owners, np.arange(count + 1))]


def _check_stopped(checkpoint: Checkpoint) -> None:
    if running(checkpoint.root) or running(folder_of(checkpoint.root)):
        msg = f"a query runs on {checkpoint.root}: stop it, then rewrite its state"
        raise CheckpointError(msg)


__all__ = ["Rewrite", "rewrite"]
