"""What every operator is given and what it must do.

Idea: an operator sees flat arrays and Arrow batches, never Spark and never paths. It writes to the
log through its shard, keeps hot state in the shard's arena inside the shard's quota, and is asked
for three things: take a batch, move to a watermark, come back from the log.

Invariants (checked for every operator by `icestream.testing.conformance`):
1. The rows emitted depend on the events and watermarks, not on batch boundaries, budget,
   restarts or partitioning.
2. After a restore the operator emits what it would have emitted without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from icestream.core.times import Micros
from icestream.kernels.words import Table
from icestream.state.arena import Arena
from icestream.state.budget import Account
from icestream.state.log.format import SegmentInfo
from icestream.state.log.reader import Log, SegmentReader
from icestream.state.log.writer import SegmentWriter


class Shard(Protocol):
    """The part of a component's state that one task works on."""

    arena: Arena
    #: holds the work buffers of the shard; the arena has an account of its own
    account: Account
    log: Log

    def segment(self, lifetime: str) -> SegmentWriter:
        """Return the open segment of a lifetime class in this version, made on first use."""
        ...

    def seal(self, lifetime: str) -> SegmentInfo | None:
        """Finish the open segment of a lifetime class and make it readable; None if none is open.

        Raises `Refused`, with nothing changed, if the budget has no room to remember it.
        """
        ...

    def reader(self, info: SegmentInfo) -> SegmentReader:
        """Open a segment of the log by its commit's description."""
        ...


class Inputs(Protocol):
    """What the exchange brought for one shard, in an order that does not depend on timing."""

    def entries(self) -> Iterator[Table]:
        """Yield tables of entries, each row led by its pane."""
        ...

    def groups(self) -> Iterator[pa.Table]:
        """Yield the keys of the entries' groups, with identity and latest pane; repeatable."""
        ...


@dataclass(frozen=True, slots=True)
class PastVersion:
    """A committed version of a shard, as the log remembers it."""

    version: int
    watermark: Micros
    segments: Sequence[tuple[str, SegmentInfo]]


class Operator(Protocol):
    """A stateful operator of one shard."""

    def on_batch(self, inputs: Inputs) -> None:
        """Take in the entries of a batch."""
        ...

    def on_watermark(self, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the results that a new watermark settles."""
        ...

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Come back to the end of `history`, which begins with a snapshot or with nothing."""
        ...
