"""A lease on a checkpoint: a second start is refused while the first program is alive.

Idea: every five seconds the owner of a checkpoint renews an empty file whose name contains its
epoch and the time. A program that starts looks for the lease of the current owner, which expires 20
seconds after its last renewal, or at once when it was released or when its process, on this host,
is gone. If the owner is on another host and the clocks leave doubt, the new program waits until it
sees a renewal, so the owner is alive, or until 20 seconds have passed.

Correctness does not depend on it: if two programs start, they take the checkpoint one after the
other, and the first fails at its next commit (`icestream.state.versions.ownership`).

Invariants:
1. Only the owner of an epoch writes files of its epoch, so there is one writer
   (`test_a_lease_has_one_file_of_its_owner`).
2. A start is refused while the owner is alive
   (`test_a_second_start_is_refused_while_the_first_lives`) and for at most 20 seconds after its
   end (`test_a_lease_is_over_after_twenty_seconds`,
   `test_a_dead_process_on_this_host_holds_no_lease`), even if clocks differ
   (`test_clocks_that_differ_refuse_nobody`).
3. An error of the disk at a renewal does not stop the query
   (`test_a_lease_that_cannot_be_renewed_stops_nobody`).

Cost: one file created and one removed every five seconds; a start lists one folder.

Limits: two programs that start at the same moment do not see each other's lease.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable

from icestream.core.clock import Clock, SystemClock
from icestream.core.errors import CheckpointError, DamageError, StorageError
from icestream.core.process import lives
from icestream.core.times import Micros
from icestream.state.files import Files, write_file
from icestream.state.versions.commits import VersionStore
from icestream.state.versions.ownership import Takeover

LEASE = "lease"
#: seconds between renewals, and from the last renewal until a lease expires
RENEWED_EVERY = 5.0
OVER_AFTER = 20.0

#: seconds between two checks of another program's lease
_LOOK_AGAIN = 0.5
_NAME = re.compile(r"([0-9]{8})-([0-9]{1,20})")


class Lease:
    """The lease of one program on one checkpoint."""

    def __init__(
        self,
        files: Files,
        root: str,
        clock: Clock | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._files = files
        self._folder = f"{root}/{LEASE}"
        self._store = VersionStore(files, root)
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._epoch: int | None = None
        self._name: str | None = None
        self._ended = threading.Event()
        self._writing = threading.Lock()

    def check(self) -> None:
        """Raise CheckpointError if another program owns the checkpoint and is alive."""
        holder = self._holder()
        renewed = None if holder is None else self._renewed(holder.epoch)
        if holder is None or renewed is None:
            return
        alive = lives(holder.owner.process)
        age = (self._clock.now() - renewed) / 1_000_000
        if alive is False or age > OVER_AFTER:
            return
        if (alive and age >= 0) or self._is_renewed(holder.epoch, renewed):
            msg = (
                f"a query runs on this checkpoint: {holder.owner} owns it, and renewed its lease "
                f"{max(0, round(age))} seconds ago. Stop it, or take the checkpoint over with "
                ".option('takeOver', True): the other query then fails at its next commit"
            )
            raise CheckpointError(msg)

    def hold(self, epoch: int, every: float | None = RENEWED_EVERY) -> None:
        """Start the lease of an epoch that was taken, and keep renewing it."""
        self._epoch = epoch
        with contextlib.suppress(StorageError):
            for name in self._files.list(self._folder):
                found = _NAME.fullmatch(name)
                if found and int(found[1]) < epoch:
                    self._files.unlink(f"{self._folder}/{name}")
            self.renew()
        if every is not None:
            renewing = threading.Thread(
                target=self._renewing, args=(every,), name="icestream-lease", daemon=True
            )
            renewing.start()

    def renew(self) -> None:
        with self._writing:
            if self._epoch is None or self._ended.is_set():
                return
            name = f"{self._epoch:08d}-{self._clock.now()}"
            if name == self._name:
                return
            write_file(self._files, f"{self._folder}/{name}")
            before, self._name = self._name, name
            if before is not None:
                self._files.unlink(f"{self._folder}/{before}")

    def release(self) -> None:
        """End the lease, so that the next start need not wait."""
        self._ended.set()
        with self._writing, contextlib.suppress(Exception):
            if self._name is not None:
                self._files.unlink(f"{self._folder}/{self._name}")
            self._name = None

    def _renewing(self, every: float) -> None:
        while not self._ended.wait(every):
            with contextlib.suppress(Exception):
                self.renew()

    def _holder(self) -> Takeover | None:
        try:
            return self._store.owner()
        except DamageError:
            return None

    def _renewed(self, epoch: int) -> Micros | None:
        """Return when the owner of an epoch renewed its lease; None if it has none."""
        found = map(_NAME.fullmatch, self._files.list(self._folder))
        return max((int(each[2]) for each in found if each and int(each[1]) == epoch), default=None)

    def _is_renewed(self, epoch: int, seen: Micros) -> bool:
        """Wait until a lease is renewed or has certainly expired; return whether it was renewed."""
        until = self._clock.monotonic() + OVER_AFTER
        while self._clock.monotonic() < until:
            self._sleep(_LOOK_AGAIN)
            renewed = self._renewed(epoch)
            if renewed is None:
                return False
            if renewed != seen:
                return True
        return False
