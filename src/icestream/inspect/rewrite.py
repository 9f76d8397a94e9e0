"""Writes edited rows of state back, as a new version of a stopped query.

Idea: this is the inverse of an export. A shard is restored in a scratch folder as for reading, and
whatever differs from the given rows is written to the log as a batch would write it (`rewriting`).
One commit changes all shards together: a maintenance version without output rows, from which the
query continues. The versions before it stay, so the change can be undone.

Invariants:
1. Rows that were exported and not edited change nothing
   (`test_rows_that_nobody_edited_make_no_version`).
2. After a rewrite the state is what was given, and the checkpoint verifies
   (`test_oracle_the_state_is_what_was_written`).
3. A query continues from it as if the rows had always been there
   (`test_oracle_a_query_goes_on_from_rewritten_groups`), and batches that its sink had not received
   are still delivered (`test_crash_a_batch_before_a_rewrite_is_delivered_after_it`).
4. A rewrite that is killed is done completely or not at all (`test_crash_every_step_of_a_rewrite`).
5. A running query is refused (`test_a_running_query_is_not_rewritten`); one that runs unnoticed can
   no longer commit (`test_a_query_that_runs_unnoticed_loses_to_a_rewrite`).

Cost: each shard is restored and read once; the log grows by the groups that differ, and for windows
by all panes or sessions of the shards that change.

Limits: groups, panes of windows on a grid, sessions, and waiting values can be rewritten; windows
and sessions only if they are alone in their query. Other state depends on events in ways that rows
do not show; build it again with `bootstrap`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pyarrow as pa

from icestream.core.errors import CheckpointError, DefinitionError
from icestream.inspect.access.adapter_protocol import StateTable
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.access.edited_rows import edited
from icestream.inspect.access.scratch_shard import ScratchShard, restorable
from icestream.inspect.adapters.dataflow import stored
from icestream.inspect.adapters.latest import WAITING
from icestream.inspect.adapters.window_parts import ObjectAggregateState, PaneState, SessionState
from icestream.inspect.adapters.windows import kept
from icestream.inspect.rewriting import panes
from icestream.inspect.rewriting.changes import Rewriter, ShardRewrite
from icestream.inspect.rewriting.groups import GroupRewriter
from icestream.inspect.rewriting.latest import WaitingRewriter
from icestream.inspect.rewriting.object_aggregates import ObjectRewriter
from icestream.inspect.rewriting.sessions import SessionRewriter
from icestream.inspect.state_rows import Reading
from icestream.plan.nodes.queries import Plan
from icestream.plan.state_schema import DataflowSchema, UpdateSchema
from icestream.runtime.version.history import running
from icestream.runtime.version.lease import Lease
from icestream.runtime.version.shard_space import SegmentTarget
from icestream.state.files import folder_of
from icestream.state.versions.attempts import new_attempt
from icestream.state.versions.commits import REWRITTEN, SEGMENTS, Commit, LiveSegment
from icestream.state.versions.idle import IdleBatches
from icestream.state.versions.live_segments import LiveSegments
from icestream.state.versions.ownership import Owner


@dataclass(frozen=True)
class Rewrite:
    """The result of a rewrite."""

    #: the new version; the existing one if nothing differs
    version: int
    operator: str
    kept: str
    #: number of groups whose rows changed, and of their rows
    groups: int
    rows: int
    #: bytes by which the log grew
    bytes: int


def rewrite(reading: Reading, rows: pa.Table, *, others: str = "drop") -> Rewrite:
    """Rewrite rows of one table of the newest version; commits a new version.

    Args:
        reading: chooses the table; its version must be the last.
        rows: columns of the table, as in an export. `__group` identifies the group of a row or,
            where that is null or absent, its key columns do.
        others: what happens to groups without a row: "drop" or "keep".
    """
    if others not in ("drop", "keep"):
        msg = f"others must be 'drop' or 'keep'; got {others!r}"
        raise DefinitionError(msg)
    check_stopped(reading.checkpoint)
    at, commit = reading.checkpoint, reading.commit
    if commit.version != at.versions[-1]:
        msg = (
            f"version {commit.version} is not the last: only version {at.versions[-1]} can be "
            "rewritten. Go back with `icestream state repair` first, or export the last"
        )
        raise CheckpointError(msg)
    if isinstance(at.state_schema, DataflowSchema) and at.state_schema.options.durability != "log":
        msg = "a query with durability 'evict' cannot be restored, so it cannot be rewritten"
        raise CheckpointError(msg)
    if len(reading.tables) != 1:
        there = ", ".join(f"{each.operator!r} {each.name!r}" for each in reading.tables)
        msg = f"choose one kind of rows by operator and kept; the kinds are: {there}"
        raise DefinitionError(msg)
    [table] = reading.tables
    rewriter = rewriter_of(reading, table, rows, keep=others == "keep")
    made = MaintenanceVersion(reading, "icestream state rewrite")
    for shard in filter(rewriter.concerns, table.shards):
        made.change(shard, rewriter.change)
    changed: dict[str, Any] = {"operator": table.operator, "kept": table.name}
    if not made.groups:
        return Rewrite(made.version - 1, **changed, groups=0, rows=0, bytes=0)
    changed |= {"groups": made.groups, "rows": made.rows}
    made.commit({"flush": True, REWRITTEN: changed})
    return Rewrite(made.version, **changed, bytes=made.bytes)


def rewriter_of(reading: Reading, table: StateTable, rows: pa.Table, *, keep: bool) -> Rewriter:
    """Return the rewriter of a table; raise an error if there is none."""
    state_schema, commit = reading.checkpoint.state_schema, reading.commit
    if isinstance(state_schema, DataflowSchema):
        stores = stored(state_schema, commit, table)
        return GroupRewriter(stores, edited(rows, table, commit), keep=keep)
    if isinstance(state_schema, Plan):
        return _window_rewriter(state_schema, commit, table, rows, keep=keep)
    if (
        isinstance(state_schema, UpdateSchema)
        and state_schema.windowed is None
        and table.name == WAITING
    ):
        return WaitingRewriter(state_schema, edited(rows, table, commit), keep=keep)
    msg = f"rows of {table.operator!r}, {table.name!r}, are derived and cannot be rewritten"
    raise CheckpointError(msg)


def _window_rewriter(
    plan: Plan, commit: Commit, table: StateTable, rows: pa.Table, *, keep: bool
) -> Rewriter:
    state = kept(plan, commit)
    if state is None or isinstance(state, PaneState):
        panes.check(plan, commit)
    assert state is not None
    if table.name != state.table.name:
        name = state.table.name
        msg = (
            f"open windows consist of {name}, and only these can be rewritten: export and "
            f"rewrite them with kept={name!r} (--kept {name})"
        )
        raise CheckpointError(msg)
    given = edited(rows, state.table, commit)
    if isinstance(state, SessionState):
        return SessionRewriter(state, commit.watermark, given, keep=keep)
    if isinstance(state, ObjectAggregateState):
        return ObjectRewriter(state, commit.watermark, given, keep=keep)
    return panes.PaneRewriter(plan, commit, given, keep=keep)


class MaintenanceVersion:
    """A version by hand: shards are changed one after the other, one commit changes all."""

    def __init__(self, reading: Reading, application: str) -> None:
        """Take the checkpoint over; CheckpointError if it has gone on since it was read."""
        self._reading = reading
        self._at: Checkpoint = reading.checkpoint
        self.version = reading.commit.version + 1
        taken = self._at.store.take(Owner.here(application))
        if taken.after != self.version - 1:
            msg = f"{self._at.root} is at version {taken.after} by now: export and edit again"
            raise CheckpointError(msg)
        self._attempt = new_attempt(taken.epoch)
        self._ordinals = count(reading.commit.next_ordinal)
        self._added: list[LiveSegment] = []
        self._changes: dict[int, ShardRewrite] = {}

    @property
    def groups(self) -> int:
        """Return the number of groups that changed."""
        return sum(each.groups for each in self._changes.values())

    @property
    def rows(self) -> int:
        """Return the number of rows that were written."""
        return sum(each.rows for each in self._changes.values())

    @property
    def bytes(self) -> int:
        """Return the bytes that were written."""
        return sum(each.info.bytes for each in self._added)

    def change(
        self, shard: int, changed: Callable[[ScratchShard], ShardRewrite | None]
    ) -> ShardRewrite | None:
        """Restore a shard, let it be changed, and keep what is written."""
        commit, memory, root = self._reading.commit, self._reading.memory, self._at.root
        target = SegmentTarget(
            self._at.files, root, lambda _: next(self._ordinals), self._attempt, durable=True
        )
        with restorable(self._at, commit, shard, memory, target) as source:
            change = changed(source)
            if change is not None:
                self._changes[shard] = change
                sealed = source.space.sealed
                self._added += [LiveSegment(shard, self.version, *each) for each in sealed]
        return change

    def commit(self, decisions: Mapping[str, Any], *, manifests: bool = False) -> Commit:
        """Commit the changes; with `manifests` of all shards, it needs no commit before it."""
        before, store, version = self._reading.commit, self._at.store, self.version
        self._at.files.sync_folder(f"{self._at.root}/{SEGMENTS}")
        waits = {"waiting": True} if any(e.waits for e in self._changes.values()) else {}
        stand_alone = {shard for shard, each in self._changes.items() if each.snapshot}
        bases = tuple(
            version if shard in stand_alone else base for shard, base in enumerate(before.bases)
        )
        commit = replace(
            before,
            version=version,
            epoch=store.epoch,
            batch=self._reached(before),
            added=tuple(self._added),
            released=tuple(
                (shard, n) for shard, each in self._changes.items() for n in each.released
            ),
            results=(),
            late=(),
            tables=(),
            bases=bases,
            horizon=before.watermark if min(bases) == version else before.horizon,
            next_ordinal=next(self._ordinals),
            decisions={**before.decisions, **waits, **decisions},
            live=None,
        )
        live = LiveSegments.at(store, before.version)
        live.advance(commit)
        commit, _ = live.write(store, commit, everything=manifests)
        store.create(commit)
        return commit

    def _reached(self, before: Commit) -> int | None:
        """Return the last batch, including batches without events."""
        idle = IdleBatches(self._at.files, self._at.root)
        idle.resume()
        reached = idle.reached(before)
        return None if reached < 0 else reached


def check_stopped(checkpoint: Checkpoint) -> None:
    """Refuse to rewrite the state of a query that runs."""
    if running(checkpoint.root) or running(folder_of(checkpoint.root)):
        msg = f"a query is running on {checkpoint.root}: stop it before you change its state"
        raise CheckpointError(msg)
    Lease(checkpoint.files, checkpoint.root).check()
