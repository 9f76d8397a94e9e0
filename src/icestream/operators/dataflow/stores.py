"""The state of a component in one shard: a store for each grouping, one heap, one manager.

Idea: every grouping has its own directory and log records, but hot rows of all groupings are in one
heap, and heap and directories grow into the same memory, so it goes to whichever needs it. The cold
state manager learns what each chunk touched and chooses, after a chunk or when the heap is full,
which groups of which grouping to evict.

Invariants:
1. All stores of a shard take their snapshots in the same version
   (`test_crash_groupings_come_back_together`).
2. Heap, directories and buffers stay inside the quota
   (`test_bounded_groupings_share_the_quota`); buffers are larger if much memory is free
   (`test_bounded_work_follows_what_is_free`).
3. Stores work within the quota that `least_quota` returns
   (`test_stores_go_on_in_the_quota_they_need`).
4. A group may take all memory that directories leave (`TestConsolidated`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from icestream.core.arrays import Ids, Mask
from icestream.core.times import Micros
from icestream.operators.protocol import PastVersion, Recoverable, Shard
from icestream.state.groups.cold.manager import Manager, Policy
from icestream.state.groups.options import StoreOptions, lifetimes
from icestream.state.groups.spec import Groups, Synopsis
from icestream.state.groups.store import GROUPS, HEAP, WORK, GroupStore
from icestream.state.groups.view import GroupView
from icestream.state.snapshot_schedule import SnapshotSchedule
from icestream.state.versions.commits import BASE

#: bytes that a small shard needs in addition to those for sorted changes
SMALL = 1 << 16
#: bytes of each store for whole pages: lists of segments, fences of the cold index
LISTS = 4 << 14
#: minimum share of directories in the memory for rows and directories
LEAST_DIRECTORIES = 1 / 4
#: bytes per byte of rows of the directory's groups at which no group must be evicted
HEADROOM = 6 / 5
#: 1/LENT of the free bytes is for work buffers until the next chunk
LENT = 3
#: share of the quota for sorted changes
GATHERED = 1 / 4


@dataclass(frozen=True)
class ColdOptions:
    """How state is stored, and which groups are evicted first."""

    store: StoreOptions = field(default_factory=StoreOptions)
    policy: Policy = field(default_factory=Policy)


class Stores(Recoverable, Protocol):
    """The state of a component in one shard; by default it has no groupings."""

    #: bytes of changes that may be read and sorted by group at once
    gathered_bytes: int

    def groups(self, grouping: int, first: int, count: int) -> Groups:
        """Return the synopses of one operator, numbered from 0."""
        msg = f"grouping {grouping} has {count} synopses from {first} on, but there is no store"
        raise AssertionError(msg)

    def begin(self, grouping: int, watermark: Micros) -> None:
        """Begin a chunk of a grouping."""
        del grouping, watermark

    def chunk_groups(self, grouping: int) -> int:
        """Return how many groups a chunk of a grouping may have."""
        return sys.maxsize

    def knows(self, grouping: int, id_high: Ids, id_low: Ids) -> Mask:
        """Return which groups of a grouping may have state."""
        return np.zeros(len(id_high), dtype=np.bool_)

    def rest(self) -> None:
        """Evict cold groups, between two chunks of the batch."""
        return

    def end_version(self, watermark: Micros) -> None:
        """Write what is new to the log."""


class ShardStores(Stores):
    """The stores of all groupings."""

    def __init__(
        self,
        groupings: Sequence[Sequence[Synopsis]],
        shard: Shard,
        options: ColdOptions,
    ) -> None:
        self._shard = shard
        self._lifetimes = lifetimes(len(groupings))
        kept = [number for number, synopses in enumerate(groupings) if synopses]
        quota = shard.account.budget.total
        #: maximum bytes of changes that are sorted by group at once
        self.gathered_bytes = max(quota // 32, int(quota * GATHERED) - SMALL)
        shard.account.reserve(self.gathered_bytes)
        quota -= self.gathered_bytes
        #: bytes for rows in memory, and for rows and directories together
        self._limit = int(quota * HEAP)
        self._pool = int(quota * (HEAP + GROUPS)) - len(kept) * LISTS
        self._stores = {
            number: GroupStore(
                groupings[number],
                shard,
                options.store,
                scope=number,
                share=quota // max(1, len(kept)),
                shared_heap=self._limit,
            )
            for number in kept
        }
        #: whether the size of directories was set
        self._allotted = False
        for store in self._stores.values():
            store.eviction.pressure = self
        header = shard.arena.header
        self._header: dict[str, Any] = header
        self._schedule = SnapshotSchedule(header)
        self._manager = Manager(
            [each.eviction for each in self._stores.values()], options.policy, header.get("cold")
        )

    def groups(self, grouping: int, first: int, count: int) -> Groups:
        return GroupView(self._stores[grouping], first, count)

    def begin(self, grouping: int, watermark: Micros) -> None:
        if grouping in self._stores:
            self._balance()
            self._stores[grouping].begin(watermark)

    def _balance(self) -> None:
        """Let rows and directories grow into the free memory until the next chunk, half of it each.

        Work buffers take a part of it first. If not all groups fit, directories get the share of
        memory that they would have if all rows were in memory too.
        """
        stores = self._stores.values()
        heap = next(iter(stores)).heap
        directories = sum(store.directory.bytes for store in stores)
        free = max(0, self._pool - heap.bytes - directories)
        lent = free // LENT
        free -= lent
        if any(store.has_cold_groups for store in stores):
            self._allot()
        rows = free
        for store in stores:
            directory = store.directory
            more = max(0, min(free // (2 * len(stores)), directory.ample - directory.bytes))
            directory.limit = max(store.least_directory, directory.bytes + more)
            rows -= more
        self._limit = max(self._pool // 4, heap.bytes + rows)
        for store in stores:
            store.heap.limit = self._limit
            store.lend(lent // len(stores))

    def _allot(self) -> None:
        """Set, once in a version, the size of directories."""
        if self._allotted:
            return
        self._allotted = True
        stores = self._stores.values()
        facts = sum(store.directory.held for store in stores)
        rows = HEADROOM * sum(store.bytes_known() for store in stores)
        part = self._pool * max(LEAST_DIRECTORIES, facts / max(1, facts + rows))
        for store in stores:
            mine = int(part * store.directory.held / max(1, facts))
            store.directory.ample = max(store.least_directory, mine)

    def rest(self) -> None:
        """Report to the manager what the last chunk touched, and evict cold groups."""
        self._inform_manager()
        self._manager.turn(self._limit, self._held)

    def chunk_groups(self, grouping: int) -> int:
        store = self._stores.get(grouping)
        return super().chunk_groups(grouping) if store is None else store.chunk_groups

    def knows(self, grouping: int, id_high: Ids, id_low: Ids) -> Mask:
        store = self._stores.get(grouping)
        if store is None:
            return super().knows(grouping, id_high, id_low)
        return store.knows(id_high, id_low)

    def free(self, size: int) -> int:
        """Evict groups until about `size` bytes are free; return how many were freed."""
        self._inform_manager()
        return self._manager.free(size)

    def take_back(self) -> None:
        """Give rows all memory that directories leave, until the next chunk."""
        directories = sum(store.directory.bytes for store in self._stores.values())
        self._limit = max(self._limit, self._pool - directories)
        for store in self._stores.values():
            store.heap.limit = self._limit
            store.lend(0)

    def end_version(self, watermark: Micros) -> None:
        """Write what is new to the log; from time to time a snapshot."""
        self._inform_manager()
        before = self._written
        size = sum(store.snapshot_bytes for store in self._stores.values())
        snapshot = self._schedule.version_ends(size)
        snapshot |= any(store.is_crowded(watermark) for store in self._stores.values())
        for store in self._stores.values():
            store.end_version(watermark, snapshot=snapshot)
        self._schedule.log(self._written - before)
        self._header["cold"] = self._manager.state
        for lifetime in (*self._lifetimes, BASE):
            self._shard.seal(lifetime)
        if snapshot:
            self._schedule.take()

    @property
    def took_snapshot(self) -> bool:
        return self._schedule.taken

    @property
    def released(self) -> tuple[int, ...]:
        """Return the ordinals of segments that no store needs any more."""
        stores = self._stores.values()
        needed = {ordinal for store in stores for ordinal in store.segments}
        released = {ordinal for store in stores for ordinal in store.released}
        return tuple(sorted(released - needed))

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Restore the state at the end of a history; all groups are cold."""
        for store in self._stores.values():
            store.restore(history)
        self._schedule.resume(len(history), _logged(history))

    @property
    def statistics(self) -> dict[str, Any]:
        parts = [store.statistics for store in self._stores.values()]
        names = dict.fromkeys(name for each in parts for name in each)
        sums = {name: sum(each.get(name, 0) for each in parts) for name in names}
        needed = least_quota(self._shard.arena.bytes, len(self._stores))
        return {
            "groups": sums.get("groups", 0),
            "partitions": 1,
            "cold": sums,
            "needed_bytes": needed,
        }

    @property
    def _held(self) -> int:
        return sum(store.eviction.bytes_held() for store in self._stores.values())

    @property
    def _written(self) -> int:
        return sum(store.written for store in self._stores.values())

    def _inform_manager(self) -> None:
        for store in self._stores.values():
            self._manager.opened(store.name, store.eviction.take_opened())
            self._manager.note(store.name, store.eviction.take_hits())


def least_quota(held: int, stores: int) -> int:
    """Return the quota that the stores of a component need if their arena has `held` bytes."""
    return int((held + stores * LISTS + SMALL) / (1 - GATHERED - WORK))


def _logged(history: Sequence[PastVersion]) -> int:
    """Return the bytes that versions wrote after a snapshot."""
    return sum(info.bytes for past in history[1:] for _, info in past.segments)
