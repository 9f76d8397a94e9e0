"""Checks whether a checkpoint is intact: every checksum, every reference, every byte that counts.

Idea: the plan, the identity and all commits are opened. Files that the retained versions name are
read completely: each block and each part of the directory is compared with its checksum, and the
file with its entry in the commit. Back pointers are followed. Finally the newest state is restored
and read, which follows the pointers inside payloads. Defects are listed, and nothing is changed.

Invariants:
1. A flipped byte in any file that counts is found, at every position
   (`test_every_flipped_byte_of_every_kind_of_file_is_found`; the bench `verify`).
2. A missing or foreign file is reported with the version that needs it
   (`test_a_missing_segment_is_named_with_the_version_that_needs_it`).

Limits: the newest version and the one before it must be complete; of older ones, existing files are
checked, because the number of versions that a query retains is not recorded. `history/` is for
people, no query reads it, and it is not checked; nor are files that no version names, which the
next run removes.

Cost: one pass over all named files, 48 bytes of memory per record, and a restore of the newest
version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from icestream.core.errors import BudgetError, CheckpointError, DamageError, IcestreamError
from icestream.inspect.access.adapter_protocol import StateRows
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.access.scratch_shard import MEMORY
from icestream.inspect.state_rows import Reading
from icestream.plan.state_schema import NoSchema
from icestream.runtime.tables.current_table import CurrentTable
from icestream.runtime.version.end_mark import MARK
from icestream.state.log.format import NO_MARKER, SegmentInfo, show_marker
from icestream.state.log.reader import SegmentReader
from icestream.state.stores.packs import holder_of
from icestream.state.versions.commits import IDENTITY, RESULTS, SEGMENTS, Commit, LiveSegment
from icestream.state.versions.manifests import MANIFESTS

#: marks of versions that sinks have
DELIVERED = "delivered"
#: file that `repair` leaves behind: the version it went back to
REPAIRED = "repaired"
#: number of versions, counted from the newest, that must be complete
MUST_BE_WHOLE = 2


@dataclass(frozen=True)
class Defect:
    """One defect."""

    path: str
    what: str
    #: versions that cannot be restored because of it
    versions: tuple[int, ...] = ()


@dataclass
class VerifyReport:
    """The result of a verification."""

    root: str
    findings: list[Defect] = field(default_factory=list)
    #: versions that are complete and intact, ascending
    intact: list[int] = field(default_factory=list)
    #: files that were read completely, and their bytes
    files: int = 0
    bytes: int = 0
    #: rows of the newest state that were read; None if it was not read
    rows: int | None = None
    #: files that belong to no version
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_fine(self) -> bool:
        return not self.findings


def verify(
    checkpoint: Checkpoint,
    *,
    state: bool = True,
    memory: int = MEMORY,
    progress: Callable[[str], None] = lambda _: None,
) -> VerifyReport:
    """Verify a checkpoint: check that it is intact.

    Restoring the newest state may use `memory` bytes for a shard. `progress` is called with the
    path of each file before it is read.
    """
    checking = _Checking(checkpoint, progress)
    report = checking.run()
    if state and report.is_fine and checkpoint.versions:
        _read_state(checkpoint, report, memory)
    return report


def check_segment(checkpoint: Checkpoint, folder: str, info: SegmentInfo) -> SegmentReader:
    """Verify a file of records; DamageError if it differs from its entry in the commit.

    The returned reader is closed, with the directory still in memory.
    """
    path = f"{checkpoint.root}/{folder}/{info.name}"
    with closing(SegmentReader(checkpoint.files, path, info=info)) as reader:
        if (reader.records, reader.expiry) != (info.records, info.expiry):
            raise DamageError(path, "its records or its expiry differ from its entry in the commit")
        directory = reader.directory
        seen = 0
        for record in reader.scan():
            if record.marker != int(directory["marker"][seen]):
                raise DamageError(path, f"record {show_marker(record.marker)} is out of place")
            seen += 1
        if seen != info.records:
            raise DamageError(path, f"it has {seen} records, but its commit records {info.records}")
    return reader


def check_mark(checkpoint: Checkpoint, path: str) -> None:
    """Verify a delivery mark: refuse unexpected content."""
    if checkpoint.files.read(path) != MARK:
        raise DamageError(path, "this is not a delivery mark")


class _Checking:
    """One pass over a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, progress: Callable[[str], None]) -> None:
        self._at = checkpoint
        self._progress = progress
        self._report = VerifyReport(checkpoint.root)
        #: directories of intact segments, by ordinal; None for damaged ones
        self._segments: dict[str, SegmentReader | None] = {}
        self._named: set[str] = set()

    def run(self) -> VerifyReport:
        at, report = self._at, self._report
        self._try(at.store.plan_path(), self._plan, ())
        identity = f"{at.root}/{IDENTITY}"
        # checkpoints of queries without Spark have none
        if at.files.exists(identity):
            self._try(identity, partial(at.store.identity, ""), ())
        commits = self._commits()
        newest = max(commits, default=0)
        least = newest - MUST_BE_WHOLE + 1
        floor = _repaired_to(at)
        for version, commit in sorted(commits.items(), reverse=True):
            needed = version == newest or (version >= least and version > floor)
            if self._version(commit, needed=needed):
                report.intact.insert(0, version)
        self._marks()
        self._tables()
        self._ignored()
        return report

    def _plan(self) -> None:
        self._at.store.plan()
        with suppress(CheckpointError):
            self._at.state_schema  # noqa: B018 - read, so that a damaged one is reported

    def _commits(self) -> dict[int, Commit]:
        """Return the intact commits; a gap between them is a defect."""
        at, versions = self._at, self._at.versions
        commits: dict[int, Commit] = {}
        for version in versions:
            path = at.store.path(version)
            self._try(path, partial(self._load, version, commits), (version,))
        standing = at.store.look(damaged=True)
        if standing.version:
            expected = range(min((*versions, standing.version)), standing.version + 1)
            for version in sorted(set(expected) - set(versions)):
                path = at.store.path(version)
                self._found(path, "the commit file of a version is missing", (version,))
        return commits

    def _load(self, version: int, commits: dict[int, Commit]) -> None:
        commits[version] = self._at.store.load(version)

    def _version(self, commit: Commit, *, needed: bool) -> bool:
        """Check the files that a version names; return whether all exist and are intact."""
        at, version = self._at, commit.version
        before = len(self._report.findings)
        try:
            at.history(commit)
            live = at.live(version)
        except IcestreamError as error:
            if needed and not self._report.findings:
                path = error.path if isinstance(error, DamageError) else at.root
                self._found(path, f"{_what(error)}; version {version} needs it", (version,))
            live, needed = commit.added, False
            before = -1
        self._named |= {f"{at.root}/{path}" for path in commit.layer_files()}
        named = [(SEGMENTS, each.info) for each in live]
        named += [(RESULTS, info) for info in (*commit.results, *commit.late)]
        whole = [self._file(folder, info, version, needed=needed) for folder, info in named]
        if not all(whole) or before < 0:
            return False
        self._pointers(live, commit)
        return len(self._report.findings) == before

    def _file(self, folder: str, info: SegmentInfo, version: int, *, needed: bool) -> bool:
        """Check a file once, however many versions name it."""
        path = f"{self._at.root}/{folder}/{info.name}"
        self._named |= {path, holder_of(self._at.files, path)}
        if path not in self._segments:
            if not self._at.files.exists(path):
                if needed:
                    what = f"the file is missing; version {version} needs it"
                    self._found(path, what, (version,))
                return False

            def check() -> None:
                self._segments[path] = check_segment(self._at, folder, info)

            self._segments[path] = None
            self._try(path, check, (version,))
            self._report.bytes += info.bytes
        return self._segments[path] is not None

    def _pointers(self, live: tuple[LiveSegment, ...], commit: Commit) -> None:
        """Check that the back pointers of live records lead to records."""
        readers = {
            each.info.ordinal: self._segments[f"{self._at.root}/{SEGMENTS}/{each.info.name}"]
            for each in live
        }
        for reader in readers.values():
            assert reader is not None
            backs = reader.directory["back"]
            for marker in backs[backs != NO_MARKER].tolist():
                target = readers.get(marker >> 32)
                gone = target is None and marker >> 32 < commit.next_ordinal
                if not gone and (target is None or not _has(target, marker)):
                    what = f"a back pointer leads to {show_marker(marker)}, which is no record"
                    self._found(reader.path, what, (commit.version,))

    def _marks(self) -> None:
        root = f"{self._at.root}/{DELIVERED}"
        for view in self._at.files.list(root):
            for name in self._at.files.list(f"{root}/{view}"):
                path = f"{root}/{view}/{name}"
                self._try(path, partial(check_mark, self._at, path), ())

    def _tables(self) -> None:
        """Check the tables of the rows that hold, as they were at each version."""
        for table in CurrentTable.all_in(self._at.files, self._at.root):
            named: dict[str, list[int]] = {}

            def list_files(
                version: int,
                table: CurrentTable = table,
                named: dict[str, list[int]] = named,
            ) -> None:
                manifest = table.manifest(version)
                for name in manifest.names if manifest else ():
                    named.setdefault(name, []).append(version)

            for version in self._at.versions:
                self._try(table.folder, partial(list_files, version), (version,))
            for name, versions in sorted(named.items()):
                check = partial(table.check, name)
                self._try(f"{table.folder}/{name}", check, tuple(versions))

    def _ignored(self) -> None:
        at = self._at
        for folder in (SEGMENTS, RESULTS, MANIFESTS):
            for name in at.files.list(f"{at.root}/{folder}"):
                path = f"{at.root}/{folder}/{name}"
                if path not in self._named:
                    self._report.ignored.append(path)

    def _try(self, path: str, check: Callable[[], object], versions: tuple[int, ...]) -> None:
        self._progress(path)
        self._report.files += 1
        try:
            check()
        except IcestreamError as error:
            at = error.path if isinstance(error, DamageError) else path
            self._found(at, _what(error), versions)

    def _found(self, path: str, what: str, versions: tuple[int, ...]) -> None:
        self._report.findings.append(Defect(path, what, versions))


