"""The windows of one key group on one node: an arena on the node's disk, and a log.

Idea: a node stores each of its key groups in a folder of its own, so that the data of a move can be
seen and timed. A group moves in one of two ways: *copied*, every byte of its files to the folder of
another node, or *handed over*: the log stays in place and only its markers are sent. The arena is
then renamed if both nodes share one disk, and rebuilt from the log otherwise. Files and folders for
it are created on the other node before, while this node still accepts rows.

Invariants:
1. However and whenever a group is moved, it emits what it would have emitted
   (`test_oracle_rows_are_those_of_an_undisturbed_run`).
2. A copy takes all files of the group, and leaves none behind
   (`test_a_copy_takes_every_byte_along`).
3. Files needed by neither windows nor a rebuild are removed
   (`test_bounded_files_of_a_group`).

Limits: copies are not synced; sync them before relying on them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fold import EntryRun
from icestream.operators.protocol import Emitted, PastVersion
from icestream.plan.nodes.queries import Plan
from icestream.runtime.version.shard_space import ShardSpace
from icestream.runtime.version.task import ShardTask
from icestream.runtime.work.windows.shard import WindowShard
from icestream.state.arena import Arena, remove
from icestream.state.budget import Budget
from icestream.state.files import PRIVATE_FILE, Files
from icestream.state.versions.commits import SEGMENTS, LiveSegment, is_base

ARENAS = "arenas"


@dataclass(frozen=True)
class FoldedInputs:
    """The folded rows of a key group: the inputs of its operator."""

    runs: Sequence[EntryRun] = ()

    def entries(self) -> Iterator[ExactRows]:
        """Yield tables of entries, each row with its pane first."""
        for run in self.runs:
            table = np.concatenate([run.panes[:, None], run.entries.table], axis=1)
            yield ExactRows(run.entries.layout, table)

    def leaving(self, family: int) -> Iterator[ExactRows]:
        """Yield nothing: panes are stored."""
        del family
        yield from ()

    def groups(self) -> Iterator[pa.Table]:
        """Yield the keys of the entries' groups."""
        for run in self.runs:
            yield run.keys

    def tuples(self) -> Iterator[pa.RecordBatch]:
        """Yield nothing: events are folded."""
        yield from ()


@dataclass(frozen=True)
class GroupProgress:
    """The progress of a key group, wherever it is."""

    version: int = 0
    #: watermark of the snapshot that `history` begins with
    base: Micros = MINUS_INFINITY
    #: versions since the last snapshot
    history: tuple[PastVersion, ...] = ()
    live: tuple[LiveSegment, ...] = field(default=())


