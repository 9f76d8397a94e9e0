"""Flipped bits in every kind of file: each is detected and named, or changes nothing.

Idea: a crash run is stopped between two batches. For a file and a byte of it, one bit is flipped on
    a
copy of the disk, and a new process continues to the end of the input. It must either raise an
`IcestreamError` that names the file, or deliver exactly what the undisturbed run delivered.

Limits: bits flip one at a time, between processes; parcels of the exchange, which live within one
batch, are flipped between being written and being read.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from unittest import mock

from icestream.core.errors import IcestreamError
from icestream.operators.grid.operator import POSITION
from icestream.runtime.local import LocalExecutor, Splits
from icestream.runtime.version.work import Parcel
from icestream.runtime.work.windows.ingest import Ingest
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import (
    BASE,
    PLAN,
    RESULTS,
    SEGMENTS,
    LiveSegment,
    VersionStore,
)
from icestream.state.versions.live_segments import live_at
from icestream.state.versions.manifests import MANIFESTS
from icestream.testing.simulated_disk import SimulatedDisk
from tests.suites.crash_runs import ROOT, CrashRuns, Process

NOTICED = "noticed"
HARMLESS = "harmless"


@dataclass
class BitFlips:
    """Flips bits of a crash run that stopped before an action."""

    runs: CrashRuns
    #: actions done before the bits flip
    stopped: int
    #: outcomes of the flips, by kind of file
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    #: sentences about flips that were neither detected nor harmless
    undetected: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Run up to the point where bits flip."""
        self._local = os.path.join(self.runs.folder, "rotting")
        self._disk = SimulatedDisk()
        process = Process(self.runs.script, self._disk, self._local)
        for action in range(self.stopped):
            process.act(action)

    def durable_files(self) -> dict[str, str]:
        """Return the path of one file of each durable kind, all of which a restart reads."""
        store = VersionStore(self._disk, ROOT)
        last = store.load(self.stopped)
        live = live_at(store, last.version)
        base = max(1, last.bases[0])
        segments = {
            "panes" if each.lifetime != BASE else self._kind_of_base(each): each for each in live
        }
        return {
            "plan": f"{ROOT}/{PLAN}",
            "last commit": store.path(last.version),
            "commit of a snapshot": store.path(base),
            "first commit": store.path(1),
            "layers": next(path for path in self._disk.files() if f"/{MANIFESTS}/" in path),
            **{kind: f"{ROOT}/{SEGMENTS}/{each.info.name}" for kind, each in segments.items()},
            "results": f"{ROOT}/{RESULTS}/{last.results[0].name}",
            "late events": f"{ROOT}/{RESULTS}/{last.late[0].name}",
        }

    def size(self, path: str) -> int:
        """Return the bytes of a durable file."""
        return len(self._disk.files()[path])

    def flip_durable(self, kind: str, path: str, places: Iterable[int]) -> None:
        """Flip one bit of a file at each of the places in turn."""
        for place in places:
            disk = self._disk.after_crash("keep")
            disk.flip(path, place, _mask(place))
            self._carry_on(kind, f"byte {place} of {path}", os.path.basename(path), disk)

    def flip_parcel(self, places: Iterable[int]) -> None:
        """Flip one bit of the first parcel of the next batch, between ingest and the shards."""
        for place in places:
            disk = self._disk.after_crash("keep")
            scenario = f"byte {place} of a parcel"
            with _flipping_exchange(disk, place):
                self._judge("parcel", scenario, ".parcel", partial(self._feed_twice, disk))

    def arena_files(self) -> list[str]:
        """Return the files of all arenas that the stopped process left."""
        return sorted(
            os.path.relpath(os.path.join(folder, name), self._local)
            for folder, _, names in os.walk(self._local)
            for name in names
        )

    def flip_arena(self, name: str, places: Iterable[int]) -> None:
        """Flip one bit of an arena's file, then start a new process."""
        for place in places:
            local = self.runs.local()
            shutil.copytree(self._local, local)
            with open(os.path.join(local, name), "r+b") as file:
                file.seek(place)
                (old,) = file.read(1)
                file.seek(place)
                file.write(bytes([old ^ _mask(place)]))
            disk = self._disk.after_crash("keep")
            self._carry_on("arena", f"byte {place} of {name}", name, disk, local)

    def arena_size(self, name: str) -> int:
        """Return the bytes of an arena's file."""
        return os.path.getsize(os.path.join(self._local, name))

    def parcel_size(self) -> int:
        """Return the bytes of the first parcel of the next batch."""
        disk = self._disk.after_crash("keep")
        process = Process(self.runs.script, disk, self.runs.local())
        process.act(self.stopped)
        before = self._disk.files()
        (first, *_) = (p for p in disk.files() if p.endswith(".parcel") and p not in before)
        return len(disk.files()[first])

    def _carry_on(
        self, kind: str, scenario: str, name: str, disk: SimulatedDisk, local: str | None = None
    ) -> None:
        differences = self.runs.differences
        before = len(differences)
        recover = self.runs.recover
        self._judge(kind, scenario, name, lambda: recover(disk, self.stopped, scenario, local))
        self.undetected += differences[before:]
        del differences[before:]

    def _feed_twice(self, disk: SimulatedDisk) -> None:
        """Feed a batch, and once more; the second time nothing is flipped."""
        process = Process(self.runs.script, disk, self.runs.local())
        try:
            process.act(self.stopped)
        finally:
            if process.act(self.stopped) != self.runs.expected[self.stopped]:
                self.undetected.append("a batch fed again after damage in its parcel differs")

    def _judge(self, kind: str, scenario: str, name: str, attempt: Callable[[], None]) -> None:
        try:
            attempt()
            outcome = HARMLESS
        except IcestreamError as error:
            outcome = NOTICED
            if name not in str(error):
                self.undetected.append(f"{scenario}: the error does not name the file: {error}")
        except Exception as error:
            outcome = type(error).__name__
            self.undetected.append(f"{scenario}: {error!r}")
        self.outcomes.setdefault(kind, Counter())[outcome] += 1

    def _kind_of_base(self, segment: LiveSegment) -> str:
        reader = SegmentReader(self._disk, f"{ROOT}/{SEGMENTS}/{segment.info.name}")
        return "snapshot" if (reader.directory["synopsis"] == POSITION).any() else "new keys"


@contextmanager
def _flipping_exchange(disk: SimulatedDisk, place: int) -> Iterator[None]:
    """Flip one bit of the first parcel that is written, before it is read."""
    plain = LocalExecutor.ingest
    waiting = [place]

    def ingest(self: LocalExecutor, ingest: Ingest, batch: Splits, folder: str) -> list[Parcel]:
        parcels = plain(self, ingest, batch, folder)
        if waiting:
            disk.flip(parcels[0].path, waiting.pop(), _mask(place))
        return parcels

    with mock.patch.object(LocalExecutor, "ingest", ingest):
        yield


def _mask(place: int) -> int:
    """Return one bit, a different one at neighbouring places."""
    return 1 << place % 8
