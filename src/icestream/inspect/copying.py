"""Copies a checkpoint while its query runs: a backup, or a clone with an identity of its own.

Idea: the files of a version never change, so one version is copied file by file, its commits last.
If the query has gone on so far that files of the version are gone, the copy starts again from a
newer one. Spark's own small checkpoint is copied up to the batch of that version.

Invariants:
1. A query goes on from the copy as after a crash, whatever the original did meanwhile
   (`test_a_copy_of_a_live_checkpoint_goes_on_by_itself`).
2. Copying changes no file of the original and takes no ownership
   (`test_copying_changes_no_byte_of_the_original`).
3. Half a copy has no version (`test_half_a_copy_has_no_version`): a query refuses it.

Limits: tables are not copied. A backup goes on under the identity of the original: tables skip what
they have of it. A clone has an identity of its own: it adds rows beside the original's.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

from icestream.core.errors import CheckpointError, DamageError, IcestreamError
from icestream.inspect.access.checkpoint import INSIDE, Checkpoint
from icestream.inspect.verify import DELIVERED
from icestream.runtime.tables.current_table import CurrentTable
from icestream.state.files import Files, folder_of
from icestream.state.stores.store_files import files_at
from icestream.state.versions.commits import IDENTITY, RESULTS, SEGMENTS, Commit, VersionStore
from icestream.state.versions.idle import IDLE, IdleBatches
from icestream.state.versions.live_segments import LiveSegments, names_of

#: Spark's own checkpoint, next to the state
SPARK = "spark"
#: times that a copy starts again because its version is gone
TRIES = 20
#: bytes copied at once
_PIECE = 1 << 20


@dataclass(frozen=True)
class CheckpointCopy:
    """What was copied."""

    source: str
    target: str
    version: int
    files: int
    bytes: int


def copy_checkpoint(location: str, target: str, *, clone: bool = False) -> CheckpointCopy:
    """Copy the last version of a checkpoint to a new folder; a clone gets its own identity."""
    checkpoint = Checkpoint(location)
    copy, whole = files_at(target), checkpoint.root.endswith(f"/{INSIDE}")
    if copy.exists(target):
        msg = f"{target} already exists; name a new folder for the copy"
        raise CheckpointError(msg)
    root = f"{target}/{INSIDE}" if whole else target
    for _ in range(TRIES):
        version = checkpoint.commit().version
        try:
            copied = copy_version(checkpoint, version, copy, root, identity=not clone)
            if whole:
                copied += _copy_spark(checkpoint, version, copy, target)
            if clone:
                VersionStore(copy, root).identity()
            copied += copy_commits(checkpoint, version, copy, root)
        except (FileNotFoundError, DamageError):
            if checkpoint.versions[-1] == version:
                raise
            continue
        return CheckpointCopy(checkpoint.root, target, version, len(copied), sum(copied))
    msg = (
        f"the query on {checkpoint.root} removes versions faster than they can be copied to "
        f"{target}: stop it while you copy, or copy to a faster place"
    )
    raise CheckpointError(msg)


def copy_version(
    checkpoint: Checkpoint,
    version: int,
    copy: Files,
    root: str,
    *,
    identity: bool = True,
    without: Collection[str] = (),
) -> list[int]:
    """Copy all that versions up to one consist of, except commits; return the sizes of files."""
    files, copied = checkpoint.files, []
    commits = [checkpoint.store.load(each) for each in checkpoint.versions if each <= version]
    needed = _named(checkpoint, commits[-1])
    for before in commits[-2:-1]:
        # what is there of the version before must not be lost meanwhile
        with suppress(IcestreamError):
            paths = _named(checkpoint, before)
            needed += [path for path in paths if files.exists(f"{checkpoint.root}/{path}")]
    others = [f"{SEGMENTS}/{each.info.name}" for commit in commits for each in commit.added]
    for commit in commits:
        others += commit.layer_files()
        others += [f"{RESULTS}/{info.name}" for info in (*commit.results, *commit.late)]
    others += [os.path.basename(checkpoint.store.plan_path(each)) for each in commits]
    others += [*([IDENTITY] if identity else []), *_marks(checkpoint, version)]
    others += [f"{IDLE}/{name}" for name in files.list(f"{checkpoint.root}/{IDLE}")]
    needed += _tables(checkpoint, version)
    for path in dict.fromkeys((*needed, *others)):
        source = f"{checkpoint.root}/{path}"
        if source in without or (path not in needed and not files.exists(source)):
            continue
        copied.append(copy_file(files, source, copy, f"{root}/{path}"))
    return copied


def _named(checkpoint: Checkpoint, commit: Commit) -> list[str]:
    """Return the files of state and rows that a version needs."""
    live = LiveSegments.at(checkpoint.store, commit.version)
    return [
        *live.layer_files(),
        *(f"{SEGMENTS}/{name}" for name in names_of(live.files("attempt"))),
        *(f"{RESULTS}/{info.name}" for info in (*commit.results, *commit.late)),
    ]


def copy_commits(
    checkpoint: Checkpoint, version: int, copy: Files, root: str, without: Collection[str] = ()
) -> list[int]:
    """Copy the commits up to a version, and the takeovers that say what their names mean."""
    store, base = checkpoint.store, checkpoint.root
    kept = [each for each in checkpoint.versions if each <= version]
    sources = [*store.takeovers_until(version), *map(store.path, kept)]
    return [
        copy_file(checkpoint.files, source, copy, f"{root}/{os.path.relpath(source, base)}")
        for source in sources
        if source not in without
    ]


def _tables(checkpoint: Checkpoint, version: int) -> Iterator[str]:
    """Yield the files of the tables of what holds, as they were at a version."""
    for table in CurrentTable.all_in(checkpoint.files, checkpoint.root):
        manifest = table.manifest(version)
        if manifest is None:
            msg = f"the table {table.folder} no longer has the files of version {version}"
            raise FileNotFoundError(msg)
        for name in (manifest.name, *sorted(manifest.names)):
            yield os.path.relpath(f"{table.folder}/{name}", checkpoint.root)


def _marks(checkpoint: Checkpoint, version: int) -> Iterator[str]:
    """Yield the marks of versions that have reached sinks; sinks count versions from 0."""
    folder = f"{checkpoint.root}/{DELIVERED}"
    for view in checkpoint.files.list(folder):
        for mark in checkpoint.files.list(f"{folder}/{view}"):
            if mark.isdigit() and int(mark) < version:
                yield f"{DELIVERED}/{view}/{mark}"


def _copy_spark(checkpoint: Checkpoint, version: int, copy: Files, target: str) -> list[int]:
    """Copy Spark's offsets and commits up to the batch of a version, and all of its sources."""
    folder = folder_of(checkpoint.root)
    files, idle = checkpoint.files, IdleBatches(checkpoint.files, checkpoint.root)
    idle.resume()
    last = idle.reached(checkpoint.store.load(version))
    paths = ["metadata"]
    for part in ("offsets", "commits"):
        names = files.list(f"{folder}/{SPARK}/{part}")
        paths += [f"{part}/{name}" for name in names if name.isdigit() and int(name) <= last]
    # the log of a source may be ahead: Spark reads it as a batch that it has planned
    for source in files.list(f"{folder}/{SPARK}/sources"):
        names = files.list(f"{folder}/{SPARK}/sources/{source}")
        paths += [f"sources/{source}/{name}" for name in names]
    return [
        copy_file(files, f"{folder}/{SPARK}/{path}", copy, f"{target}/{SPARK}/{path}")
        for path in paths
        if files.exists(f"{folder}/{SPARK}/{path}")
    ]


def copy_file(files: Files, source: str, copy: Files, target: str) -> int:
    """Copy a file durably, unless an earlier try has; return its size."""
    with closing(files.open(source)) as opened:
        if copy.exists(target):
            if len(copy.read(target)) == opened.size:
                return opened.size
            copy.unlink(target)
        with closing(copy.create(target)) as made:
            for offset in range(0, opened.size, _PIECE):
                made.write(opened.read_at(offset, _PIECE))
            made.sync()
        copy.sync_folder(folder_of(target))
        return opened.size
