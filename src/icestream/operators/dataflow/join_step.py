"""The join of a component in one shard, with the driver's instructions for a version.

Idea: a component with a join that may defer results has no other state, so the join takes the place
of the stores that other components have. Between versions the driver decides which partitions to
spill and which to clean up; the shard does so at the right moment and reports what it holds.

Invariants:
1. Chosen partitions are spilled before any input is processed, and cleaned up after all of it
   (`test_a_join_spills_first_and_cleans_up_last`).
2. A join that fills its quota makes room for its input
   (`test_a_full_join_makes_room_for_what_it_reads`).
3. Clean-up lowers no early output (`test_clean_up_between_batches_lowers_no_early_output`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Floats
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.dataflow.steps import Step, Trace
from icestream.operators.dataflow.stores import SMALL, Stores
from icestream.operators.lifetimes.changes import payload_of
from icestream.operators.multi_join.operator import FILL, MultiJoin
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.operators.multi_join.spill_strategies import SpillRanking
from icestream.operators.multi_join.tracing import Tracer
from icestream.operators.protocol import PastVersion, Shard
from icestream.state.versions.commits import BASE

#: bytes of a row in a join in addition to its payload: its identity and lifetime
ROW_HEAD = 32


class Traces:
    """Counts, by partition of the joins they came through, the rows that leave a component.

    The number of results shows how productive a partition is, the bytes of rows that another join
    stores what it costs later. Results of a clean-up are not those of what is in memory, and so do
    not count.
    """

    def __init__(self, steps: tuple[Step, ...], partitions: int, rate: float) -> None:
        self._stored = {n: step.stored for n, step in enumerate(steps) if isinstance(step, Trace)}
        self._tracers = {
            number: Tracer(step.lineages, partitions, rate, number, head_bytes=ROW_HEAD)
            for number, step in enumerate(steps)
            if isinstance(step, Trace)
        }
        #: results by partition of each join, and bytes that other joins store
        self._results: dict[int, Floats] = {}
        self._kept: dict[int, Floats] = {}
        #: whether rows that pass are those of a clean-up
        self.paused = False

    def note(self, number: int, changes: pa.RecordBatch) -> None:
        """Count the changes that pass a step."""
        if self.paused:
            return
        found = self._tracers[number].trace(payload_of(changes))
        for join, (counts, sizes) in found.items():
            if self._stored[number]:
                self._kept[join] = self._kept.get(join, 0.0) + sizes
            else:
                self._results[join] = self._results.get(join, 0.0) + counts

    @property
    def statistics(self) -> dict[str, Any]:
        """Return results and stored bytes by join, each an array by partition."""
        return {"results": self._results, "kept": self._kept}


@dataclass(frozen=True)
class JoinInstructions:
    """The driver's instructions to a join for a version."""

    #: partitions to spill
    spill: tuple[int, ...] = ()
    #: partitions to clean up; None for all
    clean_up: tuple[int, ...] | None = ()
    #: share of the quota up to which partitions return to memory after a clean-up
    fill: float = FILL
    #: whether no more input arrives: partitions are discarded after clean-up
    last: bool = False
    #: which partitions leave if the shard is full
    ranking: SpillRanking = field(default_factory=SpillRanking)
    #: the watermark of the join's inputs
    watermark: Micros = MINUS_INFINITY


class JoinStores(Stores):
    """A join that takes the place of a component's stores: it has keys, but no groups."""

    def __init__(self, spec: MultiJoinSpec, shard: Shard, orders: JoinInstructions) -> None:
        quota = shard.account.budget.total
        #: maximum bytes of changes that are read at once
        self.gathered_bytes = max(quota // 32, quota // 12 - SMALL)
        self._shard = shard
        self._spec = spec
        self._orders = orders
        self.join = MultiJoin(spec, shard, orders.ranking)
        self.join.reserve(self.gathered_bytes)
        #: bytes for rows, without their buffers
        self._room = quota - shard.account.held

    def spill(self) -> None:
        """Spill the partitions that the driver chose."""
        if self._orders.spill:
            self.join.spill(np.array(self._orders.spill, dtype=np.int64))

    def clean_up(self) -> Iterator[pa.RecordBatch]:
        """Yield the results that the partitions chosen by the driver owe."""
        chosen, last, fill = self._orders.clean_up, self._orders.last, self._orders.fill
        if chosen is None or len(chosen):
            some = None if chosen is None else np.array(chosen, dtype=np.int64)
            yield from self.join.clean_up(some, last=last, fill=fill)

    def end_version(self, watermark: Micros) -> None:
        """Drop rows that have ended and write what is new to the log."""
        self.join.forget(self._orders.watermark)
        self.join.end_version(self._orders.watermark)
        self._shard.seal(BASE)

    def restore(self, history: Sequence[PastVersion]) -> None:
        self.join.restore(history)

    @property
    def took_snapshot(self) -> bool:
        return self.join.took_snapshot

    @property
    def released(self) -> tuple[int, ...]:
        return self.join.released

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the driver's decisions need, and what the progress report shows."""
        join = self.join
        rows, keys = join.streams()
        report = {
            "number": self._spec.number,
            "rows": rows,
            "keys": keys,
            "sizes": join.sizes(),
            "outputs": join.outputs(),
            "generations": join.generations(),
            "owing": join.dirty(),
            "watermark": join.owes_since(self._orders.watermark),
            "ended": join.ended(),
            "held": self._shard.arena.bytes,
            "room": self._room,
            "facts": join.statistics,
        }
        return {"groups": 0, "partitions": self._spec.partitions, "loads": [], "join": report}
