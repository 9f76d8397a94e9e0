"""One task of a component: open a version of a shard, process a batch, move the watermark, write.

Idea: everything durable is written under names of this attempt; the commit decides which attempt
counts. The arena of the previous version is claimed by renaming it; if it is gone, the shard is
rebuilt from the log, so a failed or repeated attempt costs only time. Shards of fused components
run in one task, each on its own state; what one sends, the next processes at once. Shards that run
one after the other in a task are synced together, at its end; to a store, what the first of them
wrote is sent while the last ones run, so that the task waits for little.

Invariants:
1. An attempt changes no file that another attempt or version can see, except by claiming an arena
   (`test_crash_every_step_of_a_run`).
2. The quota bounds arena, tables and buffers together, even while rebuilding
   (`test_bounded_state_of_ten_times_the_budget`).
3. All files that reports name are durable when `run_all` returns
   (`test_crash_every_step_of_a_run`, `test_crash_runs_notice_what_was_not_synced`), also what was
   sent early (`test_crash_a_query_in_a_store`) or synced early
   (`test_large_segments_are_synced_while_rows_are_computed`).
4. Rows and state do not depend on how a task is cut into parts
   (`test_a_task_sends_what_its_first_shards_wrote_while_the_others_run`).

Cost, in a store: two objects for each part of a task. A part has `PART_BYTES`, but for the last.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import pyarrow as pa

from icestream.core.errors import BudgetError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.bad_rows import BadRows
from icestream.operators.dataflow.component import Fusible
from icestream.operators.lineage import ShardLineage
from icestream.operators.protocol import Emitted, Operator, Resting, Shard
from icestream.runtime.exchange.change_sender import ChangeSender, ChangeTargets
from icestream.runtime.exchange.parcels import ParcelReader
from icestream.runtime.exchange.refused_rows import Quarantine
from icestream.runtime.tables.layout import TableLayout
from icestream.runtime.tables.writer import TableWriters
from icestream.runtime.version.process_memory import base as process_base
from icestream.runtime.version.process_memory import measured as measured_process
from icestream.runtime.version.row_files import EMITTED, REFUSED, RowFiles
from icestream.runtime.version.shard_space import SegmentTarget, ShardSpace
from icestream.state.arena import Arena
from icestream.state.budget import Budget, BudgetInTurns, Refused, shortage
from icestream.state.files import Files, LocalFiles
from icestream.state.log.format import SegmentInfo
from icestream.state.mapping_cache import KEPT
from icestream.state.snapshot_schedule import When, schedule_all, stagger_all
from icestream.state.stores.bucket import REPEATED, REQUESTS
from icestream.state.validation import validated
from icestream.state.versions.attempts import new_attempt
from icestream.state.versions.commits import RESULTS, SEGMENTS, VersionStore
from icestream.state.versions.table_files import LATE_VIEW, TableFile

#: bytes that are worth two requests of their own
PART_BYTES = 4 << 20
#: bytes that are sent whatever other shards write
_ENOUGH = 8 * PART_BYTES
#: parts that a task sends at the same time
_PARTS_AT_ONCE = 4
#: bytes of a segment on a disk that is synced while rows are computed
EARLY_BYTES = 4 << 20


@dataclass(slots=True)
class ShardReport:
    """What a shard reports to the driver: the names of its files, and numbers."""

    shard: int
    arena: str
    segments: list[tuple[str, SegmentInfo]]
    #: rows of each view
    rows: list[int]
    snapshot: bool
    rebuilt: bool
    #: ordinals of segments that are no longer needed, before their expiry
    released: tuple[int, ...] = ()
    #: the parcel of changes for other components
    parcel: str | None = None
    statistics: dict[str, Any] = field(default_factory=dict)
    #: whether other shards may go on from it while it writes further versions
    follows: bool = False
    #: the watermark before which it has nothing to do, unless there are entries for it
    rests_until: Micros = MINUS_INFINITY
    #: reports of the shards fused with this one, whose seconds include theirs
    others: tuple[ShardReport, ...] = ()
    #: what the task of this shard wrote, if this is the first of its shards, for tables; and what
    #: it wrote of rows without a table, emitted and refused, if it is the first of its part
    tables: tuple[TableFile, ...] = ()
    result: SegmentInfo | None = None
    refused: SegmentInfo | None = None

    @property
    def segment_bytes(self) -> int:
        """Return the bytes of the segments, with those of the shards fused with this one."""
        own = sum(info.bytes for _, info in self.segments)
        return own + sum(each.segment_bytes for each in self.others)

    def written(self, root: str) -> Iterator[str]:
        """Yield the paths of all durable files, in the checkpoint at `root`."""
        for _, info in self.segments:
            yield f"{root}/{SEGMENTS}/{info.name}"
        for rows in (self.result, self.refused):
            if rows is not None:
                yield f"{root}/{RESULTS}/{rows.name}"
        for other in self.others:
            yield from other.written(root)


class ShardWork(Protocol):
    """What a shard computes: pure data, sent to the task."""

    @property
    def lifetimes(self) -> tuple[str, ...]:
        """Return the lifetime classes of its segments, in the order of their ordinals."""
        ...

    @property
    def views(self) -> int:
        """Return the number of views whose rows it emits."""
        ...

    def operator(self, space: Shard) -> Operator:
        """Open the operator on the state of the shard."""
        ...

    def inputs(self, reader: ParcelReader, shard: int) -> Any:
        """Return the data from the exchange, in the form the operator expects."""
        ...

    def emitted(self, rows: Iterator[Any]) -> Iterator[Emitted]:
        """Return the operator's output as rows of views and changes for other shards."""
        return rows


