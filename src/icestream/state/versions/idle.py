"""Batches that made no version, noted so that a gap in their numbers can be told from a loss.

Idea: with a ticker, batches come also when no events do; such a batch makes no version. If nothing
were noted of it, the numbers of Spark's batches would jump, and a state that was rolled back would
look like a quiet hour. So a batch without events leaves an empty file, named by the version the
state stood at, the epoch that wrote it and the batch; the next one replaces it. A note counts if
its version is the last one and its epoch not before that of the commit: notes of versions that a
repair dropped count for nothing.

Invariants:
1. A state that was rolled back under a ticker is refused as it is without one
   (`test_a_rolled_back_state_is_noticed_under_a_ticker_too`).
2. Quiet batches survive restarts (`test_quiet_batches_are_remembered_across_restarts`).

Cost: one small file created and one removed for each batch without events.
"""

from __future__ import annotations

import re

from icestream.state.files import Files
from icestream.state.versions.commits import Commit

IDLE = "idle"

_NOTE = re.compile(r"([0-9]{12,18})-([0-9]{8})-([0-9]{12,18})")


class IdleBatches:
    """The batches since the last version that brought nothing."""

    def __init__(self, files: Files, root: str) -> None:
        """Know nothing until `resume`."""
        self._files = files
        self._folder = f"{root}/{IDLE}"
        self._names: list[str] = []

    def resume(self) -> None:
        self._names = [name for name in self._files.list(self._folder) if _NOTE.fullmatch(name)]

    def reached(self, last: Commit | None) -> int:
        """Return the last batch that is noted or counted; -1 if there is none."""
        version, epoch = (last.version, last.epoch) if last else (0, 0)
        batch = -1 if last is None or last.batch is None else last.batch
        notes = (tuple(map(int, name.split("-"))) for name in self._names)
        return max(batch, *(n[2] for n in notes if n[0] == version and n[1] >= epoch), -1)

    def note(self, batch: int, last: Commit | None, epoch: int) -> None:
        """Remember a batch that brought nothing, durably, instead of the one before."""
        name = f"{last.version if last else 0:012d}-{epoch:08d}-{batch:012d}"
        if name in self._names:
            return
        self._files.put(f"{self._folder}/{name}", b"")
        self._files.unlink(*(f"{self._folder}/{older}" for older in self._names))
        self._names = [name]
