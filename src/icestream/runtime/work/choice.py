"""Which work makes the versions of a plan, and the memory that it needs at least."""

from __future__ import annotations

from icestream.plan.computation import Computation
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.grid.parts import parts_of
from icestream.plan.nodes.queries import Plan
from icestream.plan.nodes.updates import Updates
from icestream.runtime.version.settings import LEAST_QUOTA, Settings
from icestream.runtime.version.work import Work
from icestream.runtime.work.dataflow.work import DataflowWork, least_quota
from icestream.runtime.work.latest.work import UpdatesWork
from icestream.runtime.work.windows.work import WindowWork
from icestream.state.files import Files


def work_of(plan: Computation, files: Files, settings: Settings) -> Work:
    """Return the work with which the driver makes versions of a plan."""
    if isinstance(plan, Updates):
        return UpdatesWork(plan)
    if isinstance(plan, Dataflow):
        return DataflowWork(plan)
    assert isinstance(plan, Plan)
    return WindowWork(plan, files, settings.root)


def least_memory(plan: Computation) -> int:
    """Return the bytes that one shard of every component of a plan needs, whatever its work is."""
    if isinstance(plan, Dataflow):
        return plan.jobs * least_quota(plan)
    return kinds_of_windows(plan) * LEAST_QUOTA


def kinds_of_windows(plan: Computation) -> int:
    """Return how many operators of windows each shard of a plan has."""
    return sum(part.windows for part in parts_of(plan)) if isinstance(plan, Plan) else 1