@dataclass(frozen=True, slots=True)
class ShardTask:
    """What one shard has to do in a version."""

    work: ShardWork
    files: Files
    root: str
    #: folder of arenas on the local disk
    arenas: str
    shard: int
    #: number of the task that runs it, possibly with others
    place: int
    version: int
    watermark: Micros
    first_ordinal: int
    #: bytes this shard may hold
    quota: int
    #: arena that the previous version names; None if there is no previous version
    arena: str | None
    #: parcels of this batch, and where they are
    parcels: tuple[str, ...]
    parcel_files: Files
    #: bytes for buffers that shards of the task hold in turns; 0 if they are part of the quota
    buffers: int = 0
    #: arenas that the previous version names, of all shards
    named: tuple[str, ...] = ()
    codec: str | None = None
    #: the epoch of the driver, which is part of the names of all files
    epoch: int = 0
    #: tables that rows of some views go to
    tables: tuple[TableLayout, ...] = ()
    #: columns of stored rows that steps refuse; None if these end the query
    refused: pa.Schema | None = None
    #: its key groups, if other shards had them in the previous version
    lineage: ShardLineage | None = None
    #: the version of the arena, if it is older than the previous one
    stands_at: int | None = None
    #: whether the version ends with a snapshot: other shards go on from one, or are doing so
    snapshot: When = "due"
    #: for how many versions it rested on the arena, and the watermark that they reached
    rested: int = 0
    rested_at: Micros = MINUS_INFINITY
    #: number of tasks of the version
    places: int = 1
    #: where changes for other components go; None if there are none
    sends: ChangeTargets | None = None
    #: fused shards of other components, each after those that send to it, which run in this one
    fused: tuple[ShardTask, ...] = ()
    #: for each edge inside the fusion, the place of its target among these shards
    hands: Mapping[int, int] = field(default_factory=dict)

    def run(self, reader: ParcelReader, past: VersionStore, outputs: TaskFiles) -> ShardReport:
        """Run this shard, together with the shards of other components that are fused with it.

        Files are durable only once they are synced; those of tables and rows are still open.
        """
        started = time.thread_time()
        opened: list[OpenShard] = []
        try:
            for task in (self, *self.fused):
                opened.append(OpenShard(task, reader, past, outputs))
            for each in opened:
                for view, batch in each.emitted():
                    self._hand_on(each, view, batch, opened)
            others = tuple(each.finish(0.0) for each in opened[1:])
            return opened[0].finish(time.thread_time() - started, others)
        except BaseException as error:
            for each in opened:
                each.discard()
            if isinstance(error, BudgetError):
                # shards that are fused have parts of about the same size
                error.shard = self.shard
            raise

    def _hand_on(
        self, origin: OpenShard, view: int, batch: pa.RecordBatch, opened: Sequence[OpenShard]
    ) -> None:
        """Write what a shard emits, or pass it to the fused shard that it is for."""
        if isinstance(batch, BadRows):
            origin.quarantine.take(batch)
            return
        target = self.hands.get(-1 - view)
        origin.count(view, batch)
        if target is None:
            origin.write(view, batch)
            return
        for further, made in opened[target].take(-1 - view, batch):
            self._hand_on(opened[target], further, made, opened)

    def budget(self) -> Budget:
        """Return what the shard may hold while it runs."""
        return BudgetInTurns(self.quota, self.buffers) if self.buffers else Budget(self.quota)

    def open_arena(self, budget: Budget) -> tuple[Arena, bool]:
        """Return the arena of the previous version, or an empty one that must be rebuilt."""
        account = budget.account("groups")
        if self.arena is not None:
            try:
                claimed = Arena.claim(self.arenas, self.arena, account)
            except Refused:
                claimed = None
            if claimed is not None:
                return claimed, False
        return Arena.create(self.arenas, account), self.arena is not None

    def space(
        self,
        budget: Budget,
        arena: Arena,
        attempt: str,
        sealed: Callable[[str, int], None] | None = None,
    ) -> ShardSpace:
        """Return what the operator of the shard works with; its segments are synced later."""
        first, lifetimes = self.first_ordinal, self.work.lifetimes
        target = SegmentTarget(
            self.files,
            self.root,
            lambda name: first + lifetimes.index(name),
            attempt,
            self.codec,
            sealed=sealed,
        )
        return ShardSpace(target, budget, arena)

    def prepare(self) -> str:
        """Bring an arena to the previous version, beside other shards; return its name."""
        budget, attempt = self.budget(), new_attempt(self.epoch)
        arena, rebuilt = self.open_arena(budget)
        try:
            space = self.space(budget, arena, attempt)
            operator = self.work.operator(space)
            self.restore(operator, space, VersionStore(self.files, self.root), fresh=rebuilt)
            space.close()
            name = f"shard-{self.shard}.v{self.version - 1}.{attempt}"
            arena.release(name)
        except BaseException:
            arena.discard()
            raise
        return name

    def restore(
        self, operator: Operator, space: ShardSpace, past: VersionStore, *, fresh: bool = True
    ) -> None:
        """Restore the state of the previous version, into an empty arena or an older one."""
        last = past.load(self.version - 1)
        lineage = self.lineage or ShardLineage.of(last.routes, self.shard)
        live = lineage.segments(past, last)
        space.learn(live)
        with validated(past.path(last.version)):
            # parents have snapshots of the same version
            first = max(1, last.bases[lineage.shards(last.routes)[0]])
            if self.stands_at is not None and not fresh:
                first = self.stands_at + 1
            commits = map(past.load, range(first, self.version))
            operator.restore(lineage.history(commits, live))


