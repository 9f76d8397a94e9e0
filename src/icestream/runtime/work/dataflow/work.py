"""Dataflows: one job per depth of components, in order, with parcels between them.

Idea: the shards of all components are numbered in one sequence, so that segments, arenas and
snapshots of a version are those of one list of shards. Later components read what a component sends
in the same version, at the same watermark. Components that do not send to each other are one job;
components that are fused for a version are one task, which passes changes in memory. Joins that
defer results get instructions to spill before a version. They clean up, leaves first: completely at
the end; a few partitions in versions without new events, and in every eighth version with events,
or in all while the index of what is on disk is large.

Invariants:
1. A version contains the work of all components or of none
   (`test_crash_between_two_components_leaves_nothing`).
2. Quotas add up to at most the budget, and memory goes to components that need it
   (`test_bounded_memory_goes_to_components_that_miss_some`).
3. Results do not depend on which components are fused in which version
   (`test_parity_fusions_that_flip_give_equal_results`).
4. A join with deferred results holds back the watermark of the components after it
   (`test_a_join_that_owes_results_holds_the_watermark_of_the_next`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from icestream.core.times import Micros
from icestream.operators.dataflow.component import ComponentOperator, SoleStepComponent
from icestream.operators.dataflow.join_step import JoinInstructions, JoinStores
from icestream.operators.dataflow.stores import ShardStores
from icestream.operators.multi_join.spill_strategies import SpillRanking
from icestream.operators.protocol import Operator, Shard
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.fuse.running_fusion import RunningFusion
from icestream.runtime.exchange.change_sender import ChangeTargets
from icestream.runtime.exchange.parcels import ParcelReader, Parcels
from icestream.runtime.version.quotas import least_quota, quotas
from icestream.runtime.version.task import ShardReport, ShardTask, ShardWork
from icestream.runtime.version.work import Arrivals, VersionContext, VersionResult, Work
from icestream.runtime.work.dataflow.ingest import DataflowIngest
from icestream.runtime.work.dataflow.memory_use import MemoryUse
from icestream.runtime.work.dataflow.spilling import JoinDecisions, by_join, decided, joins_report
from icestream.state.budget import buffers_in_turns
from icestream.state.files import Files, LocalFiles
from icestream.state.versions.commits import BEHIND, latest_of

#: part of the threshold of joins up to which spilled partitions return to memory
RETURN_BELOW = 0.75
#: maximum fraction of a shard's rows that leaves at once because the shard is full
FORCED = 0.1
#: versions after which joins clean up a few partitions although rows arrive
CLEAN_EVERY = 8


@dataclass(frozen=True)
class ComponentShard(ShardWork):
    """One component in one shard."""

    plan: Dataflow
    component: int
    version: int
    #: the latest time of an event
    now: Micros
    #: instructions for a join that may defer results
    orders: JoinInstructions = field(default_factory=JoinInstructions)

    @property
    def lifetimes(self) -> tuple[str, ...]:
        return self.plan.specs[self.component].lifetimes

    @property
    def views(self) -> int:
        return len(self.plan.views)

    def operator(self, space: Shard) -> Operator:
        """Open the component on the state of the shard."""
        spec = self.plan.specs[self.component]
        if spec.join is not None:
            joins = JoinStores(spec.join, space, self.orders)
            return ComponentOperator(spec, space, joins, self.now)
        if spec.sole is not None:
            return SoleStepComponent(spec, space, spec.sole.opened(space))
        stores = ShardStores(spec.groupings, space, self.plan.cold)
        return ComponentOperator(spec, space, stores, self.now)

    def inputs(self, reader: ParcelReader, shard: int) -> Parcels:
        """Return the changes that arrived on edges."""
        return Parcels(reader, shard)


class DataflowWork(Work):
    """Versions of a dataflow."""

    def __init__(self, plan: Dataflow) -> None:
        """Make versions of a plan whose memory was checked."""
        self._plan = plan
        #: bytes that any shard of a component needs
        self._least = least_quota(plan)

    def quota(self, context: VersionContext, shard: int) -> int:
        return self._quotas(context, self._instructions(context))[shard]

    def ordinals(self, shards: int) -> int:
        return shards * sum(len(spec.lifetimes) for spec in self._plan.specs)

    def ingest(self, context: VersionContext) -> DataflowIngest:
        return DataflowIngest(
            self._plan, context.version, context.watermark, self._sends(context, LocalFiles())
        )

    def run(self, context: VersionContext, arrived: Arrivals) -> VersionResult:
        """Run the components; those of equal depth run together."""
        paths, reached = arrived.paths, arrived.reached
        reports: list[ShardReport] = []
        instructions = self._instructions(context)
        clean_up = self._clean_up(context, instructions, idle=not paths)
        shares = self._quotas(context, instructions)
        fusion = self._fusion(context)
        latest = latest_of(arrived.seen)
        now = reached if latest is None else latest
        #: instant up to which the input of each component is complete, and then its output
        complete: dict[int, Micros] = {}
        behind: dict[int, Micros] = {}
        for wave in fusion.waves(self._plan.graph, context.shards):
            tasks: dict[int, list[ShardTask]] = {}
            for component in sorted({each for group, _ in wave for each in group}):
                if component not in complete:
                    complete[component] = self._complete(component, complete, reached)
                    if complete[component] < reached:
                        behind[component] = complete[component]
                orders = self._orders(
                    component, context, instructions, clean_up, complete[component]
                )
                tasks[component] = self._tasks(
                    component, context, paths, shares, orders, complete[component], now
                )
            together = [
                self._together(group, [tasks[component][shard] for component in group])
                for group, shard in wave
            ]
            done = [
                each
                for report in context.executor.run(together)
                for each in (report, *report.others)
            ]
            for report in done:
                join = report.statistics.get("join")
                if join is not None:
                    component = report.shard // context.shards
                    complete[component] = min(complete[component], join["watermark"])
            paths += [report.parcel for report in done if report.parcel is not None]
            reports += done
            groups = dict.fromkeys("+".join(map(str, group)) for group, _ in wave)
            context.note(f"component {', '.join(groups)}")
        reports.sort(key=lambda report: report.shard)
        made = self._made(context, reports, instructions, clean_up, shares, fusion)
        held_back = {
            str(component * context.shards + shard): instant
            for component, instant in behind.items()
            for shard in range(context.shards)
        }
        return replace(made, decisions={**made.decisions, BEHIND: held_back}) if behind else made

    def _together(self, group: tuple[int, ...], tasks: Sequence[ShardTask]) -> ShardTask:
        """Return the task of a shard in which the components of a group pass changes on."""
        hands = {
            number: group.index(edge.target)
            for number, edge in enumerate(self._plan.edges)
            if edge.origin in group and edge.target in group
        }
        return replace(tasks[0], fused=tuple(tasks[1:]), hands=hands)

    def _fusion(self, context: VersionContext) -> RunningFusion:
        """Return which components are fused in a version."""
        graph, before = self._plan.graph, context.before
        fusion = RunningFusion.begin(graph, context.shards)
        if before is not None and "fusion" in before.decisions:
            fusion = RunningFusion.from_json(before.decisions["fusion"])
        if context.fuse is not None:
            fusion = fusion.chosen(graph, context.fuse, self._plan.names, context.shards)
        return fusion

    def _tasks(
        self,
        component: int,
        context: VersionContext,
        paths: Sequence[str],
        shares: Sequence[int],
        orders: JoinInstructions,
        watermark: Micros,
        now: Micros,
    ) -> list[ShardTask]:
        shards, specs = context.shards, self._plan.specs
        first, lifetimes = component * shards, len(specs[component].lifetimes)
        ordinal = context.first_ordinal + shards * sum(
            len(spec.lifetimes) for spec in specs[:component]
        )
        work = ComponentShard(self._plan, component, context.version, now, orders)
        sends, parcels = self._sends(context, context.executor.parcel_files), tuple(paths)
        buffers = self._buffers(context, shares) if specs[component].lends_buffers else 0
        return [
            context.task(
                work=work,
                shard=shard,
                watermark=watermark,
                first_ordinal=ordinal + (shard - first) * lifetimes,
                quota=shares[shard],
                buffers=buffers,
                parcels=parcels,
                sends=sends,
            )
            for shard in range(first, first + shards)
        ]

    def _quotas(self, context: VersionContext, instructions: JoinDecisions) -> list[int]:
        """Return the bytes of each shard of each component; joins share theirs, and so do others.

        The first version, without measurements, divides only half of the memory: what a shard has
        taken it does not return.
        """
        shards, count = context.shards, context.shards * self._plan.jobs
        alike, least = context.budget // count, self._least
        first = context.before is None and self._plan.jobs > 1
        chosen = [max(least, alike // 2) if first else alike] * count
        if context.per_host:
            return chosen
        known = _holdings(context).of
        for holdings, spare in ((instructions.holdings, alike // 4), (known, alike // 2)):
            held = sum(max(least, spare, each.held) for each in holdings.values())
            if held > len(holdings) * alike:
                continue  # with less memory than before, shards that do not fit restart cold
            places = {divmod(shard, shards): held for shard, held in holdings.items()}
            found = quotas(len(places) * alike, places, max(least, spare))
            for (component, shard), quota in found.items():
                chosen[component * shards + shard] = quota
        return chosen

    def _buffers(self, context: VersionContext, shares: Sequence[int]) -> int:
        """Return the bytes for buffers of a shard whose component is a step with its own state."""
        shards = context.shards
        lenders = [
            share
            for component, spec in enumerate(self._plan.specs)
            for share in shares[component * shards : (component + 1) * shards]
            if spec.lends_buffers
        ]
        return buffers_in_turns(lenders, len(set(context.placement)))

    def _made(
        self,
        context: VersionContext,
        reports: list[ShardReport],
        instructions: JoinDecisions,
        clean_up: Mapping[int, tuple[int, ...]] | None,
        shares: Sequence[int],
        fusion: RunningFusion,
    ) -> VersionResult:
        """Return the results of the shards, and their next instructions."""
        holdings = MemoryUse.after(_holdings(context), reports, shares)
        rows = self._rows(reports, context.shards)
        decisions: dict[str, Any] = {
            "holdings": holdings.to_json(),
            "fusion": fusion.after(self._plan.graph, rows).to_json(),
        }
        facts = {**_facts(reports), **self._fused(fusion)}
        spilling = self._plan.spilling
        if spilling is not None:
            depths = {
                join: self._plan.depths[component]
                for join, component in self._plan.join_components.items()
            }
            news = decided(
                spilling, depths, reports, instructions, context.version, over=context.last
            )
            news = replace(news, turn_ended=instructions.turn_ended_after(clean_up))
            decisions |= {"joins": news.to_json(), "waiting": any(news.owing.values())}
            facts |= joins_report(reports, news)
        return VersionResult(reports, decisions, (), facts)

    def _rows(self, reports: Sequence[ShardReport], shards: int) -> list[list[int]]:
        """Return the number of changes that each shard sent on each edge between components."""
        return [
            [
                reports[edge.origin * shards + shard].statistics["sent"].get(number, 0)
                for shard in range(shards)
            ]
            for number, edge in enumerate(self._plan.edges)
            if edge.origin is not None
        ]

    def _fused(self, fusion: RunningFusion) -> dict[str, Any]:
        """Return which operators are fused, by name and by component, if they have names."""
        if not self._plan.names:
            return {}
        names = self._plan.names
        groups = fusion.groups(self._plan.graph)
        return {
            "fused": [[name for number in each for name in names[number]] for each in groups],
            "fusedComponents": list(map(list, groups)),
        }

    # -- joins that defer results ----------------------------------------------------------

    def _instructions(self, context: VersionContext) -> JoinDecisions:
        before = context.before
        if before is None or self._plan.spilling is None:
            return JoinDecisions()
        return JoinDecisions.from_json(before.decisions["joins"])

    def _clean_up(
        self, context: VersionContext, instructions: JoinDecisions, *, idle: bool
    ) -> Mapping[int, tuple[int, ...]] | None:
        """Return the partitions of each join that emit deferred results; None for all."""
        if context.flushing or context.is_history:
            return None
        flowing = instructions.hurried or context.version % CLEAN_EVERY == 0
        if flowing or (idle and not any(instructions.spill.values())):
            return by_join(instructions.turn())
        return {}

    def _orders(
        self,
        component: int,
        context: VersionContext,
        instructions: JoinDecisions,
        clean_up: Mapping[int, tuple[int, ...]] | None,
        watermark: Micros,
    ) -> JoinInstructions:
        join = self._plan.specs[component].join
        spilling = self._plan.spilling
        if join is None or spilling is None:
            return JoinInstructions()
        return JoinInstructions(
            instructions.spill.get(join.number, ()),
            None if clean_up is None else clean_up.get(join.number, ()),
            RETURN_BELOW * spilling.threshold,
            context.last,
            SpillRanking(
                spilling.strategy,
                min(FORCED, spilling.amount),
                instructions.results.get(join.number),
                instructions.kept.get(join.number),
                context.version,
            ),
            watermark,
        )

    def _complete(self, component: int, complete: Mapping[int, Micros], reached: Micros) -> Micros:
        """Return the instant up to which the input of a component is complete."""
        origins = [e.origin for e in self._plan.edges if e.target == component]
        return min((complete[each] for each in origins if each is not None), default=reached)

    def _sends(self, context: VersionContext, files: Files) -> ChangeTargets:
        edges = self._plan.edges
        targets = tuple(edge.target for edge in edges)
        by_arrival = tuple(n for n, edge in enumerate(edges) if edge.by_arrival)
        shards = context.shards
        return ChangeTargets(files, context.folder, context.routes, shards, targets, by_arrival)


def _holdings(context: VersionContext) -> MemoryUse:
    """Return what the previous version recorded about memory."""
    before = context.before
    return MemoryUse() if before is None else MemoryUse.from_json(before.decisions["holdings"])


def _facts(reports: Sequence[ShardReport]) -> dict[str, Any]:
    """Return the statistics of cold state and dropped edges, summed over the shards."""
    sums: dict[str, int] = {}
    for report in reports:
        for name, count in report.statistics.get("cold", {}).items():
            sums[name] = sums.get(name, 0) + count
    dropped = sum(report.statistics["dropped"] for report in reports)
    return {"coldState": sums, "endsWithoutStart": dropped}
