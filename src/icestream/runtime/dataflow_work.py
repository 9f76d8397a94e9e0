"""Dataflows: one job per component, in order, with parcels between them.

Idea: the shards of all components are numbered through, so that segments, arenas and snapshots of a
version are those of one list of shards. What a component sends is read by later ones in the same
version, at the same watermark.

Invariant: a version is the work of all components or of none
(`test_crash_between_two_components_leaves_nothing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import format_bytes
from icestream.operators.dataflow.component import ComponentOperator
from icestream.operators.dataflow.stores import ShardStores
from icestream.operators.protocol import Emitted, Operator, Shard
from icestream.operators.slice_log import SLICE_BYTES
from icestream.plan.dataflow import Dataflow
from icestream.runtime.dataflow_ingest import DataflowIngest
from icestream.runtime.exchange import Parcels
from icestream.runtime.sending import Sends
from icestream.runtime.shard import ShardReport
from icestream.runtime.work import Executor, Made, Making, Parcel
from icestream.state.cold.targets import Load, Targets, targets
from icestream.state.files import Files, LocalFiles
from icestream.state.synopses.store import HEAP

#: least bytes of one shard of a component, and of each grouping in it that keeps something
LEAST_QUOTA = 16 * SLICE_BYTES
LEAST_SHARE = 8 * SLICE_BYTES


@dataclass(frozen=True)
class ComponentShard:
    """One component in one shard."""

    plan: Dataflow
    component: int
    #: bytes that each store is told to give up
    targets: Mapping[str, int]

    @property
    def lifetimes(self) -> tuple[str, ...]:
        """Return the lifetime classes of its segments."""
        return self.plan.specs[self.component].lifetimes

    @property
    def views(self) -> int:
        """Return the number of views of the dataflow."""
        return len(self.plan.views)

    def operator(self, space: Shard) -> Operator:
        """Open the component on the state of the shard."""
        spec = self.plan.specs[self.component]
        stores = ShardStores(spec.groupings, space, self.plan.cold, self.targets)
        return ComponentOperator(spec, space, stores)

    def inputs(self, files: Files, paths: Sequence[str], shard: int) -> Parcels:
        """Return the changes that came on edges."""
        return Parcels(files, paths, shard, 0)

    def emitted(self, rows: Iterator[Any]) -> Iterator[Emitted]:
        """Return rows and changes as they are."""
        return rows


class DataflowWork:
    """Versions of a dataflow."""

    def __init__(self, plan: Dataflow, shards: int, budget: int) -> None:
        """Refuse a budget that the components have no room in."""
        self._plan = plan
        kept = max(sum(map(bool, spec.groupings)) for spec in plan.specs)
        quota = max(LEAST_QUOTA, kept * LEAST_SHARE)
        least = shards * plan.jobs * quota
        if budget < least:
            msg = (
                f"memory of {format_bytes(budget)} is too small for {plan.jobs} components "
                f"of {shards} shards: each needs {format_bytes(quota)}. Give the query at "
                f"least {format_bytes(least)} with .memory(...), or fewer shards"
            )
            raise DefinitionError(msg)

    def ordinals(self, shards: int) -> int:
        """Return how many ordinals the shards of a version take."""
        return shards * sum(len(spec.lifetimes) for spec in self._plan.specs)

    def ingest(self, making: Making) -> DataflowIngest:
        """Return what every ingest task runs."""
        return DataflowIngest(
            self._plan, making.version, making.watermark, self._sends(making, LocalFiles())
        )

    def run(
        self,
        making: Making,
        executor: Executor[Any],
        parcels: Sequence[Parcel],
        seen: tuple[Micros | None, ...],
        reached: Micros,
    ) -> Made:
        """Run the components one after the other."""
        paths = [parcel.path for parcel in parcels if parcel.report.entries]
        reports: list[ShardReport] = []
        ordinal = making.first_ordinal
        before = making.before
        told = Targets.from_json(before.decisions["targets"]) if before else Targets({})
        for component, spec in enumerate(self._plan.specs):
            first, lifetimes = component * making.shards, len(spec.lifetimes)
            tasks = [
                making.task(
                    work=ComponentShard(self._plan, component, told.of(shard)),
                    shard=shard,
                    watermark=reached,
                    first_ordinal=ordinal + (shard - first) * lifetimes,
                    quota=making.budget // (making.shards * self._plan.jobs),
                    parcels=tuple(paths),
                    parcel_files=executor.parcel_files,
                    sends=self._sends(making, executor.parcel_files),
                )
                for shard in range(first, first + making.shards)
            ]
            done = executor.run(tasks)
            paths += [report.parcel for report in done if report.parcel is not None]
            reports += done
            ordinal += making.shards * lifetimes
            making.note(f"component {component}")
        decided = self._targets(reports, making.budget)
        return Made(reports, {"targets": decided.to_json()}, (), _facts(reports))

    def _targets(self, reports: Sequence[ShardReport], budget: int) -> Targets:
        """Return what the stores of all shards must give up in the next version."""
        loads = [
            replace(Load.from_json(each), shard=report.shard)
            for report in reports
            for each in report.statistics["loads"]
        ]
        policy = self._plan.cold.policy
        return targets(
            loads,
            int(HEAP * budget),
            threshold=policy.threshold,
            free=policy.free,
            rule=policy.targets,
        )

    def _sends(self, making: Making, files: Files) -> Sends:
        targets = tuple(edge.target for edge in self._plan.edges)
        return Sends(files, making.folder, making.routes, making.shards, targets)


def _facts(reports: Sequence[ShardReport]) -> dict[str, Any]:
    """Return what the shards tell of cold state, added up."""
    sums: dict[str, int] = {}
    for report in reports:
        for name, count in report.statistics.get("cold", {}).items():
            sums[name] = sums.get(name, 0) + count
    return {"coldState": sums}
