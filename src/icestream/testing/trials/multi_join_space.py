"""A shard in a folder with one n-way join, for trying it: versions, restarts, lost arenas.

Idea: it does what the runtime does around a join, no more. What a restore may not read, because it
was released or is older than the last snapshot, is unlinked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.times import MINUS_INFINITY
from icestream.operators.multi_join.operator import MultiJoin
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.operators.protocol import PastVersion
from icestream.operators.temporal.changes import changes_of
from icestream.state.arena import Arena
from icestream.state.budget import Account, Budget, Refused, shortage
from icestream.state.files import Files, LocalFiles
from icestream.state.log.format import SegmentInfo
from icestream.state.versions import BASE
from icestream.testing.trials.group_space import Task

ROWS = "joined"


@dataclass
class JoinSpace:
    """The log and the arenas of a shard with one join."""

    folder: str
    spec: MultiJoinSpec
    quota: int = 1 << 22
    block_bytes: int = 65536
    #: take snapshots when this says so, else when they are due
    snapshot: bool | None = None
    files: Files = field(default_factory=LocalFiles)
    history: list[PastVersion] = field(default_factory=list)
    watermark: int = MINUS_INFINITY
    #: most bytes ever held by the budget of a version
    peak: int = 0
    next_ordinal: int = 1
    _base: int = 0
    _live: dict[int, SegmentInfo] = field(default_factory=dict)
    _arena: str | None = None

    @property
    def lifetimes(self) -> tuple[str, ...]:
        """Return the lifetime classes of the shard."""
        return (ROWS, BASE)

    @property
    def log_bytes(self) -> int:
        """Return the bytes of segments with rows that are needed."""
        return sum(info.bytes for info in self._live.values())

    def lose_arena(self) -> None:
        """Let the next version restore from the log."""
        self._arena = "lost"

    @contextmanager
    def version(self, watermark: int | None = None) -> Iterator[MultiJoin]:
        """Run a version: yield its join, then end it at a watermark, and commit."""
        budget = Budget(self.quota)
        account = budget.account("groups")
        arenas = os.path.join(self.folder, "arenas")
        claimed = self._claimed(arenas, account)
        rebuild = claimed is None and bool(self.history)
        arena = claimed or Arena.create(arenas, account)
        task = Task(self, budget, arena)
        try:
            join = MultiJoin(self.spec, task, ROWS)
            if rebuild:
                for info in sorted(self._live.values(), key=lambda each: each.ordinal):
                    task.table.add(info)
                    task.log.add(info)
                join.restore([each for each in self.history if each.version >= self._base])
            yield join
            self._end(task, join, self.watermark if watermark is None else watermark)
            self.peak = max(self.peak, budget.peak)
            task.log.close()
            task.account.close()
            self._arena = f"v{len(self.history)}"
            arena.release(self._arena)
        except Refused as refused:
            raise shortage(budget, refused) from refused
        finally:
            arena.discard()

    def _claimed(self, arenas: str, account: Account) -> Arena | None:
        if self._arena is None:
            return None
        try:
            return Arena.claim(arenas, self._arena, account)
        except Refused:
            return None

    def _end(self, task: Task, join: MultiJoin, watermark: int) -> None:
        self.watermark = max(self.watermark, watermark)
        join.forget(self.watermark)
        join.end_version(self.watermark, snapshot=self.snapshot)
        task.seal(BASE)
        number = len(self.history) + 1
        if join.took_snapshot:
            self._base = number
        task.table.forget(join.released)
        self.history.append(PastVersion(number, self.watermark, tuple(task.sealed)))
        self._live.update({info.ordinal: info for name, info in task.sealed if name == ROWS})
        self.next_ordinal += len(self.lifetimes)
        self._unlink(join.released)

    def _unlink(self, released: tuple[int, ...]) -> None:
        gone = [self._live.pop(ordinal) for ordinal in released]
        for past in self.history:
            if past.version < self._base:
                gone += [info for lifetime, info in past.segments if lifetime == BASE]
        for info in gone:
            self.files.unlink(f"{self.folder}/{info.name}")


#: a row to send: number of its key, first instant, end, values of the payload
Sent = tuple[int, int, int, tuple[Any, ...]]


def identity(key: int) -> tuple[int, int]:
    """Return an identity for a small number; keys 2n and 2n + 1 differ in the lower half only."""
    return (key // 2 * 0x9E3779B97F4A7C15) % 2**64, (key * 0xC2B2AE3D27D4EB4F + 1) % 2**64


def sent(schema: pa.Schema, rows: Sequence[Sent]) -> pa.RecordBatch:
    """Return rows as changes that add them."""
    columns = [
        pa.array([payload[at] for *_, payload in rows], each.type) for at, each in enumerate(schema)
    ]
    ids = np.array([identity(key) for key, *_ in rows], dtype=np.uint64).reshape(-1, 2)
    le, re = (np.array([row[at] for row in rows], dtype=np.int64) for at in (1, 2))
    payload = pa.RecordBatch.from_arrays(columns, schema=schema)
    diff = np.ones(len(rows), dtype=np.int64)
    return changes_of(
        payload, le, re, diff, np.ascontiguousarray(ids[:, 0]), np.ascontiguousarray(ids[:, 1])
    )
