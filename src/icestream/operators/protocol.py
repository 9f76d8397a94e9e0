"""What every operator is given and what it must do.

Idea: an operator sees flat arrays and Arrow batches, never Spark and never paths. It writes to the
log through its shard, keeps hot state in the shard's arena inside the shard's quota, and is asked
for three things: take a batch, move to a watermark, come back from the log.

Invariants (checked for every operator by `tests.suites.window_conformance`):
1. The rows emitted depend on the events and watermarks, not on batch boundaries, budget,
   restarts or partitioning.
2. After a restore the operator emits what it would have emitted without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Table
from icestream.core.times import Micros
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
    """What the exchange brought for one shard, in an order that does not depend on timing.

    Every iterator can be asked for again.
    """

    def entries(self) -> Iterator[Table]:
        """Yield tables of entries, each row led by its pane."""
        ...

    def leaving(self, family: int) -> Iterator[Table]:
        """Yield entries, led by their panes, folded from tuples that leave a family's windows."""
        ...

    def groups(self) -> Iterator[pa.Table]:
        """Yield the keys of the entries' groups, with identity and latest pane."""
        ...

    def tuples(self) -> Iterator[pa.RecordBatch]:
        """Yield raw events in source order: time, identity of the group, keys, inputs."""
        ...


class StateInputs(Inputs, Protocol):
    """What the exchange brought for one shard of an operator that takes states too."""

    def states(self) -> Iterator[pa.RecordBatch]:
        """Yield states that events of hot groups became before they were sent.

        The first column is the pane; rows are sorted by pane and identity.
        """
        ...


class ChangeInputs(Protocol):
    """What the exchange brought for one shard of a dataflow; can be asked for again."""

    def ranges(self, edge: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Return first identity and bytes of each record of changes that came on an edge."""
        ...

    def changes(self, edge: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes on an edge whose `hi` is at least `first` and less than `last`.

        Each batch is in the order of identities.
        """
        ...


@dataclass(frozen=True, slots=True)
class PastVersion:
    """A committed version of a shard, as the log remembers it."""

    version: int
    watermark: Micros
    segments: Sequence[tuple[str, SegmentInfo]]
    #: the latest event, if the version closed every window that has one
    flushed: Micros | None = None


#: rows of one view, by its number; changes for edge e of a dataflow count as view -1 - e
Emitted = tuple[int, pa.RecordBatch]


class Operator(Protocol):
    """A stateful operator of one shard."""

    def on_batch(self, inputs: Any) -> None:
        """Take in what a batch brought: `Inputs`, or `ChangeInputs` for a dataflow."""
        ...

    def on_watermark(self, watermark: Micros) -> Iterator[Any]:
        """Yield the results that a new watermark settles."""
        ...

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Come back to the end of `history`, which begins with a snapshot or with nothing."""
        ...

    @property
    def took_snapshot(self) -> bool:
        """Tell whether the version just written stands without those before it."""
        ...

    @property
    def released(self) -> tuple[int, ...]:
        """Return ordinals of segments that nothing needs although their expiry has not passed."""
        ...

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the progress report tells of this shard."""
        ...