def _has(reader: SegmentReader, marker: int) -> bool:
    markers = reader.directory["marker"]
    place = int(np.searchsorted(markers, np.uint64(marker)))
    return place < len(markers) and int(markers[place]) == marker


def _what(error: IcestreamError) -> str:
    return error.what if isinstance(error, DamageError) else str(error)


def _repaired_to(checkpoint: Checkpoint) -> int:
    """Return the version that a repair went back to: those before it need not be complete."""
    names = checkpoint.files.list(f"{checkpoint.root}/{REPAIRED}")
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def _read_state(checkpoint: Checkpoint, report: VerifyReport, memory: int) -> None:
    try:
        if isinstance(checkpoint.state_schema, NoSchema):
            report.notes.append(f"the state was not read: {checkpoint.state_schema.why}")
            return
        report.rows = sum(found.rows.num_rows for found in _rows(checkpoint, memory))
    except BudgetError as error:
        report.notes.append(f"the state was not read: {error}")
    except DamageError as error:
        report.findings.append(Defect(error.path, error.what, (checkpoint.versions[-1],)))
    except CheckpointError as error:
        report.notes.append(f"the state was not read: {error}")


def _rows(checkpoint: Checkpoint, memory: int) -> Iterator[StateRows]:
    return Reading(checkpoint.root, memory=memory, files=checkpoint.files).rows()
