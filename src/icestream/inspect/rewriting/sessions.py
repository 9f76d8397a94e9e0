"""Rewrites open sessions, as if the events of groups had been others.

Idea: the wanted sessions are sorted, touching sessions of a group are merged as always, and a
snapshot of them is written, so that nothing before it is read again.

Invariants:
1. A query continues from rewritten sessions as if its events had been these
   (`test_oracle_a_query_goes_on_from_rewritten_sessions`).
2. Fields that were not edited keep every bit (`test_rows_that_nobody_edited_make_no_version`).
3. A session that has ended, or is shorter than the gap, is refused
   (`test_rows_that_can_be_no_sessions_are_refused`).

Limits: the open sessions of a shard are in memory while it is rewritten.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.core.errors import InputError
from icestream.core.times import Micros
from icestream.inspect.access.edited_rows import EditedRows
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.window_parts import SessionState, entries_of
from icestream.inspect.rewriting.changes import Rewriter, ShardRewrite, alone, places_of
from icestream.operators.folding.exact_rows import ExactRows, alike
from icestream.operators.folding.fields import ENTRY_FIELDS
from icestream.operators.session.operator import SessionOperator
from icestream.operators.session.rows import Sessions
from icestream.operators.session.spec import END, SESSION_FIELDS, START
from icestream.state import key_columns
from icestream.state.identities import distinct, identities, places_among
from icestream.state.keys import KeyCodec
from icestream.state.versions.commits import BASE


class SessionRewriter(Rewriter):
    """Writes the open sessions of a shard."""

    def __init__(
        self, state: SessionState, watermark: Micros, given: EditedRows, *, keep: bool
    ) -> None:
        """Write the given rows; groups without a row keep their sessions or lose them."""
        super().__init__(given, keep=keep)
        self._state = state
        self._watermark = watermark

    def change(self, source: ScratchShard) -> ShardRewrite | None:
        """Write all sessions of a shard if any differ."""
        spec = self._state.spec
        none = Sessions.none(spec)
        operator = source.operator(SessionOperator, self._state.plan)
        there = Sessions.concatenated([none, *operator.open_sessions()])
        id_high, id_low = self._given.groups(source.shard)
        owners, rows = self._given.rows_of(id_high, id_low)
        wanted = self._taken(rows, id_high[owners], id_low[owners], there)
        if self._keep:
            rest = there.where(places_among(*identities(there.rows), id_high, id_low) < 0)
            wanted = Sessions.concatenated([wanted, rest])
        wanted = wanted.sorted().merged(none)
        differ = alone(*(each.table for each in alike(there.exact, wanted.exact)))
        if not len(differ) and not self.whole:
            return None
        operator.record([wanted])
        source.space.seal(BASE)
        groups = len(distinct(*identities(differ))[0])
        return ShardRewrite(groups, rows.num_rows, snapshot=True)

    def _taken(self, rows: pa.RecordBatch, id_high: Ids, id_low: Ids, there: Sessions) -> Sessions:
        """Return rows as sessions, with the stored fields where they were not edited."""
        state, spec = self._state, self._state.spec
        entries = state.fields.taken(rows)
        head = np.empty((rows.num_rows, SESSION_FIELDS), dtype=np.int64)
        head[:, 0], head[:, 1] = id_high.view(np.int64), id_low.view(np.int64)
        head[:, START], head[:, END] = self._bounds(rows)
        places = places_of(head[:, : START + 1], there.rows[:, : START + 1])
        entries = state.fields.with_unedited(entries, entries_of(there), places)
        out = np.concatenate([head, entries.table[:, ENTRY_FIELDS:]], axis=1)
        given = [rows.column(name) for name in state.table.keys.names]
        keys = key_columns.batch_of(spec.keys, rows.num_rows, given)
        return Sessions(ExactRows(entries.layout, out), KeyCodec(spec.keys).canonical(keys))

    def _bounds(self, rows: pa.RecordBatch) -> tuple[Ints, Ints]:
        """Return begin and end of sessions; InputError if one cannot be an open session."""
        begins, ends = self._state.bounds(rows)
        session = self._state.spec.session
        gap = 1 if session.gap is None else session.gap
        wrong = np.flatnonzero((ends <= self._watermark) | (ends - begins < gap))
        if len(wrong):
            row = rows.slice(int(wrong[0]), 1).to_pylist()[0]
            msg = (
                f"the row {row} is not an open session: its end must be later than the watermark, "
                f"and the gap ({session.text}) or more after its start"
            )
            raise InputError(msg)
        return begins, ends
