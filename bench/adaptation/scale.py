"""What a version costs the driver when there are very many live segments and shards.

Idea: the real driver makes versions of a query of windows, on real files for commits and manifests.
Its tasks write nothing: they only report segments, as 1,024 shards would that log some panes in
each version, release a few, and take a snapshot now and then. Ten million live segments are there
from the beginning, in a commit with manifests that is written for this; the driver opens it as any
checkpoint. What is measured is the processor time of the driver's process for a version, whatever
it is spent on, planning and making tasks included, but for what it takes to make the reports.

Limits: segments have no files, so that listing and deleting files is not measured, nor is a network
or Spark. The tasks of the version are made by the driver, but not sent.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Measurement, ProgressLog, Size
from bench.research.simulated_cluster.job import WindowJob
from icestream.core.times import INFINITY
from icestream.plan.windows.grid import Windows
from icestream.runtime.driver import Driver
from icestream.runtime.exchange.parcels import Sent, SplitReport
from icestream.runtime.ingest.reception import IngestTask, RereadTask
from icestream.runtime.version.parcelling import ParcellingExecutor
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.runtime.version.work import Parcel
from icestream.state.files import LocalFiles
from icestream.state.log.format import SegmentInfo
from icestream.state.log.segments import segment_name
from icestream.state.versions.attempts import new_attempt
from icestream.state.versions.commits import BASE, COMMITS, VersionStore
from icestream.state.versions.manifests import (
    MANIFESTS,
    RELEASED,
    SEGMENT,
    LayerContent,
    ShardManifest,
    layers_file,
)

SECOND = 1_000_000
#: bytes that a segment claims to have: ten million of them are ten terabytes
SEGMENT_BYTES = 1 << 20
#: a shard takes a snapshot after this many versions
SNAPSHOTS = 64
#: requirements of the driver: milliseconds of a version, microseconds of a segment, bytes
MOST_MS, MOST_US, MOST_BYTES = 20.0, 10.0, 1e9


@dataclass(frozen=True)
class Case:
    """A checkpoint, and what a version changes in it."""

    shards: int
    live: int
    #: shards that log something in a version; None for all
    busy: int | None = None


CASES = {
    Size.SMALL: (Case(16, 10_000), Case(256, 100_000), Case(256, 1_000_000)),
    Size.FULL: (
        Case(256, 1_000_000),
        Case(1_024, 1_000_000),
        Case(1_024, 10_000_000),
        Case(1_024, 10_000_000, busy=16),
    ),
}
#: versions before measuring, so that snapshots are spread, and measured ones
WARM, MEASURED = SNAPSHOTS + 8, SNAPSHOTS


class ReportedTasks(ParcellingExecutor):
    """An executor whose tasks write nothing and report segments."""

    def __init__(self, case: Case, files: LocalFiles) -> None:
        """Report for the shards of a case."""
        super().__init__(files, "", files)
        self._case = case
        #: segments that the last version added
        self.added = 0
        #: processor time that making its reports took
        self.seconds = 0.0

    @property
    def parallel(self) -> int:
        """Return the cores of the cluster that these tasks would run on."""
        return 64

    @property
    def hosts(self) -> int:
        """Return the hosts of that cluster."""
        return 8

    def ingest(self, ingest: IngestTask, batch: int, folder: str) -> list[Parcel]:
        """Report a second of events."""
        seen = {0: (ingest.version + 1) * SECOND}
        report = SplitReport(rows=1, entries=1, groups=1, seen=seen, begins=seen[0])
        return [Parcel("none", Sent(None, None), report)]

    def reread(self, task: RereadTask, folder: str) -> list[Parcel]:
        """Read no events: there are panes only."""
        return []

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Report a segment of each busy shard, and what it replaces."""
        began, self.added = time.process_time(), 0
        attempt = new_attempt(self.epoch)
        reports = [self._report(task, attempt) for task in tasks]
        self.seconds = time.process_time() - began
        return reports

    def each(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do pieces of work in turn."""
        return [piece() for piece in work]

    def _report(self, task: ShardTask, attempt: str) -> ShardReport:
        case, version = self._case, task.version
        # what is logged now expires when as many versions have passed as a shard has segments
        expiry = (version + case.live // case.shards) * SECOND
        first, segments, busy = task.first_ordinal, [], case.busy or case.shards
        snapshot = (version + task.shard) % SNAPSHOTS == 0
        if (task.shard - version * busy) % case.shards < busy:
            info = SegmentInfo(
                first, segment_name(first, attempt), SEGMENT_BYTES, 10, expiry, version
            )
            segments.append(("panes", info))
        if snapshot:
            base = first + task.work.lifetimes.index(BASE)
            name = segment_name(base, attempt)
            segments.append((BASE, SegmentInfo(base, name, SEGMENT_BYTES, 10, INFINITY, version)))
        self.added += len(segments)
        statistics_ = {
            "groups": 1, "partitions": 1, "memory_bytes": 1, "peak_bytes": 1, "seconds": 0.001,
            "bad_rows": 0,
        }  # fmt: skip
        name = f"shard-{task.shard}.v{version}.{attempt}"
        return ShardReport(task.shard, name, segments, [0], snapshot, False, statistics=statistics_)


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Make versions of checkpoints with more and more segments."""
    cases = CASES[size]
    progress.plan(len(cases))
    rows = []
    for case in cases:
        progress.step(f"{case.live:,} segments in {case.shards:,} shards")
        row = measured(case)
        progress.note(str(row))
        rows.append(row)
    over = max(row["ms"] - row["allowed_ms"] for row in rows)
    bars = (
        Bar.at_most("driver ms of a version beyond 20 + 0.01 for each changed segment", 0, over),
        Bar.at_most("resident bytes of the driver", MOST_BYTES, max(r["resident"] for r in rows)),
    )
    return Measurement({"rows": rows}, bars)


def measured(case: Case) -> dict[str, Any]:
    """Make versions of one checkpoint; return what they cost."""
    folder = scratch(workspace(), "scale")
    plan = WindowJob((Windows(60 * SECOND, SECOND),), SECOND, max(256, case.shards)).combined
    settings = Settings(
        str(folder / "checkpoint"), str(folder / "local"), case.shards << 20, case.shards
    )
    settings = replace(settings, parallelism=min(64, case.shards))
    files = LocalFiles()
    executor = ReportedTasks(case, files)
    driver: Driver[int] = Driver(plan, settings, files, executor)
    driver.batch(0, 0)
    driver.close()
    _fill(driver.store, case)
    began = time.process_time()
    driver = Driver(plan, settings, files, executor)
    opened = time.process_time() - began
    costs, sizes, changed, live = [], [], [], 0
    most = psutil.Process().memory_info().rss
    for number in range(3, 3 + WARM + MEASURED):
        began = time.process_time()
        (made,) = driver.batch(number, 0)
        cost = time.process_time() - began - executor.seconds
        before, live = live, made.progress["icestream"]["segments"]
        most = max(most, psutil.Process().memory_info().rss)
        if number >= 3 + WARM:
            costs.append(1e3 * cost)
            changed.append(2 * executor.added + before - live)
            sizes.append(_written(folder / "checkpoint", made.commit.version))
    driver.close()
    gc.collect()
    return {
        "shards": case.shards,
        "live": live,
        "changed": round(statistics.mean(changed)),
        "ms": round(statistics.mean(costs), 2),
        "most_ms": round(max(costs), 2),
        "allowed_ms": round(MOST_MS + MOST_US / 1e3 * statistics.mean(changed), 2),
        "written": round(statistics.mean(sizes)),
        "most_written": max(sizes),
        "resident": most,
        "open_s": round(opened, 2),
    }


def _written(root: Path, version: int) -> int:
    """Return the bytes of the commit of a version and of the layers that it wrote."""
    folders = (root / COMMITS, root / MANIFESTS)
    found = (path for folder in folders for path in folder.glob(f"{version:012d}-*"))
    return sum(path.stat().st_size for path in found)


def _fill(store: VersionStore, case: Case) -> None:
    """Commit a version with all the segments, by manifests with one layer each."""
    last = store.latest()
    assert last is not None
    version, each = last.version + 1, case.live // case.shards
    ordinal, manifests = last.next_ordinal, []
    for shard in range(-1, case.shards):
        rows = np.zeros(each if shard >= 0 else 0, SEGMENT)
        rows["ordinal"] = ordinal + np.arange(len(rows))
        rows["attempt"], rows["bytes"], rows["records"] = 16, SEGMENT_BYTES, 10
        rows["version"] = version
        ordinal += len(rows)
        expiry = (version + 1 + np.arange(len(rows), dtype=np.int64)) * SECOND
        content = LayerContent(0, version, rows, expiry, None, np.empty(0, RELEASED), ["panes"])
        name = f"{version:012d}-{shard + 1:016x}.layers"
        (place,), data = layers_file(name, [content])
        store.files.put(f"{store.root}/{MANIFESTS}/{name}", data)
        manifests.append(ShardManifest(shard, (place,)))
    filled = replace(
        last,
        version=version,
        batch=1,
        added=(),
        bases=(version,) * case.shards,
        horizon=version * SECOND,
        next_ordinal=ordinal,
        manifests=tuple(manifests),
    )
    store.create(filled)
    # a driver begins with the last version but one
    store.create(replace(filled, version=version + 1, batch=2, manifests=()))


BENCH = Bench(
    "scale",
    "a driver of 1,024 shards and 10 million live segments pays for what a version changes",
    measure,
)
