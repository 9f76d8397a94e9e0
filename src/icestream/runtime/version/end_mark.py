"""Which version all sinks had when a query ended, where a sink may trail by one version.

Idea: while a query runs, the sink has every version but perhaps the last one. A query that ends
leaves a mark with the last version, once all sinks have it. The next run removes the mark, and
delivers the last version again unless that one, or a later one before a repair, was marked.

Invariants:
1. After a crash the version that may be missing is delivered first; after a stop no sink gets a
   version again (`test_crash_a_version_on_its_way_to_the_sink_is_delivered_after_restart`).

Cost: one small file for each run.
"""

from __future__ import annotations

from icestream.state.files import Files

#: content of every delivery mark
MARK = b"delivered\n"


class EndMark:
    """The mark of the last version of a run."""

    def __init__(self, files: Files, root: str) -> None:
        """Use the marks of the checkpoint at `root`."""
        self._files = files
        self._folder = f"{root}/delivered/all"

    def take(self) -> int:
        """Remove the mark of the last run and return its version; 0 if it did not end."""
        found = self._files.list(self._folder)
        self._files.unlink(*(f"{self._folder}/{name}" for name in found))
        return max(map(int, found), default=0)

    def put(self, version: int) -> None:
        """Mark the last version of this run."""
        self._files.put(f"{self._folder}/{version:012d}", MARK)
