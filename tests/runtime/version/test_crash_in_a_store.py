"""The crash script over an S3 server: processes die before requests and after their deeds."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from icestream.runtime.local import LocalQuery
from icestream.runtime.version import task
from icestream.state.files import LocalFiles
from icestream.state.stores import bucket as buckets
from icestream.state.stores.bucket import Bucket, open_bucket
from icestream.state.stores.store_files import StoreFiles
from icestream.testing.simulated_disk import Crash
from tests.fixtures.object_store import BUCKET, ObjectStoreServer
from tests.suites.crash_runs import CrashRuns, Process, Script, staged

Result = TypeVar("Result")


class MortalBucket(Bucket):
    """Requests of a process that dies at one of them, before it is made or once it is done."""

    def __init__(self, alive: Bucket, dies_at: int, *, before: bool) -> None:
        super().__init__(alive._address, alive._store)
        self.left = dies_at
        self.before = before
        self.died_at = ""

    def repeated(self, kind: str, key: str, act: Callable[[], Result], *failures: Any) -> Result:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and self.before):
            self.died_at = self.died_at or f"before a {kind}"
            raise Crash(key)
        done = super().repeated(kind, key, act, *failures)
        if self.left == 0:
            self.died_at = f"after a {kind}"
            raise Crash(key)
        return done


class StoreProcess(Process):
    """A process whose checkpoint is in a store."""

    def __init__(self, script: Script, files: StoreFiles, local: str, root: str) -> None:
        self.script = script
        self.files = files
        settings = replace(script.settings(local), root=root)
        self.query = LocalQuery(script.plan, settings, files, parcel_files=LocalFiles())


class StoreCrashRuns(CrashRuns):
    """One run of the script in which every process dies after some requests."""

    def run(
        self, options: dict[str, str], root: str, deaths: Iterator[int], copies: Path
    ) -> Counter[str]:
        """Go on until the script is done; return where processes died."""
        died: Counter[str] = Counter()
        at = 0
        while at < len(self.script.actions):
            assert self.points < 1000, "no process gets anywhere"
            dies_at = next(deaths)
            alive = open_bucket(f"s3://{BUCKET}", tuple(sorted(options.items())))
            bucket = MortalBucket(alive, dies_at, before=self.points % 2 == 0)
            # every second process is on another host
            folder = copies if dies_at % 2 else copies / str(self.points)
            files = StoreFiles(copies=str(folder), connect=lambda *_, bucket=bucket: bucket)
            local = self.local()
            try:
                process = StoreProcess(self.script, files, local, root)
                scenario = f"after {self.points} deaths"
                if at and process.done == at:
                    self._compare(at - 1, process.act(at - 1), f"{scenario}, delivered again")
                while at < len(self.script.actions):
                    self._compare(at, process.act(at), scenario)
                    at += 1
            except Crash:
                died[bucket.died_at] += 1
                self.points += 1
            finally:
                shutil.rmtree(local, ignore_errors=True)
        return died


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(buckets, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(buckets, "LONGEST_PAUSE", 0.01)
    open_bucket.cache_clear()
    yield
    open_bucket.cache_clear()


def _deaths(first: int, last: int, step: int = 1) -> Iterator[int]:
    """Yield after how many requests processes die: each number in turn."""
    while True:
        yield from range(first, last, step)


def _run(
    store: ObjectStoreServer, script: Script, folder: Path, root: str, deaths: Iterator[int]
) -> tuple[StoreCrashRuns, Counter[str]]:
    runs = StoreCrashRuns(script, str(folder))
    with staged():
        runs.undisturbed()
        died = runs.run(store.options, f"s3://{BUCKET}/{root}", deaths, folder / "copies")
    return runs, died


@pytest.mark.parametrize("early", [False, True], ids=["one part", "parts"])
def test_crash_a_query_in_a_store(
    object_store: ObjectStoreServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    early: bool,
) -> None:
    if early:
        monkeypatch.setattr(task, "PART_BYTES", 1)
    script = Script(batches=4, events=16, shards=4 if early else 2)
    with object_store.failing(0.1, 3) as faults:
        faults.delay = 0.01
        runs, died = _run(object_store, script, tmp_path, f"crash-{early}", _deaths(9, 45, 4))
        assert faults.done.total() > 10
    assert not runs.differences
    assert runs.points > 5
    assert {each.split()[0] for each in died} == {"before", "after"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_crash_a_query_at_many_requests_to_a_store(
    object_store: ObjectStoreServer, tmp_path: Path, rate: float, seed: int
) -> None:
    with object_store.failing(rate, seed) as faults:
        faults.delay = 0.02
        script, root = Script(seed=seed), f"many-{rate}-{seed}"
        runs, died = _run(object_store, script, tmp_path, root, _deaths(1 + seed, 70))
    assert not runs.differences
    assert runs.points > 35
    for kind in ("put", "get", "list", "delete"):
        assert died[f"before a {kind}"] + died[f"after a {kind}"]
