"""Versions: one commit file each, created exclusively, never replaced.

Idea: a version exists when its commit file does. A commit names everything it accepts: the attempt,
arena, segments and result of every shard, the watermark, the routes and what was decided. It lists
only the segments it adds; every so often a commit lists all that are live, so that any kept
version is restored from a bounded number of commit files.

Invariants:
1. A commit is all there or not at all, and the first one for a version stays
   (`test_crash_a_commit_is_whole_or_absent`).
2. A flipped byte is a `DamageError` that names the file (`test_damage_in_a_commit_is_named`);
   so are sealed fields without sense: names that lead out of the checkpoint, numbers no log has
   (`test_a_sealed_commit_that_makes_no_sense_is_damage`).
3. A segment is live from the version that adds it until its lifetime class lets it go: panes when
   their expiry is at or below the horizon, bases when a newer snapshot of their shard exists
   (`test_parity_live_segments_beside_a_plain_recount`).

References: `docs/formats/commits.md`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import xxhash

from icestream.core.errors import CheckpointError, DamageError
from icestream.core.times import MINUS_INFINITY
from icestream.state.files import Files
from icestream.state.log.format import SegmentInfo, text, whole
from icestream.state.sense import sensible

FORMAT = 3
#: the lifetime class that a newer snapshot of the same shard replaces
BASE = "base"
#: between the name of a part of a shard and that of a lifetime class
PART = "."
#: the lifetime class of raw events, which belong to no shard
EVENTS = "events"
NO_SHARD = -1
#: what a commit says, among its decisions, that only replaces state by hand
REWRITTEN = "rewritten"
#: a commit lists all live segments at least every so many versions
LISTING_EVERY = 64

COMMITS = "commits"
SEGMENTS = "segments"
RESULTS = "results"
#: what tasks of a version hand on, where they share no other disk
EXCHANGE = "exchange"
PLAN = "plan.json"

#: a name of a commit file
_COMMIT = re.compile(r"([0-9]{12,18})\.json")
#: digits of a format version, at most
_FORMAT_DIGITS = 9


@dataclass(frozen=True)
class LiveSegment:
    """A segment with what decides how long it lives."""

    shard: int
    version: int
    lifetime: str
    info: SegmentInfo
    #: the earliest time of the events in it, where it holds events
    begins: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "shard": self.shard,
            "version": self.version,
            "lifetime": self.lifetime,
            "info": self.info.to_json(),
            "begins": self.begins,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LiveSegment:
        """Return what `to_json` wrote; ValueError if nothing wrote it."""
        begins = value["begins"]
        return cls(
            whole(value["shard"], NO_SHARD),
            whole(value["version"], 1),
            text(value["lifetime"]),
            SegmentInfo.from_json(value["info"]),
            None if begins is None else whole(begins),
        )


def latest_of(seen: Iterable[int | None]) -> int | None:
    """Return the latest event time of all sources; None before the first event."""
    return max((each for each in seen if each is not None), default=None)


@dataclass(frozen=True)
class Commit:
    """Everything a version accepts."""

    version: int
    #: the last of Spark's batches that is counted; a version of maintenance repeats it
    batch: int | None
    watermark: int = MINUS_INFINITY
    #: latest event time of each source, None before its first event
    seen: tuple[int | None, ...] = ()
    #: shard of each key group
    routes: tuple[int, ...] = ()
    #: arena released by each shard
    arenas: tuple[str, ...] = ()
    added: tuple[LiveSegment, ...] = ()
    #: ordinals of segments that are live no more, although their expiry has not passed
    released: tuple[int, ...] = ()
    #: result files by shard, and files of late events
    results: tuple[SegmentInfo, ...] = ()
    late: tuple[SegmentInfo, ...] = ()
    #: version of the latest snapshot of each shard, 0 for none
    bases: tuple[int, ...] = ()
    #: no segment that expires at or below it is read again
    horizon: int = MINUS_INFINITY
    #: ordinals below it are taken
    next_ordinal: int = 0
    #: what depended on time or load, for replay
    decisions: Mapping[str, Any] = field(default_factory=dict)
    #: totals since the beginning, for progress reports
    totals: Mapping[str, int] = field(default_factory=dict)
    #: all live segments, in some commits only
    live: tuple[LiveSegment, ...] | None = None

    @property
    def flushed(self) -> int | None:
        """Return the latest event, if the version closed every window that has one."""
        return latest_of(self.seen) if self.decisions.get("flush") else None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        names = (each.name for each in fields(self) if each.name not in _SEGMENT_LISTS)
        plain = {name: getattr(self, name) for name in names}
        plain["added"] = [segment.to_json() for segment in self.added]
        plain["results"] = [info.to_json() for info in self.results]
        plain["late"] = [info.to_json() for info in self.late]
        plain["live"] = None if self.live is None else [each.to_json() for each in self.live]
        return plain

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Commit:
        """Return what `to_json` wrote; ValueError if nothing wrote it."""
        plain = {key: item for key, item in value.items() if key not in _SEGMENT_LISTS}
        for name, item in plain.items():
            _CHECKS[name](item)
        for name in ("seen", "routes", "arenas", "bases", "released"):
            plain[name] = tuple(plain[name])
        live = value["live"]
        for segment in (*value["added"], *(live or ())):
            whole(segment["shard"], NO_SHARD, len(plain["bases"]) - 1)
        return cls(
            **plain,
            added=tuple(map(LiveSegment.from_json, value["added"])),
            results=tuple(map(SegmentInfo.from_json, value["results"])),
            late=tuple(map(SegmentInfo.from_json, value["late"])),
            live=None if live is None else tuple(map(LiveSegment.from_json, live)),
        )


_SEGMENT_LISTS = ("added", "results", "late", "live")


def _each(check: Callable[[Any], object]) -> Callable[[Any], object]:
    def checked(items: Any) -> None:
        for item in tuple(items):
            check(item)

    return checked


#: what the plain fields of a commit must be
_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "version": lambda item: whole(item, 1),
    "batch": lambda item: item is None or whole(item, 0),
    "watermark": whole,
    "seen": _each(lambda item: item is None or whole(item)),
    "routes": _each(lambda item: whole(item, 0)),
    "arenas": _each(text),
    "released": _each(lambda item: whole(item, 0)),
    "bases": _each(lambda item: whole(item, 0)),
    "horizon": whole,
    "next_ordinal": lambda item: whole(item, 0),
    "decisions": dict,
    "totals": dict,
}


def survivors(live: Iterable[LiveSegment], commit: Commit) -> tuple[LiveSegment, ...]:
    """Return the segments that are live at a commit, given those live before it."""
    return tuple(
        segment
        for segment in (*live, *commit.added)
        if segment.info.ordinal not in commit.released
        and (
            segment.version >= commit.bases[segment.shard]
            if is_base(segment.lifetime)
            else segment.info.expiry > commit.horizon
        )
    )


def is_base(lifetime: str) -> bool:
    """Tell whether a newer snapshot of the same shard replaces segments of a class."""
    return lifetime.rpartition(PART)[2] == BASE


def last_listing(version: int) -> int:
    """Return the last version, up to the given one, whose commit lists all live segments."""
    return (version - 1) // LISTING_EVERY * LISTING_EVERY + 1


class VersionStore:
    """The commit files of one query."""

    def __init__(self, files: Files, root: str) -> None:
        """Look at the checkpoint in `root`."""
        self.files = files
        self.root = root

    def versions(self) -> list[int]:
        """Return the versions that have a commit file, ascending."""
        names = self.files.list(f"{self.root}/{COMMITS}")
        return sorted(int(found[1]) for name in names if (found := _COMMIT.fullmatch(name)))

    def latest(self) -> Commit | None:
        """Return the last version, or None; it survives whatever is done next."""
        versions = self.versions()
        if not versions:
            return None
        self.files.sync_folder(f"{self.root}/{COMMITS}")
        return self.load(versions[-1])

    def load(self, version: int) -> Commit:
        """Return one version; DamageError if its file is damaged or missing."""
        value = self._read(self.path(version), "the commit file of a version is missing")
        if value.get("version") != version:
            raise DamageError(self.path(version), f"this is the commit of {value.get('version')}")
        try:
            return Commit.from_json(value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"its fields are not those of a commit ({type(error).__name__}: {error})"
            raise DamageError(self.path(version), what) from error

    def create(self, commit: Commit) -> None:
        """Make a version exist; CheckpointError if another run made it first."""
        if not self.files.put(self.path(commit.version), _sealed(commit.to_json())):
            msg = (
                f"{self.path(commit.version)} exists already: another query runs on this "
                "checkpoint. Stop it, or give this query a checkpoint location of its own"
            )
            raise CheckpointError(msg)

    def live(self, version: int) -> tuple[LiveSegment, ...]:
        """Return the segments that are live at a version, from the last full listing on."""
        chain = []
        for number in range(version, 0, -1):
            commit = self.load(number)
            chain.append(commit)
            if commit.live is not None:
                break
        live: tuple[LiveSegment, ...] = ()
        for commit in reversed(chain):
            with sensible(self.path(commit.version)):
                live = commit.live if commit.live is not None else survivors(live, commit)
        return live

    def remember_plan(
        self, plan: Mapping[str, Any], legend: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """Write the plan of a new checkpoint, or return the one that is there.

        With the plan goes a legend of the state, for whoever reads it without the program.
        """
        value = {"plan": plan} if legend is None else {"plan": plan, "legend": legend}
        if self.files.put(f"{self.root}/{PLAN}", _sealed(value)):
            return plan
        return self.plan()[0]

    def plan(self) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        """Return the plan of the checkpoint, and its legend if it has one."""
        path = f"{self.root}/{PLAN}"
        value = self._read(path, "the plan of the checkpoint is missing")
        plan, legend = value.get("plan"), value.get("legend")
        if not isinstance(plan, dict) or not isinstance(legend, dict | None):
            raise DamageError(path, "it holds no plan")
        return plan, legend

    def remove(self, versions: Iterable[int]) -> None:
        """Unlink commit files that no kept version needs."""
        for version in versions:
            self.files.unlink(self.path(version))

    def with_listing(self, commit: Commit, live: tuple[LiveSegment, ...]) -> Commit:
        """Let a commit list all live segments if it is its turn."""
        due = last_listing(commit.version) == commit.version
        return replace(commit, live=live) if due else commit

    def path(self, version: int) -> str:
        """Return the commit file of a version."""
        return f"{self.root}/{COMMITS}/{version:012d}.json"

    def before_rewrites(self, commit: Commit) -> list[Commit]:
        """Return a version and, while they only replace state by hand, the ones before it."""
        found = [commit]
        while REWRITTEN in found[-1].decisions:
            found.append(self.load(found[-1].version - 1))
        return found

    def _read(self, path: str, missing: str) -> dict[str, Any]:
        try:
            data = self.files.read(path)
        except FileNotFoundError:
            raise DamageError(path, missing) from None
        return _opened(path, data)


def _sealed(value: Mapping[str, Any]) -> bytes:
    """Return JSON in one line, the format version and a checksum in the next."""
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    seal = f"icestream {FORMAT} {xxhash.xxh3_64_hexdigest(body)}"
    return body + b"\n" + seal.encode() + b"\n"


def _opened(path: str, data: bytes) -> dict[str, Any]:
    body, _, rest = data.partition(b"\n")
    words = rest.split(b" ")
    sealed = len(words) == 3 and words[0] == b"icestream" and words[1].isdigit()
    if sealed and len(words[1]) <= _FORMAT_DIGITS and int(words[1]) != FORMAT:
        age = "newer" if int(words[1]) > FORMAT else "older"
        msg = (
            f"{path} was written in format {int(words[1])}, this Icestream reads {FORMAT}: "
            f"install the {age} Icestream that wrote it, or start a new checkpoint"
        )
        raise CheckpointError(msg)
    if rest != f"icestream {FORMAT} {xxhash.xxh3_64_hexdigest(body)}\n".encode():
        raise DamageError(path, "its checksum does not match its content")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DamageError(path, f"its content is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise DamageError(path, "its content is no JSON object")
    return value
