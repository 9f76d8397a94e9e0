"""What every operator receives and what it must do.

Idea: an operator sees flat arrays and Arrow batches, never Spark and never paths. It writes to the
log through its shard and keeps hot state in the shard's arena, within the shard's quota. The
runtime calls it for three things: to take a batch, to advance to a watermark, and to restore from
the log.

Invariants (checked for every operator by `tests.suites.window_conformance`):
1. The rows emitted depend on the events and watermarks, not on batch boundaries, budget,
   restarts or partitioning.
2. After a restore the operator emits what it would have emitted without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.core.times import Micros
from icestream.operators.folding.exact_rows import ExactRows
from icestream.state.groups.options import StoreSpace
from icestream.state.identities import IdRange
from icestream.state.log.format import SegmentInfo


class Shard(StoreSpace, Protocol):
    """The part of a component's state that one task owns."""

    def seal(self, lifetime: str) -> SegmentInfo | None:
        """Finish the open segment of a lifetime class and make it readable; None if none is open.

        Raises `Refused`, with nothing changed, if the budget has no room to record it.
        """


class Inputs(Protocol):
    """What the exchange delivered for one shard, in an order that does not depend on timing.

    Every iterator can be requested again.
    """

    def entries(self) -> Iterator[ExactRows]:
        """Yield tables of entries, with the pane as the first word of each row."""

    def leaving(self, family: int) -> Iterator[ExactRows]:
        """Yield entries, pane first, folded from tuples that leave a family's windows."""

    def groups(self) -> Iterator[pa.Table]:
        """Yield the keys of the entries' groups, with their identities and latest panes."""

    def tuples(self) -> Iterator[pa.RecordBatch]:
        """Yield raw events in source order: time, group identity, keys, inputs."""


class TupleInputs(Inputs, Protocol):
    """What the exchange delivered for one shard of an operator that sorts raw events by time."""

    def earliest(self) -> Ints:
        """Return the earliest time in each batch of `tuples`."""
        ...


class StateInputs(Inputs, Protocol):
    """What the exchange delivered for one shard of an operator that also takes states."""

    def states(self) -> Iterator[pa.RecordBatch]:
        """Yield states into which the sender has already folded the events of hot groups.

        The first column is the pane; rows are sorted by pane and identity.
        """


class ChangeInputs(Protocol):
    """What the exchange delivered for one shard of a dataflow; iterators can be requested again."""

    def ranges(self, edge: int) -> tuple[Ids, Ints]:
        """Return the first identity and the size in bytes of each record of changes on an edge."""

    def changes(self, edge: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes on an edge with `first` <= `id_high` < `last`.

        Each batch is sorted by identity.
        """

    def as_sent(self, edge: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes on an edge whose changes are sent as they arrive."""
        ...

    def earliest_sent(self, edge: int) -> Ints:
        """Return the earliest time in each batch of `as_sent`."""
        ...


@dataclass(frozen=True, slots=True)
class PastVersion:
    """A committed version of a shard, as recorded on the log."""

    version: int
    watermark: Micros
    segments: Sequence[tuple[str, SegmentInfo]]
    #: the latest event, if the version closed every window that has one
    flushed: Micros | None = None
    #: the ids of the shard, if some of its segments have groups of others, too
    keeps: IdRange | None = None
    #: the part of these ids that each parent had, if other shards wrote the version; its segments
    #: are in the order of parents, which took their snapshots in the same versions
    parents: tuple[IdRange, ...] = ()


#: rows of one view, by its number; changes for edge e of a dataflow have the view number -1 - e;
#: `BadRows`, which a step refused, belong to no view
Emitted = tuple[int, pa.RecordBatch]


@runtime_checkable
class Resting(Protocol):
    """An operator that tells when it has something to do, so that it need not run before."""

    @property
    def rests_until(self) -> Micros:
        """Return the watermark before which nothing happens, unless there are inputs."""

    def rested(self, versions: int, watermark: Micros) -> None:
        """Go on after versions that did not run the shard, and the watermark they reached."""


class Recoverable(Protocol):
    """State of one shard that is restored from the log."""

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Restore the state at the end of `history`, which begins with a snapshot or empty.

        It may begin with snapshots of several shards, of whose ids this one `keeps` a range. An
        operator that `follows` is called again for the versions after them, in the same state.
        """

    @property
    def took_snapshot(self) -> bool:
        """Return whether the version just written is a snapshot, independent of earlier ones."""

    @property
    def released(self) -> tuple[int, ...]:
        """Return the ordinals of segments that are no longer needed but have not expired yet."""

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the progress report shows for this shard."""


class Operator(Recoverable, Protocol):
    """A stateful operator of one shard."""

    def on_batch(self, inputs: Any) -> None:
        """Process the inputs of a batch: `Inputs`, or `ChangeInputs` for a dataflow."""

    def on_watermark(self, watermark: Micros) -> Iterator[Any]:
        """Yield the results that a new watermark makes final; the caller may keep them."""
