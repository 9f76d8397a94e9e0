"""Reading a history while it is written, line by line.

Idea: a reader remembers its position and continues from there. When the file has been replaced by a
new one, it finishes the older half first. An incomplete line waits for the next look; lines that
are not JSON objects are skipped.

Invariants:
1. The events do not depend on when the reader looks
   (`test_oracle_looks_at_any_time_see_the_same_events`).
2. A look uses bounded memory, whatever the file contains
   (`test_bounded_a_look_at_a_file_without_line_ends`).

Limits: nothing in a history is trusted: it is data for a page that displays text as text.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from icestream.runtime.version.history import NEWER, OLDER

#: longer lines, in bytes, are not ours and are skipped
LONGEST_LINE = 4 << 20


class HistoryReader:
    """Reads the events of one history, each once."""

    def __init__(self, folder: Path, longest_line: int = LONGEST_LINE) -> None:
        """Start before the first event."""
        self._folder = folder
        self._longest = longest_line
        #: inode of the current file, and bytes read from it
        self._inode: int | None = None
        self._offset = 0

    def look(self) -> Iterator[dict[str, Any]]:
        """Yield what was added since the last look."""
        if self._inode is None:
            yield from self._read_all(self._folder / OLDER)
        yield from self._read_newer()

    def _read_newer(self) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(OSError), (self._folder / NEWER).open("rb") as file:
            inode = _inode(file)
            if self._inode not in (None, inode):
                yield from self._read_rest_of_older()
                self._offset = 0
            self._inode = inode
            yield from self._read_on(file)

    def _read_rest_of_older(self) -> Iterator[dict[str, Any]]:
        """Read what was written after the last look to the file that has become the older half."""
        with contextlib.suppress(OSError), (self._folder / OLDER).open("rb") as file:
            if _inode(file) != self._inode:
                self._offset = 0
            yield from self._read_on(file)

    def _read_all(self, path: Path) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(OSError), path.open("rb") as file:
            self._offset = 0
            yield from self._read_on(file)
        self._offset = 0

    def _read_on(self, file: BinaryIO) -> Iterator[dict[str, Any]]:
        file.seek(self._offset)
        while line := file.readline(self._longest):
            if not line.endswith(b"\n"):
                if len(line) < self._longest:
                    return
                self._offset += len(line)
                continue
            self._offset += len(line)
            event = _parsed(line)
            if event is not None:
                yield event


def _inode(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_ino


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line, parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _finite(text: str) -> float | None:
    """Return a number that every JSON parser accepts."""
    value = float(text)
    return value if math.isfinite(value) else None
