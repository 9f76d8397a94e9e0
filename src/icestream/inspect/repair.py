"""Saves what is intact of a damaged checkpoint, and reports exactly what is lost.

Idea: a version is useful only if it is complete, so a repair goes back to the newest version that
is intact and can be resumed. The loss is the difference between two commits: versions, batches,
events, rows. The result is a copy, or on request the checkpoint itself; even then no file is
deleted: dropped files are moved to a separate folder.

Invariants:
1. A repair in place takes the checkpoint over: a query that still runs on it cannot commit
   (`test_a_query_that_runs_on_a_repaired_checkpoint_cannot_commit`).
2. A repaired checkpoint verifies, and the query continues from the reported version
   (`test_a_query_goes_on_from_a_repaired_checkpoint`).
3. Without a target and without consent no byte changes (`test_nothing_is_repaired_unasked`).
4. A repair in place that was interrupted can be run again
   (`test_crash_a_repair_in_place_can_be_run_again`).

Limits: Spark's own checkpoint must go back to the same batch; the report explains how.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from icestream.core.errors import CheckpointError, IcestreamError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.access.scratch_shard import MEMORY
from icestream.inspect.copying import SPARK, copy_commits, copy_version
from icestream.inspect.verify import REPAIRED, VerifyReport, verify
from icestream.runtime.version.lease import Lease
from icestream.state.files import folder_of
from icestream.state.stores.store_files import files_at
from icestream.state.versions.commits import COMMITS, IDENTITY, Commit
from icestream.state.versions.ownership import Owner

#: folder of the files that a repair in place drops
DROPPED = "damaged"


@dataclass
class Repair:
    """What a repair does or would do."""

    root: str
    report: VerifyReport
    #: the version to go back to; None if there is none, or nothing is wrong
    version: int | None = None
    #: files that are dropped
    dropped: list[str] = field(default_factory=list)
    #: what is lost, as text
    lost: list[str] = field(default_factory=list)
    #: what the user has to do afterwards
    advice: list[str] = field(default_factory=list)

    @property
    def is_possible(self) -> bool:
        """Return whether there is a version to go back to."""
        return self.version is not None


def plan_repair(checkpoint: Checkpoint, memory: int = MEMORY) -> Repair:
    """Determine what a repair can save; changes nothing."""
    report = verify(checkpoint, memory=memory)
    found = Repair(checkpoint.root, report)
    if report.is_fine:
        return found
    whole = [version for version in report.intact if _resumable(checkpoint, version)]
    broken = {version for finding in report.findings for version in finding.versions}
    whole = [version for version in whole if version not in broken]
    damaged = {finding.path for finding in report.findings}
    damaged = {path for path in damaged if checkpoint.files.exists(path)}
    if not whole:
        found.lost.append("no version is intact: nothing can be resumed")
        return found
    found.version = whole[-1]
    newer = [version for version in checkpoint.versions if version > whole[-1]]
    commits = {checkpoint.store.path(version) for version in newer}
    found.dropped = sorted(damaged | commits)
    found.lost = list(_lost(checkpoint, checkpoint.store.load(whole[-1]), newer, damaged))
    found.advice = list(_advice(checkpoint, checkpoint.store.load(whole[-1]), newer))
    return found


def repair_copy(checkpoint: Checkpoint, repair: Repair, target: str) -> None:
    """Repair a copy: write what is intact to a new folder."""
    version = _possible(repair)
    copy = files_at(target)
    if copy.exists(target):
        msg = f"{target} already exists; name a new folder for the repaired copy"
        raise CheckpointError(msg)
    dropped = set(repair.dropped)
    copy_version(checkpoint, version, copy, target, without=dropped)
    copy.put(f"{target}/{REPAIRED}/{version:012d}", b"")
    copy_commits(checkpoint, version, copy, target, dropped)


def repair_in_place(checkpoint: Checkpoint, repair: Repair) -> str:
    """Repair: move dropped files to a folder inside the checkpoint; return that folder.

    It takes the checkpoint over first, and goes back to the version once all files are moved.
    """
    version, files, root = _possible(repair), checkpoint.files, checkpoint.root
    folder = f"{root}/{DROPPED}"
    owner = Owner.here("icestream state repair")
    Lease(files, root).check()
    checkpoint.store.take(owner, damaged=True)
    files.put(f"{root}/{REPAIRED}/{version:012d}", b"")
    # newest commits first: wherever this stops, the remaining versions have no gap
    commits = [path for path in repair.dropped if path.startswith(f"{root}/{COMMITS}/")]
    others = [path for path in repair.dropped if path not in commits]
    for path in (*sorted(commits, reverse=True), *others):
        target = f"{folder}/{os.path.relpath(path, root)}"
        files.put(f"{folder_of(target)}/.made", b"")
        files.rename(path, target)
        for each in (folder_of(path), folder_of(target)):
            files.sync_folder(each)
    checkpoint.store.take(owner, after=version)
    return folder


def _possible(repair: Repair) -> int:
    if repair.version is None:
        msg = f"{repair.root} cannot be repaired: {'; '.join(repair.lost) or 'nothing is wrong'}"
        raise CheckpointError(msg)
    return repair.version


def _resumable(checkpoint: Checkpoint, version: int) -> bool:
    """Return whether a query can resume from a version: it also reads the one before."""
    try:
        if version > 1:
            checkpoint.store.load(version - 1)
            checkpoint.live(version - 1)
    except IcestreamError:
        return False
    return True


def _lost(
    checkpoint: Checkpoint, commit: Commit, newer: list[int], damaged: set[str]
) -> Iterator[str]:
    if checkpoint.store.plan_path(commit) in damaged:
        yield (
            "the plan: the next query that starts here writes its own, and nothing checks that it "
            "is the same query"
        )
    if f"{checkpoint.root}/{IDENTITY}" in damaged:
        yield (
            "the identity under which tables know this query: make a checkpoint with another one, "
            "for new tables, with `icestream state copy --clone`"
        )
    if not newer:
        return
    yield f"versions {newer[0]} to {newer[-1]}" if len(newer) > 1 else f"version {newer[0]}"
    try:
        last = checkpoint.store.load(newer[-1])
    except IcestreamError:
        yield "an unknown number of batches, as the last commit is damaged: all after this version"
        return
    first, end = commit.batch, last.batch
    if end is not None and (first is None or end > first):
        begin = 0 if first is None else first + 1
        yield f"batch {end}" if begin == end else f"batches {begin} to {end}"
    for name, what in (("events", "events"), ("rows", "result rows")):
        count = last.totals.get(name, 0) - commit.totals.get(name, 0)
        if count:
            yield f"{count} {what} that were counted in them"


def _advice(checkpoint: Checkpoint, commit: Commit, newer: list[int]) -> Iterator[str]:
    beside = f"{folder_of(checkpoint.root)}/{SPARK}"
    batch = -1 if commit.batch is None else commit.batch
    if newer and checkpoint.files.exists(f"{beside}/offsets"):
        yield (
            f"Spark's own checkpoint is ahead: in {beside} remove the files of offsets/ and "
            f"commits/ with numbers above {batch}, and their .crc files, so that Spark runs "
            f"batch {batch + 1} again"
        )
    if newer:
        yield (
            f"rows of the lost versions may have reached the sink and will be delivered again: the "
            f"rows of batches after {batch} are repeated unless the sink recognises versions"
        )
