"""One owner at a time: taking a checkpoint over is a step of the same sequence as committing.

Idea: the files in `commits/` form one sequence. Its state is a pair: the next version v and the
epoch e of the owner. Both possible steps create the *same* file `<v>-<e>.json`, exclusively: the
owner writes the commit of version v there, and the pair becomes (v + 1, e); whoever takes over
writes a takeover there, and the pair becomes (v, e + 1). The storage lets one of the two win. If
the commit wins, the newcomer sees version v and tries the next name; if the takeover wins, the
owner's commit fails, and so does every later one, since they need the same name first. Nobody has
to look at an epoch before a commit, so there is no gap between looking and committing.

Invariants:
1. Of a commit and a takeover that race for a place exactly one wins, at every step of either
   (`test_crash_a_second_driver_at_every_step_of_a_version`,
   `test_two_processes_on_one_disk_lose_and_double_nothing`).
2. A driver whose epoch is over has no commit that anyone reads, also when it slept so long that the
   takeover it would have met is cleaned away: after each commit it looks for newer epochs before it
   hands out a row or deletes a file, and by its place its file is a takeover, not a version
   (`test_a_commit_of_an_epoch_that_is_long_over_counts_for_nothing`).
3. The highest place of each epoch but the last one is a takeover; only the last place of all has
   to be read to know (`test_parity_the_sequence_beside_a_plain_replay`).
4. Names of files tell the epoch that wrote them, and a sweep removes no file of an epoch above its
   own (`test_a_sweep_leaves_files_of_newer_epochs_alone`). Files of older epochs that no version
   names never will be named (1), so the new owner may remove them.
5. An owner that lost deletes nothing: it looks before it deletes
   (`test_the_loser_deletes_nothing`); and what it was about to delete when it lost is named by no
   version from its last commit on, which the new owner starts from or passes.
6. The loser is told who took over, when and where (`test_the_loser_is_reported_who_took_over`).
7. Looking never takes a checkpoint over (`test_looking_takes_nothing_over`).

Cost: opening creates one file of some hundred bytes and lists `commits/`; a commit costs nothing
beyond the listing that cleaning up needs anyway.

Limits: as exclusive as the storage's own exclusive create (`Files.put`). A driver that is stopped
in the middle of deleting, for as long as it takes others to take over and to go back to a version
older than all it keeps (`icestream state repair`), may delete files of that version.

References: `docs/formats/commits.md`, decision 34.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from icestream.core.clock import Clock, SystemClock
from icestream.core.errors import CheckpointError
from icestream.core.process import this_process
from icestream.core.times import Micros
from icestream.state.log.format import text, whole
from icestream.state.versions.attempts import LAST_EPOCH

#: fields of a takeover, which a commit does not have
TAKEN_BY = "owner"

_NAME = re.compile(r"([0-9]{12,18})(?:-([0-9]{8}))?\.json")


class TakenOver(CheckpointError):
    """Another program owns the checkpoint now: let only one run."""


@dataclass(frozen=True, order=True)
class Place:
    """A place in the sequence, ordered as places come to be taken."""

    epoch: int
    version: int

    @property
    def name(self) -> str:
        """Return the name of its file; without an epoch as releases before epochs wrote it."""
        return f"{self.version:012d}{f'-{self.epoch:08d}' if self.epoch else ''}.json"

    @classmethod
    def of(cls, name: str) -> Place | None:
        """Return the place that a file's name stands for, if it does for one."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(int(found[2] or 0), int(found[1]))


@dataclass(frozen=True)
class Owner:
    """A program that writes to a checkpoint."""

    host: str
    pid: int
    #: when the process began, seconds since 1970
    began: float
    #: what it calls itself
    application: str
    #: when it took the checkpoint
    since: Micros
    #: tells it from all others
    run: str

    @classmethod
    def here(cls, application: str, clock: Clock | None = None) -> Owner:
        now = (clock or SystemClock()).now()
        return cls(**this_process(), application=application, since=now, run=uuid.uuid4().hex)

    @property
    def process(self) -> dict[str, Any]:
        """Return what `core.process.lives` asks for."""
        return {"host": self.host, "pid": self.pid, "began": self.began}

    def __str__(self) -> str:
        """Say who it is, and since when."""
        since = datetime.fromtimestamp(self.since / 1_000_000, UTC).isoformat(timespec="seconds")
        return f"{self.application} (process {self.pid} on {self.host}, since {since})"


