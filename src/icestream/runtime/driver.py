"""The driver's side of a version: ingest, fix the watermark, run the shards, commit, clean up.

Idea: the same steps run in one process or on Spark; an `Executor` runs the tasks. A version is
computed from the previous one and exists once its commit file does. It is committed when the rows
of the previous one have reached the sink, so at most one version is on its way there. A batch that
Spark repeats after its commit is not computed again: its result files are delivered again.

Invariants:
1. Killed anywhere and started again, the rows delivered are those of a run that never failed
   (`test_crash_every_step_of_a_run`).
2. A batch is counted in exactly one version (`test_a_batch_that_comes_again_is_delivered_again`).
3. Only the owner of a checkpoint commits and deletes; a driver that lost it names the new owner,
   whatever failed (`test_crash_a_second_driver_at_every_step_of_a_version`).

Cost: one commit file per version, and what changed since in the manifests of a 64th of the shards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from icestream.core.clock import Clock
from icestream.core.errors import BudgetError, CheckpointError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.plan.computation import Computation
from icestream.plan.evolution.rules import check_same_plan
from icestream.plan.fuse.running_fusion import Together
from icestream.plan.state_schema import state_schema_of, written
from icestream.runtime.elasticity import Elasticity, VersionShards
from icestream.runtime.tables.append_table import AppendTable
from icestream.runtime.tables.layout import TableLayout
from icestream.runtime.tables.sweep import sweep_table
from icestream.runtime.version.bulk_files import BulkFiles
from icestream.runtime.version.committing import commit_of, latest_times
from icestream.runtime.version.disk_use import DiskUse
from icestream.runtime.version.idle_sources import IdleSources
from icestream.runtime.version.lease import Lease
from icestream.runtime.version.progress import Timer, progress_of
from icestream.runtime.version.quotas import advised
from icestream.runtime.version.retention import SWEEP_EVERY, VersionRetention
from icestream.runtime.version.run_folders import new_run, remove_other_runs
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.task import ShardReport
from icestream.runtime.version.work import (
    Arrivals,
    Executor,
    Parcel,
    VersionContext,
    total,
)
from icestream.runtime.work.choice import work_of
from icestream.state.arena import remove, sweep
from icestream.state.files import Files
from icestream.state.stores.bucket import REPEATED, REQUESTS
from icestream.state.versions.commits import (
    EXCHANGE,
    LATEST_END,
    RESULTS,
    REWRITTEN,
    Commit,
    VersionStore,
    latest_of,
)
from icestream.state.versions.idle import IdleBatches
from icestream.state.versions.ownership import Owner, TakenOver
from icestream.state.versions.table_files import LATE_VIEW

Batch_contra = TypeVar("Batch_contra", contravariant=True)


@dataclass(frozen=True)
class Delivery:
    """A committed version with its output files."""

    commit: Commit
    #: paths of result files and files of late events
    results: tuple[str, ...]
    late: tuple[str, ...]
    #: True if the version was committed before and is delivered again
    again: bool
    progress: dict[str, Any] = field(default_factory=dict)


class Driver(Generic[Batch_contra]):
    """Runs versions of one query, one after the other."""

    def __init__(
        self,
        plan: Computation,
        settings: Settings,
        files: Files,
        executor: Executor[Batch_contra],
        clock: Clock | None = None,
        application: str = "a query",
        lease: Lease | None = None,
        tables: Sequence[AppendTable] = (),
    ) -> None:
        """Take the checkpoint; nothing is computed yet.

        An owner that loses the checkpoint is told the name of the `application`. The lease is held
        while this driver is open. Tasks write rows of some views, and refused rows, to `tables`.
        """
        self._plan = plan
        self._settings = settings
        self._files = files
        self._executor = executor
        self._clock = clock or plan.clock
        self.store = VersionStore(files, settings.root)
        stored, proposed = self.store.stored_plan(), plan
        self._plan = plan = plan.as_stored(stored or plan.describe())
        self._elasticity = Elasticity(plan, settings, executor)
        self._work = work_of(plan, files, settings)
        self._bulk_files = BulkFiles(files, executor.each, executor.later)
        self._versions = VersionRetention(self.store, self._bulk_files, settings.keep)
        self._idle = IdleBatches(files, settings.root)
        self._idle_sources = IdleSources(plan.sources, self._clock)
        self._lease = lease
        self._tables = tuple(tables)
        self._delivered: Micros | None = None
        #: when the last version was committed, and how much later the one before was delivered
        self._committed: Micros | None = None
        self._latency: Micros = 0
        #: waits until the sink has the version before, if sinks may trail by one
        self.await_sink: Callable[[], None] | None = None
        #: the last batch and the seconds it took, if the caller measures that
        self.trigger: tuple[int, float] | None = None
        #: operators that the user wants to fuse; None: as the previous version decided
        self._fuse: Together | None = None
        if plan.measured:
            self._fuse = "auto"
        # nothing is written for a query that is refused
        if stored is None:
            schema = written(state_schema_of(proposed))
            stored = self.store.remember_plan(proposed.describe(), schema)
        check_same_plan(settings.root, stored, plan.describe())
        self._take(Owner.here(application, clock))

    @property
    def paced(self) -> bool:
        """Return whether versions adapt to the time that batches take."""
        return self._plan.paced or self._elasticity.by_load

    @property
    def ticks(self) -> bool:
        """Return whether batches run even if no events arrive."""
        return self._settings.ticker

    @property
    def last(self) -> Commit | None:
        return self._versions.last

    def batch(self, number: int, batch: Batch_contra) -> list[Delivery]:
        """Compute a batch with Spark's number, or return again what was committed for it."""
        before = self._resumed()
        self._check_not_over(before)
        reached = self._idle.reached(before)
        if before is not None and number == before.batch:
            made = self._version_of_batch(before)
            return [self._delivery(made, again=True)] if made.batch == number else []
        if not reached <= number <= reached + 1:
            missing = self.store.next_before_takeover(before.version if before else 0)
            msg = (
                f"the checkpoint at {self._settings.root} has committed "
                f"{'no batch' if reached < 0 else f'batches up to {reached}'}, but Spark sends "
                f"batch {number}: the commit {missing} was removed before this start, or one of "
                "the two checkpoints was rolled back or belongs to another query. Restore the "
                "file or both checkpoints together, or start a new checkpoint"
            )
            raise CheckpointError(msg)
        computed = self._version(number, batch)
        return [] if computed is None else [computed]

    def bootstrap(self, history: Batch_contra) -> int:
        """Process events from before the first batch, emitting nothing; return their number.

        Rows of windows that close meanwhile are not delivered: they can be computed from history.
        """
        before = self._resumed()
        if before is not None and before.batch is not None:
            msg = (
                f"the checkpoint at {self._settings.root} has committed batches up to "
                f"{before.batch}: history must come before the first. Bootstrap a new checkpoint"
            )
            raise CheckpointError(msg)
        known = before.totals["events"] if before else 0
        self._version(None, history)
        return 0 if self.last is None else self.last.totals["events"] - known

    def flush(self) -> list[Delivery]:
        """Close every window that has an event, in a maintenance version.

        Once committed, it is delivered again until the next batch.
        """
        before = self._resumed()
        if before is None:
            return []
        latest = latest_of(before.seen)
        if latest is None:
            return []
        end = max(self._plan.settled_by(latest), before.decisions.get(LATEST_END, latest))
        is_flush = before.decisions["flush"] and REWRITTEN not in before.decisions
        if is_flush and end <= before.watermark:
            return [self._delivery(before, again=True)]
        if end <= before.watermark and not _waits(before):
            return []
        closed = self._version(None, None, flush=end)
        return [] if closed is None else [closed]

    def clean_up(self, *, last: bool = False) -> list[Delivery]:
        """Let joins emit all deferred results, in a maintenance version.

        With `last` the stream has ended: the state of joins is discarded, and no batch may follow.
        """
        before = self._resumed()
        if before is None or not (last or _waits(before)):
            return []
        self._check_not_over(before)
        cleaned = self._version(None, None, last=last)
        return [] if cleaned is None else [cleaned]

    def rescale(self, parallelism: int | tuple[int, int], shards: int | None = None) -> None:
        """Set the number of tasks that run the shards of each component, from the next version on.

        Given a minimum and a maximum, the load decides. If there are fewer shards than tasks, or
        their number is given, it changes: others are prepared while versions go on, from snapshots
        that the next version takes if some merge, until these take over.
        """
        self._elasticity.rescale(parallelism, shards)

    def fuse(self, together: Together) -> None:
        """Run some operators of a job in one task from the next version on, all others separately.

        Their state stays where it is. Operators that are partitioned differently are refused.
        """
        self._plan.check_fusion(together, self._elasticity.shards)
        self._fuse = together

    def maintained(self) -> list[Commit]:
        """Return the last versions, if for maintenance, that may not have been delivered yet."""
        chain = [] if self.last is None else self.store.before_rewrites(self.last)
        return [commit for commit in reversed(chain) if commit.decisions.get("flush")]

    def redeliver(self, commit: Commit) -> Delivery:
        """Return the output of a committed version, to deliver it again."""
        return self._delivery(commit, again=True)

    def last_again(self) -> list[Delivery]:
        """Return the output of the last version, to deliver it again; history has none."""
        last = self._resumed()
        made = None if last is None else self.store.before_rewrites(last)[-1]
        if made is None or (made.batch is None and not made.decisions["flush"]):
            return []
        return [self.redeliver(made)]

    def delivered(self) -> None:
        """Record that the rows of the last version have reached the sink."""
        self._delivered = self._clock.now()
        if self._committed is not None:
            self._latency = self._delivered - self._committed

    def close(self) -> None:
        """Remove the arenas and exchange files of this run, and let others start."""
        self._elasticity.stop()
        # whatever could not be removed the next start finds
        with contextlib.suppress(Exception):
            self._executor.await_later()
        remove(self._run)
        if self._lease is not None:
            self._lease.release()

    def tell_if_taken_over(self) -> None:
        """Raise TakenOver if that is why something failed; do nothing if that is not known."""
        try:
            self.store.check_owner()
        except TakenOver:
            raise
        except Exception:
            return

    # -- one version -----------------------------------------------------------------------

    def _version(
        self,
        number: int | None,
        batch: Batch_contra | None,
        flush: Micros = MINUS_INFINITY,
        *,
        last: bool = False,
    ) -> Delivery | None:
        """Compute and commit a version, unless this is a tick and there is nothing to do.

        An error after a takeover is reported as the takeover.
        """
        try:
            return self._computed(number, batch, flush, last=last)
        except Exception:
            self.tell_if_taken_over()
            raise

    def _computed(
        self, number: int | None, batch: Batch_contra | None, flush: Micros, *, last: bool
    ) -> Delivery | None:
        self._settled = False
        # else the parcels of this version might be removed with those of a failed attempt
        self._executor.await_later()
        before, timer = self.last, Timer(self._clock)
        version = before.version + 1 if before else 1
        watermark = before.watermark if before else MINUS_INFINITY
        emits = number is not None or batch is None
        shards = self._elasticity.next(before, self._versions.live, self.trigger)
        context = self._context(
            version,
            watermark,
            shards,
            timer,
            self._layouts(emits=emits),
            flushing=batch is None,
            last=last,
            is_history=batch is not None and number is None,
        )
        parcels: list[Parcel] = []
        try:
            if batch is not None:
                ingest = self._work.ingest(context)
                parcels = self._executor.ingest(ingest, batch, context.folder)
            timer.note("ingest")
            self._check_disk(parcels)
            known = before.seen if before else (None,) * len(self._plan.sources)
            seen = latest_times(known, parcels)
            active = {number for each in parcels for number in each.report.seen}
            passed = self._idle_sources.passed(seen, active)
            reached = max(self._plan.watermark(watermark, passed), flush)
            arrived = Arrivals(parcels, seen, reached, passed, self._idle_sources.silence)
            idle = batch is not None and not total(parcels, "rows")
            idle = idle and not _waits(before) and not self._work.is_due(before, arrived)
            if self._settings.ticker and idle:
                self._note_idle(number)
                self._settled = True
                return None
            made = self._work.run(context, arrived)
            timer.note("component")
            disk = self._disk_use(parcels, made.reports)
            disk.check(self._settings.disk)
        except BudgetError as error:
            failed, memory_of = error.shard, self._elasticity.memory_of
            raise advised(
                error,
                self._elasticity.budget,
                context.shards,
                lambda budget: self._work.quota(replace(context, budget=memory_of(budget)), failed),
            ) from error
        finally:
            self._remove_parcels(context.folder)
        if self.await_sink is not None:
            self.await_sink()
            timer.note("sinkWait")
        requests = Counter(commit=-REQUESTS.total(), repeated=-REPEATED.total())
        commit = commit_of(
            context,
            number if number is not None else self._reached(before),
            arrived,
            made,
            self._versions,
            ordinals=self._work.ordinals(context.shards),
            asked=self._settings.shards,
            epoch=self.store.epoch,
            emits=emits,
        )
        commit = self._versions.commit(commit, context.live)
        self._elasticity.made(shards, made.reports)
        timer.note("commit")
        requests["commit"] += REQUESTS.total()
        requests["cleaning"] -= REQUESTS.total() + self._bulk_files.requests
        self._committed = self._clock.now()
        # until it is known: the next version may begin before
        self._delivered = self._committed + self._latency
        self._versions.tidy(self._elasticity.reads)
        if version % SWEEP_EVERY == 0:
            self._sweep_tables()
        to_come = self._elasticity.arenas
        if to_come is not None:
            sweep(os.path.join(self._run, "arenas"), {*commit.arenas, *to_come})
        self._settled = True
        timer.note("tidy")
        requests["cleaning"] += REQUESTS.total() + self._bulk_files.requests
        requests["repeated"] += REPEATED.total()
        progress = progress_of(
            commit,
            parcels,
            made,
            self._versions.live,
            timer,
            budget=self._elasticity.budget,
            disk=(disk, self._settings.disk),
            jobs=self._plan.jobs,
            shards=self._elasticity.report,
            requests=requests,
            idle_sources=self._idle_sources.names,
        )
        return self._delivery(commit, again=False, progress=progress)

    def _layouts(self, *, emits: bool) -> tuple[TableLayout, ...]:
        """Return the tables that shards write to, and let ingest write refused rows."""
        layouts = [each.layout for each in self._tables] if emits else []
        late = [each for each in layouts if each.view == LATE_VIEW]
        stores_bad_rows = self._settings.refused is not None
        self._executor.refused = late[0] if late else None
        self._executor.refused_columns = self._settings.refused
        return tuple(each for each in layouts if stores_bad_rows or each not in late)

    def _context(
        self,
        version: int,
        watermark: Micros,
        shards: VersionShards,
        timer: Timer,
        tables: tuple[TableLayout, ...],
        *,
        flushing: bool,
        last: bool,
        is_history: bool,
    ) -> VersionContext:
        """Return the context of the version that is about to be made."""
        settings = self._settings
        folder = os.path.join(self._run, f"exchange-{version}-{uuid.uuid4().hex[:8]}")
        if settings.exchange_in_storage:
            folder = f"{settings.root}/{EXCHANGE}/{self.store.epoch:08d}"
        return VersionContext(
            version,
            shards.before,
            shards.live,
            watermark,
            shards.routes,
            self.last.next_ordinal if self.last else 0,
            self._elasticity.memory,
            shards.count,
            folder,
            self._executor,
            timer.note,
            partial(
                shards.task,
                files=self._files,
                root=settings.root,
                arenas=os.path.join(self._run, "arenas"),
                version=version,
                parcel_files=self._executor.parcel_files,
                codec=settings.codec,
                epoch=self.store.epoch,
                tables=tables,
                refused=settings.refused,
            ),
            shards.sizing,
            shards.placement,
            flushing,
            self._delivered,
            self.trigger,
            last,
            self._fuse,
            is_history,
            settings.per_host,
        )

    def _disk_use(self, parcels: Sequence[Parcel], reports: Sequence[ShardReport] = ()) -> DiskUse:
        """Return what the query takes on disk, with the files of the version in progress."""
        written = [
            info for parcel in parcels for info in (parcel.sent.late, parcel.sent.raw_events)
        ]
        for report in reports:
            written += [*(info for _, info in report.segments), report.result, report.refused]
        new = sum(info.bytes for info in written if info is not None)
        settings = self._settings
        return DiskUse.of(settings.root, self._versions.bytes + new, settings.local)

    def _check_disk(self, parcels: Sequence[Parcel]) -> None:
        """Refuse to go on if the parcels of a version leave too little disk."""
        if self._settings.disk is not None:
            self._disk_use(parcels).check(self._settings.disk)

    def _remove_parcels(self, folder: str) -> None:
        """Remove the parcels of a version, and those of failed attempts."""
        if not self._settings.exchange_in_storage:
            self._executor.later(partial(shutil.rmtree, folder, ignore_errors=True))
            return
        self._bulk_files.remove(self._bulk_files.sizes(folder))

    # -- resuming from the checkpoint ------------------------------------------------------

    def _take(self, owner: Owner) -> None:
        """Become the owner of the checkpoint, then clean up and resume from it."""
        settings = self._settings
        self._elasticity.resume(self.store.latest())
        left = self._versions.stored()
        epoch = self.store.take(owner).epoch
        self._executor.epoch = epoch
        #: arenas of other runs of this query are never trusted
        self._run = new_run(settings.local, epoch)
        remove_other_runs(self._run)
        if settings.exchange_in_storage:
            self._remove_earlier_parcels(epoch)
        self._resume(left)
        if self._lease is not None:
            self._lease.hold(epoch)

    def _resume(self, left: Mapping[str, int] | None = None) -> None:
        """Read the position of the checkpoint."""
        self._versions.resume(left)
        self._idle.resume()
        self._sweep_tables()
        self._settled = True

    def _sweep_tables(self) -> None:
        """Remove files of dead attempts from the tables."""
        if self._tables:
            recent = self.store.versions()[-SWEEP_EVERY - 1 :]
            commits = [self.store.load(version) for version in recent]
            for table in self._tables:
                sweep_table(table, commits, self.store.epoch)

    def _note_idle(self, number: int | None) -> None:
        """Record that a batch had no events, so that the next one does not look like a gap."""
        if number is not None:
            self.store.check_owner()
            self._idle.note(number, self.last, self.store.epoch)

    def _reached(self, before: Commit | None) -> int | None:
        """Return the last batch that was counted or had no events."""
        reached = self._idle.reached(before)
        return None if reached < 0 else reached

    def _resumed(self) -> Commit | None:
        """Return the last version; after a failure, read it from the checkpoint."""
        if not self._settled:
            self._resume()
        return self.last

    def _version_of_batch(self, last: Commit) -> Commit:
        """Return the version that computed the last batch of `last`."""
        while last.decisions["flush"]:
            last = self.store.load(last.version - 1)
        return last

    def _check_not_over(self, last: Commit | None) -> None:
        if last is not None and last.decisions.get("joins", {}).get("over"):
            msg = (
                f"the stream of the checkpoint at {self._settings.root} has ended and its state "
                "was discarded: start a new checkpoint for further events"
            )
            raise CheckpointError(msg)

    def _remove_earlier_parcels(self, epoch: int) -> None:
        """Remove the parcels of earlier runs from the checkpoint's storage."""
        folder = f"{self._settings.root}/{EXCHANGE}"
        for name in self._files.list(folder):
            if not name.isdigit():
                self._files.unlink(f"{folder}/{name}")
            elif int(name) < epoch:
                self._remove_parcels(f"{folder}/{name}")

    # -- delivery --------------------------------------------------------------------------

    def _delivery(
        self, commit: Commit, *, again: bool, progress: dict[str, Any] | None = None
    ) -> Delivery:
        if again:
            # its files exist as long as we own the checkpoint
            self.store.check_owner()
        folder = f"{self._settings.root}/{RESULTS}"
        return Delivery(
            commit,
            tuple(f"{folder}/{info.name}" for info in commit.results),
            tuple(f"{folder}/{info.name}" for info in commit.late),
            again,
            progress or {},
        )


def _waits(last: Commit | None) -> bool:
    """Return whether a version left work for later ones."""
    return last is not None and bool(last.decisions.get("waiting"))
