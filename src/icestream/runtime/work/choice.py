"""Which work makes the versions of a plan."""

from __future__ import annotations

from icestream.plan.computation import Computation
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.nodes.queries import Plan
from icestream.plan.nodes.updates import Updates
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.work import Work
from icestream.runtime.work.dataflow.work import DataflowWork
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
