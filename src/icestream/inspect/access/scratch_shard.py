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
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from icestream.core.errors import StorageError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.operators.lineage import ShardLineage
from icestream.operators.protocol import Operator, PastVersion
from icestream.plan.grid import lower
from icestream.plan.nodes.queries import Plan
from icestream.runtime.version.shard_space import SegmentTarget, ShardSpace
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused, shortage
from icestream.state.files import Files, LocalFiles, NewFile, OpenFile
from icestream.state.validation import validated
from icestream.state.versions.commits import Commit

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
        with closing(self.open(path)) as file:
            return file.read_at(0, file.size)

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

    def walk(self, folder: str) -> Iterator[str]:
        """Yield the paths of all read-only files below a folder, relative to it."""
        return self._files.walk(folder)

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
class ScratchShard:
    """A shard of a version, to be restored."""

    shard: int
    space: ShardSpace
    #: versions that the state consists of
    history: Sequence[PastVersion]
    commit: Commit

    def operator(self, kind: type[Kind], plan: Plan) -> Kind:
        """Restore the operator of a plan with one part of some kind."""
        operator = lower.lowered(plan).operator(self.space)
        assert isinstance(operator, kind)
        operator.restore(self.history)
        return operator


@contextmanager
def restorable(
    checkpoint: Checkpoint,
    commit: Commit,
    shard: int,
    memory: int,
    target: SegmentTarget | None = None,
) -> Iterator[ScratchShard]:
    """Open a shard in a scratch folder, with the history that its state is restored from.

    Segments are written to the target, or else to that folder.
    """
    with (
        validated(checkpoint.store.path(commit.version)),
        tempfile.TemporaryDirectory(prefix="icestream-state-") as folder,
    ):
        budget = Budget(memory)
        if target is None:
            files = ScratchFiles(checkpoint.files, os.path.join(folder, "written"))
            ordinals = count(commit.next_ordinal)
            target = SegmentTarget(files, checkpoint.root, lambda _: next(ordinals), _ATTEMPT)
        arena = Arena.create(folder, budget.account("groups"))
        try:
            space = ShardSpace(target, budget, arena)
            lineage = ShardLineage.of(commit.routes, shard)
            live = lineage.segments(checkpoint.store, commit)
            space.learn(live)
            first = max(1, commit.bases[shard])
            past = [each for each in checkpoint.history(commit) if each.version >= first]
            yield ScratchShard(shard, space, lineage.history(past, live), commit)
            space.close()
        except Refused as refused:
            raise shortage(budget, refused) from refused
        finally:
            arena.discard()
