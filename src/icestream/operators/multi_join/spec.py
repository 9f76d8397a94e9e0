"""What one n-way join is: its inputs, its output, and how its key space is cut into partitions.

Idea: a join is pure data. Every port receives events with lifetimes, with the identity of the join
key on that port. A combination of one event of each port is a result if the identities are equal,
the lifetimes share an instant, and the condition holds. It lives for the instants that all share.

Invariants:
1. The partitions of a join divide the range of `id_high` evenly and in order
   (`test_partitions_are_even_ranges_of_id_high`).
2. A join without ports, columns or partitions is rejected
   (`test_a_join_that_cannot_be_is_refused`).

Limits: equal identities mean equal keys; the caller must drop rows with a null in the key, because
null equals nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.core.errors import DefinitionError
from icestream.sql.expressions.compile import Predicate

#: lifetime classes of the segments with rows: as they arrived, and merged
JOINED, MERGED = "joined", "merged"
#: default number of partitions of a join
PARTITIONS = 256
#: maximum number of streams of a join; greater numbers mark other records of its log
MOST_STREAMS = 0xFFE0


@dataclass(frozen=True)
class MultiJoinSpec:
    """One n-way join of a plan."""

    #: number of the join in the plan, leaves first
    number: int
    #: payload of each port
    inputs: tuple[pa.Schema, ...]
    #: output columns: port, name of the column there, name here; including hidden ones
    columns: tuple[tuple[int, str, str], ...]
    #: number of partitions, a multiple of the key groups
    partitions: int = PARTITIONS
    #: additional condition on results, evaluated on the output payload
    where: Predicate | None = None
    #: description for readers
    text: str = ""

    def __post_init__(self) -> None:
        """Reject definitions that make no sense."""
        if len(self.inputs) < 2:
            msg = f"a join needs at least two streams; got {len(self.inputs)}"
            raise DefinitionError(msg)
        if len(self.inputs) > MOST_STREAMS:
            msg = (
                f"a join takes at most {MOST_STREAMS:,} streams; got {len(self.inputs):,}: unite "
                "streams that have the same columns with union(...) first"
            )
            raise DefinitionError(msg)
        if self.partitions < 1:
            msg = f"a join needs at least one partition; got {self.partitions}"
            raise DefinitionError(msg)
        names = [name for _, _, name in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"the join would have {', '.join(map(repr, twice))} twice; rename one of each"
            raise DefinitionError(msg)
        for port, column, _ in self.columns:
            known = port < len(self.inputs) and column in self.inputs[port].names
            if not known:
                msg = f"stream {port} of the join has no column {column!r}"
                raise DefinitionError(msg)

    @property
    def ports(self) -> int:
        return len(self.inputs)

    @cached_property
    def payload(self) -> pa.Schema:
        return pa.schema(
            [self.inputs[port].field(column).with_name(name) for port, column, name in self.columns]
        )

    def partitions_of(self, id_high: Ids) -> Ints:
        return partitions_of(id_high, self.partitions)


def partitions_of(id_high: Ids, partitions: int) -> Ints:
    """Return the partition, as the spec of a join cuts them, of each identity."""
    upper = id_high >> np.uint64(32)
    return ((upper * np.uint64(partitions)) >> np.uint64(32)).astype(np.int64)


def first_id_high(partition: int, partitions: int) -> int:
    """Return the first id_high of a partition, as the spec of a join cuts them."""
    return -(-(partition << 32) // partitions) << 32