@dataclass(frozen=True)
class Takeover:
    """The beginning of an epoch."""

    #: the epoch that begins
    epoch: int
    #: the version that it goes on from; 0 for none
    after: int
    owner: Owner

    def to_json(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "after": self.after, TAKEN_BY: vars(self.owner)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Takeover:
        """Return what `to_json` wrote; ValueError if nothing wrote it."""
        owner = value[TAKEN_BY]
        return cls(
            whole(value["epoch"], 1, LAST_EPOCH),
            whole(value["after"], 0),
            Owner(
                text(owner["host"]),
                whole(owner["pid"], 0),
                float(owner["began"]),
                text(owner["application"]),
                whole(owner["since"]),
                text(owner["run"]),
            ),
        )


@dataclass(frozen=True)
class Standing:
    """Where the sequence stands."""

    #: places that are taken, in order
    places: tuple[Place, ...] = ()
    #: what is at the last of them if that is a takeover
    takeover: Takeover | None = None

    @classmethod
    def of(cls, names: Iterable[str]) -> Standing:
        """Return the places that names stand for, the last one taken for a commit."""
        return cls(tuple(sorted(place for name in names if (place := Place.of(name)))))

    @property
    def last(self) -> Place | None:
        return self.places[-1] if self.places else None

    @property
    def epoch(self) -> int:
        """Return the epoch of the owner; 0 if there was none."""
        if self.takeover is not None:
            return self.takeover.epoch
        return self.last.epoch if self.last else 0

    @property
    def version(self) -> int:
        """Return the last version; 0 if there is none."""
        if self.takeover is not None:
            return self.takeover.after
        return self.last.version if self.last else 0

    @property
    def next(self) -> Place:
        """Return the place that the owner's next commit and the next takeover both need."""
        return Place(self.epoch, self.version + 1)

    @cached_property
    def takeovers(self) -> tuple[Place, ...]:
        """Return the places of takeovers, in order."""
        found = {place.epoch: place for place in self.places}
        if self.places and self.takeover is None:
            del found[self.places[-1].epoch]
        return tuple(found.values())

    @cached_property
    def commits(self) -> dict[int, Place]:
        """Return the place of each version; of two with one number, that of the later epoch."""
        skipped = {*self.takeovers}
        found = {
            place.version: place
            for place in self.places
            if place not in skipped and place.version <= self.version
        }
        return dict(sorted(found.items()))

    def place(self, version: int) -> Place:
        """Return the place of a version; one that is not there had the epoch of what follows it."""
        later = (each.epoch for each in self.places if each.version > version)
        return self.commits.get(version) or Place(min(later, default=self.epoch), version)

    def done_with(self, needed: int) -> list[Place]:
        """Return the places that nobody needs who needs versions from `needed` on.

        The last takeover stays, to say who the owner is; so does the first, which releases before
        epochs take for the last version and refuse.
        """
        stay: Collection[Place] = {*self.takeovers[:1], *self.takeovers[-1:]}
        return [place for place in self.places if place.version < needed and place not in stay]


def taken_over(root: str, takeover: Takeover | None) -> TakenOver:
    """Return the error for an owner whose ownership of a checkpoint was taken over."""
    by = "another program"
    if takeover is not None:
        by = (
            f"{takeover.owner}, which goes on from version {takeover.after} in epoch "
            f"{takeover.epoch}"
        )
    msg = (
        f"another query runs on this checkpoint: {root} was taken over by {by}. This one has "
        "stopped; what it computed since is not visible, and nothing of the other was touched. Let "
        "one program run on a checkpoint: stop the other, or give this one a location of its own"
    )
    return TakenOver(msg)
