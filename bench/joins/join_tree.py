"""Three joins in one process that spill by a strategy and clean up leaves first.

Idea: the tree ((A, B, C), D), E of real join operators, each with a shard of its own. After a
    batch,
if the resident rows of all joins exceed the threshold, the strategy chooses partitions to evict
before the next batch. The driver of a query does the same.

Invariants:
1. Run time and clean-up together emit the exact results, each once
   (`test_oracle_a_tree_that_spills_makes_every_result_once`).
2. Resident rows never exceed the threshold plus one batch, not even in clean-up
   (`test_bounded_resident_rows_stay_below_the_threshold_and_a_batch`).

Limits: arrays and work buffers of the joins are not counted as rows; they are inside the quota.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.joins.join_inputs import JOINS, PARTITIONS, Batch
from icestream.core.times import INFINITY
from icestream.kernels.multi_join.resident import HEAD
from icestream.operators.lifetimes.changes import changes_of, payload_of
from icestream.operators.multi_join.operator import MultiJoin
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.operators.multi_join.spill_strategies import (
    LOCAL_OUTPUT,
    PartitionStatistics,
    chosen,
)
from icestream.operators.multi_join.tracing import Lineage, Tracer
from icestream.operators.payload_identity import identified
from tests.fixtures.multi_join_space import JoinSpace

#: input streams of each join, in the order of ports; results of the previous join come first
TAKEN = (("a", "b", "c"), ("d",), ("e",))
#: the key of each join, in the rows of the previous join, and in results
KEYS = ("c1", "c2", "d2")
LINEAGES = tuple(Lineage(join, (key,)) for join, key in enumerate(KEYS))
#: height of each join above the inputs
HEIGHTS = {join: join for join in range(JOINS)}
#: bytes of a row in memory without its payload
HEAD_BYTES = 8 * HEAD


@dataclass(frozen=True)
class SpillPlan:
    """When to spill, and what."""

    strategy: str
    #: bytes of resident rows, of all joins, above which some are spilled; None for never
    threshold: int | None = None
    #: fraction of the resident rows spilled at once
    amount: float = 0.3
    #: fraction of the rows that are traced to the partitions they come from
    sample: float = 1.0


@dataclass
class RunCourse:
    """The course of a run, batch by batch."""

    #: results so far, and bytes of resident rows, after each batch
    results: list[int] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    #: largest growth of resident rows, in bytes, between two opportunities to spill
    largest_step: int = 0
    #: largest resident rows, in bytes, at any of those moments
    most_resident: int = 0
    #: number of spills and bytes spilled; then those for lack of room
    spills: int = 0
    spilled_bytes: int = 0
    forced_spills: int = 0
    seconds: float = 0.0
    #: results, rows emitted by all joins, number of spills, seconds and processor seconds of
    #: clean-up
    late_results: int = 0
    late_rows: int = 0
    late_spills: int = 0
    clean_up_seconds: float = 0.0
    clean_up_cpu_seconds: float = 0.0


class JoinTreeQuery:
    """Three joins of five streams."""

    def __init__(self, folder: Path, spilling: SpillPlan, seed: int, quota: int = 1 << 28) -> None:
        """Start with empty joins, each in a folder of its own, with `quota` bytes each."""
        self.course = RunCourse()
        self._spilling = spilling
        self._seed = seed
        self._spaces = [
            JoinSpace(str(folder / f"join{spec.number}"), spec, quota) for spec in _specs()
        ]
        self._joins: list[MultiJoin] = []
        self._tracers = [
            Tracer(LINEAGES[: join + 1], PARTITIONS, spilling.sample, seed, head_bytes=HEAD_BYTES)
            for join in range(JOINS)
        ]
        self._output = np.zeros((JOINS, PARTITIONS))
        self._inter = np.zeros((JOINS, PARTITIONS))
        #: results, and rows emitted by any join
        self._made = 0
        self._rows = 0
        self._held = 0

    def run(self, batches: Iterable[Batch]) -> None:
        """Process batches."""
        begin = time.perf_counter()
        for batch in batches:
            with self._version():
                self._take(batch)
                self.course.results.append(self._made)
                self.course.resident.append(self._relieve())
        self.course.seconds = time.perf_counter() - begin

    def clean_up(self) -> None:
        """Emit the deferred results, leaves first, and discard all state."""
        begin, cpu = time.perf_counter(), time.process_time()
        before, rows_before, spills = self._made, self._rows, self.course.spills
        with self._version():
            for number, join in enumerate(self._joins):
                for rows in join.clean_up(last=True):
                    self._pass_on(number, rows)
                    self._relieve(after=number)
        self.course.late_results = self._made - before
        self.course.late_rows = self._rows - rows_before
        self.course.late_spills = self.course.spills - spills
        self.course.spills = spills
        self.course.clean_up_seconds = time.perf_counter() - begin
        self.course.clean_up_cpu_seconds = time.process_time() - cpu

    @property
    def log_bytes(self) -> int:
        """Return the bytes of rows on the log that are still needed."""
        return sum(space.log_bytes for space in self._spaces)

    @contextmanager
    def _version(self) -> Iterator[None]:
        with ExitStack() as versions:
            self._joins = [versions.enter_context(space.version()) for space in self._spaces]
            yield
            self.course.forced_spills += sum(
                join.statistics["forced_spills"] for join in self._joins
            )
        self._joins = []

    def _take(self, batch: Batch) -> None:
        for number, streams in enumerate(TAKEN):
            for port, stream in enumerate(streams, start=int(number > 0)):
                key = f"{stream}1"
                for rows in self._joins[number].on_changes(port, _arrived(batch[stream], key)):
                    self._pass_on(number, rows)

    def _pass_on(self, number: int, rows: pa.RecordBatch) -> None:
        """Count the results of a join and pass them to the next one."""
        payload = payload_of(rows)
        self._rows += rows.num_rows
        last = number == JOINS - 1
        for join, (counts, sizes) in self._tracers[number].trace(payload).items():
            if last:
                self._output[join] += counts
            else:
                self._inter[join] += sizes
        if last:
            self._made += rows.num_rows
            return
        arrived = _arrived(payload, KEYS[number + 1])
        for further in self._joins[number + 1].on_changes(0, arrived):
            self._pass_on(number + 1, further)

    def _relieve(self, after: int = -1) -> int:
        """Spill partitions of the joins after one if needed; return the bytes resident before."""
        joins = range(after + 1, JOINS)
        sizes = np.zeros((JOINS, PARTITIONS), dtype=np.int64)
        for join in joins:
            sizes[join] = self._joins[join].sizes()
        resident = int(sizes.sum())
        self.course.largest_step = max(self.course.largest_step, resident - self._held)
        self.course.most_resident = max(self.course.most_resident, resident)
        threshold = self._spilling.threshold
        freed = 0
        if threshold is not None and resident > threshold:
            # a fraction of the resident bytes, and at least those above the threshold
            amount = max(resident - threshold, int(np.ceil(self._spilling.amount * resident)))
            leaving = self._leaving(sizes, amount)
            for join in joins:
                freed += self._joins[join].spill(np.flatnonzero(leaving[join]))
            self._output[leaving] = 0
            self._inter[leaving] = 0
            self.course.spills += 1
            self.course.spilled_bytes += freed
        self._held = resident - freed
        return resident

    def _leaving(self, sizes: npt.NDArray[np.int64], amount: int) -> npt.NDArray[np.bool_]:
        output = self._output
        if self._spilling.strategy == LOCAL_OUTPUT:
            output = np.array([join.outputs() for join in self._joins], dtype=np.float64)
        statistics = PartitionStatistics(
            np.repeat(np.arange(JOINS), PARTITIONS),
            np.tile(np.arange(PARTITIONS), JOINS),
            sizes.ravel(),
            output.ravel(),
            self._inter.ravel(),
        )
        seed = self._seed + self.course.spills
        leaves = chosen(statistics, amount, self._spilling.strategy, HEIGHTS, seed)
        return leaves.reshape(JOINS, PARTITIONS)


def _specs() -> Iterator[MultiJoinSpec]:
    before: pa.Schema | None = None
    for number, streams in enumerate(TAKEN):
        own = [pa.schema([(f"{name}1", pa.int64()), (f"{name}2", pa.int64())]) for name in streams]
        inputs = own if before is None else [before, *own]
        columns = chain.from_iterable(
            ((port, name, name) for name in schema.names) for port, schema in enumerate(inputs)
        )
        spec = MultiJoinSpec(number, tuple(inputs), tuple(columns), PARTITIONS)
        before = spec.payload
        yield spec


def _arrived(payload: pa.RecordBatch, key: str) -> pa.RecordBatch:
    """Return rows that never expire as changes, with the id of a key."""
    id_high, id_low = identified(payload, (key,))
    count = payload.num_rows
    return changes_of(
        payload,
        np.zeros(count, dtype=np.int64),
        np.full(count, INFINITY),
        np.ones(count, dtype=np.int64),
        id_high,
        id_low,
    )
