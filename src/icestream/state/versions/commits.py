"""Versions: one commit file each, created exclusively, never replaced.

Idea: a version exists when its commit file does. A commit lists everything it accepts: the attempt,
arena, segments and result of every shard, the watermark, the routes and the decisions. It lists
only the segments it adds; every few versions a commit lists all live ones, so that any stored
version can be restored from a bounded number of commit files.

Invariants:
1. A commit is complete or absent, and the first one for a version stays
   (`test_crash_a_commit_is_whole_or_absent`).
2. A flipped byte raises `DamageError` with the file (`test_damage_in_a_commit_is_named`); so do
   sealed fields with invalid content: names that lead out of the checkpoint, impossible numbers
   (`test_a_sealed_commit_that_makes_no_sense_is_damage`).
3. A segment is live from the version that adds it until its lifetime class releases it: panes when
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
from icestream.state.validation import sensible

FORMAT = 2
#: the lifetime class that is replaced by a newer snapshot of the same shard
BASE = "base"
#: separates the name of a part of a shard from that of a lifetime class
PART = "."
#: the lifetime class of raw events, which belong to no shard
EVENTS = "events"
NO_SHARD = -1
#: the decision that marks a commit which only replaces state by hand
REWRITTEN = "rewritten"
#: a commit lists all live segments at least every this many versions
LISTING_EVERY = 64

COMMITS = "commits"
SEGMENTS = "segments"
RESULTS = "results"
#: files that tasks of a version pass on if they share no other disk
EXCHANGE = "exchange"
PLAN = "plan.json"

#: the name of a commit file
_COMMIT = re.compile(r"([0-9]{12,18})\.json")
#: maximum digits of a format version
_FORMAT_DIGITS = 9


@dataclass(frozen=True)
class LiveSegment:
    """A segment with everything that determines its lifetime."""

    shard: int
    version: int
    lifetime: str
    info: SegmentInfo
    #: the earliest time of the events in it, if it has events
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
        """Return what `to_json` wrote; ValueError if it is not valid."""
        begins = value["begins"]
        return cls(
            whole(value["shard"], NO_SHARD),
            whole(value["version"], 1),
            text(value["lifetime"]),
            SegmentInfo.from_json(value["info"]),
            None if begins is None else whole(begins),
        )


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
    #: ordinals of segments that are no longer live although their expiry has not passed
    released: tuple[int, ...] = ()
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
    #: all live segments, in some commits only
    live: tuple[LiveSegment, ...] | None = None

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
        """Return what `to_json` wrote; ValueError if it is not valid."""
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


#: types of the plain fields of a commit
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
    """Return whether a newer snapshot of the same shard replaces segments of a class."""
    return lifetime.rpartition(PART)[2] == BASE


def last_listing(version: int) -> int:
    """Return the last version, up to the given one, whose commit lists all live segments."""
    return (version - 1) // LISTING_EVERY * LISTING_EVERY + 1


class VersionStore:
    """The commit files of one query."""

    def __init__(self, files: Files, root: str) -> None:
        """Use the checkpoint in `root`."""
        self.files = files
        self.root = root

    def versions(self) -> list[int]:
        """Return the versions that have a commit file, ascending."""
        names = self.files.list(f"{self.root}/{COMMITS}")
        return sorted(int(found[1]) for name in names if (found := _COMMIT.fullmatch(name)))

    def latest(self) -> Commit | None:
        """Return the last version, or None; its file is durable when this returns."""
        versions = self.versions()
        if not versions:
            return None
        self.files.sync_folder(f"{self.root}/{COMMITS}")
        return self.load(versions[-1])

    def load(self, version: int) -> Commit:
        """Return one version; DamageError if its file is damaged or missing."""
        value = self._read(self.path(version), "the commit file of a version is missing")
        if value.get("version") != version:
            raise DamageError(
                self.path(version), f"this is the commit of version {value.get('version')}"
            )
        try:
            return Commit.from_json(value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"its fields are not a valid commit ({type(error).__name__}: {error})"
            raise DamageError(self.path(version), what) from error

    def create(self, commit: Commit) -> None:
        """Commit a version; CheckpointError if another run committed it first."""
        if not self.files.put(self.path(commit.version), _sealed(commit.to_json())):
            msg = (
                f"{self.path(commit.version)} exists already: another query runs on this "
                "checkpoint. Stop it, or give this query a checkpoint location of its own"
            )
            raise CheckpointError(msg)

    def live(self, version: int) -> tuple[LiveSegment, ...]:
        """Return the segments that are live at a version, starting from the last full list."""
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
        """Write the plan of a new checkpoint, or return the one that exists.

        The plan is stored with the state schema, for readers without the program.
        """
        value = {"plan": plan} if legend is None else {"plan": plan, "legend": legend}
        if self.files.put(f"{self.root}/{PLAN}", _sealed(value)):
            return plan
        return self.plan()[0]

    def plan(self) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        """Return the plan of the checkpoint, and its state schema if it has one."""
        path = f"{self.root}/{PLAN}"
        value = self._read(path, "the plan of the checkpoint is missing")
        plan, legend = value.get("plan"), value.get("legend")
        if not isinstance(plan, dict) or not isinstance(legend, dict | None):
            raise DamageError(path, "it contains no plan")
        return plan, legend

    def remove(self, versions: Iterable[int]) -> None:
        """Unlink commit files that no kept version needs."""
        for version in versions:
            self.files.unlink(self.path(version))

    def with_listing(self, commit: Commit, live: tuple[LiveSegment, ...]) -> Commit:
        """Add the list of all live segments to a commit if it is due."""
        due = last_listing(commit.version) == commit.version
        return replace(commit, live=live) if due else commit

    def path(self, version: int) -> str:
        """Return the commit file of a version."""
        return f"{self.root}/{COMMITS}/{version:012d}.json"

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
        raise DamageError(path, f"its content is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise DamageError(path, "its content is not a JSON object")
    return value
