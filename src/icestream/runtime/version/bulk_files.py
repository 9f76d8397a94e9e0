"""Many files of a checkpoint at once: tasks list, remove and unpack them where they are many.

Idea: a store lists or deletes a thousand names with a request, and answers requests about different
ranges of names at the same time. What one request can do the driver does itself; more is cut into
ranges of names, and tasks do these side by side. Tasks only ever receive names that the driver has
decided about. Such names are never used again, so a task that outlives its driver does no harm. A
disk takes milliseconds for a large file: nothing waits for it.

Invariants:
1. Tasks together return the same names as one listing, and remove the same files
   (`test_parity_tasks_list_and_remove_as_the_driver_does`).

Cost: one request per 1000 names, and a job of Spark only where there are more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from icestream.state.files import Files, LocalFiles
from icestream.state.stores.bucket import NAMES_AT_ONCE, REQUESTS
from icestream.state.stores.store_files import StoreFiles

Result = TypeVar("Result")

#: names that a task lists
NAMES_OF_A_TASK = 10 * NAMES_AT_ONCE


class BulkFiles:
    """The files of one checkpoint."""

    def __init__(
        self,
        files: Files,
        each: Callable[[Sequence[Callable[[], Any]]], list[Any]],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        """Use files, and functions that run pieces of work as tasks, and something later."""
        self._files = files
        self._each = each
        self._later = later
        #: requests that tasks have made
        self.requests = 0

    def sizes(self, folder: str, cuts: Sequence[str] = ()) -> dict[str, int]:
        """Return the paths of the files in a folder with their bytes, which are 0 on disks.

        The names after each of the `cuts` are listed by another task.
        """
        files = self._files
        if not isinstance(files, StoreFiles):
            return dict.fromkeys((f"{folder}/{name}" for name in files.list(folder)), 0)
        ranges = zip(("", *cuts), (*cuts, None), strict=True)
        work = [partial(files.sizes, folder, *each) for each in ranges]
        return {
            f"{folder}/{name}": size for found in self._done(work) for name, size in found.items()
        }

    def remove(self, paths: Collection[str]) -> None:
        """Remove files, those on disks later; missing ones are fine."""
        names = sorted(paths)
        if isinstance(self._files, LocalFiles):
            self._later(partial(self._files.unlink, *names))
            return
        if len(names) <= NAMES_AT_ONCE:
            self._files.unlink(*names)
            return
        starts = range(0, len(names), NAMES_AT_ONCE)
        self._done([partial(self._files.unlink, *names[at : at + NAMES_AT_ONCE]) for at in starts])

    def unpack(self, packs: Sequence[Sequence[str]]) -> None:
        """Make objects of files in packs, given those of each pack."""
        if isinstance(self._files, StoreFiles):
            self._done([partial(self._files.unpack, paths) for paths in packs])

    def _done(self, work: Sequence[Callable[[], Result]]) -> list[Result]:
        """Do pieces of work, several of them as tasks."""
        if len(work) <= 1:
            return [piece() for piece in work]
        done = self._each([partial(_counted, piece) for piece in work])
        self.requests += sum(requests for _, requests in done)
        return [result for result, _ in done]


def _counted(piece: Callable[[], Result]) -> tuple[Result, int]:
    before = REQUESTS.total()
    return piece(), REQUESTS.total() - before
