"""Flipped bits at a sample of the bytes of every kind of file; all of them: bench `crash`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.safety.crash import FLIPPED, STOPPED
from icestream.core.errors import DamageError
from icestream.state.versions.commits import RESULTS, SEGMENTS
from icestream.testing.simulated_disk import SimulatedDisk
from tests.faults.bit_flips import HARMLESS, NOTICED, BitFlips
from tests.suites.crash_runs import ROOT, CrashRuns, Process, Script, staged


@pytest.fixture(scope="module")
def flips(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BitFlips]:
    with staged():
        runs = CrashRuns(FLIPPED, str(tmp_path_factory.mktemp("rot")))
        runs.undisturbed()
        yield BitFlips(runs, STOPPED)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "kind",
    [
        "plan",
        "last commit",
        "commit of a snapshot",
        "first commit",
        "layers",
        "panes",
        "new keys",
        "snapshot",
        "results",
        "late events",
    ],
)
def test_damage_in_any_durable_file_is_noticed_and_named(flips: BitFlips, kind: str) -> None:
    path = flips.durable_files()[kind]
    flips.flip_durable(kind, path, range(3, flips.size(path), 23))
    assert flips.undetected == []
    assert set(flips.outcomes[kind]) == {NOTICED}


def test_damage_in_the_exchange_is_noticed_and_the_batch_can_be_fed_again(flips: BitFlips) -> None:
    flips.flip_parcel(range(5, flips.parcel_size(), 67))
    assert flips.undetected == []
    assert set(flips.outcomes["parcel"]) == {NOTICED}


def test_damage_in_arenas_of_an_earlier_run_is_harmless(flips: BitFlips) -> None:
    names = flips.arena_files()
    assert any("header" in name for name in names)
    for name in names[::3]:
        flips.flip_arena(name, [flips.arena_size(name) // 2] if flips.arena_size(name) else [])
    assert flips.undetected == []
    assert set(flips.outcomes["arena"]) == {HARMLESS}


@pytest.mark.parametrize("folder", [SEGMENTS, RESULTS])
def test_a_missing_file_is_damage_that_is_named(tmp_path: Path, folder: str) -> None:
    with staged():
        script = Script(batches=6)
        disk = SimulatedDisk()
        process = Process(script, disk, str(tmp_path / "a"))
        for action in range(2):
            process.act(action)
        gone = f"{ROOT}/{folder}/{disk.list(f'{ROOT}/{folder}')[-1]}"
        disk.unlink(gone)
        again = Process(script, disk, str(tmp_path / "b"))
        with pytest.raises(DamageError, match=gone):
            again.act(1) if folder == RESULTS else again.act(2)


def test_an_undetected_flip_would_be_counted(flips: BitFlips) -> None:
    before = list(flips.undetected)
    expected = flips.runs.expected
    kept = expected[-1]
    expected[-1] = ((), ())
    try:
        flips.flip_arena(flips.arena_files()[0], [0])
    finally:
        expected[-1] = kept
    assert len(flips.undetected) == len(before) + 1
    flips.undetected[:] = before
