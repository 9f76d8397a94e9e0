"""The versions of a checkpoint that can be restored, and the removal of files that they do not use.

Idea: a version is retained until `keep` newer ones exist. Each new version says which files it does
not need; they are removed once all retained versions are as new. Now and then the folders are
listed for files that failed attempts left behind. In a store this also looks for packs that are
mostly dead: what is live in them becomes objects by their own names, where readers look once a pack
is gone.

Invariants:
1. The folders contain what retained versions name, and nothing else
   (`test_nothing_is_left_behind_that_no_version_names`); versions are retained while shards are
   prepared from them (`test_what_a_preparation_reads_is_retained`).
2. Files that a newer owner wrote are never removed, and a program that has lost the checkpoint
   removes nothing (`test_a_sweep_leaves_files_of_newer_epochs_alone`,
   `test_the_loser_deletes_nothing`): only files from before the takeover, and names of epochs up to
   its own, are ever considered.
3. After a sweep packs have at most as many dead bytes as live ones, plus `DEAD_BYTES`
   (`test_bounded_dead_bytes_in_packs`).

Cost: a version pays for the files that it adds and ends. A store, where each request takes its
time, is cleaned after every eighth version and keeps the files of up to seven more. The folders are
listed once an eighth of the files is new, after 16 versions at least. A segment is written at most
once more in its life.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from icestream.runtime.version.bulk_files import NAMES_OF_A_TASK, BulkFiles
from icestream.state.stores.packs import PACK, pack_of
from icestream.state.versions.attempts import LAST_EPOCH, epoch_of
from icestream.state.versions.commits import RESULTS, SEGMENTS, Commit, VersionStore
from icestream.state.versions.live_segments import EndedFile, LiveSegments, names_of
from icestream.state.versions.manifests import MANIFESTS

#: versions between two removals of files in a store, where one request takes many names
STORE_CLEANED_EVERY = 8
#: versions between two searches for files that no version names, at least
SWEEP_EVERY = 16
#: and files that they must have added, as a part of those there are
_NEW_PART = 8
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
        self._packs: bool = getattr(store.files, "packs", False)
        self.last: Commit | None = None
        #: segments with state of the last version
        self.live = LiveSegments()
        #: versions that can be restored, with the first version whose commit each needs
        self._kept: dict[int, tuple[Commit, int]] = {}
        #: watermarks that all shards had reached, of versions that may have the oldest snapshot
        self._settled: dict[int, int] = {}
        #: files that the last version does not need, in the order in which they go
        self._ended: list[EndedFile] = []
        #: the oldest version that there is: those before it may have been erased
        self._first = 1
        #: bytes of the files that retained versions name
        self.bytes = 0
        #: files that retained versions name, of each pack
        self._in_pack: Counter[str] = Counter()
        #: objects of files that were in a pack once
        self._unpacked: set[str] = set()
        #: versions and files since the last sweep
        self._versions_since = self._files_since = 0

    def stored(self) -> dict[str, int]:
        """Return the existing files that versions may name, with their bytes."""
        if self._packs:
            known, form = np.sort(self.live.files("attempt")["attempt"]), "{:016x}"
        else:
            known, form = self.live.files()["ordinal"], "{:010d}"
        cuts = [form.format(each) for each in known[NAMES_OF_A_TASK::NAMES_OF_A_TASK].tolist()]
        return {
            **self._files.sizes(f"{self._root}/{SEGMENTS}", cuts),
            **self._files.sizes(f"{self._root}/{RESULTS}"),
            **self._files.sizes(f"{self._root}/{MANIFESTS}"),
        }

    def resume(self, left: Mapping[str, int] | None = None) -> None:
        """Read the position of the checkpoint and remove what no version names.

        After a takeover, only the files `left` by earlier owners, listed before it, are removed.
        """
        store = self._store
        store.check_owner()
        self._kept.clear()
        self._settled.clear()
        self._ended.clear()
        self._in_pack.clear()
        self.bytes = 0
        self.last, self.live = store.latest(), LiveSegments()
        self._first = min(store.versions(), default=1)
        if self.last is not None:
            oldest = self._oldest(self.last)
            self.live = LiveSegments.at(store, oldest)
            commit = store.load(oldest)
            self._retain(commit)
            self._count_live(commit)
            self.bytes += sum(self.live.layer_files().values())
            for version in range(oldest + 1, self.last.version + 1):
                self._follow(store.load(version))
        self._sweep(left)

    def settled(self, version: int) -> int:
        """Return the watermark that all shards had reached at a version."""
        if version not in self._settled:
            self._settled[version] = self._store.load(version).settled
        return self._settled[version]

    def commit(self, commit: Commit, live: LiveSegments) -> Commit:
        """Create a version, given the live segments of the one before; return its commit."""
        self.live = live
        ended = live.advance(commit)
        commit, replaced = live.write(self._store, commit)
        self._store.create(commit)
        self._add(commit, [*ended, *replaced])
        return commit

    def _follow(self, commit: Commit) -> None:
        """Go on to the next version of those that are retained."""
        before, version = self.live, commit.version
        if len(commit.bases) == len(self._kept[version - 1][0].bases):
            ended = before.follow(self._store, commit)
        else:
            self.live = LiveSegments.at(self._store, version)
            ended = before.replaced_by(self.live, version)
        self._add(commit, ended)

    def _add(self, commit: Commit, ended: list[EndedFile]) -> None:
        self.last = commit
        self._retain(commit)
        self._count((f"{SEGMENTS}/{each.info.name}", each.info.bytes) for each in commit.added)
        new = f"{MANIFESTS}/{commit.version:012d}-"
        self.bytes += sum(s for path, s in self.live.layer_files().items() if path.startswith(new))
        self._ended += ended
        self._versions_since += 1
        self._files_since += len(commit.added)

    def _retain(self, commit: Commit) -> None:
        self._kept[commit.version] = commit, self.live.needs_commits_from
        self._settled[commit.version] = commit.settled
        self._count(_rows_of(commit))

    def _count(self, files: Iterable[tuple[str, int]]) -> None:
        """Count files that a version names from now on."""
        for path, size in files:
            self.bytes += size
            pack = pack_of(path) if self._packs else None
            if pack is not None:
                self._in_pack[pack] += 1

    def _count_live(self, commit: Commit) -> None:
        """Count the segments that the oldest version names: those it added need not be live."""
        rows = self.live.files("attempt", "bytes")
        self.bytes += int(rows["bytes"].sum())
        if self._packs:
            attempts, numbers = np.unique(
                rows["attempt"][rows["attempt"] & 1 == 1], return_counts=True
            )
            for attempt, number in zip(attempts.tolist(), numbers.tolist(), strict=True):
                self._in_pack[f"{SEGMENTS}/{attempt:016x}{PACK}"] = number
        added = (each.info for each in commit.added if not _has(rows["ordinal"], each.info.ordinal))
        ended = [
            EndedFile(commit.version + 1, f"{SEGMENTS}/{info.name}", info.bytes) for info in added
        ]
        self._count((each.path, each.bytes) for each in ended)
        self._ended += ended

    def tidy(self, read: int | None = None) -> None:
        """Remove what the retained versions no longer name; from a store now and then.

        A version that is being `read`, and those after it, are retained as well.
        """
        last = self.last
        if last is None or (self._packs and last.version % STORE_CLEANED_EVERY):
            return
        self._store.check_owner()
        oldest = min(self._oldest(last), last.version if read is None else read)
        oldest = max(oldest, min(self._kept))
        gone = [each for each in self._ended if each.version <= oldest]
        self._ended = [each for each in self._ended if each.version > oldest]
        for version in [v for v in self._kept if v < oldest]:
            rows = _rows_of(self._kept.pop(version)[0])
            gone += [EndedFile(version, *each) for each in rows]
        self._remove(gone)
        enough = self._files_since * _NEW_PART >= len(self.live)
        if self._versions_since >= SWEEP_EVERY and enough:
            self._sweep()
        commit, needed = self._kept[oldest]
        needed = min(needed, *(base or 1 for base in commit.bases))
        self._store.forget_before(needed)
        for version in [v for v in self._settled if v < needed]:
            del self._settled[version]

    def _remove(self, gone: list[EndedFile]) -> None:
        """Remove files that no version names any more, and packs of which these were the last."""
        objects: list[str] = []
        for _, path, size in gone:
            self.bytes -= size
            pack, whole = pack_of(path) if self._packs else None, f"{self._root}/{path}"
            if pack is None or whole in self._unpacked:
                objects.append(whole)
                self._unpacked.discard(whole)
            if pack is not None:
                self._in_pack[pack] -= 1
                if not self._in_pack[pack]:
                    del self._in_pack[pack]
                    objects.append(f"{self._root}/{pack}")
        self._files.remove(objects)

    def _oldest(self, last: Commit) -> int:
        """Return the oldest version that can be restored, counted from the last computed one.

        The rows of that one may not have reached the sink when its state was rewritten.
        """
        computed = self._store.before_rewrites(last)[-1].version
        return max(self._first, min(computed, last.version - self._keep + 1))

    def _is_named(self, paths: list[str]) -> Iterator[bool]:
        """Yield for each path of an object whether a retained version needs it."""
        others = {f"{self._root}/{each.path}" for each in self._ended}
        others |= {f"{self._root}/{path}" for path in self.live.layer_files()}
        rows = (path for commit, _ in self._kept.values() for path, _ in _rows_of(commit))
        others |= {f"{self._root}/{path}" for path in rows}
        files, folder = self.live.files("attempt"), f"{self._root}/{SEGMENTS}/"
        ordinals, attempts = files["ordinal"], files["attempt"]
        objects = Counter(pack_of(path) for path in self._unpacked)
        for path in paths:
            if path.endswith(PACK):
                yield self._in_pack[path.removeprefix(f"{self._root}/")] > objects[path]
                continue
            found = path in others
            if not found and path.startswith(folder):
                known = _ordinal_and_attempt(path[len(folder) :])
                if known is not None:
                    place = int(np.searchsorted(ordinals, known[0]))
                    found = place < len(files) and known == (ordinals[place], attempts[place])
            yield found

    def _sweep(self, left: Mapping[str, int] | None = None) -> None:
        """Remove files of failed attempts, and of losing attempts that are still writing."""
        own = LAST_EPOCH if left is not None else self._store.epoch
        stored = self.stored() if left is None else left
        old = [path for path in stored if epoch_of(path.rpartition("/")[2]) <= own]
        if self._packs:
            self._unpacked = {path for path in stored if pack_of(path) is not None}
        named = self._is_named(old)
        self._files.remove(
            [path for path, is_named in zip(old, named, strict=True) if not is_named]
        )
        self._versions_since = self._files_since = 0
        if self._packs and self.last is not None and self._store.epoch:
            self._unpack(stored)

    def _unpack(self, stored: Mapping[str, int]) -> None:
        """Make objects of what is live in packs that are mostly dead, and remove these packs."""
        unpacked = {_ordinal_and_attempt(path.rpartition("/")[2]) for path in self._unpacked}
        rows = self.live.files("attempt", "bytes")
        rows = rows[rows["attempt"] & 1 == 1]
        rows = rows[~np.isin(rows["ordinal"], [each[0] for each in unpacked if each is not None])]
        attempts, of_row = np.unique(rows["attempt"], return_inverse=True)
        sizes = np.zeros(len(attempts), np.int64)
        np.add.at(sizes, of_row, rows["bytes"].astype(np.int64))
        folder = f"{self._root}/{SEGMENTS}"
        numbers = {f"{folder}/{each:016x}{PACK}": n for n, each in enumerate(attempts.tolist())}
        live = Counter({pack: int(sizes[n]) for pack, n in numbers.items() if pack in stored})
        retained: dict[str, list[str]] = {}
        for _, path, size in self._ended:
            whole = f"{self._root}/{path}"
            pack = pack_of(whole)
            if pack is None or pack not in stored or whole in self._unpacked:
                continue
            if path.startswith(SEGMENTS):
                retained.setdefault(pack, []).append(whole)
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
            packs = []
            for pack in chosen:
                mine = rows[of_row == numbers[pack]] if pack in numbers else rows[:0]
                own = [f"{folder}/{name}" for name in names_of(mine)]
                packs.append([*own, *retained.get(pack, ())])
            self._files.unpack(packs)
            self._store.check_owner()
            self._unpacked |= {path for paths in packs for path in paths}
            self._files.remove(chosen)


def _rows_of(commit: Commit) -> list[tuple[str, int]]:
    """Return the files of rows that a version names, with their bytes."""
    return [(f"{RESULTS}/{info.name}", info.bytes) for info in (*commit.results, *commit.late)]


def _has(ordered: npt.NDArray[np.uint32], ordinal: int) -> bool:
    place = int(np.searchsorted(ordered, ordinal))
    return place < len(ordered) and int(ordered[place]) == ordinal


def _ordinal_and_attempt(name: str) -> tuple[int, int] | None:
    """Return what the name of a segment tells; None if it is none."""
    ordinal, _, rest = name.partition("-")
    try:
        return int(ordinal), int(rest.removesuffix(".seg"), 16)
    except ValueError:
        return None
