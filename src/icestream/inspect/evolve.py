"""Lets a checkpoint go on with a query that has changed, as a new version without rows.

Idea: `plan.evolution` decides what may change. Where state stays as it is, the version only names
the new plan; where aggregates are others, their state is written anew by the same machinery as a
rewrite by hand. One commit holds both, so a query that is killed meanwhile finds the old plan
with the old state, or the new one with the new state.

Invariants:
1. A change that is killed is done completely or not at all (`test_crash_every_step_of_a_change`).
2. Versions from before are still read with their own plan
   (`test_versions_from_before_a_change_are_read_as_they_were`).

Limits: state is written anew by the program that starts the query, one shard after the other.
"""

from __future__ import annotations

from functools import partial

from icestream.inspect.access.checkpoint import NotACheckpoint
from icestream.inspect.access.scratch_shard import MEMORY, restorable
from icestream.inspect.rewrite import MaintenanceVersion
from icestream.inspect.rewriting.evolved_groups import EvolvedAggregates
from icestream.inspect.rewriting.evolved_windows import EvolvedWindows
from icestream.inspect.state_rows import Reading
from icestream.plan.computation import Computation
from icestream.plan.evolution.rules import Evolution, evolution
from icestream.plan.state_schema import DataflowSchema, state_schema_of, written
from icestream.state.files import Files
from icestream.state.versions.commits import CHANGED_PLAN, REWRITTEN
from icestream.state.versions.ownership import Owner


def evolve(
    root: str, plan: Computation, files: Files | None = None, memory: int = MEMORY
) -> Evolution | None:
    """Make a checkpoint one of this plan; None if it is already, or if there is none yet.

    CheckpointError names what cannot change. The caller makes sure that no other query runs.
    """
    reading = Reading(root, memory=memory // 2, files=files)
    try:
        at = reading.checkpoint
    except NotACheckpoint:
        return None
    stored, schema = at.store.plan()
    found = evolution(root, stored, schema, plan)
    if found is None:
        return None
    plan = plan.as_stored(stored)
    described = plan.describe(), written(state_schema_of(plan))
    if not at.versions:
        at.store.take(Owner.here("a query that has changed"))
        at.store.change_plan(*described)
        return found
    commit, windows = reading.commit, None
    if found.windows is not None:
        windows = EvolvedWindows(*found.windows, commit)
        windows.check()
    made = MaintenanceVersion(reading, "a query that has changed")
    changes = {} if windows is None else dict.fromkeys(range(len(commit.bases)), windows.change)
    for number, before, after in found.aggregates:
        state = at.state_schema
        assert isinstance(state, DataflowSchema)
        shards = len(commit.bases) // len(state.components)
        change = EvolvedAggregates(before, after, state.options).change
        changes |= dict.fromkeys(range(number * shards, (number + 1) * shards), change)
    for shard, change in changes.items():
        made.change(shard, partial(change, restorable(at, commit, shard, reading.memory)))
    facts = {"changes": list(found.differences), "rows": made.rows}
    name = at.store.change_plan(*described)
    made.commit({"flush": True, REWRITTEN: facts, CHANGED_PLAN: name})
    return found
