"""The queries that the page shows; each follows a history as it grows.

Idea: a `WatchedQuery` folds the events of its history into what is shown: its description, whether
it runs, and the progress of its last versions, numbered in order of arrival so that a page can
request only new ones. A `QueryList` has the queries of the given checkpoints and reads their
histories on request.

Invariants:
1. A query whose process is gone without an end in its history is reported as lost
   (`test_a_query_whose_process_is_gone_is_lost`).
2. A page that requests new versions gets every version once
   (`test_oracle_asking_for_what_is_new_gives_every_version_once`).
3. Memory does not grow with the length of a history
   (`test_bounded_only_the_last_versions_are_held`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash

from icestream.core.errors import IcestreamError
from icestream.core.process import lives
from icestream.dashboard.drawing import drawing
from icestream.dashboard.history_reader import HistoryReader
from icestream.inspect.state_rows import now_rows
from icestream.runtime.tables.current_table import NOW
from icestream.runtime.version.history import END, NEWER, PROGRESS, START, history_folder

#: names of folders that are not descriptive
_PLAIN = ("checkpoint", "checkpoints", "chk")
#: versions that are kept for the page
HELD = 1500
#: rows of a table that the page shows
BOARD_ROWS = 100
#: depth of the search for checkpoints below a given folder
DEPTH = 3


class WatchedQuery:
    """One query, from its history."""

    def __init__(self, checkpoint: str, held: int = HELD) -> None:
        self.checkpoint = checkpoint
        self.id = xxhash.xxh3_64_hexdigest(checkpoint.encode())
        self._reader = HistoryReader(history_folder(checkpoint))
        self._start: dict[str, Any] = {}
        self._end: dict[str, Any] | None = None
        self._records: deque[tuple[int, dict[str, Any]]] = deque(maxlen=held)
        self._count = 0
        self._runs = 0
        self._events = 0
        #: rows that its program wants to be shown; None for those of its table
        self.board: list[dict[str, Any]] | None = None

    def look(self) -> None:
        for event in self._reader.look():
            self._take(event.get("kind"), event)

    def _take(self, kind: Any, event: dict[str, Any]) -> None:
        if kind == START:
            self._runs += event.get("process") != self._start.get("process")
            self._start, self._end = event, None
        elif kind == PROGRESS and isinstance(event.get("icestream"), dict):
            self._count += 1
            self._records.append((self._count, {**event, "number": self._count}))
            rows = event.get("numInputRows")
            self._events += rows if isinstance(rows, int) else 0
        elif kind == END:
            self._end = event

    @property
    def state(self) -> str:
        """Return the state: running, ended, failed, lost, or unknown on another host."""
        if self._end is not None:
            return "failed" if self._end.get("error") else "ended"
        process = self._start.get("process")
        alive = lives(process) if isinstance(process, Mapping) else False
        if alive is None:
            return "unknown"
        return "running" if alive else "lost"

    @property
    def name(self) -> str:
        """Return the name of the query or of its folder; for a generic folder, of its parent."""
        given = self._start.get("name")
        parts = self.checkpoint.rstrip("/").split("/")
        plain = parts[-1].lower() in _PLAIN and len(parts) > 1
        return str(given) if given else parts[-2 if plain else -1]

    @property
    def events(self) -> int:
        """Return the events of all versions in the history."""
        return self._events

    @property
    def last(self) -> dict[str, Any] | None:
        return self._records[-1][1] if self._records else None

    def summary(self) -> dict[str, Any]:
        """Return the fields for a list of queries."""
        return {
            "id": self.id,
            "name": self.name,
            "checkpoint": self.checkpoint,
            "state": self.state,
            "started": self._start.get("timestamp"),
            "ended": None if self._end is None else self._end.get("timestamp"),
            "error": None if self._end is None else self._end.get("error"),
            "runs": self._runs,
            "versions": self._count,
            "events": self._events,
            "last": self.last,
        }

    def detail(self, after: int = 0) -> dict[str, Any]:
        """Return all fields of the query, with the versions after a number."""
        plan = self._start.get("plan")
        return {
            **self.summary(),
            "shards": self._start.get("shards"),
            "plan": drawing(plan) if isinstance(plan, Mapping) else None,
            "now": self._board(),
            "records": [record for number, record in self._records if number > after],
        }

    def _board(self) -> list[dict[str, Any]] | None:
        """Return the rows to show: given ones, or the first of its table in output mode `now`."""
        if self.board is not None:
            return self.board
        # history and table are in the same folder on a local disk
        if not (history_folder(self.checkpoint).parent / "icestream" / NOW / "0").is_dir():
            return None
        try:
            return list(islice(now_rows(self.checkpoint), BOARD_ROWS))
        except IcestreamError:
            return None


class QueryList:
    """The queries of some checkpoints, for several threads."""

    def __init__(
        self,
        checkpoints: Iterable[str] = (),
        more: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Watch the checkpoints, and those below folders that are not checkpoints themselves.

        The checkpoints that `more` returns are watched too; it is called at every look.
        """
        self._given: list[str] = []
        self._more = more
        self._watched: dict[str, WatchedQuery] = {}
        self._boards: dict[str, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        for each in checkpoints:
            self.add(each)

    def add(self, checkpoint: str) -> None:
        with self._lock:
            if checkpoint not in self._given:
                self._given.append(checkpoint)

    def show(self, checkpoint: str, rows: list[dict[str, Any]]) -> None:
        """Show rows on the page of a query, in place of its table."""
        with self._lock:
            self._boards[checkpoint] = rows

    def queries(self) -> list[dict[str, Any]]:
        """Return the summaries of all queries, running ones first."""
        with self._lock:
            return [each.summary() for each in self._look()]

    def query(self, identity: str, after: int = 0) -> dict[str, Any] | None:
        """Return all fields of one query; None if there is none with this id."""
        with self._lock:
            found = next((each for each in self._look() if each.id == identity), None)
            return None if found is None else found.detail(after)

    def watched(self) -> list[WatchedQuery]:
        """Return the queries in their current state."""
        with self._lock:
            return self._look()

    def _look(self) -> list[WatchedQuery]:
        for given in (*self._given, *self._more()):
            for checkpoint in _checkpoints(given):
                if checkpoint not in self._watched:
                    self._watched[checkpoint] = WatchedQuery(checkpoint)
        for each in self._watched.values():
            each.board = self._boards.get(each.checkpoint)
            each.look()
        return sorted(
            self._watched.values(), key=lambda each: (each.state != "running", each.name, each.id)
        )


def _checkpoints(given: str) -> list[str]:
    """Return the checkpoint at a path or, if it is not one, the checkpoints below it."""
    if (history_folder(given) / NEWER).exists():
        return [given]
    if "://" in given:
        return []
    found = []
    top = Path(given)
    for depth in range(1, DEPTH + 1):
        found += [str(path.parents[1]) for path in top.glob("*/" * depth + f"history/{NEWER}")]
    return sorted(found)
