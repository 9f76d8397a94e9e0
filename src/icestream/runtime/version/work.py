"""What the driver asks of a plan while it makes a version.

Idea: making a version is the same for all queries (ingest, watermark, shards, commit); what ingest
runs, what the shards run and what is decided on the way depends on the plan. A `Work` knows that,
`WindowWork` for windows, `UpdatesWork` for update queues, `DataflowWork` for grouped sub-queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from icestream.core.times import Micros
from icestream.plan.balance.sizing import Sizing
from icestream.plan.fuse.running_fusion import Together
from icestream.plan.grid.space_formulas import SpaceEstimate
from icestream.runtime.exchange.parcels import Sent, SplitReport
from icestream.runtime.ingest.reception import IngestTask, RereadTask
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.state.files import Files
from icestream.state.versions.commits import Commit, LiveSegment

Batch_contra = TypeVar("Batch_contra", contravariant=True)


@dataclass(frozen=True)
class Parcel:
    """What one split brought: its place in the exchange, what it wrote for good, its report."""

    path: str
    sent: Sent
    report: SplitReport


class Executor(Protocol[Batch_contra]):
    """Runs the tasks of a version."""

    #: where parcels are written and read
    parcel_files: Files
    #: the epoch that the names of files which last tell
    epoch: int

    @property
    def parallel(self) -> int:
        """Return how many tasks run at the same time."""
        ...

    def ingest(self, ingest: IngestTask, batch: Batch_contra, folder: str) -> list[Parcel]:
        """Fold a batch into parcels, one per split, in an order that does not depend on timing."""
        ...

    def reread(self, task: RereadTask, folder: str) -> list[Parcel]:
        """Turn events on the log into parcels, for the tasks that run next."""
        ...

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Run one task per shard."""
        ...


@dataclass(frozen=True)
class VersionContext:
    """A version in the making, as the driver hands it to the work."""

    version: int
    before: Commit | None
    live: tuple[LiveSegment, ...]
    #: the watermark before the batch
    watermark: Micros
    routes: tuple[int, ...]
    first_ordinal: int
    #: bytes for all shards together
    budget: int
    #: shards of a component
    shards: int
    #: folder of this version's parcels
    folder: str
    #: tells the time that a phase took
    note: Callable[[str], None]
    #: makes a task, given what depends on the work
    task: Callable[..., ShardTask]
    #: number of tasks, and the task that runs each shard of a component
    sizing: Sizing
    placement: tuple[int, ...]
    #: whether everything that remains is to be done, at the end of the input
    flushing: bool = False
    #: when the rows of the version before had reached the sink
    delivered: Micros | None = None
    #: the last batch and the seconds it took, as whoever calls for batches measured it
    trigger: tuple[int, float] | None = None
    #: whether nothing comes after this version any more
    last: bool = False
    #: operators that a user asks to run together from this version on; None: as before
    fuse: Together | None = None

    def waves(self, parallel: int) -> int:
        """Return how many shards follow one another where so many tasks run at a time."""
        crews = Counter(self.placement)
        return max(crews.values()) * -(-len(crews) // parallel)


@dataclass(frozen=True)
class VersionResult:
    """What the work did for a version."""

    reports: list[ShardReport]
    decisions: Mapping[str, Any]
    #: parcels whose kept events belong to the version
    kept: Sequence[Parcel] = ()
    #: what the progress report tells beside
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: what log and rows were estimated to take, where that can be held against what they do
    expected: SpaceEstimate | None = None


class Work(Protocol):
    """What one kind of plan asks of a version."""

    def ordinals(self, shards: int) -> int:
        """Return how many ordinals the shards of a version take."""
        ...

    def ingest(self, making: VersionContext) -> IngestTask:
        """Return what every ingest task runs."""
        ...

    def run(
        self,
        making: VersionContext,
        executor: Executor[Any],
        parcels: Sequence[Parcel],
        seen: tuple[Micros | None, ...],
        reached: Micros,
    ) -> VersionResult:
        """Run the shards up to the watermark `reached`."""
        ...


def total(parcels: Sequence[Parcel], name: str) -> int:
    """Return the sum of a number over the reports of parcels."""
    return sum(getattr(parcel.report, name) for parcel in parcels)
