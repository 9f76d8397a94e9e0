"""Two processes on one checkpoint of the real disk."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from icestream.runtime.driver import Delivery
from icestream.runtime.local import LocalQuery
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import VersionStore
from icestream.state.versions.ownership import TakenOver
from tests.suites.crash_runs import Script

SCRIPT = Script(batches=40, events=12)


def opened(root: str, local: str) -> LocalQuery:
    return LocalQuery(SCRIPT.plan, replace(SCRIPT.settings(local), root=root), LocalFiles())


def rows_of(query: LocalQuery, delivery: Delivery) -> list[str]:
    return sorted(map(repr, query.rows([delivery]).to_pylist()))


def drive(root: str, local: str, pause: float) -> None:
    """Feed what is left as long as this process owns the checkpoint, a line for each version."""
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    query = opened(root, local)
    print(json.dumps({"opened": True}), flush=True)
    try:
        for number in range(query.next_batch, SCRIPT.batches):
            (delivery,) = query.driver.batch(number, SCRIPT.inputs[number])
            line = {"version": delivery.commit.version, "rows": rows_of(query, delivery)}
            print(json.dumps(line), flush=True)
            time.sleep(pause)
    except TakenOver as error:
        print(json.dumps({"lost": str(error)}), flush=True)


def start(root: Path, local: Path, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, str(root), str(local), str(pause)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def reported(process: subprocess.Popen[str]) -> object:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def lines(process: subprocess.Popen[str]) -> list[dict[str, object]]:
    out, _ = process.communicate(timeout=200)
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.timeout(300)
def test_two_processes_on_one_disk_lose_and_double_nothing(tmp_path: Path) -> None:
    calm = opened(str(tmp_path / "calm"), str(tmp_path / "calm-local"))
    expected = [
        rows_of(calm, calm.driver.batch(number, SCRIPT.inputs[number])[0])
        for number in range(SCRIPT.batches)
    ]
    root = tmp_path / "checkpoint"
    # all on one host: the arenas of the first are removed under it
    processes = [start(root, tmp_path / "local", 0.02) for _ in range(3)]
    assert [reported(process) for process in processes] == [{"ready": True}] * 3
    for number, process in enumerate(processes):
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert reported(process) == {"opened": True}
        time.sleep(0.15 + 0.07 * number)
    found = [lines(process) for process in processes]
    losers = [each for each in found if each and "lost" in each[-1]]
    assert losers == found[:2]
    for each in losers:
        pids = [f"process {process.pid} on" in str(each[-1]) for process in processes]
        assert pids[1] or pids[2]
    versions: dict[int, list[object]] = {}
    for each in found:
        for line in each:
            if "version" in line:
                version = line["version"]
                assert isinstance(version, int)
                versions.setdefault(version, []).append(line["rows"])
    # a version whose owner lost right after it committed may have been told to nobody
    missing = set(range(1, SCRIPT.batches + 1)) - versions.keys()
    assert len(missing) <= len(losers)
    assert all(len(rows) == 1 for rows in versions.values())
    assert all(rows == [expected[version - 1]] for version, rows in versions.items())
    store = VersionStore(LocalFiles(), str(root))
    last = store.latest()
    assert last is not None
    assert (last.version, last.batch, last.epoch) == (SCRIPT.batches, SCRIPT.batches - 1, 3)
    reopened = opened(str(root), str(tmp_path / "again"))
    (again,) = reopened.driver.batch(SCRIPT.batches - 1, [])
    assert rows_of(reopened, again) == expected[-1]


if __name__ == "__main__":
    drive(sys.argv[1], sys.argv[2], float(sys.argv[3]))
