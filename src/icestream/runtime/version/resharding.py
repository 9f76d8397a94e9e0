"""Other shards: prepared beside the ones that run, which hand over at a version.

Idea: shards are ranges of key groups, and both their number and their ranges change at a version
boundary. From snapshots the new shards are restored, filtered by range (`operators/lineage`), while
versions go on with the old ones, which take no snapshots meanwhile. Where a shard has several
parents, these end a version with snapshots first; where all shards only split, each begins with the
last snapshot of its parent. What versions wrote until a round of that was over, the next round
reads; once few are left, the next version reads these and goes on with the new shards. It lists
each live segment under every shard that has some of its key groups now; no file is copied, moved or
rewritten. What was measured by shard is divided among the new ones, or forgotten. If an operator
cannot follow its parents, if one of these takes a snapshot or a preparation fails, the version
after new snapshots restores all.

Invariants:
1. Rows do not depend on when the number of shards changes, for every kind of state
   (`test_oracle_any_number_of_shards_at_any_version_changes_no_row`), nor on a crash at that
   version (`test_crash_around_a_change_of_shards`).
2. New shards that are prepared in the background and catch up change no row
   (`test_oracle_shards_that_catch_up_change_no_row`); versions go on meanwhile
   (`test_versions_go_on_while_shards_are_prepared`).
3. A preparation that fails costs a pause and nothing else
   (`test_crash_a_preparation_that_fails_is_done_without`).
4. A segment that several shards share is removed with the last of them
   (`test_a_shared_segment_goes_with_its_last_shard`).
5. What is read to prepare shards is there until then
   (`test_what_a_preparation_reads_is_retained`).
6. No version takes snapshots for a split that is prepared
   (`test_a_split_begins_with_the_snapshots_there_are`).

Cost: for a merge, a snapshot of every shard; a restore in the background (the directory or rows of
groups, and what was written since), and what a version or two wrote is read again. Until segments
expire or are cleaned, the commit names them once for each shard.

Limits: shards are prepared one after the other (one for four cores), in memory that those which run
leave (`runtime/elasticity`); if that is too little, they are restored. On several hosts, one that
is not prepared where it will run is restored by the version that begins with it. All shards are
prepared, also those that keep their key groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import Any

from icestream.core.units import format_bytes
from icestream.operators.lineage import ShardLineage, shards_of
from icestream.runtime.version.task import ShardTask
from icestream.state.budget import buffers_in_turns
from icestream.state.snapshot_schedule import When
from icestream.state.versions.commits import Commit
from icestream.state.versions.live_segments import LiveSegments

#: the name of an arena that does not exist, so that its shard is restored
NO_ARENA = "none"
#: seconds that a version waits for a preparation, so that little state changes hands at once
PATIENCE = 0.05
#: versions that new shards may have to read when they take over
CLOSE = 1
#: rounds after which they take over even if more are left
ROUNDS = 8
#: cores for which one shard is prepared at a time
CORES = 4

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpareMemory:
    """The memory for shards in preparation."""

    #: bytes for all that are prepared at a time
    bytes: int
    #: bytes that a shard needs, and those that it will have
    least: int
    most: int
    #: tasks that run at the same time
    cores: int

    @property
    def at_once(self) -> int:
        """Return how many shards are prepared at a time."""
        return max(1, min(self.cores // CORES, self.bytes // self.least))

    @property
    def quota(self) -> int:
        """Return the bytes of a shard in preparation."""
        return min(self.most, self.bytes // self.at_once)

    @property
    def shortage(self) -> str | None:
        """Return why nothing can be prepared; None if that is possible."""
        if self.bytes >= self.least:
            return None
        return (
            f"the shards that run leave {format_bytes(self.bytes)} of memory, and one in "
            f"preparation needs {format_bytes(self.least)}"
        )


@dataclass
class ShardChange:
    """A change of the number of shards, from the last snapshots of those there are."""

    #: the versions with the snapshots, by shard
    bases: tuple[int, ...]
    #: the shard of each key group
    routes: tuple[int, ...]
    #: tasks of the new shards, each with the arena that it has so far
    tasks: list[ShardTask]
    #: does pieces of work, one task each
    each: Callable[[Sequence[Callable[[], Any]]], list[Any]]
    #: shards that are prepared at the same time
    at_once: int = 1
    #: the version that the arenas are of
    reached: int | None = None
    #: why a preparation failed
    failure: str | None = None
    #: the version that the last round began with
    _reads: int | None = None
    _rounds: int = 0
    _thread: Thread | None = field(default=None, repr=False)
    _stopped: bool = False

    @property
    def arenas(self) -> tuple[str, ...]:
        """Return the arenas of the new shards, as far as they are prepared."""
        return tuple(task.arena for task in self.tasks if task.arena is not None)

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def reads(self) -> int | None:
        """Return the version that is being read, which must be there until then."""
        return self._reads if self.is_running else None

    def is_ready(self, last: Commit) -> bool:
        """Return whether the new shards can go on from the last version; prepare them until then.

        Waits a little.
        """
        if not self._has_caught_up(last) and not self.is_running and self.failure is None:
            self._rounds += 1
            self._reads = last.version
            self._thread = Thread(target=self._prepare, args=(last.version,), daemon=True)
            self._thread.start()
        if self._thread is not None:
            self._thread.join(PATIENCE)
        return self._has_caught_up(last) and not self.is_running and self.failure is None

    def is_possible(self, last: Commit) -> bool:
        """Return whether the snapshots are still those that the shards of a version begin with."""
        return self.failure is None and last.bases == self.bases

    def stop(self) -> None:
        """Prepare no further shard, and wait for the ones that are being prepared."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join()

    def _has_caught_up(self, last: Commit) -> bool:
        if self.reached is None:
            return False
        return last.version - self.reached <= CLOSE or self._rounds >= ROUNDS

    def _prepare(self, version: int) -> None:
        """Bring the arenas of the new shards to a version."""
        tasks = [replace(each, version=version + 1) for each in self.tasks]
        try:
            for first in range(0, len(tasks), self.at_once):
                if self._stopped:
                    return
                some = tasks[first : first + self.at_once]
                for task, arena in zip(some, self.each([t.prepare for t in some]), strict=True):
                    self.tasks[task.shard] = replace(task, arena=arena, stands_at=version)
            self.reached = version
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            _LOG.warning("shards were not prepared, so a batch will restore them", exc_info=True)


