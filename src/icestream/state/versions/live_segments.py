"""The live segments of a version, in columns, from which the next version's follow.

Idea: a driver keeps the live segments of all shards in columns (`shard_segments`). A commit adds
some and ends others; only shards with such segments are visited, and those that ended are returned
as files to remove. A commit has the manifests of a 64th of the shards, in turn: what changed since
the last one becomes a new layer. A version is read from the last manifest of each shard and the
commits since.

Invariants:
1. A segment is live from the version that adds it until its lifetime class lets it go: panes when
   their expiry is at or below the horizon, bases when a newer snapshot of their shard exists
   (`test_parity_live_segments_beside_a_plain_recount`). Horizon and bases never go back.
2. Shards that took over the key groups of others list their segments too; the file ends with the
   last of them (`test_a_shared_segment_goes_with_its_last_shard`).
3. With more than 64 shards, what expires may be returned some versions later
   (`test_what_expires_in_many_shards_is_returned_in_turns`); what is read from files is exact.
4. Every shard has a manifest in any `MANIFEST_EVERY` successive commits
   (`test_bounded_layers_of_a_manifest`).

Cost: a version costs microseconds for each segment that it adds or ends. A segment is written to
about log2(live / changed in 64 versions) layers in its life.

Limits: a segment that several shards list is looked for in all of them when one ends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from icestream.core.times import MINUS_INFINITY
from icestream.state.log.format import SegmentInfo
from icestream.state.log.segments import segment_name
from icestream.state.validation import validated
from icestream.state.versions.attempts import new_attempt
from icestream.state.versions.commits import (
    MANIFEST_EVERY,
    NO_SHARD,
    SEGMENTS,
    Commit,
    LiveSegment,
    VersionStore,
    is_base,
)
from icestream.state.versions.manifests import (
    MANIFESTS,
    SEGMENT,
    Ints,
    Layer,
    Rows,
    ShardManifest,
    layers_file,
    read_layer,
)
from icestream.state.versions.shard_segments import (
    EXPIRES,
    REPLACED,
    ShardSegments,
    WrittenLayer,
)

#: shards that a version looks through for what has expired
_LOOKS = 64
#: the place of the lifetime class in a row
_LIFETIME = (SEGMENT.names or ()).index("lifetime")


class EndedFile(NamedTuple):
    """A file that versions from some version on do not need."""

    version: int
    #: relative to the checkpoint
    path: str
    bytes: int


class LiveSegments:
    """The live segments of the last version of a checkpoint."""

    def __init__(self, shards: int = 0) -> None:
        """Start without any, in shards that are known by their number if there are more."""
        self._shards = {shard: ShardSegments() for shard in range(NO_SHARD, shards)}
        self._bases: tuple[int, ...] = ()
        self._lifetimes: list[str] = []
        #: how segments of each lifetime class end
        self._how: list[int] = []
        self._numbers: dict[str, int] = {}
        #: files with the layers of other shards that these shards replace with the next commit,
        #: which must have the manifests of all
        self._replaces: dict[str, int] | None = None
        #: layers in each file
        self._layers_in: Counter[str] = Counter()
        #: bytes of each file, as far as layers in it are used
        self._layer_bytes: dict[str, int] = {}

    @classmethod
    def at(
        cls, store: VersionStore, version: int, shards: Collection[int] | None = None
    ) -> LiveSegments:
        """Return those of a version, of some of its shards or of all."""
        found = cls()
        if not version:
            return found
        last = store.load(version)
        wanted = set(range(NO_SHARD, len(last.bases)) if shards is None else shards)
        found._shards = {shard: ShardSegments() for shard in sorted(wanted)}
        later: list[Commit] = []
        for number in range(version, 0, -1):
            commit = store.load(number)
            with validated(store.path(number)):
                found._begin_at(store, commit, wanted)
            if not wanted:
                break
            later.append(commit)
        for commit in reversed(later):
            with validated(store.path(commit.version)):
                found._follow(commit)
        with validated(store.path(version)):
            found._end_by_time(last)
        found._bases = last.bases
        return found

    def _begin_at(self, store: VersionStore, commit: Commit, wanted: set[int]) -> None:
        """Take what a commit lists of the shards that are still wanted."""
        if commit.live is not None:
            self._add(each for each in commit.live if each.shard in wanted)
            listed = set(wanted)
        else:
            manifests = [each for each in commit.manifests if each.shard in wanted]
            for manifest in manifests:
                self._read(store, manifest)
            listed = {each.shard for each in manifests}
        for shard in listed:
            self._shards[shard].stamped = commit.version
        wanted -= listed

    def _read(self, store: VersionStore, manifest: ShardManifest) -> None:
        shard = self._shards[manifest.shard]
        for place in manifest.layers:
            layer = read_layer(store.files, store.root, place)
            if len(layer.released):
                shard.without(layer.released["ordinal"].tolist())
                shard.released = []
            numbers = np.array([self._number(name) for name in layer.lifetimes], np.uint16)
            rows = layer.rows.copy()
            rows["lifetime"] = numbers[layer.rows["lifetime"]]
            ends = np.array(self._how, np.uint8)[rows["lifetime"]]
            shard.append(rows, layer.expiry, ends, layer.begins)
            shard.layers.append(WrittenLayer.of(place, layer))
            self._use(place)

    def _follow(self, commit: Commit) -> None:
        """Add and release what a commit does, in shards whose manifest is older."""
        older = {n: each for n, each in self._shards.items() if each.stamped < commit.version}
        self._add(each for each in commit.added if each.shard in older)
        self._release(commit, older)

    # -- what they are ---------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(map(len, self._shards.values()))

    @property
    def bytes(self) -> int:
        """Return the bytes of all, once for each shard that lists a segment."""
        return sum(each.bytes for each in self._shards.values())

    def bytes_of(self, shard: int) -> int:
        """Return the bytes of the segments of a shard."""
        return self._shards[shard].bytes if shard in self._shards else 0

    @property
    def needs_commits_from(self) -> int:
        """Return the oldest version whose commit is needed to read these again."""
        return max(1, min((each.stamped for each in self._shards.values()), default=1))

    def segments(
        self,
        shards: Collection[int] | None = None,
        chosen: Callable[[Ints, Ints], npt.NDArray[np.bool_]] | None = None,
    ) -> Iterator[LiveSegment]:
        """Yield those of some shards by ordinal, all or those chosen by begin and expiry."""
        for number in self._shards if shards is None else shards:
            shard = self._shards.get(number, ShardSegments())
            places = shard.live()
            if chosen is not None:
                begins = (
                    np.full(shard.size, MINUS_INFINITY) if shard.begins is None else shard.begins
                )
                places = places[chosen(begins[places], shard.expiry[places])]
            for place in places.tolist():
                row = shard.rows[place]
                begin = MINUS_INFINITY if shard.begins is None else int(shard.begins[place])
                yield LiveSegment(
                    number,
                    int(row["version"]),
                    self._lifetimes[row["lifetime"]],
                    SegmentInfo(
                        int(row["ordinal"]),
                        _name(row),
                        int(row["bytes"]),
                        int(row["records"]),
                        int(shard.expiry[place]),
                        int(row["checksum"]),
                    ),
                    None if begin == MINUS_INFINITY else begin,
                    bool(row["shared"]),
                )

    def files(self, *fields: str) -> Rows:
        """Return some fields of the segments, with their ordinals, each once and by ordinal."""
        names = ("ordinal", *fields)
        rows = np.empty(len(self), [(name, SEGMENT[name]) for name in names])
        at = 0
        for shard in self._shards.values():
            end, live = at + len(shard), shard.live()
            for name in names:
                rows[name][at:end] = shard.rows[name][live]
            at = end
        order = np.argsort(rows["ordinal"], kind="stable")
        rows = rows[order]
        if any(shard.shared for shard in self._shards.values()):
            rows = rows[np.append(True, np.diff(rows["ordinal"]) != 0)[: len(rows)]]
        return rows

    def layer_files(self) -> dict[str, int]:
        """Return the files with layers that are needed, with the bytes of these."""
        return {f"{MANIFESTS}/{name}": self._layer_bytes[name] for name in self._layers_in}

    # -- the next version ------------------------------------------------------------------

    def advance(self, commit: Commit) -> list[EndedFile]:
        """Become those of the next version; return the segments that it does not need."""
        for number in range(len(self._shards) - 1, len(commit.bases)):
            self._shards[number] = ShardSegments()
        self._add(commit.added)
        turns = max(1, len(commit.bases) // _LOOKS)
        ended = self._release(commit, self._shards) + self._end_by_time(commit, turns)
        self._bases = commit.bases
        return self._ended_files(ended, commit.version)

    def write(
        self, store: VersionStore, commit: Commit, *, everything: bool = False
    ) -> tuple[Commit, list[EndedFile]]:
        """Return the commit with the manifests that are due, or all; and files that these replace.

        Their new layers are durable. Call it once `advance` has seen the commit.
        """
        version = commit.version
        every = 1 if everything or self._replaces is not None else MANIFEST_EVERY
        due = [n for n in self._shards if (n - version) % every == 0]
        before = {number: self._places(number) for number in due}
        contents = {n: self._shards[n].next_layer(version, self._lifetimes) for n in due}
        new = {number: content for number, content in contents.items() if content is not None}
        name = f"{version:012d}-{new_attempt(commit.epoch)}.layers"
        places, data = layers_file(name, [*new.values()])
        if new:
            store.files.put(f"{store.root}/{MANIFESTS}/{name}", data)
        for (number, content), place in zip(new.items(), places, strict=True):
            self._shards[number].layers.append(WrittenLayer.of(place, content))
        manifests = tuple(ShardManifest(n, tuple(self._places(n))) for n in due)
        others = (self._replaces or {}).items()
        self._replaces = None
        return replace(commit, manifests=manifests), [
            *self._restamped(before, version),
            *(EndedFile(version, path, size) for path, size in others),
        ]

    def follow(self, store: VersionStore, commit: Commit) -> list[EndedFile]:
        """Become those of the next version, which exists; return files that it does not need."""
        ended, version = self.advance(commit), commit.version
        before = {each.shard: self._places(each.shard) for each in commit.manifests}
        for manifest in commit.manifests:
            shard = self._shards[manifest.shard]
            known = {each.place: each for each in shard.layers}
            shard.layers = [
                known.get(place)
                or WrittenLayer.of(place, read_layer(store.files, store.root, place))
                for place in manifest.layers
            ]
            shard.released = []
        return ended + self._restamped(before, version)

    def _restamped(self, before: Mapping[int, Sequence[Layer]], version: int) -> list[EndedFile]:
        """Record manifests that a version has, given those before; return files in no manifest."""
        for number, places in before.items():
            self._shards[number].stamped = version
            for place in self._places(number):
                self._use(place)
            for place in places:
                self._layers_in[place.name] -= 1
        unused = [name for name, layers in self._layers_in.items() if not layers]
        for name in unused:
            del self._layers_in[name]
        return [
            EndedFile(version, f"{MANIFESTS}/{name}", self._layer_bytes.pop(name))
            for name in unused
        ]

    def _use(self, place: Layer) -> None:
        end = place.offset + place.bytes
        self._layers_in[place.name] += 1
        self._layer_bytes[place.name] = max(end, self._layer_bytes.get(place.name, 0))

    def divided(self, heirs: Mapping[int, Sequence[int]], bases: tuple[int, ...]) -> LiveSegments:
        """Return them listed under other shards, given those that get the segments of each."""
        found = LiveSegments(len(bases))
        found._bases, found._replaces = bases, self.layer_files()
        found._lifetimes, found._numbers, found._how = self._lifetimes, self._numbers, self._how
        parents: dict[int, list[ShardSegments]] = {}
        for number, shard in self._shards.items():
            for heir in (NO_SHARD,) if number == NO_SHARD else heirs[number]:
                parents.setdefault(heir, []).append(shard)
        for heir, those in parents.items():
            places = [each.live() for each in those]
            parts = list(zip(those, places, strict=True))
            rows = np.concatenate([each.rows[at] for each, at in parts])
            # a segment that several parents list is listed once
            order = np.unique(rows["ordinal"], return_index=True)[1]
            rows = rows[order]
            rows["shared"] = heir != NO_SHARD
            expiry = np.concatenate([each.expiry[at] for each, at in parts])[order]
            ends = np.concatenate([each.ends[at] for each, at in parts])[order]
            begins = those[0].begins[places[0]] if those[0].begins is not None else None
            found._shards[heir].append(rows, expiry, ends, begins)
        return found

    def replaced_by(self, later: LiveSegments, version: int) -> list[EndedFile]:
        """Return the files that a later version, whose commit lists all shards, does not need."""
        mine = self.files("attempt", "bytes", "version")
        gone = mine[~np.isin(mine["ordinal"], later.files()["ordinal"])]
        layers = self.layer_files().items() - later.layer_files().items()
        return [
            *self._ended_files([gone], version, shared=False),
            *(EndedFile(version, path, size) for path, size in layers),
        ]

    def _places(self, shard: int) -> list[Layer]:
        return [each.place for each in self._shards[shard].layers]

    def _number(self, lifetime: str) -> int:
        """Return the number of a lifetime class."""
        if lifetime not in self._numbers:
            self._numbers[lifetime] = len(self._lifetimes)
            self._lifetimes.append(lifetime)
            self._how.append(REPLACED if is_base(lifetime) else EXPIRES)
        return self._numbers[lifetime]

    def _add(self, added: Iterable[LiveSegment]) -> None:
        for each in sorted(added, key=lambda each: each.info.ordinal):
            row = self._row(each)
            how = self._how[row[_LIFETIME]]
            self._shards[each.shard].add(row, each.info.expiry, how, each.begins)

    def _row(self, segment: LiveSegment) -> tuple[int, ...]:
        info = segment.info
        attempt = int(info.name[11:27], 16)
        if info.name != segment_name(info.ordinal, f"{attempt:016x}"):
            msg = f"{info.name!r} is not the name of segment {info.ordinal}"
            raise ValueError(msg)
        return (
            info.ordinal,
            info.records,
            attempt,
            info.bytes,
            info.footer_checksum,
            segment.version,
            self._number(segment.lifetime),
            segment.shared,
        )

    def _release(self, commit: Commit, shards: Mapping[int, ShardSegments]) -> list[Rows]:
        """End what a commit releases; earlier releases did so for all shards."""
        by_shard: dict[int, list[int]] = {}
        for number, ordinal in commit.released:
            for each in shards if number == NO_SHARD else (number,):
                by_shard.setdefault(each, []).append(ordinal)
        return [shards[n].without(some) for n, some in by_shard.items() if n in shards]

    def _end_by_time(self, commit: Commit, turns: int = 1) -> list[Rows]:
        """End what newer snapshots replace, and what expires at or before the horizon.

        Shards are looked through for what has expired every so many versions, in `turns`.
        """
        ended: list[Rows] = []
        bases = self._bases or (0,) * len(commit.bases)
        for number, shard in self._shards.items():
            if number != NO_SHARD and commit.bases[number] != bases[number]:
                ended.append(shard.outdated(commit.bases[number]))
            if shard.first_expiry <= commit.horizon and (number - commit.version) % turns == 0:
                ended.append(shard.expired(commit.horizon))
        return ended

    def _ended_files(
        self, ended: Sequence[Rows], version: int, *, shared: bool = True
    ) -> list[EndedFile]:
        """Return the files of segments that have ended, unless another shard lists them."""
        if not ended:
            return []
        rows = np.concatenate(ended)
        if shared and rows["shared"].any():
            rows = rows[np.unique(rows["ordinal"], return_index=True)[1]]
            for shard in self._shards.values():
                if shard.shared:
                    others = shard.rows["ordinal"][shard.live()]
                    rows = rows[~np.isin(rows["ordinal"], others)]
        # what a version adds and ends, its own commit names
        return [
            EndedFile(max(version, added + 1), f"{SEGMENTS}/{name}", size)
            for name, size, added in zip(
                names_of(rows), rows["bytes"].tolist(), rows["version"].tolist(), strict=True
            )
        ]


def names_of(rows: Rows) -> list[str]:
    """Return the names of the files of segments."""
    ordinals, attempts = rows["ordinal"].tolist(), rows["attempt"].tolist()
    return [f"{o:010d}-{a:016x}.seg" for o, a in zip(ordinals, attempts, strict=True)]


def _name(row: np.void) -> str:
    return segment_name(int(row["ordinal"]), f"{int(row['attempt']):016x}")


def live_at(
    store: VersionStore, version: int, shards: Collection[int] | None = None
) -> tuple[LiveSegment, ...]:
    """Return the segments that are live at a version, of some shards or of all."""
    return tuple(LiveSegments.at(store, version, shards).segments())
