from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest

from icestream.core.errors import CheckpointError, StorageError
from icestream.core.times import Micros
from icestream.runtime.version.lease import LEASE, OVER_AFTER, RENEWED_EVERY, Lease
from icestream.state.files import NewFile
from icestream.state.versions.commits import VersionStore
from icestream.state.versions.ownership import Owner
from icestream.testing.simulated_disk import SimulatedDisk

ROOT = "checkpoint"
SECOND = 1_000_000
HERE = Owner.here("the first")
ELSEWHERE = replace(HERE, host="another host")


class Watch:
    """A clock that goes on only while somebody sleeps, and calls whoever waits for a time."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.seconds = 1_000_000.0
        self.ahead = ahead
        self.every: tuple[float, Callable[[], None]] | None = None
        self._next = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> Micros:
        return round((self.seconds + self.ahead) * SECOND)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if self.every is not None and self.seconds >= self._next:
            self._next = self.seconds + self.every[0]
            self.every[1]()


def held(owner: Owner, watch: Watch) -> tuple[SimulatedDisk, Lease]:
    """Return a checkpoint that somebody owns and renews."""
    disk = SimulatedDisk()
    epoch = VersionStore(disk, ROOT).take(owner).epoch
    lease = Lease(disk, ROOT, watch)
    lease.hold(epoch, every=None)
    return disk, lease


def newcomer(disk: SimulatedDisk, watch: Watch) -> Lease:
    return Lease(disk, ROOT, watch, watch.sleep)


def test_a_checkpoint_without_an_owner_is_free() -> None:
    newcomer(SimulatedDisk(), Watch()).check()


def test_a_second_start_is_refused_while_the_first_lives() -> None:
    watch = Watch()
    disk, lease = held(HERE, watch)
    for _ in range(10):
        with pytest.raises(CheckpointError, match=r"the first \(process .*takeOver"):
            newcomer(disk, watch).check()
        watch.sleep(RENEWED_EVERY)
        lease.renew()
    lease.release()
    newcomer(disk, watch).check()
    assert disk.list(f"{ROOT}/{LEASE}") == []


def test_a_lease_is_over_after_twenty_seconds() -> None:
    watch = Watch()
    disk, _ = held(HERE, watch)
    watch.sleep(OVER_AFTER - 1)
    with pytest.raises(CheckpointError):
        newcomer(disk, watch).check()
    watch.sleep(2)
    newcomer(disk, watch).check()


def test_a_dead_process_on_this_host_holds_no_lease() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    began = psutil.Process(gone.pid).create_time()
    gone.wait()
    for owner in (
        replace(HERE, pid=gone.pid, began=began),
        # another process has the number now
        replace(HERE, began=HERE.began - 100),
    ):
        watch = Watch()
        disk, _ = held(owner, watch)
        newcomer(disk, watch).check()


def test_an_owner_on_another_host_is_believed_when_it_is_seen_alive() -> None:
    watch = Watch()
    disk, lease = held(ELSEWHERE, watch)
    watch.every = (RENEWED_EVERY, lease.renew)
    began = watch.seconds
    with pytest.raises(CheckpointError, match="another host"):
        newcomer(disk, watch).check()
    assert watch.seconds - began <= RENEWED_EVERY + 1


def test_an_owner_on_another_host_that_died_delays_a_start_for_twenty_seconds() -> None:
    watch = Watch()
    disk, _ = held(ELSEWHERE, watch)
    began = watch.seconds
    newcomer(disk, watch).check()
    assert watch.seconds - began <= OVER_AFTER + 1


def test_an_owner_on_another_host_that_stops_meanwhile_delays_nobody() -> None:
    watch = Watch()
    disk, lease = held(ELSEWHERE, watch)
    watch.every = (2.0, lease.release)
    began = watch.seconds
    newcomer(disk, watch).check()
    assert watch.seconds - began <= 3


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_clocks_that_differ_refuse_nobody(ahead: float) -> None:
    watch, theirs = Watch(), Watch(ahead)
    disk, _ = held(ELSEWHERE, theirs)
    began = watch.seconds
    newcomer(disk, watch).check()
    assert watch.seconds - began <= OVER_AFTER + 1


def test_a_lease_has_one_file_of_its_owner() -> None:
    watch = Watch()
    disk, lease = held(HERE, watch)
    for _ in range(5):
        watch.sleep(RENEWED_EVERY)
        lease.renew()
        assert len(disk.list(f"{ROOT}/{LEASE}")) == 1
    second = Lease(disk, ROOT, watch)
    second.hold(VersionStore(disk, ROOT).take(HERE).epoch, every=None)
    # the first does not know yet: its files tell its own epoch, and nobody asks for them
    watch.sleep(RENEWED_EVERY)
    lease.renew()
    epochs = [name.partition("-")[0] for name in disk.list(f"{ROOT}/{LEASE}")]
    assert sorted(epochs) == ["00000001", "00000002"]
    second.release()
    newcomer(disk, watch).check()


def test_a_lease_that_cannot_be_renewed_stops_nobody() -> None:
    class Refusing(SimulatedDisk):
        refuses = False

        def create(self, path: str) -> NewFile:
            if self.refuses:
                raise StorageError(path)
            return super().create(path)

    disk = Refusing()
    lease = Lease(disk, ROOT)
    epoch = VersionStore(disk, ROOT).take(HERE).epoch
    lease.hold(epoch, every=0.01)
    disk.refuses = True
    time.sleep(0.1)
    disk.refuses = False
    before = disk.list(f"{ROOT}/{LEASE}")
    for _ in range(500):
        if disk.list(f"{ROOT}/{LEASE}") not in (before, []):
            break
        time.sleep(0.01)
    else:
        pytest.fail("the lease was not renewed again")
    lease.release()
    assert disk.list(f"{ROOT}/{LEASE}") == []


def test_a_lease_is_renewed_every_five_seconds() -> None:
    assert (RENEWED_EVERY, OVER_AFTER) == (5.0, 20.0)