class Resharding:
    """Brings the number of shards of a query to the one that is wanted."""

    def __init__(self, each: Callable[[Sequence[Callable[[], Any]]], list[Any]]) -> None:
        """Prepare shards with `each`, which does pieces of work in tasks."""
        self._each = each
        self._change: ShardChange | None = None
        #: whether the next snapshots are for a version that restores all shards by itself
        self._by_itself = False
        #: a task of each component, as the last version ran it; none if others cannot follow them
        self.samples: dict[int, ShardTask] = {}
        #: why the last change was not prepared, if it was to be
        self.failure: str | None = None

    @property
    def arenas(self) -> tuple[str, ...]:
        """Return the arenas of shards to come."""
        return () if self._change is None else self._change.arenas

    @property
    def reads(self) -> int | None:
        """Return the version from which shards are being prepared now."""
        return None if self._change is None else self._change.reads

    @property
    def is_running(self) -> bool:
        """Return whether shards are being prepared now."""
        return self._change is not None and self._change.is_running

    def next(
        self, last: Commit, routes: tuple[int, ...], memory: SpareMemory
    ) -> When | ShardChange | None:
        """Return what the next version does about the shards that are wanted for key groups.

        That is the change, or when it takes snapshots.

        None: it has the new shards and restores them, from the snapshots of the last one.
        """
        if last.routes == routes:
            self.stop()
            return "due"
        change = self._change
        if change is not None:
            wanted = change.routes == routes
            if not wanted or not change.is_possible(last):
                self._by_itself, self.failure = wanted, change.failure
                self.stop()
                change = None
        if change is None:
            prepares = self.samples and not self._by_itself and memory.shortage is None
            if not (prepares and _only_splits(last, routes)) and any(
                base != last.version for base in last.bases
            ):
                return "now"
            if not self.samples or self._by_itself:
                self._by_itself = False
                return None
            self.failure = memory.shortage
            if self.failure is not None:
                return None
            change = self._change = self._begun(last, routes, memory)
        return change if change.is_ready(last) else "later"

    def _begun(self, last: Commit, routes: tuple[int, ...], memory: SpareMemory) -> ShardChange:
        shards, count = shards_of(routes), shards_of(routes) * len(self.samples)
        alone = buffers_in_turns([memory.quota], 1)
        tasks = [
            replace(
                self.samples[shard // shards],
                shard=shard,
                quota=memory.quota,
                buffers=self.samples[shard // shards].buffers and alone,
                arena=NO_ARENA,
                lineage=ShardLineage.of(routes, shard),
                parcels=(),
                named=(),
                tables=(),
                sends=None,
                fused=(),
                hands={},
                stands_at=None,
            )
            for shard in range(count)
        ]
        return ShardChange(last.bases, routes, tasks, self._each, memory.at_once)

    def stop(self) -> None:
        """End a change that is under way, or over."""
        if self._change is not None:
            self._change.stop()
            self._change = None


def resharded(
    last: Commit, live: LiveSegments, routes: tuple[int, ...], arenas: Sequence[str] = ()
) -> tuple[Commit, LiveSegments]:
    """Return the last version as if its key groups had other shards, and its live segments.

    All shards begin with snapshots of one version; the new ones may have `arenas`.
    """
    before, shards = shards_of(last.routes), shards_of(routes)
    components = len(last.arenas) // before
    heirs = {
        shard: ShardLineage.of(last.routes, shard).shards(routes)
        for shard in range(components * before)
    }
    parents = [
        ShardLineage.of(routes, shard).shards(last.routes) for shard in range(components * shards)
    ]
    commit = replace(
        last,
        routes=routes,
        arenas=tuple(arenas) or (NO_ARENA,) * (components * shards),
        bases=tuple(last.bases[mine[0]] for mine in parents),
        decisions=_divided(last.decisions, parents[:shards], heirs),
    )
    return commit, live.divided(heirs, commit.bases)


def _only_splits(last: Commit, routes: Sequence[int]) -> bool:
    """Return whether each shard can begin with the snapshot of one that a version has."""
    parents = (
        ShardLineage.of(routes, shard).shards(last.routes) for shard in range(shards_of(routes))
    )
    return 0 not in last.bases and all(len(mine) == 1 for mine in parents)


def _divided(
    decisions: Mapping[str, Any], parents: list[list[int]], heirs: Mapping[int, list[int]]
) -> dict[str, Any]:
    """Return decisions of a version for other shards, given the parents of each and their heirs."""

    def of(values: list[float]) -> list[float]:
        return [sum(values[each] / len(heirs[each]) for each in mine) for mine in parents]

    placement = decisions["placement"]
    divided: dict[str, Any] = {
        "placement": {
            **placement,
            "tasks": [placement["tasks"][mine[0]] for mine in parents],
            "loads": of(placement["loads"]),
        }
    }
    if "holdings" in decisions:
        divided["holdings"] = {}
    if "joins" in decisions:
        divided["joins"] = {**decisions["joins"], "holdings": {}}
    if "fusion" in decisions:
        fusion = decisions["fusion"]
        divided["fusion"] = {
            **fusion,
            "rows": [of(rows) for rows in fusion["rows"]],
            "together": [
                [heir for heir, mine in enumerate(parents) if set(mine) <= set(together)]
                for together in fusion["together"]
            ],
        }
    return {**decisions, **divided}
