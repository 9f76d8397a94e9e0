"""Counts, by partition of the joins they came through, the rows that leave a component.

Idea: a row that leaves carries the keys of the joins it came through; rows of a sample are counted
for the partitions of their keys. The number of results shows how productive a partition is, the
bytes of rows that another join stores show what it costs later. Results of a clean-up are not those
of what is in memory, and so do not count.

Invariants:
1. Clean-up lowers no early output (`test_clean_up_between_batches_lowers_no_early_output`).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from icestream.core.arrays import Floats
from icestream.operators.dataflow.steps import Step, Trace
from icestream.operators.lifetimes.changes import payload_of
from icestream.operators.multi_join.tracing import Tracer

#: bytes of a row in a join in addition to its payload: its identity and lifetime
ROW_HEAD = 32


class Traces:
    """The tracers of a component, and what they found in a version."""

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
