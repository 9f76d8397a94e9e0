"""The history of a query: its description, the progress of every version, and how it ended.

Idea: each event in the life of a query is one line of JSON, appended to a file in the checkpoint.
Readers, while the query runs or later, need only that file. A file that exceeds a size becomes the
older half and a new one begins, so a history is bounded. Links in a folder of the user point to the
histories, so that readers need not name a checkpoint.

Invariants:
1. A history never stops its query: an error of the disk ends the history, not the query
   (`test_crash_a_disk_that_refuses_ends_the_history_only`).
2. Both halves together stay within a bound (`test_bounded_a_history_forgets_its_oldest_half`).
3. Only the user can read it (`test_a_history_is_private`).

Cost: one write of some kilobytes per version, not synced: if the machine crashes, the last lines
may be lost, but no commit is.

Limits: if the checkpoint is not on a local disk, its history is in the user's folder on the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xxhash

from icestream.core.process import lives, this_process

#: bytes at which a file becomes the older half
HALF_BYTES = 8 << 20
#: number of links to histories, the newest
LINKS = 200

HISTORY = "history"
NEWER = "progress.jsonl"
OLDER = "progress.older.jsonl"

START, PROGRESS, END = "start", "progress", "end"
#: start of a line about the start or the end of a run
_EDGE = re.compile(rb'"kind": ?"(start|end)"')
_EDGE_BYTES = 64


class QueryHistory:
    """Writes the history of one run of a query."""

    def __init__(
        self, checkpoint: str, about: Mapping[str, Any], half_bytes: int = HALF_BYTES
    ) -> None:
        """Write next to the state in `checkpoint`; `about` has name, plan and shards."""
        self._checkpoint = checkpoint
        self._about = about
        self._folder = history_folder(checkpoint)
        self._half_bytes = half_bytes
        self._start: dict[str, Any] | None = None
        self._broken = False

    def start(self) -> None:
        self._start = {
            "kind": START,
            "timestamp": _now(),
            "checkpoint": self._checkpoint,
            "process": this_process(),
            **self._about,
        }
        self._append(self._start)
        with contextlib.suppress(OSError):
            _link(self._checkpoint)

    def progress(self, progress: Mapping[str, Any]) -> None:
        self._append({"kind": PROGRESS, **progress})

    def end(self, error: BaseException | None) -> None:
        """Record that the run has ended, with the error if it failed."""
        failure = None if error is None else f"{type(error).__name__}: {error}"
        self._append({"kind": END, "timestamp": _now(), "error": failure})

    def _append(self, event: Mapping[str, Any]) -> None:
        if self._broken:
            return
        line = json.dumps(event, separators=(",", ":"), default=_plain).encode() + b"\n"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._folder / NEWER
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size + len(line) > self._half_bytes:
                    path.replace(self._folder / OLDER)
                    if self._start is not None and event is not self._start:
                        self._write(path, json.dumps(self._start, default=_plain).encode() + b"\n")
            self._write(path, line)
        except OSError:
            self._broken = True

    def _write(self, path: Path, line: bytes) -> None:
        """Append a line; first end a line that a crash cut off."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, b"\n" + line if torn else line)
        finally:
            os.close(handle)


def history_folder(checkpoint: str) -> Path:
    """Return the folder of a checkpoint's history."""
    if "://" in checkpoint:
        return _user_folder() / HISTORY / xxhash.xxh3_64_hexdigest(checkpoint.encode())
    return Path(checkpoint) / HISTORY


def known_checkpoints(most: int = 20) -> list[str]:
    """Return the checkpoints of this user's last queries whose histories exist."""
    found = []
    for link in _links()[:most]:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            checkpoint = link.read_text().strip()
            if (history_folder(checkpoint) / NEWER).exists():
                found.append(checkpoint)
    return found


def running(checkpoint: str) -> bool:
    """Read from the history of a query whether it still runs, if this host can tell."""
    process: Any = None
    for name in (OLDER, NEWER):
        with contextlib.suppress(OSError), (history_folder(checkpoint) / name).open("rb") as lines:
            for line in lines:
                if (found := _EDGE.search(line[:_EDGE_BYTES])) is None:
                    continue
                with contextlib.suppress(ValueError, AttributeError):
                    process = json.loads(line).get("process") if found[1] == b"start" else None
    return isinstance(process, Mapping) and lives(process) is True


def _link(checkpoint: str) -> None:
    folder = _user_folder() / "queries"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = xxhash.xxh3_64_hexdigest(checkpoint.encode())
    (folder / name).write_text(f"{checkpoint}\n")
    for old in _links()[LINKS:]:
        old.unlink(missing_ok=True)


def _links() -> list[Path]:
    """Return the links to histories, newest first."""
    dated = []
    for path in (_user_folder() / "queries").glob("*"):
        with contextlib.suppress(OSError):
            dated.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(dated, reverse=True)]


def _user_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "icestream"


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _plain(value: Any) -> Any:
    """Convert a numpy number to a Python number."""
    return value.item() if hasattr(value, "item") else str(value)
