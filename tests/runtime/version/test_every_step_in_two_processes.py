"""A second process opens the checkpoint while the first waits before each step of a version.

Both live in processes of their own, on the real disk or in a store. A contest: the first feeds some
batches, then waits before a step of its disk; the second opens the checkpoint, feeds the rest and
says what it delivered; the first goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.verify import verify
from icestream.runtime.local import LocalQuery
from icestream.runtime.version import retention
from icestream.state.files import Files, LocalFiles, NewFile
from icestream.state.stores.store_files import StoreFiles
from icestream.state.versions.ownership import TakenOver
from icestream.testing.simulated_disk import SimulatedDisk
from tests.fixtures.object_store import BUCKET, ObjectStoreServer
from tests.suites.crash_runs import Script, staged

SCRIPT = Script(batches=6, events=12)
#: the batch during which the drivers meet, after snapshots, with files to remove
BUSY = 4

Store = dict[str, str] | None


class _Steps:
    """Says when it comes to one step of the disk, and waits there to be told to go on."""

    def __init__(self) -> None:
        self.left = 0

    def take(self) -> None:
        self.left -= 1
        if self.left == 0:
            _say(waits=True)
            sys.stdin.readline()


def _waiting(kind: type[Any], steps: _Steps, *args: Any) -> Any:
    """Return files of a kind whose changing operations are steps."""

    class Waiting(kind):  # type: ignore[misc]
        def create(self, path: str) -> NewFile:
            steps.take()
            return super().create(path)  # type: ignore[no-any-return]

        def put(self, path: str, data: bytes) -> bool:
            steps.take()
            return super().put(path, data)  # type: ignore[no-any-return]

        def unlink(self, *paths: str) -> None:
            steps.take()
            super().unlink(*paths)

        def sync_files(self, paths: Collection[str]) -> None:
            steps.take()
            super().sync_files(paths)

        def list(self, folder: str) -> list[str]:
            steps.take()
            return super().list(folder)  # type: ignore[no-any-return]

    return Waiting(*args)


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _drive() -> None:
    """Run what each line of the input asks for: batches from one to another, waiting at a step."""
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        steps, store = _Steps(), asked["store"]
        files: Files
        if store is None:
            files = _waiting(LocalFiles, steps)
        else:
            files = _waiting(StoreFiles, steps, store, f"{asked['local']}/copies")
        rows: dict[int, list[str]] = {}
        lost = None
        try:
            query = _opened(asked["root"], asked["local"], files)
            for number in range(query.next_batch, asked["until"]):
                steps.left = asked["step"] if number == BUSY else 0
                rows[number] = _texts(query.feed(SCRIPT.inputs[number]))
        except TakenOver as error:
            lost = str(error)
        _say(rows=rows, lost=lost)


def _opened(root: str, local: str, files: Files) -> LocalQuery:
    settings = replace(SCRIPT.settings(local), root=root)
    return LocalQuery(SCRIPT.plan, settings, files, LocalFiles())


def _texts(rows: Any) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


class _Program:
    """One of the two processes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, **what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def _two() -> Iterator[tuple[_Program, _Program]]:
    programs = _Program(), _Program()
    try:
        yield programs
    finally:
        for each in programs:
            each.end()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    with staged():
        calm = LocalQuery(
            SCRIPT.plan, SCRIPT.settings(str(tmp_path_factory.mktemp("calm"))), SimulatedDisk()
        )
        return [_texts(calm.feed(batch)) for batch in SCRIPT.inputs]


def _held(
    programs: tuple[_Program, _Program],
    home: str,
    folder: Path,
    store: Store,
    step: int,
    expected: list[list[str]],
) -> bool:
    """Let the two meet before a step; return whether the first came to it."""
    first, second = programs
    root, files = f"{home}/{step}", LocalFiles() if store is None else StoreFiles(store)
    common = {"root": root, "store": store}
    first.ask(**common, local=f"{folder}/first-{step}", until=BUSY + 1, step=step)
    told = first.answer()
    met = "waits" in told
    second.ask(**common, local=f"{folder}/second-{step}", until=SCRIPT.batches, step=0)
    by_second = second.answer()
    assert by_second["lost"] is None, step
    if met:
        first.ask()
        told = first.answer()
    rows = {int(number): found for number, found in told["rows"].items()}
    if BUSY not in rows:
        assert f"process {second.pid} on" in told["lost"], step
    for number, found in [*rows.items(), *by_second["rows"].items()]:
        assert found == expected[int(number)], (step, number)
    # what the first committed without delivering it, the second delivers again
    missing = {*range(SCRIPT.batches)} - {*rows, *map(int, by_second["rows"])}
    assert missing <= {BUSY}, step
    report = verify(Checkpoint(root, files), state=False)
    assert report.is_fine, (step, report.findings)
    third = _opened(root, f"{folder}/third-{step}", files)
    assert third.next_batch == SCRIPT.batches
    (again,) = third.driver.batch(SCRIPT.batches - 1, [])
    assert _texts(third.rows([again])) == expected[-1]
    return met


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("in_store", [False, True], ids=["disk", "store"])
def test_crash_a_second_process_at_every_step_of_a_version(
    in_store: bool, tmp_path: Path, expected: list[list[str]], object_store: ObjectStoreServer
) -> None:
    home = f"s3://{BUCKET}{tmp_path}" if in_store else str(tmp_path / "checkpoints")
    store = object_store.options if in_store else None
    with _two() as programs, staged():
        step = 1
        while _held(programs, home, tmp_path, store, step, expected):
            step += 1
    assert step > 10


if __name__ == "__main__":
    # every version cleans up, in a store too
    with staged(), mock.patch.multiple(retention, SWEEP_EVERY=1, STORE_CLEANED_EVERY=1):
        _drive()
