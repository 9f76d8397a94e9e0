"""How many shards and tasks the versions of a query have: the numbers asked for, and the way there.

Idea: the number of shards is where a checkpoint starts, and what `rescale` sets later. A version
begins with the shards of the one before, or takes over with others that were prepared meanwhile
(`resharding`); then the number of tasks and the task of each shard are chosen (`scaling`). While
the load decides the number of tasks, it decides that of shards too (`plan/balance/shard_sizing`),
and hot ones split alone (`plan/balance/hot_shards`).

Memory: shards that are prepared have a part of the query's memory. A 32nd of it is never given to
versions, if that is enough for a shard. Besides, shards that wait for their turn in a task have an
arena and no buffers, which are an eighth of a quota at least for all operators whose shards are
prepared. What both are together is shared by the shards that are prepared at a time. If the memory
is that of each host, all shards have the same share of it: that of the host with the most shards.

Invariants:
1. Shards that run and shards that are prepared never have more than the query's memory
   (`test_bounded_shards_are_prepared_in_the_memory_of_the_query`).
2. The shards of a host have the memory of the host at most, while Spark spreads tasks evenly
   (`test_bounded_the_memory_of_each_host`).
3. A checkpoint keeps its number of shards until the program sets another
   (`test_shards_are_where_a_checkpoint_starts`) or the load asks for another
   (`test_oracle_shards_follow_the_load_of_a_running_query`).
4. Hot shards split alone, and merge again once they are not, without a change of rows
   (`test_oracle_a_hot_shard_splits_and_merges`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from icestream.core.errors import CheckpointError, DefinitionError
from icestream.operators.lineage import ShardLineage, even_routes, shards_of
from icestream.plan.balance.hot_shards import SkewSizing, followed_skew
from icestream.plan.balance.shard_sizing import ShardSizing, sized_shards
from icestream.plan.balance.sizing import BatchMeasurements, Sizing, room_of
from icestream.plan.computation import Computation
from icestream.runtime.version.quotas import least_quota
from icestream.runtime.version.resharding import Resharding, SpareMemory, resharded
from icestream.runtime.version.scaling import ENOUGH, next_sizing, placed, task_bounds
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.runtime.version.work import Executor
from icestream.state.snapshot_schedule import When
from icestream.state.versions.commits import Commit
from icestream.state.versions.live_segments import LiveSegments

#: part of the memory that is set aside for shards in preparation
RESERVED = 32


@dataclass(frozen=True)
class VersionShards:
    """The shards of a version, and the version before as if it had had as many."""

    #: shards of a component
    count: int
    routes: tuple[int, ...]
    before: Commit | None
    live: LiveSegments
    sizing: Sizing
    #: the task of each shard of a component
    placement: tuple[int, ...]
    #: arenas that other tasks must leave alone
    named: tuple[str, ...] = ()
    #: whether other shards had their key groups in the version before
    changed: bool = False
    #: the version of their arenas, if it is older than the one before
    stands_at: int | None = None
    snapshot: When = "due"
    #: a task of each component
    samples: dict[int, ShardTask] = field(default_factory=dict)

    def task(self, *, shard: int, **rest: Any) -> ShardTask:
        """Return the task of a shard in this version."""
        self.samples[shard // self.count] = made = ShardTask(
            shard=shard,
            place=self.placement[shard % self.count],
            places=1 + max(self.placement),
            arena=self.before.arenas[shard] if self.before else None,
            named=self.named,
            lineage=ShardLineage.of(self.routes, shard) if self.changed else None,
            stands_at=self.stands_at,
            snapshot=self.snapshot,
            **rest,
        )
        return made


class Elasticity:
    """Chooses the number of shards and tasks from version to version."""

    def __init__(self, plan: Computation, settings: Settings, executor: Executor[Any]) -> None:
        """Begin with the shards that the program sets."""
        self._plan = plan
        #: bytes that a shard of every component needs
        self._least = plan.jobs * least_quota(plan)
        self._settings = settings
        self._executor = executor
        self._check(settings.shards)
        #: the shard of each key group, as it will be from the next version but one on
        self.routes = even_routes(plan.key_groups, settings.shards)
        #: bytes of all shards and those in preparation, on all hosts
        self.budget = settings.budget
        self._resharding = Resharding(executor.each)
        self._bounds = task_bounds(settings.parallelism or self.shards, self.shards)
        #: whether the load decides the number of shards
        self._shards_by_load = self.by_load
        #: how long the load has wanted other shards, of all and of the hottest
        self._sizing = ShardSizing(self.shards)
        self._skew = SkewSizing(self.routes)

    @property
    def shards(self) -> int:
        """Return the shards of a component, as they will be from the next version but one on."""
        return shards_of(self.routes)

    @property
    def by_load(self) -> bool:
        """Return whether the load decides the number of tasks."""
        return not self._bounds.fixed

    @property
    def memory(self) -> int:
        """Return the bytes that all shards of a version have together."""
        return self.memory_of(self.budget)

    @property
    def arenas(self) -> tuple[str, ...] | None:
        """Return the arenas of shards to come; None if others are being made."""
        return None if self._resharding.is_running else self._resharding.arenas

    @property
    def reads(self) -> int | None:
        """Return the version that shards to come are being made from; None if none are."""
        return self._resharding.reads

    @property
    def report(self) -> dict[str, Any]:
        """Return the part of the progress report about a change of shards."""
        return {
            "shardsWanted": self.shards,
            "shardsBecause": self._sizing.why,
            "shardsNotPrepared": self._resharding.failure,
        }

    def memory_of(self, budget: int) -> int:
        """Return what shards have of a budget, less what is set aside for others to come."""
        least, part = self._least, budget // RESERVED
        enough = part >= least and budget - part >= self.shards * least
        return budget - part if enough and not self._plan.fixed_shards else budget

    def resume(self, found: Commit | None) -> None:
        """Go on with the shards of a checkpoint, unless the program sets another number now."""
        if found is not None:
            now, asked = shards_of(found.routes), self._settings.shards
            wanted = now if asked == found.decisions["placement"].get("asked", now) else asked
            self._check(wanted)
            self.routes = found.routes
            self._want(wanted)
        self._bounds = task_bounds(self._settings.parallelism or self.shards, self.shards)
        self._start_sizing("the start")

    def rescale(self, parallelism: int | tuple[int, int], shards: int | None) -> None:
        """Set the number of tasks or its bounds, and that of shards; there are no fewer shards.

        With bounds, and unless their number is given, shards follow the load too.
        """
        by_load = shards is None and not isinstance(parallelism, int)
        most = parallelism if isinstance(parallelism, int) else max(parallelism)
        shards = max(most, self.shards) if shards is None else shards
        bounds = task_bounds(parallelism, shards)
        self._check(shards)
        self._want(shards)
        self._bounds, self._shards_by_load = bounds, by_load
        self._start_sizing("asked for")

    def next(
        self, last: Commit | None, live: LiveSegments, trigger: tuple[int, float] | None
    ) -> VersionShards:
        """Return the shards of the next version and their tasks."""
        count = self.shards if last is None else shards_of(last.routes)
        snapshot: When = "due"
        changed, stands_at = False, None
        if last is not None:
            if last.routes == self.routes:
                self._follow_load(last, trigger)
            change = self._resharding.next(last, self.routes, self._spare(count))
            if isinstance(change, str):
                snapshot = change
            else:
                changed, count = True, self.shards
                stands_at = None if change is None else change.reached
                arenas = () if change is None else change.arenas
                last, live = resharded(last, live, self.routes, arenas)
        reported = None if last is None else last.decisions["placement"]
        sizing = next_sizing(
            reported,
            self._bounds.within(count),
            batch=None if trigger is None else trigger[1],
            interval=self._settings.interval,
            cores=self._cores,
        )
        placement = placed(reported, count, sizing.tasks, rebalance=self._settings.rebalance)
        self.budget = self._budget_of(placement)
        return VersionShards(
            count,
            self.routes if last is None else last.routes,
            last,
            live,
            sizing,
            placement,
            (*(last.arenas if last else ()), *self._resharding.arenas),
            changed,
            stands_at,
            snapshot,
        )

    def made(self, shards: VersionShards, reports: Sequence[ShardReport]) -> None:
        """Learn from a version that was committed."""
        can_follow = all(report.follows for report in reports)
        self._resharding.samples = shards.samples if can_follow else {}

    def stop(self) -> None:
        """Prepare no further shards."""
        self._resharding.stop()

    def _budget_of(self, placement: Sequence[int]) -> int:
        """Return the memory of all shards, given the task of each."""
        settings = self._settings
        if not settings.per_host:
            return settings.budget
        tasks = Counter(placement)
        of_host = -(-len(tasks) // self._executor.hosts)
        crowded = sum(shards for _, shards in tasks.most_common(of_host))
        return settings.budget * len(placement) // crowded

    def _follow_load(self, last: Commit, trigger: tuple[int, float] | None) -> None:
        """Let shards split or merge, if the load decides their number."""
        settings, jobs = self._settings, self._plan.jobs
        if not self._shards_by_load or self._plan.fixed_shards:
            return
        placement = last.decisions["placement"]
        measured = BatchMeasurements(
            placement["loads"],
            placement["tasks"],
            None if trigger is None else trigger[1],
            settings.interval,
            self._cores,
        )
        enough = max(self._least, jobs * ENOUGH)
        bounds = self._bounds.most, min(self._plan.key_groups, self.budget // enough)
        loads, tasks, room = placement["loads"], placement["parallelism"], room_of(measured)
        self._skew = followed_skew(self._skew, loads, tasks=tasks, bounds=bounds)
        if self._skew.routes != self.routes:
            self.routes, hottest = self._skew.routes, self._skew.hottest
            self._sizing = ShardSizing(self.shards, self._skew.why, hottest=hottest)
        elif not self._skew.more:
            self._sizing = sized_shards(self._sizing, loads, tasks=tasks, room=room, bounds=bounds)
            if self._sizing.shards != self.shards:
                self._want(self._sizing.shards)
                self._skew = SkewSizing(self.routes, hottest=self._skew.hottest)

    def _want(self, shards: int) -> None:
        """Set the number of shards, with about as many key groups each unless it stays."""
        if shards != self.shards:
            self._check_elastic(shards)
            self.routes = even_routes(self._plan.key_groups, shards)

    def _start_sizing(self, why: str) -> None:
        """Begin to measure how many shards there should be."""
        self._sizing, self._skew = ShardSizing(self.shards, why), SkewSizing(self.routes)

    @property
    def _cores(self) -> int:
        """Return how many tasks can run at the same time."""
        cores = max(self._executor.parallel, self._executor.cores_to_come)
        return min(cores, self._bounds.most)

    def _spare(self, count: int) -> SpareMemory:
        """Return the memory for shards in preparation, while there are so many others."""
        memory, jobs, cores = self.memory, self._plan.jobs, self._cores
        waiting = max(0, count - cores) * jobs
        spare = self.budget - memory + waiting * buffers(memory // (count * jobs))
        least, most = self._least // jobs, memory // (self.shards * jobs)
        return SpareMemory(spare, least, most, cores)

    def _check(self, shards: int) -> None:
        """Refuse more shards than there are key groups, or than the memory is enough for."""
        plan, settings = self._plan, replace(self._settings, shards=shards, parallelism=None)
        if shards > plan.key_groups:
            msg = (
                f"there are {plan.key_groups} key groups, and a shard needs one at least: set "
                f"{plan.key_groups} shards or fewer, not {shards}"
            )
            raise DefinitionError(msg)
        settings.check_memory(least_quota(plan), plan.jobs)

    def _check_elastic(self, shards: int) -> None:
        """Refuse another number of shards where state cannot be divided."""
        if self._plan.fixed_shards:
            msg = (
                f"the checkpoint at {self._settings.root} cannot change to {shards} shards: "
                f"{self._plan.fixed_shards}. Leave .shards(...) as it was, or start a new "
                "checkpoint"
            )
            raise CheckpointError(msg)


def buffers(quota: int) -> int:
    """Return what a running shard has for buffers at least, whose elasticity needs no restore."""
    return 4 * (quota // 32)
