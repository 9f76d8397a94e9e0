from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.safety.sigkill import compare, differences, write_input
from icestream.core.errors import IcestreamError
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import VersionStore
from tests.faults.killing import kill_until_done
from tests.fixtures.object_store import ObjectStoreServer

FILES = 4

#: dies at one delivery, before or after the sink has got it, the first time it comes there
_DYING = """
import os, signal, sys
from pathlib import Path
from icestream.api import launch
from bench.safety.killed_query import run

folder, name, moment, version = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
mark, hand_out = folder / f"{name}.died", launch.hand_out

def die(sink, rows, delivery):
    struck = delivery.commit.version == version and not mark.exists()
    if struck and moment == "before":
        mark.touch()
        os.killpg(0, signal.SIGKILL)
    hand_out(sink, rows, delivery)
    if struck:
        mark.touch()
        os.killpg(0, signal.SIGKILL)

launch.hand_out = die
run(folder, name)
"""


def _life(folder: Path, name: str, moment: str, version: int) -> int:
    command = [sys.executable, "-c", _DYING, str(folder), name, moment, str(version)]
    ran = subprocess.run(command, start_new_session=True, check=False, capture_output=True)
    if ran.returncode not in (0, -signal.SIGKILL):
        pytest.fail(ran.stderr.decode()[-3000:])
    return ran.returncode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("restart")
    write_input(folder / "in", FILES, seed=3)
    assert _life(folder, "undisturbed", "never", 0) == 0
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("version", [3, FILES + 1], ids=["batch", "flush"])
def test_crash_killed_between_our_commit_and_sparks(
    undisturbed: Path, moment: str, version: int
) -> None:
    name = f"{moment}-{version}"
    assert _life(undisturbed, name, moment, version) == -signal.SIGKILL
    root = undisturbed / name / "checkpoint" / "icestream"
    assert VersionStore(LocalFiles(), str(root)).versions()[-1] == version
    assert _life(undisturbed, name, moment, version) == 0
    expected, found = (
        (undisturbed / each / "seen.txt").read_text().splitlines() for each in ("undisturbed", name)
    )
    assert len(expected) > 100
    assert differences(expected, found) == 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sink", ["parquet", "delta", "iceberg"])
def test_crash_killed_again_and_again_at_random_moments(
    sink: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    kills = pytestconfig.getoption("--kills")
    found = compare(tmp_path, kills=kills, files=20 * kills, sink=sink)
    assert found.rows > 20 * kills
    assert (found.kills, found.differences) == (kills, 0)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sink", ["parquet", "delta", "iceberg"])
def test_crash_killed_again_and_again_with_everything_in_a_store(
    sink: str, tmp_path: Path, object_store: ObjectStoreServer
) -> None:
    with object_store.failing(0.02, 2) as faults:
        faults.delay = 0.05
        found = compare(tmp_path, kills=20, files=100, sink=sink, store=object_store.options)
        assert faults.done.total() > 100
    assert found.rows > 1_000
    assert (found.kills, found.differences) == (20, 0)


def test_a_row_that_is_there_twice_is_a_difference() -> None:
    assert differences(["a", "b", "c"], ["c", "b", "a"]) == 0
    assert differences(["a", "b"], ["a", "a", "c"]) == 3


def test_a_program_is_killed_as_often_as_asked_and_then_ends(tmp_path: Path) -> None:
    done = tmp_path / "done"
    work = f"""
import pathlib, time
done = pathlib.Path({str(done)!r})
while (count := len(done.read_text()) if done.exists() else 0) < 30:
    done.write_text("x" * (count + 1))
    time.sleep(0.1)
"""
    command = [sys.executable, "-c", work]
    found = kill_until_done(
        command,
        steps=lambda: len(done.read_text()) if done.exists() else 0,
        kills=3,
        seed=5,
        longest=0.3,
        early=0.2,
    )
    assert found.kills == len(found.lives) == 3
    assert len(done.read_text()) == 30


def test_a_program_that_fails_shows_its_log() -> None:
    command = [sys.executable, "-c", "raise SystemExit('the disk is on fire')"]
    with pytest.raises(IcestreamError, match="the disk is on fire"):
        kill_until_done(command, steps=lambda: 0, kills=0, seed=1)


def test_a_killed_program_leaves_nothing_running(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    # the child leaves the process group, as Spark's Python daemon does
    work = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)
with open({str(note)!r}, "a") as file:
    file.write(f"{{os.getpid()}} {{child.pid}}\\n")
if len(open({str(note)!r}).readlines()) < 3:
    time.sleep(3)
child.kill()
"""
    kill_until_done(
        [sys.executable, "-c", work],
        steps=lambda: len(note.read_text().splitlines()) if note.exists() else 0,
        kills=2,
        seed=4,
        longest=0.2,
        early=0.2,
    )
    time.sleep(0.2)
    pids = [int(word) for word in note.read_text().split()]
    assert not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
