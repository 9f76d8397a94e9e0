"""A shard of a checkpoint, restored in a scratch folder: it reads the checkpoint, writes elsewhere.

Idea: a restored operator works as in its query. Its arena and every file it creates are in a
temporary folder; files are read from there first, then from the checkpoint.

Invariants:
1. Nothing under the checkpoint is created, changed or removed, unless the caller sets a target for
   segments (`test_looking_changes_no_byte`).
2. A restored shard stays within its memory budget
   (`test_bounded_a_small_budget_is_named_with_what_it_needs`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from icestream.core.errors import StorageError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.operators.lineage import ShardLineage
from icestream.operators.protocol import Operator, PastVersion
from icestream.plan import lower
from icestream.plan.nodes.queries import Plan
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused, shortage
from icestream.state.files import Files, LocalFiles, NewFile, OpenFile
from icestream.state.log.format import SegmentInfo
from icestream.state.log.reader import Log, SegmentReader
from icestream.state.log.segments import SegmentTable, segment_name
from icestream.state.log.writer import SegmentWriter
from icestream.state.versions.commits import SEGMENTS, Commit, is_base

Kind = TypeVar("Kind", bound=Operator)

#: bytes that reading may use by default
MEMORY = 256 << 20
#: name of the segments that are written meanwhile
_ATTEMPT = "0" * 16


class ScratchFiles:
    """`Files` over read-only files: new files are in a separate folder."""

    def __init__(self, files: Files, folder: str) -> None:
        """Read from `files`, write to `folder`."""
        self._files = files
        self._folder = folder
        self._local = LocalFiles()

    def create(self, path: str) -> NewFile:
        return self._local.create(self._own(path))

    def open(self, path: str) -> OpenFile:
        """Open a file of the scratch folder, or else of the read-only files."""
        own = self._own(path)
        return self._local.open(own) if os.path.exists(own) else self._files.open(path)

    def read(self, path: str) -> bytes:
        file = self.open(path)
        try:
            return file.read_at(0, file.size)
        finally:
            file.close()

    def put(self, path: str, data: bytes) -> bool:
        """Refuse: reading commits nothing."""
        del data
        raise self._refusal(path)

    def rename(self, source: str, target: str) -> None:
        """Refuse."""
        del source
        raise self._refusal(target)

    def unlink(self, *paths: str) -> None:
        """Remove files of the scratch folder; refuse any other."""
        for path in paths:
            if not os.path.exists(self._own(path)):
                raise self._refusal(path)
            self._local.unlink(self._own(path))

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder of the read-only files."""
        return self._files.list(folder)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._own(path)) or self._files.exists(path)

    def sync_folder(self, folder: str) -> None:
        """Do nothing: scratch files need not survive."""

    def sync_files(self, paths: Collection[str]) -> None:
        """Do nothing: scratch files need not survive."""

    def _own(self, path: str) -> str:
        return os.path.join(self._folder, os.path.basename(path))

    def _refusal(self, path: str) -> StorageError:
        return StorageError(f"{path}: a checkpoint that is opened for reading cannot be changed")


@dataclass(frozen=True)
class SegmentTarget:
    """Where the segments of a shard go if it is changed, not only read."""

    files: Files
    #: ordinal of the first segment
    ordinal: int
    #: distinguishes the segments from those of all other attempts
    attempt: str


class ScratchShard:
    """What operators work with: the log of a checkpoint, a scratch arena and new segments."""

    def __init__(
        self, target: SegmentTarget, folder: str, arena: Arena, budget: Budget, *, durable: bool
    ) -> None:
        """Read segments from `folder` and write there; sync them if they must be durable."""
        self.arena = arena
        self.account = budget.account("buffers")
        self.files = target.files
        self._folder = folder
        self._table = SegmentTable(arena)
        self.log = Log(self.files, folder, self._table)
        #: the ordinal of the next segment
        self.next_ordinal = target.ordinal
        self._attempt = target.attempt
        self._durable = durable
        self._open: dict[str, SegmentWriter] = {}
        #: lifetime class and description of finished segments
        self.sealed: list[tuple[str, SegmentInfo]] = []

    @property
    def root(self) -> str:
        """Return the checkpoint's folder."""
        return self._folder.removesuffix(f"/{SEGMENTS}")

    def learn(self, infos: Iterable[SegmentInfo]) -> None:
        """Add the live segments, except those of snapshots."""
        for info in sorted(infos, key=lambda each: each.ordinal):
            self._table.add(info)
            self.log.add(info)

    def segment(self, lifetime: str) -> SegmentWriter:
        """Return the open segment of a lifetime class, created on first use."""
        if lifetime not in self._open:
            path = f"{self._folder}/{segment_name(self.next_ordinal, self._attempt)}"
            self._open[lifetime] = SegmentWriter(self.files, path, self.next_ordinal)
            self.next_ordinal += 1
        return self._open[lifetime]

    def seal(self, lifetime: str) -> SegmentInfo | None:
        """Finish the open segment of a lifetime class and make it readable."""
        if lifetime not in self._open:
            return None
        if not is_base(lifetime):
            self._table.reserve()
        info = self._open.pop(lifetime).finish(sync=self._durable)
        self.sealed.append((lifetime, info))
        if not is_base(lifetime):
            self.learn([info])
        return info

    def reader(self, info: SegmentInfo) -> SegmentReader:
        return SegmentReader(self.files, f"{self._folder}/{info.name}", info=info)

    def close(self) -> None:
        for writer in self._open.values():
            writer.abandon()
        self.log.close()
        self.account.close()


@contextmanager
def restorable(
    checkpoint: Checkpoint,
    commit: Commit,
    shard: int,
    memory: int,
    target: SegmentTarget | None = None,
) -> Iterator[tuple[ScratchShard, list[PastVersion]]]:
    """Open a shard in a scratch folder, with the history that its state is restored from.

    Segments are written to the target, or else to that folder.
    """
    with tempfile.TemporaryDirectory(prefix="icestream-state-") as folder:
        budget = Budget(memory)
        files = ScratchFiles(checkpoint.files, os.path.join(folder, "written"))
        scratch = SegmentTarget(files, commit.next_ordinal, _ATTEMPT)
        arena = Arena.create(folder, budget.account("groups"))
        try:
            space = ScratchShard(
                target or scratch,
                f"{checkpoint.root}/{SEGMENTS}",
                arena,
                budget,
                durable=target is not None,
            )
            lineage = ShardLineage.of(commit.routes, shard)
            live = lineage.segments(checkpoint.live(commit.version), commit.routes)
            space.learn(each.info for each in live if not is_base(each.lifetime))
            first = max(1, commit.bases[shard])
            past = [each for each in checkpoint.history(commit) if each.version >= first]
            yield space, lineage.history(past, live)
            space.close()
        except Refused as refused:
            raise shortage(budget, refused) from refused
        finally:
            arena.discard()


def restored_operator(
    kind: type[Kind], plan: Plan, space: ScratchShard, history: Sequence[PastVersion]
) -> Kind:
    """Return the operator of a plan with one part of some kind, in a scratch shard."""
    operator = lower.operator(plan, space)
    assert isinstance(operator, kind)
    operator.restore(history)
    return operator