def run_all(tasks: Sequence[ShardTask]) -> list[ShardReport]:
    """Run the shards of one task one after the other, and make all their files durable."""
    if not tasks:
        return []
    first, reports = tasks[0], list[ShardReport]()
    process_base()
    requests, repeated = REQUESTS.total(), REPEATED.total()
    past = VersionStore(first.files, first.root)
    outputs = TaskFiles(tasks)
    try:
        for paths, alike in groupby(tasks, key=lambda task: task.parcels):
            with closing(ParcelReader(first.parcel_files, paths)) as reader:
                for task in alike:
                    reports.append(task.run(reader, past, outputs))
                    outputs.add(reports[-1])
        reports[0].tables = outputs.finish()
    except BaseException:
        outputs.abandon()
        raise
    finally:
        KEPT.prune()
    reports[0].statistics["requests"] = REQUESTS.total() - requests
    reports[0].statistics["repeated"] = REPEATED.total() - repeated
    promised = sum(each.quota for task in tasks for each in (task, *task.fused))
    reports[0].statistics["process"] = measured_process(promised)
    return reports


class TaskFiles:
    """What the shards of one task write; in stores parts of it are sent while others run.

    The files of an attempt are one object for segments and one for rows, so each part is an attempt
    of its own. Files on disks are one part, synced at the end; the disk begins with large segments
    as soon as they are written.
    """

    def __init__(self, tasks: Sequence[ShardTask]) -> None:
        """Write nothing yet."""
        self._task = first = tasks[0]
        self._left = len(tasks)
        self._packs: bool = getattr(first.files, "packs", False)
        self._senders = ThreadPoolExecutor(_PARTS_AT_ONCE, "icestream-part")
        self._sent: list[Future[None]] = []
        #: paths that are synced before the end
        self._early: set[str] = set()
        self.tables = TableWriters(first.tables, first.version, first.place, first.epoch)
        self._begin()

    def _begin(self) -> None:
        task = self._task
        self.attempt = new_attempt(task.epoch, packed=self._packs)
        name = f"{task.version:012d}-{task.shard}-{self.attempt}"
        self.rows = RowFiles(task.files, task.root, name, task.shard, task.codec)
        self._part: list[ShardReport] = []
        self._segment_bytes = 0

    def sealed(self, path: str, size: int) -> None:
        """Begin to sync a large segment on a disk, for which the end of the task would wait."""
        if not self._packs and size >= EARLY_BYTES:
            self._early.add(path)
            self._send([path])

    def add(self, report: ShardReport) -> None:
        """Take the report of a shard, whose segments are closed; send what waits if that pays.

        It does once the shards left are expected to write half as much: the task waits for that.
        """
        self._part.append(report)
        self._left -= 1
        self._segment_bytes += report.segment_bytes
        waits = self._segment_bytes + self.rows.bytes
        few_left = 2 * self._left <= len(self._part) or waits >= _ENOUGH
        if self._packs and self._left and waits >= PART_BYTES and few_left:
            self._send(self._end_part())
            self._begin()

    def finish(self) -> tuple[TableFile, ...]:
        """Close all files, make them durable and return those of tables."""
        task, tables = self._task, tuple(self.tables.finish())
        own = [path for path in self._end_part() if path not in self._early]
        of_tables = self.tables.written
        if self._packs:
            self._send(own)
            own = []
        for layout in task.tables:
            paths = of_tables.get(layout.folder, [])
            if isinstance(task.files, LocalFiles) and isinstance(layout.files, LocalFiles):
                own = own + paths
            else:
                layout.files.sync_files(paths)
        task.files.sync_files(own)
        for sent in self._sent:
            sent.result()
        self._senders.shutdown()
        return tables

    def abandon(self) -> None:
        """Remove what is not durable yet; what was sent goes with the next sweep."""
        self._senders.shutdown(cancel_futures=True)
        self.tables.abandon()
        self.rows.abandon()

    def _end_part(self) -> list[str]:
        """Close the files of rows, report them, and return the paths of this part."""
        made = self.rows.finish()
        self._part[0].result, self._part[0].refused = made.get(EMITTED), made.get(REFUSED)
        return [path for each in self._part for path in each.written(self._task.root)]

    def _send(self, paths: list[str]) -> None:
        self._sent.append(self._senders.submit(self._task.files.sync_files, paths))


