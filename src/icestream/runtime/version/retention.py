"""The versions of a checkpoint that can be restored, and the removal of files that they do not use.

Idea: a version is retained with its live segments until `keep` newer ones exist. Files that only a
dropped version names are removed at once; every 16th version lists the folders for files that
failed attempts left behind. In a store it also looks for packs that are mostly dead: what is live
in them becomes objects by their own names, where readers look once a pack is gone.

Invariants:
1. The folders contain what retained versions name, and nothing else
   (`test_nothing_is_left_behind_that_no_version_names`).
2. Files that a newer owner wrote are never removed, and a program that has lost the checkpoint
   removes nothing (`test_a_sweep_leaves_files_of_newer_epochs_alone`,
   `test_the_loser_deletes_nothing`): only files from before the takeover, and names of epochs up to
   its own, are ever considered.
3. After a sweep packs have at most as many dead bytes as live ones, plus `DEAD_BYTES`
   (`test_bounded_dead_bytes_in_packs`).

Cost: a version is read once; every 16th version lists the folders. A segment is written at most
once more in its life.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from icestream.runtime.version.bulk_files import BulkFiles
from icestream.state.stores.packs import holder_of, pack_of
from icestream.state.versions.attempts import LAST_EPOCH, epoch_of
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
#: dead bytes that packs may always have
DEAD_BYTES = 64 << 20


class VersionRetention:
    """The last versions of one checkpoint."""

    def __init__(self, store: VersionStore, files: BulkFiles, keep: int) -> None:
        """Start empty; `resume` reads the checkpoint."""
        self._store = store
        self._files = files
        self._root = store.root
        self._keep = keep
        self.last: Commit | None = None
        #: segments with state of the last version
        self.live: tuple[LiveSegment, ...] = ()
        #: the oldest version that there is: those before it may have been erased
        self._first = 1
        #: versions that can be restored, with their live segments, if they have been read
        self._kept: dict[int, tuple[Commit, tuple[LiveSegment, ...]]] = {}
        #: objects and files that retained versions need
        self._named: set[str] = set()
        #: bytes of the files that retained versions name
        self.bytes = 0
        #: objects of files that were in a pack once
        self._unpacked: set[str] = set()

    def stored(self) -> dict[str, int]:
        """Return the existing files that versions may name, with their bytes."""
        known = self._named
        folders = [f"{self._root}/{folder}" for folder in (SEGMENTS, RESULTS)]
        return {
            path: size
            for folder in folders
            for path, size in self._files.sizes(folder, known).items()
        }

    def resume(self, left: Mapping[str, int] | None = None) -> None:
        """Read the position of the checkpoint and remove what no version names.

        After a takeover, only the files `left` by earlier owners, listed before it, are removed.
        """
        self._store.check_owner()
        self._kept.clear()
        self.last = last = self._store.latest()
        self._first = min(self._store.versions(), default=1)
        self.live = self._restorable(last.version)[1] if last is not None else ()
        self._sweep(left)

    def add(self, commit: Commit, live: tuple[LiveSegment, ...]) -> None:
        self.last, self.live = commit, live
        self._kept[commit.version] = commit, live

    def tidy(self) -> None:
        """Remove what the retained versions no longer name."""
        last = self.last
        if last is None:
            return
        self._store.check_owner()
        named = self._names(last)
        self._files.remove(self._named - named)
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
        return max(self._first, min(computed, last.version - self._keep + 1))

    def _restorable(self, version: int) -> tuple[Commit, tuple[LiveSegment, ...]]:
        """Return a version and its live segments, read once."""
        if version not in self._kept:
            self._kept[version] = self._store.load(version), self._store.live(version)
        return self._kept[version]

    def _segments(self, last: Commit) -> dict[str, int]:
        """Return the paths and bytes of the segments that the retained versions name."""
        oldest = self._oldest(last)
        commits = [self._restorable(version)[0] for version in range(oldest, last.version + 1)]
        named = [*self._restorable(oldest)[1], *(each for c in commits for each in c.added)]
        return {f"{self._root}/{SEGMENTS}/{each.info.name}": each.info.bytes for each in named}

    def _names(self, last: Commit) -> set[str]:
        """Return the objects and files that the retained versions need."""
        versions = range(self._oldest(last), last.version + 1)
        commits = [self._restorable(version)[0] for version in versions]
        rows = {
            f"{self._root}/{RESULTS}/{info.name}": info.bytes
            for commit in commits
            for info in (*commit.results, *commit.late)
        }
        paths = {**self._segments(last), **rows}
        self.bytes = sum(paths.values())
        return {
            path if path in self._unpacked else holder_of(self._store.files, path) for path in paths
        }

    def _sweep(self, left: Mapping[str, int] | None = None) -> None:
        """Remove files of failed attempts, and of losing attempts that are still writing."""
        own = LAST_EPOCH if left is not None else self._store.epoch
        stored = self.stored() if left is None else left
        old = {path for path in stored if epoch_of(path.rpartition("/")[2]) <= own}
        if getattr(self._store.files, "packs", False):
            self._unpacked = {path for path in stored if pack_of(path) is not None}
        self._named = set() if self.last is None else self._names(self.last)
        self._files.remove(old - self._named)
        if self.last is not None and self._store.epoch:
            self._unpack(self.last, stored)

    def _unpack(self, last: Commit, stored: Mapping[str, int]) -> None:
        """Make objects of what is live in packs that are mostly dead, and remove these packs."""
        packs: dict[str, list[str]] = {}
        live: Counter[str] = Counter()
        for path, size in self._segments(last).items():
            pack = pack_of(path)
            if pack is not None and pack in stored and path not in self._unpacked:
                packs.setdefault(pack, []).append(path)
                live[pack] += size
        dead = {pack: stored[pack] - size for pack, size in live.items()}
        excess = sum(dead.values()) - live.total() - DEAD_BYTES
        chosen: list[str] = []
        for pack in sorted(dead, key=lambda each: live[each] / stored[each]):
            if excess <= 0 or dead[pack] <= live[pack]:
                break
            excess -= dead[pack] - live[pack]
            chosen.append(pack)
        if chosen:
            self._files.unpack([packs[pack] for pack in chosen])
            self._store.check_owner()
            self._unpacked |= {path for pack in chosen for path in packs[pack]}
            self._files.remove(chosen)
            self._named = self._names(last)
