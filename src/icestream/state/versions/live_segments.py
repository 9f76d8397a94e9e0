"""The live segments of a version, in columns, from which the next version's follow.

Idea: a driver keeps 53 bytes of each live segment, by shard. A commit adds some segments and ends
others; only shards with such segments are visited, and those that ended are returned as files to
remove. In every 64th version of its own a shard writes what changed as a new layer of its manifest,
merged with the last layers that are not twice as large, so that layers grow like the digits of a
counter. A version is read from the last manifest of each shard and the commits since.

Invariants:
1. A segment is live from the version that adds it until its lifetime class lets it go: panes when
   their expiry is at or below the horizon, bases when a newer snapshot of their shard exists
   (`test_parity_live_segments_beside_a_plain_recount`). Horizon and bases never go back.
2. Shards that took over the key groups of others list their segments too; the file ends with the
   last of them (`test_a_shared_segment_goes_with_its_last_shard`).
3. With more than 64 shards, what expires may be returned some versions later
   (`test_what_expires_in_many_shards_is_returned_in_turns`); what is read from files is exact.
4. Every shard has a manifest in any `MANIFEST_EVERY` successive commits, and its layers have at
   most twice as many segments as are live, and some (`test_bounded_layers_of_a_manifest`).

Cost: a version costs microseconds for each segment that it adds or ends. A segment is written to
about log2(live / changed in 64 versions) layers in its life.

Limits: a segment that several shards list is looked for in all of them when one ends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

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
    RELEASED,
    SEGMENT,
    Ints,
    Layer,
    LayerContent,
    Manifest,
    Rows,
    layers_file,
    read_layer,
)

Item = TypeVar("Item", bound=np.generic)

#: how a segment ends: with its expiry, with a newer snapshot; or it has ended
_EXPIRES, _BASE, _ENDED = range(3)
_NEVER = 2**63 - 1
#: places of fields in a row
_BYTES, _SHARED = SEGMENT.names.index("bytes"), SEGMENT.names.index("shared")
#: shards that a version looks through for what has expired
_LOOKS = 64
#: segments that have ended, or that layers have too many of, before it is worth an effort
_SOME = 64


class EndedFile(NamedTuple):
    """A file that versions from some version on do not need."""

    version: int
    #: relative to the checkpoint
    path: str
    bytes: int


@dataclass
class _Layer:
    """A layer of a manifest, with what its merge with others needs."""

    place: Layer
    since: int
    until: int
    #: segments, live and released
    size: int
    released: Rows

    @classmethod
    def of(cls, place: Layer, content: LayerContent) -> _Layer:
        size = len(content.rows) + len(content.released)
        return cls(place, content.since, content.until, size, content.released)


@dataclass
class _Shard:
    """The segments of one shard in the order of ordinals, of which some may have ended."""

    rows: Rows = field(default_factory=lambda: np.empty(0, SEGMENT))
    expiry: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    ends: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    begins: Ints | None = None
    size: int = 0
    ended: int = 0
    bytes: int = 0
    #: live segments that other shards may list too
    shared: int = 0
    #: the first expiry of what expires
    first_expiry: int = _NEVER
    layers: list[_Layer] = field(default_factory=list)
    #: ordinal and version of what was released since the last layer
    released: list[tuple[int, int]] = field(default_factory=list)
    #: the last version whose commit has the manifest
    stamped: int = 0

    def __len__(self) -> int:
        return self.size - self.ended

    def add(self, row: tuple[int, ...], expiry: int, how: int, begins: int | None) -> None:
        """Add a live segment with an ordinal above all others."""
        place = self.size
        if place == len(self.rows):
            self._move(slice(0, place), place + 1)
        self.rows[place], self.expiry[place], self.ends[place] = row, expiry, how
        if begins is not None:
            if self.begins is None:
                self.begins = np.full(len(self.rows), MINUS_INFINITY, np.int64)
            self.begins[place] = begins
        elif self.begins is not None:
            self.begins[place] = MINUS_INFINITY
        self.size = place + 1
        self.bytes += row[_BYTES]
        self.shared += row[_SHARED]
        if how == _EXPIRES and expiry < self.first_expiry:
            self.first_expiry = expiry

    def append(
        self, rows: Rows, expiry: Ints, ends: npt.NDArray[np.uint8], begins: Ints | None
    ) -> None:
        """Add many live segments with ordinals above all others."""
        first, end = self.size, self.size + len(rows)
        if end > len(self.rows):
            self._move(slice(0, first), end)
        self.rows[first:end], self.expiry[first:end], self.ends[first:end] = rows, expiry, ends
        if begins is not None:
            if self.begins is None:
                self.begins = np.full(len(self.rows), MINUS_INFINITY, np.int64)
            self.begins[first:end] = begins
        self.size = end
        self.bytes += int(rows["bytes"].sum())
        self.shared += int(rows["shared"].sum())
        self._find_first_expiry()

    def live(self) -> npt.NDArray[np.intp]:
        """Return the places of live segments."""
        return np.flatnonzero(self.ends[: self.size] != _ENDED)

    def expired(self, horizon: int) -> Rows:
        """End what expires at or before the horizon, and return it."""
        size = self.size
        due = (self.expiry[:size] <= horizon) & (self.ends[:size] == _EXPIRES)
        found = self._end(np.flatnonzero(due))
        self._find_first_expiry()
        return found

    def outdated(self, base: int) -> Rows:
        """End what a snapshot of version `base` replaces, and return it."""
        places = np.flatnonzero(self.ends[: self.size] == _BASE)
        return self._end(places[self.rows["version"][places] < base])

    def without(self, ordinals: Collection[int]) -> Rows:
        """End segments that are needed no more, and return those that were live."""
        known, wanted = self.rows["ordinal"][: self.size], np.array(sorted(ordinals))
        places = np.searchsorted(known, wanted)
        inside = places < self.size
        places, wanted = places[inside], wanted[inside]
        places = places[(known[places] == wanted) & (self.ends[places] != _ENDED)]
        found = self._end(places)
        self.released += zip(found["ordinal"].tolist(), found["version"].tolist(), strict=True)
        return found

    def _end(self, places: npt.NDArray[np.intp]) -> Rows:
        found = self.rows[places]
        self.ends[places] = _ENDED
        self.ended += len(places)
        self.bytes -= int(found["bytes"].sum())
        self.shared -= int(found["shared"].sum())
        if self.ended > max(_SOME, self.size // 8):
            self._move(self.live(), 0)
        return found

    def _find_first_expiry(self) -> None:
        expires = self.ends[: self.size] == _EXPIRES
        self.first_expiry = int(np.min(self.expiry[: self.size], where=expires, initial=_NEVER))

    def _move(self, places: slice | npt.NDArray[np.intp], room: int) -> None:
        """Move the segments at some places to new columns with room for a few more."""
        kept = places.stop if isinstance(places, slice) else len(places)
        room = max(room, kept) + max(room, kept) // 8 + 8

        def moved(column: npt.NDArray[Item]) -> npt.NDArray[Item]:
            new = np.empty(room, column.dtype)
            new[:kept] = column[places]
            return new

        self.rows, self.expiry, self.ends = moved(self.rows), moved(self.expiry), moved(self.ends)
        self.begins = None if self.begins is None else moved(self.begins)
        if not isinstance(places, slice):
            self.size, self.ended = kept, 0

    # -- manifests -------------------------------------------------------------------------

    def next_layer(self, version: int, lifetimes: Sequence[str]) -> LayerContent | None:
        """Drop the layers that a new one replaces, and return it; None if nothing changed."""
        written = sum(each.size for each in self.layers)
        if written > 2 * len(self) + _SOME:
            self.layers, self.released = [], []
        since = self.layers[-1].until if self.layers else 0
        places = self._since(since)
        released = np.array(self.released, RELEASED)
        if self.layers and not len(places) and not len(released):
            return None
        while self.layers and self.layers[-1].size <= 2 * (len(places) + len(released)):
            last = self.layers.pop()
            since, released = last.since, np.concatenate([last.released, released])
            places = self._since(since)
        released = released[released["version"] <= since]
        self.released = []
        if not len(places) and not len(released):
            return None
        begins = None if self.begins is None else self.begins[places]
        rows, expiry = self.rows[places], self.expiry[places]
        return LayerContent(since, version, rows, expiry, begins, released, lifetimes)

    def _since(self, version: int) -> npt.NDArray[np.intp]:
        """Return the places of live segments that versions after one have added."""
        first = int(np.searchsorted(self.rows["version"][: self.size], version, side="right"))
        return first + np.flatnonzero(self.ends[first : self.size] != _ENDED)


class LiveSegments:
    """The live segments of the last version of a checkpoint."""

    def __init__(self, shards: int = 0) -> None:
        """Start without any, in shards that are known by their number if there are more."""
        self._shards = {shard: _Shard() for shard in range(NO_SHARD, shards)}
        self._bases: tuple[int, ...] = ()
        self._lifetimes: list[str] = []
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
        found._shards = {shard: _Shard() for shard in sorted(wanted)}
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

    def _read(self, store: VersionStore, manifest: Manifest) -> None:
        shard = self._shards[manifest.shard]
        for place in manifest.layers:
            layer = read_layer(store.files, store.root, place)
            if len(layer.released):
                shard.without(layer.released["ordinal"].tolist())
                shard.released = []
            numbers = np.array([self._number(name) for name in layer.lifetimes], np.uint16)
            how = np.array([_BASE if is_base(name) else _EXPIRES for name in layer.lifetimes])
            rows = layer.rows.copy()
            rows["lifetime"] = numbers[layer.rows["lifetime"]]
            ends = how[layer.rows["lifetime"]].astype(np.uint8)
            shard.append(rows, layer.expiry, ends, layer.begins)
            shard.layers.append(_Layer.of(place, layer))
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
            shard = self._shards.get(number, _Shard())
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
            self._shards[number] = _Shard()
        self._add(commit.added)
        turns = max(1, len(commit.bases) // _LOOKS)
        ended = self._release(commit, self._shards) + self._end_by_time(commit, turns)
        self._bases = commit.bases
        return self._ended_files(ended, commit.version)

    def write(self, store: VersionStore, commit: Commit) -> tuple[Commit, list[EndedFile]]:
        """Return the commit with the manifests that are due; and files that these replace.

        Their new layers are durable. Call it once `advance` has seen the commit.
        """
        version = commit.version
        due = [
            n
            for n in self._shards
            if self._replaces is not None or (n - version) % MANIFEST_EVERY == 0
        ]
        before = {number: self._places(number) for number in due}
        contents = {n: self._shards[n].next_layer(version, self._lifetimes) for n in due}
        new = {number: content for number, content in contents.items() if content is not None}
        name = f"{version:012d}-{new_attempt(commit.epoch)}.layers"
        places, data = layers_file(name, [*new.values()])
        if new:
            store.files.put(f"{store.root}/{MANIFESTS}/{name}", data)
        for (number, content), place in zip(new.items(), places, strict=True):
            self._shards[number].layers.append(_Layer.of(place, content))
        manifests = tuple(Manifest(n, tuple(self._places(n))) for n in due)
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
                known.get(place) or _Layer.of(place, read_layer(store.files, store.root, place))
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
        found._lifetimes, found._numbers = self._lifetimes, self._numbers
        parents: dict[int, list[_Shard]] = {}
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
        return self._numbers[lifetime]

    def _add(self, added: Iterable[LiveSegment]) -> None:
        for each in sorted(added, key=lambda each: each.info.ordinal):
            how = _BASE if is_base(each.lifetime) else _EXPIRES
            self._shards[each.shard].add(self._row(each), each.info.expiry, how, each.begins)

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

    def _release(self, commit: Commit, shards: Mapping[int, _Shard]) -> list[Rows]:
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
