"""Traces rows back to the partition groups that produced them.

Idea: a row that leaves a tree of joins carries the key columns of every join it came through.
Recomputing their identities, as the exchange before each join did, yields the partition of each
join that the row came through. A random sample is enough; its counts are divided by its rate.

Invariants:
1. At rate 1 every row counts once for the partition of every join that took its members, and once
   for each way if it came through a join in two
   (`test_oracle_every_row_is_counted_in_the_partitions_that_made_it`).
2. At any other rate counts and bytes are right on average
   (`test_a_sample_is_scaled_to_what_it_stands_for`).
3. Tracers with the same seed trace the same rows in the same calls alike
   (`test_tracers_of_one_seed_find_the_same`).

Cost: per row one random number; per row of the sample one identity for each join.

Limits: rows of a sample are drawn one by one. Results of one key follow each other in the order of
what they are joined with, so taking every tenth would take the same partner every time.

References: Liu, Zhu, Rundensteiner (2006), Algorithms 1 and 2. Algorithm 1 as printed omits the
root; here a join's own partitions are among those traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Floats
from icestream.core.errors import DefinitionError
from icestream.operators.multi_join.spec import partitions_of
from icestream.state.keys import identified


@dataclass(frozen=True)
class Lineage:
    """The columns in which rows carry the key of a join they came through."""

    #: number of the join
    join: int
    #: names of its key columns in the traced rows, in their order
    columns: tuple[str, ...]


def _complete(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return rows that came through a join: of a union, those without a null in its key."""
    for name in columns:
        if rows.column(name).null_count:
            rows = rows.filter(rows.column(name).is_valid())
    return rows


class Tracer:
    """Counts rows, and their bytes, by partition of the joins they came through."""

    def __init__(
        self,
        lineages: Sequence[Lineage],
        partitions: int,
        rate: float,
        seed: int,
        *,
        head_bytes: int = 0,
    ) -> None:
        """Trace a share `rate` of the rows to one of `partitions` of each join.

        `head_bytes` is what a stored row takes in addition to its payload.
        """
        if not 0 < rate <= 1:
            msg = f"the share of rows to trace must be above 0 and at most 1; got {rate}"
            raise DefinitionError(msg)
        self._lineages = tuple(lineages)
        self._partitions = partitions
        self._rate = rate
        self._head_bytes = head_bytes
        self._dice = np.random.default_rng(seed)

    def trace(self, rows: pa.RecordBatch) -> dict[int, tuple[Floats, Floats]]:
        """Return rows and bytes by partition, for each join; rows are payloads without a head."""
        if rows.num_rows == 0:
            nothing = np.zeros(self._partitions)
            return {lineage.join: (nothing, nothing.copy()) for lineage in self._lineages}
        row_bytes = self._head_bytes + rows.nbytes / rows.num_rows
        sample = self._sample(rows)
        found: dict[int, Floats] = {}
        for lineage in self._lineages:
            id_high, _ = identified(_complete(sample, lineage.columns), lineage.columns)
            places = partitions_of(id_high, self._partitions)
            counts = np.bincount(places, minlength=self._partitions) / self._rate
            found[lineage.join] = found.get(lineage.join, 0.0) + counts
        return {join: (counts, counts * row_bytes) for join, counts in found.items()}

    def _sample(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        names = list(dict.fromkeys(name for each in self._lineages for name in each.columns))
        carried = rows.select(names)
        if self._rate == 1:
            return carried
        drawn = np.flatnonzero(self._dice.random(rows.num_rows) < self._rate)
        return carried.take(pa.array(drawn))
