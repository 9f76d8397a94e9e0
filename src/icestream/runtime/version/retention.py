"""The versions of a checkpoint that can be restored, and the removal of files that they do not use.

Idea: a version is retained with its live segments until `keep` newer ones exist. Files that only a
dropped version names are removed at once; every 16th version lists the folders for files that
failed attempts left behind.

Invariants:
1. The folders contain what retained versions name, and nothing else
   (`test_nothing_is_left_behind_that_no_version_names`).
2. Files that a newer owner wrote are never removed, and a program that has lost the checkpoint
   removes nothing (`test_a_sweep_leaves_files_of_newer_epochs_alone`,
   `test_the_loser_deletes_nothing`): only files from before the takeover, and names of epochs up to
   its own, are ever considered.

Cost: a version is read once; every 16th version lists the folders.
"""

from __future__ import annotations

from collections.abc import Collection

from icestream.state.files import Files
from icestream.state.stores.packs import holder_of
from icestream.state.versions.attempts import epoch_of
from icestream.state.versions.commits import (
    RESULTS,
    SEGMENTS,
    Commit,
    LiveSegment,
    VersionStore,
    last_manifest,
)

#: versions between two searches for files that no version names
SWEEP_EVERY = 16


class VersionRetention:
    """The last versions of one checkpoint."""

    def __init__(self, store: VersionStore, files: Files, root: str, keep: int) -> None:
        """Start empty; `resume` reads the checkpoint."""
        self._store = store
        self._files = files
        self._root = root
        self._keep = keep
        self.last: Commit | None = None
        #: segments with state of the last version
        self.live: tuple[LiveSegment, ...] = ()
        #: versions that can be restored, with their live segments, if they have been read
        self._kept: dict[int, tuple[Commit, tuple[LiveSegment, ...]]] = {}
        self._named: set[str] = set()
        #: bytes of the files that retained versions name
        self.bytes = 0

    def stored(self) -> list[str]:
        """Return the existing files that versions may name."""
        return [
            f"{self._root}/{folder}/{name}"
            for folder in (SEGMENTS, RESULTS)
            for name in self._files.list(f"{self._root}/{folder}")
        ]

    def resume(self, left: Collection[str] | None = None) -> None:
        """Read the position of the checkpoint and remove what no version names.

        After a takeover, only the files `left` by earlier owners, listed before it, are removed.
        """
        self._store.check_owner()
        self._kept.clear()
        self.last = last = self._store.latest()
        self.live = self._restorable(last.version)[1] if last is not None else ()
        self._named = self._names(last) if last is not None else set()
        self._sweep(left)

    def add(self, commit: Commit, live: tuple[LiveSegment, ...]) -> None:
        """Add a committed version."""
        self.last, self.live = commit, live
        self._kept[commit.version] = commit, live

    def tidy(self) -> None:
        """Remove what the retained versions no longer name."""
        last = self.last
        if last is None:
            return
        self._store.check_owner()
        named = self._names(last)
        self._files.unlink(*sorted(self._named - named))
        self._named = named
        if last.version % SWEEP_EVERY == 0:
            self._sweep()
        oldest = self._oldest(last)
        bases = self._restorable(oldest)[0].bases
        needed = min(last_manifest(oldest), *(base or 1 for base in bases))
        self._store.forget_before(needed)
        for version in [v for v in self._kept if v < oldest]:
            del self._kept[version]

    def _oldest(self, last: Commit) -> int:
        """Return the oldest version that can be restored, counted from the last computed one.

        The rows of that one may not have reached the sink when its state was rewritten.
        """
        computed = self._store.before_rewrites(last)[-1].version
        return max(1, min(computed, last.version - self._keep + 1))

    def _restorable(self, version: int) -> tuple[Commit, tuple[LiveSegment, ...]]:
        """Return a version and its live segments, read once."""
        if version not in self._kept:
            self._kept[version] = self._store.load(version), self._store.live(version)
        return self._kept[version]

    def _names(self, last: Commit) -> set[str]:
        """Return the paths that the retained versions name."""
        versions = range(self._oldest(last), last.version + 1)
        commits = [self._restorable(version)[0] for version in versions]
        segments = {each.info.name: each.info.bytes for each in self._restorable(versions[0])[1]}
        segments |= {each.info.name: each.info.bytes for commit in commits for each in commit.added}
        rows = {
            info.name: info.bytes for commit in commits for info in (*commit.results, *commit.late)
        }
        self.bytes = sum(segments.values()) + sum(rows.values())
        paths = [f"{self._root}/{SEGMENTS}/{name}" for name in segments]
        paths += [f"{self._root}/{RESULTS}/{name}" for name in rows]
        return {holder_of(self._files, path) for path in paths}

    def _sweep(self, left: Collection[str] | None = None) -> None:
        """Remove files of failed attempts, and of losing attempts that are still writing."""
        if left is None:
            own = self._store.epoch
            left = [path for path in self.stored() if epoch_of(path.rpartition("/")[2]) <= own]
        self._files.unlink(*(path for path in left if path not in self._named))


__all__ = ["SWEEP_EVERY", "VersionRetention"]
