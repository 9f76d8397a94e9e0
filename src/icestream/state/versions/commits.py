"""Versions: one commit file each, created exclusively, never replaced.

Idea: a version exists when its commit file does. A commit lists everything it accepts: the attempt,
arena, segments and result of every shard, the watermark, the routes and the decisions. It lists
only the segments it adds, and refers to the manifests of a few shards, in turn, so that any stored
version can be restored from a bounded number of commit files (`live_segments`).

Invariants:
1. A commit is complete or absent, and the first one for a version stays
   (`test_crash_a_commit_is_whole_or_absent`).
2. A flipped byte raises `DamageError` with the file (`test_damage_in_a_commit_is_named`); so do
   sealed fields with invalid content: names that lead out of the checkpoint, impossible numbers
   (`test_a_sealed_commit_that_makes_no_sense_is_damage`).
3. Commits and takeovers are one sequence, so that only the owner of a checkpoint commits
   (`icestream.state.versions.ownership`).

References: `docs/formats/commits.md`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any

from icestream.core.errors import CheckpointError, DamageError
from icestream.core.times import MINUS_INFINITY
from icestream.state.files import Files
from icestream.state.log.format import SegmentInfo, text, whole
from icestream.state.versions.attempts import LAST_EPOCH
from icestream.state.versions.manifests import MANIFESTS, ShardManifest
from icestream.state.versions.ownership import (
    TAKEN_BY,
    Owner,
    Place,
    Standing,
    Takeover,
    taken_over,
)
from icestream.state.versions.sealed import opened, sealed
from icestream.state.versions.table_files import TableFile

#: the lifetime class that a newer snapshot of the same shard replaces
BASE = "base"
#: decision: the watermarks of shards that joins with deferred results hold back
BEHIND = "behind"
#: decision: the latest end of a session, where the gap is each event's own
LATEST_END = "latest end"
#: separates the name of a part of a shard from that of a lifetime class
PART = "."
#: the lifetime class of raw events, which belong to no shard
EVENTS = "events"
NO_SHARD = -1
#: the decision that marks a commit which only replaces state by hand
REWRITTEN = "rewritten"
#: the decision that names the file of the plan, once the query has changed
CHANGED_PLAN = "plan"
#: key groups that any commit may claim to route
MOST_KEY_GROUPS = 1 << 20
#: of any so many successive commits, one has the manifest of a shard
MANIFEST_EVERY = 64

COMMITS = "commits"
SEGMENTS = "segments"
RESULTS = "results"
#: files that tasks of a version pass on if they share no other disk
EXCHANGE = "exchange"
PLAN = "plan.json"
IDENTITY = "identity.json"

#: times that a takeover tries the next place before it gives up: each time a version was committed
_TRIES = 1000


@dataclass(frozen=True, slots=True)
class LiveSegment:
    """A segment with everything that determines its lifetime."""

    shard: int
    version: int
    lifetime: str
    info: SegmentInfo
    #: the earliest time of the events in it, if it has events
    begins: int | None = None
    #: whether another shard wrote it, so that it may have groups that this one does not
    shared: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "shard": self.shard,
            "version": self.version,
            "lifetime": self.lifetime,
            "info": self.info.to_json(),
            "begins": self.begins,
            **({"shared": True} if self.shared else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LiveSegment:
        """Return what `to_json` wrote; ValueError if it is not valid."""
        begins = value["begins"]
        return cls(
            whole(value["shard"], NO_SHARD),
            whole(value["version"], 1),
            text(value["lifetime"]),
            SegmentInfo.from_json(value["info"]),
            None if begins is None else whole(begins),
            value.get("shared") is True,
        )


def _plan_file(plan: Mapping[str, Any], state_schema: Mapping[str, Any] | None) -> bytes:
    return sealed({"plan": plan} | ({} if state_schema is None else {"legend": state_schema}))


def latest_of(seen: Iterable[int | None]) -> int | None:
    """Return the latest event time of all sources of a commit; None before the first event."""
    return max((each for each in seen if each is not None), default=None)


@dataclass(frozen=True)
class Commit:
    """Everything a version accepts."""

    version: int
    #: the last Spark batch included; a maintenance version repeats it
    batch: int | None
    watermark: int = MINUS_INFINITY
    #: latest event time of each source, None before its first event
    seen: tuple[int | None, ...] = ()
    #: shard of each key group
    routes: tuple[int, ...] = ()
    #: arena released by each shard
    arenas: tuple[str, ...] = ()
    added: tuple[LiveSegment, ...] = ()
    #: (shard, ordinal) of segments that a shard needs no more although their expiry has not
    #: passed; commits of earlier releases have `NO_SHARD` for all shards
    released: tuple[tuple[int, int], ...] = ()
    #: result files by shard, and files of late events
    results: tuple[SegmentInfo, ...] = ()
    late: tuple[SegmentInfo, ...] = ()
    #: version of the latest snapshot of each shard, 0 for none
    bases: tuple[int, ...] = ()
    #: no segment that expires at or below it is read again
    horizon: int = MINUS_INFINITY
    #: all ordinals below it are used
    next_ordinal: int = 0
    #: decisions that depended on time or load, for replay
    decisions: Mapping[str, Any] = field(default_factory=dict)
    #: totals since the beginning, for progress reports
    totals: Mapping[str, int] = field(default_factory=dict)
    #: files that it adds to tables
    tables: tuple[TableFile, ...] = ()
    #: manifests of the shards whose turn it is
    manifests: tuple[ShardManifest, ...] = ()
    #: all live segments, in some commits of releases that had no manifests
    live: tuple[LiveSegment, ...] | None = None
    #: the epoch of the owner that committed it; 0 where nobody owned the checkpoint
    epoch: int = 0

    def layer_files(self) -> set[str]:
        """Return the files of the manifests that it names, relative to the checkpoint."""
        return {f"{MANIFESTS}/{layer.name}" for each in self.manifests for layer in each.layers}

    @property
    def flushed(self) -> int | None:
        """Return the latest event, if the version closed every window that has one."""
        return latest_of(self.seen) if self.decisions.get("flush") else None

    def watermark_of(self, shard: int) -> int:
        """Return the watermark of a shard, which joins with deferred results may hold back."""
        return int(self.decisions.get(BEHIND, {}).get(str(shard), self.watermark))

    @property
    def settled(self) -> int:
        """Return the watermark that all shards have reached."""
        return min([self.watermark, *map(int, self.decisions.get(BEHIND, {}).values())])

    def to_json(self) -> dict[str, Any]:
        names = (each.name for each in fields(self) if each.name not in _FILE_LISTS)
        plain = {name: getattr(self, name) for name in names}
        plain["routes"] = [[shard, len(list(run))] for shard, run in groupby(self.routes)]
        plain["added"] = [segment.to_json() for segment in self.added]
        plain["results"] = [info.to_json() for info in self.results]
        plain["late"] = [info.to_json() for info in self.late]
        plain["tables"] = [file.to_json() for file in self.tables]
        plain["manifests"] = [each.to_json() for each in self.manifests]
        if self.live is not None:
            plain["live"] = [each.to_json() for each in self.live]
        return plain

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Commit:
        """Return what `to_json` wrote; ValueError if it is not valid."""
        plain = {key: item for key, item in value.items() if key not in _FILE_LISTS}
        for name, item in plain.items():
            _CHECKS[name](item)
        for name in ("seen", "arenas", "bases"):
            plain[name] = tuple(plain[name])
        plain["routes"] = tuple(route for item in plain["routes"] for route in _routes(item))
        plain["released"] = tuple(map(_released, plain["released"]))
        live = value.get("live")
        manifests = value.get("manifests", ())
        for segment in (*value["added"], *manifests, *(live or ())):
            whole(segment["shard"], NO_SHARD, len(plain["bases"]) - 1)
        return cls(
            **plain,
            added=tuple(map(LiveSegment.from_json, value["added"])),
            results=tuple(map(SegmentInfo.from_json, value["results"])),
            late=tuple(map(SegmentInfo.from_json, value["late"])),
            tables=tuple(map(TableFile.from_json, value["tables"])),
            manifests=tuple(map(ShardManifest.from_json, manifests)),
            live=None if live is None else tuple(map(LiveSegment.from_json, live)),
        )


_FILE_LISTS = ("added", "results", "late", "tables", "manifests", "live")


def _routes(item: Any) -> list[int]:
    """Return the shard of some key groups, stored as shard and number, or as one shard each."""
    shard, count = (item, 1) if isinstance(item, int) else item
    return [whole(shard, 0)] * whole(count, 1, MOST_KEY_GROUPS)


def _released(item: Any) -> tuple[int, int]:
    """Return shard and ordinal of a released segment; ValueError if it is neither."""
    shard, ordinal = (NO_SHARD, item) if isinstance(item, int) else item
    return whole(shard, NO_SHARD), whole(ordinal, 0)


def _each(check: Callable[[Any], object]) -> Callable[[Any], object]:
    def checked(items: Any) -> None:
        for item in tuple(items):
            check(item)

    return checked


#: types of the plain fields of a commit
_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "version": lambda item: whole(item, 1),
    "batch": lambda item: item is None or whole(item, 0),
    "watermark": whole,
    "seen": _each(lambda item: item is None or whole(item)),
    "routes": _each(_routes),
    "arenas": _each(text),
    "released": _each(_released),
    "bases": _each(lambda item: whole(item, 0)),
    "horizon": whole,
    "next_ordinal": lambda item: whole(item, 0),
    "decisions": dict,
    "totals": dict,
    "epoch": lambda item: whole(item, 0, LAST_EPOCH),
}


def is_base(lifetime: str) -> bool:
    """Return whether the commit of a newer snapshot of a shard replaces segments of a class."""
    return lifetime.rpartition(PART)[2] == BASE


class VersionStore:
    """The commit files of one query."""

    def __init__(self, files: Files, root: str) -> None:
        """Use the checkpoint in `root`."""
        self.files = files
        self.root = root
        #: the epoch in which this process owns the checkpoint; 0 if it only looks
        self.epoch = 0
        self._standing = Standing()
        #: what is known to be at a place: a takeover, or None for a commit
        self._known: dict[Place, Takeover | None] = {}
        #: commits that were read, by path: they never change
        self._read_commits: dict[str, Commit] = {}

    def versions(self) -> list[int]:
        """Return the versions that have a commit file, ascending."""
        return list(self.look(damaged=True).commits)

    def look(self, *, damaged: bool = False) -> Standing:
        """Return where the sequence of commits and takeovers stands now.

        DamageError if its last file cannot be read, unless a `damaged` one counts as a commit.
        """
        found = Standing.of(self.files.list(f"{self.root}/{COMMITS}"))
        if found.last is not None:
            try:
                found = replace(found, takeover=self._takeover(found.last))
            except DamageError:
                if not damaged:
                    raise
        self._standing = found
        return found

    def latest(self) -> Commit | None:
        """Return the last version, or None; it survives whatever is done next."""
        standing = self.look()
        if standing.last is not None:
            self.files.sync_folder(f"{self.root}/{COMMITS}")
        return self.load(standing.version) if standing.version else None

    def load(self, version: int) -> Commit:
        """Return one version; DamageError if its file is damaged or missing."""
        path = self.path(version)
        if path not in self._read_commits:
            self._read_commits[path] = self._load(path, version)
        return self._read_commits[path]

    def _load(self, path: str, version: int) -> Commit:
        value = self._read(path, "the commit file of a version is missing")
        if value.get("version") != version:
            raise DamageError(path, f"this is the commit of {value.get('version')}")
        try:
            commit = Commit.from_json({"epoch": 0, "tables": [], **value})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"its fields are not those of a commit ({type(error).__name__}: {error})"
            raise DamageError(path, what) from error
        if Place(commit.epoch, version).name != path.rpartition("/")[2]:
            raise DamageError(path, f"this is a commit of epoch {commit.epoch}")
        return commit

    def create(self, commit: Commit) -> None:
        """Make a version exist; CheckpointError if another run made it first, or took over."""
        place = Place(commit.epoch, commit.version)
        if not self._put(place, sealed(commit.to_json())):
            self._known.pop(place, None)
            winner = self._takeover(place)
            if winner is not None:
                raise taken_over(self.root, winner)
            msg = (
                f"{self._path(place)} exists already: another query runs on this "
                "checkpoint. Stop it, or give this query a checkpoint location of its own"
            )
            raise CheckpointError(msg)
        self._known[place] = None

    # -- who owns it -----------------------------------------------------------------------

    def take(self, owner: Owner, *, after: int | None = None, damaged: bool = False) -> Takeover:
        """Become the owner: from here on whoever was it cannot commit.

        Args:
            owner: this program.
            after: the version to go on from; the last one unless told otherwise.
            damaged: take also a checkpoint whose last commit or takeover cannot be read.
        """
        for _ in range(_TRIES):
            standing = self.look(damaged=damaged)
            unread = standing.last is not None and standing.last not in self._known
            taken = self._take(standing.next, standing, owner, after)
            if taken is not None and unread and standing.last is not None:
                # it may have been a takeover: its owner's next place is this one
                place = Place(standing.epoch + 1, standing.version)
                taken = self._take(place, self.look(), owner, taken.after)
            if taken is not None:
                self.epoch = taken.epoch
                return taken
        msg = (
            f"{self.root} could not be taken over: its owner commits faster than this program "
            "looks. Stop the other program first"
        )
        raise CheckpointError(msg)

    def _take(
        self, place: Place, standing: Standing, owner: Owner, after: int | None
    ) -> Takeover | None:
        epoch = standing.epoch + 1
        if epoch > LAST_EPOCH:
            msg = (
                f"{self.root} cannot be opened more than {LAST_EPOCH} times: start a new checkpoint"
            )
            raise CheckpointError(msg)
        taken = Takeover(epoch, standing.version if after is None else after, owner)
        if not self._put(place, sealed(taken.to_json())):
            return None
        self._known[place] = taken
        return taken

    def check_owner(self) -> None:
        """Raise TakenOver if the checkpoint that this process took has another owner now."""
        if self.epoch and self.look(damaged=True).epoch > self.epoch:
            with suppress(DamageError):
                raise taken_over(self.root, self._takeover(self._standing.takeovers[-1]))
            raise taken_over(self.root, None)

    def owner(self) -> Takeover | None:
        """Return the last takeover; None if there was none."""
        places = self.look(damaged=True).takeovers
        return self._takeover(places[-1]) if places else None

    def takeovers_until(self, version: int) -> list[str]:
        """Return the files of the takeovers before a version in the sequence."""
        standing = self.look(damaged=True)
        end = standing.commits[version]
        return [self._path(place) for place in standing.takeovers if place < end]

    def _takeover(self, place: Place) -> Takeover | None:
        """Return the takeover at a place, read once; None if there is a commit."""
        if place not in self._known:
            path = self._path(place)
            value = self._read(path, "a file of the sequence of versions is missing")
            try:
                found = Takeover.from_json(value) if TAKEN_BY in value else None
            except (KeyError, TypeError, ValueError) as error:
                what = f"its fields are not those of a takeover ({type(error).__name__}: {error})"
                raise DamageError(path, what) from error
            self._known[place] = found
        return self._known[place]

    def _put(self, place: Place, data: bytes) -> bool:
        """Take a place; what is there and is ours counts: the answer to an earlier try was lost."""
        path = self._path(place)
        if self.files.put(path, data):
            return True
        with suppress(FileNotFoundError):
            return self.files.read(path) == data
        return False

    def _path(self, place: Place) -> str:
        return f"{self.root}/{COMMITS}/{place.name}"

    # -- what versions consist of ----------------------------------------------------------

    def stored_plan(self) -> Mapping[str, Any] | None:
        """Return the plan of a checkpoint; None if it is new."""
        if not self.files.exists(f"{self.root}/{PLAN}"):
            return None
        return self.plan()[0]

    def remember_plan(
        self, plan: Mapping[str, Any], state_schema: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """Write the plan of a new checkpoint, or return the one that exists.

        The plan is stored with the state schema, for readers without the program.
        """
        if self.files.put(self.plan_path(), _plan_file(plan, state_schema)):
            return plan
        return self.plan()[0]

    def change_plan(self, plan: Mapping[str, Any], state_schema: Mapping[str, Any]) -> str | None:
        """Write another plan; return the name that commits have to carry from now on.

        None if there is no version yet: the checkpoint then simply has this plan.
        """
        data = _plan_file(plan, state_schema)
        if not self.versions():
            self.files.unlink(f"{self.root}/{PLAN}")
            self.files.put(f"{self.root}/{PLAN}", data)
            return None
        name = f"plan-{self.epoch:08d}.json"
        self.files.put(f"{self.root}/{name}", data)
        return name

    def plan(
        self, commit: Commit | None = None
    ) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        """Return the plan of a version, by default of the last, and its state schema if any."""
        path = self.plan_path(commit)
        value = self._read(path, "the plan of the checkpoint is missing")
        plan, state_schema = value.get("plan"), value.get("legend")
        if not isinstance(plan, dict) or not isinstance(state_schema, dict | None):
            raise DamageError(path, "it contains no plan")
        return plan, state_schema

    def plan_path(self, commit: Commit | None = None) -> str:
        """Return the file of the plan of a version, by default of the last that can be read."""
        if commit is None:
            commit = next(self._readable(), None)
        name = PLAN if commit is None else str(commit.decisions.get(CHANGED_PLAN, PLAN))
        return f"{self.root}/{name}"

    def _readable(self) -> Iterator[Commit]:
        """Yield the versions that can be read, the last first."""
        for version in reversed(self.versions()):
            with suppress(DamageError):
                yield self.load(version)

    def make_identity(self, proposed: str) -> None:
        """Write an identity that was proposed, or is there; CheckpointError if another is."""
        made = self.files.put(f"{self.root}/{IDENTITY}", sealed({"identity": proposed}))
        if not made and self.identity() != proposed:
            msg = f"another program started on {self.root} at the same moment: start one of them"
            raise CheckpointError(msg)

    def identity(self, proposed: str | None = None) -> str:
        """Return the identity of the checkpoint: made once, it moves with the checkpoint.

        If there is none, one is made, or the `proposed` one is returned and nothing is written.
        DamageError if there are versions, which tables may have under the identity that is gone.
        """
        path = f"{self.root}/{IDENTITY}"
        if proposed is None:
            self.files.put(path, sealed({"identity": uuid.uuid4().hex}))
        elif not self.files.exists(path):
            if self.versions():
                what = (
                    "the identity under which tables know this query is missing, without which "
                    "they would take rows twice (for new tables `icestream state copy --clone` "
                    "makes a checkpoint with another one)"
                )
                raise DamageError(path, what)
            return proposed
        found = self._read(path, "the identity of the checkpoint is missing").get("identity")
        if not isinstance(found, str) or not re.fullmatch("[0-9a-f]{32}", found):
            raise DamageError(path, "it contains no identity")
        return found

    def forget_before(self, needed: int) -> None:
        """Unlink what only versions before one need, as far as the last look saw it."""
        gone = list(self._standing.done_with(needed))
        self.files.unlink(*map(self._path, gone))
        for place in gone:
            self._known.pop(place, None)
            self._read_commits.pop(self._path(place), None)

    def next_before_takeover(self, version: int) -> str:
        """Return the file in which the owner before this program committed the next version."""
        return self._path(Place(self.epoch - 1, version + 1))

    def path(self, version: int) -> str:
        """Return the commit file of a version, also of one that is missing or is to come."""
        if version not in self._standing.commits:
            self.look(damaged=True)
        return self._path(self._standing.place(version))

    def before_rewrites(self, commit: Commit) -> list[Commit]:
        """Return a version and the ones before it while they only replace state by hand."""
        found = [commit]
        while REWRITTEN in found[-1].decisions:
            found.append(self.load(found[-1].version - 1))
        return found

    def _read(self, path: str, missing: str) -> dict[str, Any]:
        try:
            data = self.files.read(path)
        except FileNotFoundError:
            raise DamageError(path, missing) from None
        return opened(path, data)