class GroupState:
    """A key group that a node holds."""

    def __init__(
        self,
        plan: Plan,
        group: int,
        files: Files,
        folder: str,
        quota: int,
        *,
        log: str | None = None,
        progress: GroupProgress | None = None,
    ) -> None:
        """Start empty in a folder of a node; by default the log is there too."""
        self._work = WindowShard(plan)
        self._group = group
        self._files = files
        self._folder = folder
        self._log = folder if log is None else log
        self._quota = quota
        self._budget = Budget(quota)
        self._progress = progress or GroupProgress()
        self._arena: Arena | None = None

    @property
    def bytes(self) -> int:
        """Return the bytes of all files of the group."""
        return sum(os.path.getsize(path) for path in self._files_of())

    @property
    def files(self) -> int:
        """Return the number of files of the group."""
        return len(self._files_of())

    def run(self, inputs: FoldedInputs, watermark: Micros) -> list[Emitted]:
        """Process the inputs, advance the windows, and return the rows of those that close."""
        before = self._progress
        space = self._space(before.version + 1, watermark)
        operator = self._work.operator(space)
        operator.on_batch(inputs)
        rows = list(self._work.emitted(operator.on_watermark(watermark)))
        space.table.expire(watermark)
        past = PastVersion(before.version + 1, watermark, tuple(space.sealed))
        history = (past,) if operator.took_snapshot else (*before.history, past)
        base = watermark if operator.took_snapshot else before.base
        live = (
            *before.live,
            *(LiveSegment(self._group, past.version, *each) for each in space.sealed),
        )
        needed = tuple(
            each
            for each in live
            if each.version >= history[0].version
            or (not is_base(each.lifetime) and each.info.expiry > base)
        )
        for each in {*live} - {*needed}:
            self._files.unlink(f"{self._segments}/{each.info.name}")
        self._files.sync_files([f"{self._segments}/{info.name}" for _, info in space.sealed])
        self._progress = GroupProgress(past.version, base, history, needed)
        space.close()
        return rows

    def room_in(self, folder: str, *, with_log: bool) -> GroupState:
        """Return the group as it will continue in a folder of another node after its move.

        With its log it will be copied, without it handed over. No rows may come in between.
        """
        arenas = os.path.join(folder, ARENAS)
        if with_log:
            arena, segments = os.path.join(arenas, self._released_name), f"{folder}/{SEGMENTS}"
            for source, target in ((f"{self._folder}/{ARENAS}", arena), (self._segments, segments)):
                os.makedirs(target)
                for path in _files_in(source):
                    os.close(_opened_to_write(os.path.join(target, os.path.basename(path))))
        else:
            os.makedirs(arenas)
        return GroupState(
            self._work.plan,
            self._group,
            self._files,
            folder,
            self._quota,
            log=folder if with_log else self._log,
            progress=self._progress,
        )

    def copy_to(self, target: GroupState) -> None:
        """Copy every byte to the folder on another node."""
        name = self._released()
        pairs = [
            (f"{self._folder}/{ARENAS}/{name}", f"{target._folder}/{ARENAS}/{name}"),
            (self._segments, target._segments),
        ]
        for source, destination in pairs:
            for path in _files_in(source):
                _copy_file(path, os.path.join(destination, os.path.basename(path)))
        target._claim(name)

    def hand_over_to(self, target: GroupState, *, one_disk: bool) -> None:
        """Continue on another node with the log in place.

        On one disk the arena is renamed; else it is rebuilt from the log.
        """
        if one_disk:
            name = self._released()
            arena = f"{ARENAS}/{name}"
            os.rename(f"{self._folder}/{arena}", f"{target._folder}/{arena}")
            target._claim(name)
        else:
            self._discard()
            target._rebuild()

    def drop(self) -> None:
        """Remove all files of the group."""
        self._discard()
        for folder in {self._folder, self._log}:
            remove(folder)

    def leave(self) -> None:
        """Remove the node's files except for the log, which another node uses."""
        self._discard()
        remove(f"{self._folder}/{ARENAS}")

    def open(self) -> None:
        """Prepare to accept rows."""
        self._opened()

    def _space(self, version: int, watermark: Micros) -> ShardSpace:
        task = ShardTask(
            work=self._work,
            files=self._files,
            root=self._log,
            arenas=f"{self._folder}/{ARENAS}",
            shard=self._group,
            place=0,
            version=version,
            watermark=watermark,
            first_ordinal=version * len(self._work.lifetimes),
            quota=self._quota,
            arena=None,
            parcels=(),
            parcel_files=self._files,
        )
        return task.space(self._budget, self._opened(), uuid.uuid4().hex[:16])

    def _opened(self) -> Arena:
        if self._arena is None:
            account = self._budget.account("groups")
            self._arena = Arena.create(f"{self._folder}/{ARENAS}", account)
        return self._arena

    @property
    def _released_name(self) -> str:
        return f"group-{self._group}.v{self._progress.version}"

    def _released(self) -> str:
        """Release the arena for the next owner of the group; return its name."""
        self._opened().release(self._released_name)
        self._arena = None
        return self._released_name

    def _claim(self, name: str) -> None:
        account = self._budget.account("groups")
        self._arena = Arena.claim(f"{self._folder}/{ARENAS}", name, account)
        assert self._arena is not None, f"the arena {name} did not arrive"

    def _rebuild(self) -> None:
        space = self._space(self._progress.version, MINUS_INFINITY)
        operator = self._work.operator(space)
        space.learn(each for each in self._progress.live if each.shard == self._group)
        operator.restore(self._progress.history)
        space.close()

    def _discard(self) -> None:
        if self._arena is not None:
            self._arena.discard()
            self._arena = None

    @property
    def _segments(self) -> str:
        return f"{self._log}/{SEGMENTS}"

    def _files_of(self) -> list[str]:
        return [*_files_in(self._segments), *_files_in(f"{self._folder}/{ARENAS}")]


def _files_in(folder: str) -> list[str]:
    """Return all files in a folder and those below it."""
    return [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]


def _opened_to_write(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE)


def _copy_file(source: str, target: str) -> None:
    """Copy a file inside the operating system's kernel."""
    origin, copy = os.open(source, os.O_RDONLY), _opened_to_write(target)
    try:
        left = os.fstat(origin).st_size
        while left:
            left -= os.copy_file_range(origin, copy, left)
    finally:
        os.close(origin)
        os.close(copy)
