"""Session aggregates of one shard: fragments on the log, open sessions in pages.

Idea: a batch is folded into *fragments*, the sessions that its events form on their own. Fragments
are written to the log and merged with the open sessions they touch; then the sessions that the
watermark has reached are emitted and removed. The log has fragments and, from time to time, all
open sessions; both are needed until the next snapshot, so they have the class `BASE`.

Invariants:
1. A session is emitted once, when the watermark reaches its end, with the events Spark's
   `session_window` gives it in append mode (`test_oracle_sessions_equal_the_obvious_computation`,
   `tests/runtime/test_session_oracle.py`).
2. An event behind the watermark extends and joins open sessions, and opens a new one
   if there is none (`test_an_event_behind_the_watermark_joins_sessions_still_open`).
3. Arena and work buffers stay inside the quota (`test_bounded_state_of_ten_times_the_budget`).
4. Restoring a snapshot and replaying the versions after it leads to the same rows
   (`test_crash_restored_sessions_emit_the_same_rows`).

Cost: O(events log events) to fold; each version reads the pages that fragments fall into or that
have sessions due, and writes those that fragments fall into. A batch whose fragments exceed the
quota makes more than one pass.

Limits: aggregates must have a state of fixed size. Each fragment is logged with its key. The open
sessions of one group must fit into a fifth of the quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, ClassVar

import pyarrow as pa

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.folding.columns import window_column
from icestream.operators.logged_operator import LoggedOperator
from icestream.operators.protocol import Inputs, PastVersion, Shard
from icestream.operators.session.fragments import MOST_RUNS, Fragments
from icestream.operators.session.pages import Pages
from icestream.operators.session.rows import Sessions, fragments_of, portions, united
from icestream.operators.session.spec import END, SESSION_FIELDS, START, SessionSpec
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import BASE

#: kinds of records
FRAGMENTS = 0
OPEN_SESSIONS = 1
POSITION = 2

#: maximum bytes of a page and of a record
PAGE_BYTES = 65536
#: maximum number of rows emitted at once
RESULT_ROWS = 4096


class SessionOperator(LoggedOperator):
    """Session aggregates of one shard."""

    #: fragments, like everything in this class, are needed until the next snapshot
    lifetimes: ClassVar[tuple[str, ...]] = (BASE,)
    follows = True
    _position_kind = POSITION

    def __init__(self, spec: SessionSpec, shard: Shard, results: pa.Schema) -> None:
        """Attach to the shard's arena; `results` is the schema of the rows to emit."""
        super().__init__(shard)
        self._spec = spec
        self._results = results
        #: the watermark up to which sessions were closed, and the number of events so far
        self._position: dict[str, int] = self._header.setdefault(
            "position", {"watermark": MINUS_INFINITY, "arrivals": 0}
        )
        quota = shard.account.budget.total
        #: bytes of events, of fragments and of results handled at once
        self._chunk_bytes = quota // 20
        shard.account.resize(10 * self._chunk_bytes)
        self._page_bytes = min(PAGE_BYTES, self._chunk_bytes)
        self._pages = Pages(spec, shard.arena, self._page_bytes, 4 * self._chunk_bytes)
        path, piece_bytes = shard.arena.path("fragments"), self._chunk_bytes // (2 * MOST_RUNS)
        self._fragments = Fragments(spec, path, piece_bytes)
        self._pending: list[Sessions] = []
        self._replaying = False

    # -- a batch ---------------------------------------------------------------------------

    def on_batch(self, inputs: Inputs) -> None:
        """Fold the events of a batch into fragments and write them to the log."""
        for tuples in portions(inputs.tuples(), self._chunk_bytes // 2):
            self._take(fragments_of(tuples, self._position["arrivals"], self._spec))
            self._position["arrivals"] += tuples.num_rows
        self._fragments.newest = self._logged(self._united())

    def _take(self, fragments: Sessions) -> None:
        """Add fragments; once they fill a chunk, they are written to disk as a run."""
        self._pending.append(fragments)
        if sum(each.nbytes for each in self._pending) < self._chunk_bytes:
            return
        run = self._united()
        if 2 * run.nbytes < self._chunk_bytes:
            self._pending = [run]
            return
        self._fragments.spill(self._logged(run))
        if self._fragments.full:
            closed = self._position["watermark"]
            for _ in self._pages.advance(self._fragments, closed, closed):
                msg = "a fragment ends before the watermark: its events are late"
                raise AssertionError(msg)
            self._fragments.clear()

    def _united(self) -> Sessions:
        pending, self._pending = self._pending, []
        return united(pending, self._spec)

    def _logged(self, fragments: Sessions) -> Sessions:
        """Write fragments to the log, unless they were read from it."""
        if not self._replaying and len(fragments):
            self._schedule.log(self._append(FRAGMENTS, fragments, self._position["arrivals"]))
        return fragments

    def _append(self, kind: int, sessions: Sessions, number: int = 0) -> int:
        """Write sessions in records of about a page; return their bytes."""
        writer = self._shard.segment(BASE)
        rows = max(1, self._page_bytes * len(sessions) // max(1, sessions.nbytes))
        size = 0
        for first in range(0, len(sessions), rows):
            part = sessions.between(first, min(first + rows, len(sessions)))
            payload = part.to_bytes()
            writer.append(payload, synopsis=kind, group=number, rows=len(part))
            size += len(payload)
        return size

    # -- a watermark -----------------------------------------------------------------------

    def on_watermark(self, watermark: Micros) -> Iterator[pa.RecordBatch]:
        snapshot = self._schedule.version_ends(self._pages.size) and not self._replaying
        waiting: list[Sessions] = []
        for due in self._pages.advance(self._fragments, self._position["watermark"], watermark):
            waiting.append(due)
            if sum(map(len, waiting)) >= RESULT_ROWS:
                yield from self._results_of(Sessions.concatenated(waiting))
                waiting = []
        if waiting:
            yield from self._results_of(Sessions.concatenated(waiting))
        self._fragments.clear()
        self._position["watermark"] = watermark
        if snapshot:
            self.record(self.open_sessions())
        self._shard.seal(BASE)

    def _results_of(self, sessions: Sessions) -> Iterator[pa.RecordBatch]:
        for first in range(0, len(sessions), RESULT_ROWS):
            part = sessions.between(first, min(first + RESULT_ROWS, len(sessions)))
            starts, ends = part.rows[:, START], part.rows[:, END]
            window = window_column(self._results.field(0).type, starts, ends)
            fields = part.rows[:, SESSION_FIELDS:]
            answers = [
                aggregate.lower(fields, part.exact.layout, self._spec.types)
                for aggregate in self._spec.aggregates
            ]
            columns = [window, *part.keys.columns, *answers]
            yield pa.RecordBatch.from_arrays(columns, schema=self._results)

    # -- snapshot and restore --------------------------------------------------------------

    def open_sessions(self) -> Iterator[Sessions]:
        """Yield the sessions that are open, in the order of their groups."""
        closed = self._position["watermark"]
        for sessions in self._pages.contents():
            yield sessions.where(sessions.ends > closed)

    def record(self, sessions: Iterable[Sessions]) -> None:
        """Write a snapshot of all open sessions: nothing logged before it is needed any more."""
        for each in sessions:
            self._append(OPEN_SESSIONS, each)
        self._save_position(self._position)

    def restore(self, history: Sequence[PastVersion]) -> None:
        self._replaying = True
        super().restore(history)
        self._replaying = False

    def _load(self, past: PastVersion, snapshots: Sequence[SegmentReader]) -> None:
        for reader in snapshots:
            for name, value in self._position_in(reader).items():
                self._position[name] = max(value, self._position[name])
        found = (each for reader in snapshots for each in self._recorded(reader, OPEN_SESSIONS))
        keeps = past.keeps
        if keeps is not None:
            found = (each.where(keeps.holds(each.id_high)) for each in found)
        self._pages.fill(each for each in found if len(each))

    def _replay(self, past: PastVersion) -> None:
        for _, info in past.segments:
            with closing(self._shard.reader(info)) as reader:
                for fragments in self._recorded(reader, FRAGMENTS):
                    mine = fragments
                    if past.parents and past.keeps is not None:
                        mine = fragments.where(past.keeps.holds(fragments.id_high))
                    if len(mine):
                        self._take(mine)
            self._schedule.log(info.bytes)
        self._fragments.newest = self._united()
        for _ in self.on_watermark(past.watermark):
            pass

    def _recorded(self, reader: SegmentReader, kind: int) -> Iterator[Sessions]:
        for record in reader.scan():
            if record.synopsis == kind:
                if kind == FRAGMENTS:
                    arrivals = max(record.group, self._position["arrivals"])
                    self._position["arrivals"] = arrivals
                yield Sessions.from_bytes(record.payload, record.rows, self._spec)

    @property
    def statistics(self) -> dict[str, Any]:
        pages = self._pages.directory
        return {
            "groups": int(pages["groups"].sum()),
            "partitions": max(1, len(pages)),
            "sessions": int(pages["open"].sum()),
        }