class OpenShard:
    """A running shard: its arena, its operator, and the files that it writes."""

    def __init__(
        self, task: ShardTask, reader: ParcelReader, past: VersionStore, outputs: TaskFiles
    ) -> None:
        """Open the previous version and process the data from the exchange."""
        self._task = task
        self._tables = outputs.tables
        self._row_files = outputs.rows
        self._attempt = attempt = outputs.attempt
        self._budget = task.budget()
        self._arena, self._rebuilt = task.open_arena(self._budget)
        self._released = False
        try:
            self._space = task.space(self._budget, self._arena, self._attempt, outputs.sealed)
            self._operator = task.work.operator(self._space)
            behind = task.stands_at is not None
            if self._rebuilt or behind:
                task.restore(self._operator, self._space, past, fresh=self._rebuilt)
            if self._rebuilt or behind or task.arena is None:
                stagger_all(self._arena.header, task.shard)
            if task.rested and not self._rebuilt:
                assert isinstance(self._operator, Resting)
                self._operator.rested(task.rested, task.rested_at)
            schedule_all(self._arena.header, task.snapshot)
            self._operator.on_batch(task.work.inputs(reader, task.shard))
        except Refused as refused:
            self.discard()
            raise shortage(self._budget, refused) from refused
        except BaseException:
            self.discard()
            raise
        self._rows = [0] * task.work.views
        #: changes by edge, for other components and for those fused with this one
        self._sent: Counter[int] = Counter()
        self.quarantine = Quarantine(task.refused, self._refuse)
        name = f"{task.shard}-{attempt}"
        self._sending = None if task.sends is None else ChangeSender(task.sends, name)

    def emitted(self) -> Iterator[Emitted]:
        """Yield what the shard emits up to the watermark."""
        rows = self._operator.on_watermark(self._task.watermark)
        return self._inside(self._task.work.emitted(rows))

    def take(self, edge: int, changes: pa.RecordBatch) -> Iterator[Emitted]:
        """Yield what the shard emits for changes from a shard fused with it."""
        assert isinstance(self._operator, Fusible)
        return self._inside(self._operator.take(edge, changes))

    def count(self, view: int, batch: pa.RecordBatch) -> None:
        """Count rows of a view or changes on an edge."""
        if view < 0:
            self._sent[-1 - view] += batch.num_rows
        else:
            self._rows[view] += batch.num_rows

    def write(self, view: int, batch: pa.RecordBatch) -> None:
        """Write rows to the view's table, or to one file for all views without; changes apart."""
        if view < 0:
            assert self._sending is not None
            self._sending.take(-1 - view, batch)
            return
        if not self._tables.write(view, batch):
            self._row_files.write(EMITTED, batch, view)

    def _refuse(self, rows: pa.RecordBatch) -> None:
        """Write refused rows to their table, or to a file."""
        if not self._tables.write(LATE_VIEW, rows):
            self._row_files.write(REFUSED, rows)

    def finish(self, seconds: float, others: tuple[ShardReport, ...] = ()) -> ShardReport:
        """Close all files, release the arena, and return the report."""
        task, operator, space = self._task, self._operator, self._space
        parcel = None if self._sending is None else self._sending.finish()
        space.table.expire(task.watermark)
        space.table.forget(operator.released)
        name = f"shard-{task.shard}.v{task.version}.{self._attempt}"
        report = ShardReport(
            task.shard,
            name,
            space.sealed,
            self._rows,
            operator.took_snapshot,
            self._rebuilt,
            operator.released,
            parcel,
            {
                **operator.statistics,
                "memory_bytes": self._budget.charged(self._budget.held),
                "peak_bytes": self._budget.charged(self._budget.peak),
                "seconds": seconds,
                "sent": dict(self._sent),
                "bad_rows": self.quarantine.count,
            },
            others=others,
            follows=getattr(operator, "follows", False),
            rests_until=getattr(operator, "rests_until", MINUS_INFINITY),
        )
        space.close()
        self._released = True
        self._arena.release(name)
        return report

    def discard(self) -> None:
        """Remove the arena after a failure; a released one is swept unless a commit names it."""
        if not self._released:
            self._arena.discard()

    def _inside(self, emitted: Iterator[Emitted]) -> Iterator[Emitted]:
        """Yield what is emitted; if memory runs out, add the holders of memory to the error."""
        try:
            yield from emitted
        except Refused as refused:
            raise shortage(self._budget, refused) from refused
