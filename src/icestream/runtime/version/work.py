"""What a plan contributes to a version that the driver makes.

Idea: every query makes versions in the same steps (ingest, watermark, shards, commit). What ingest
and the shards run, and what is decided on the way, depends on the plan. A `Work` defines that:
`WindowWork` for windows, `DataflowWork` for grouped sub-queries, `UpdatesWork` for update streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from icestream.core.times import Micros
from icestream.plan.balance.sizing import Sizing
from icestream.plan.fuse.running_fusion import Together
from icestream.plan.grid.space_formulas import SpaceEstimate
from icestream.runtime.exchange.parcels import Sent, SplitReport
from icestream.runtime.ingest.reception import IngestTask, RereadTask
from icestream.runtime.tables.layout import TableLayout
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.state.files import Files
from icestream.state.versions.commits import Commit
from icestream.state.versions.live_segments import LiveSegments

Batch_contra = TypeVar("Batch_contra", contravariant=True)


@dataclass(frozen=True)
class Parcel:
    """The output of one split: its parcel in the exchange, its durable files, its report."""

    path: str
    sent: Sent
    report: SplitReport


class Executor(Protocol[Batch_contra]):
    """Runs the tasks of a version."""

    #: where parcels are written and read
    parcel_files: Files
    #: the epoch that is part of the names of durable files
    epoch: int
    #: the table of refused rows; None if they go to the checkpoint
    refused: TableLayout | None
    #: columns of stored bad rows; None if these end the query
    refused_columns: pa.Schema | None
    #: tasks that could run at the same time if Spark started all the executors that it may
    cores_to_come: int

    @property
    def parallel(self) -> int:
        """Return the number of tasks that run at the same time."""
        ...

    @property
    def hosts(self) -> int:
        """Return the number of hosts that tasks run on."""
        ...

    def ingest(self, ingest: IngestTask, batch: Batch_contra, folder: str) -> list[Parcel]:
        """Fold a batch into parcels, one per split, in an order independent of timing."""
        ...

    def reread(self, task: RereadTask, folder: str) -> list[Parcel]:
        """Turn events on the log into parcels, for the tasks that run next."""
        ...

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Run one task per shard."""
        ...

    def each(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do pieces of work that depend on nothing, one task each."""
        ...

    def later(self, work: Callable[[], None]) -> None:
        """Do something that the version does not wait for; the next one awaits it."""
        ...

    def await_later(self) -> None:
        """Wait for what was to be done later; raise its error."""
        ...


@dataclass(frozen=True)
class Arrivals:
    """What ingest sends to the shards of a version."""

    parcels: Sequence[Parcel]
    #: latest event time of each source, None before its first event
    seen: tuple[Micros | None, ...]
    #: the watermark that the version reaches
    reached: Micros
    #: as `seen`, but idle sources are as far as others
    passed: tuple[Micros | None, ...] = ()
    #: microseconds since the last event, if all sources are idle; otherwise 0
    silence: Micros = 0

    @property
    def paths(self) -> list[str]:
        """Return the parcels that have something for a shard."""
        return [parcel.path for parcel in self.parcels if parcel.report.entries]

    def total(self, name: str) -> int:
        """Return the sum of a field over the reports of splits."""
        return total(self.parcels, name)


@dataclass(frozen=True)
class VersionContext:
    """A version that is being made, as the driver passes it to the work."""

    version: int
    before: Commit | None
    live: LiveSegments
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
    executor: Executor[Any]
    #: measures the time of a phase
    note: Callable[[str], None]
    #: creates a task, given what depends on the work
    task: Callable[..., ShardTask]
    #: number of tasks, and the task that runs each shard of a component
    sizing: Sizing
    placement: tuple[int, ...]
    #: whether all pending work must be done, at the end of the input
    flushing: bool = False
    #: when the rows of the previous version reached the sink
    delivered: Micros | None = None
    #: the last batch and the seconds it took, as measured by the caller
    trigger: tuple[int, float] | None = None
    #: whether this is the last version
    last: bool = False
    #: operators that the user wants to fuse from this version on; None: as before
    fuse: Together | None = None
    #: whether events come from before the first batch, so that results are delivered to nobody
    is_history: bool = False
    #: whether memory is that of each host, so that no shard has more than others
    per_host: bool = False


@dataclass(frozen=True)
class VersionResult:
    """What the work returns for a version."""

    reports: list[ShardReport]
    decisions: Mapping[str, Any]
    #: parcels whose stored events belong to the version
    raw_events: Sequence[Parcel] = ()
    #: further fields of the progress report
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: estimated sizes of log and rows, where they can be compared with the actual ones
    expected: SpaceEstimate | None = None


class Work(Protocol):
    """What one kind of plan does in a version."""

    def ordinals(self, shards: int) -> int:
        """Return how many ordinals the shards of a version use."""
        ...

    def quota(self, context: VersionContext, shard: int) -> int:
        """Return the bytes that a shard may hold; all get the same unless a work decides."""
        return context.budget // context.shards

    def is_due(self, before: Commit | None, arrived: Arrivals) -> bool:
        """Return whether there is something to do though no event came and nothing waits."""
        return False

    def ingest(self, context: VersionContext) -> IngestTask:
        """Return the task that every split runs."""
        ...

    def run(self, context: VersionContext, arrived: Arrivals) -> VersionResult:
        """Run the shards up to the watermark that is reached."""
        ...


def total(parcels: Sequence[Parcel], name: str) -> int:
    """Return the sum of a field over the reports of parcels, for the work of a version."""
    return sum(getattr(parcel.report, name) for parcel in parcels)
