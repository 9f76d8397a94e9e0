"""State of sessions: the partial aggregates of each open session.

Idea: the operator of a shard is restored and yields its open sessions unchanged, with their bounds
and fields. Like panes, they are read only if requested by name: most people want the aggregates.

Invariant: the fields shown for a session are the fold of its events
(`test_oracle_open_sessions_are_what_events_fold_to`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.inspect.access.adapter_protocol import ReadRequest, StateRows, StateTable
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.fields import FieldColumns
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.session.operator import SessionOperator
from icestream.operators.session.rows import Sessions
from icestream.operators.session.spec import END, SESSION_FIELDS, START, SessionSpec
from icestream.plan.nodes.queries import Plan
from icestream.state.identities import identities
from icestream.state.versions.commits import Commit

SESSIONS = "sessions"
#: columns with the first event of a session, and its end if no further event arrives
STARTS = "__start"
ENDS = "__end"


class SessionState:
    """The open sessions of a plan that has nothing else."""

    def __init__(self, plan: Plan, spec: SessionSpec, commit: Commit) -> None:
        """Read the fields from a plan with a single part."""
        self.plan, self.spec = plan, spec
        self.fields = FieldColumns.of(spec.layout, spec.types, plan)
        keys = plan.group_keys
        bounds = [pa.field(name, plan.time, nullable=False) for name in (STARTS, ENDS)]
        self.table = StateTable(
            SESSIONS,
            SESSIONS,
            "partial aggregates of each open session",
            keys,
            pa.schema([*bounds, *keys, *self.fields.schema]),
            range(len(commit.bases)),
            by_name=True,
        )

    def read(self, source: ScratchShard, asked: ReadRequest) -> Iterator[StateRows]:
        for sessions in source.operator(SessionOperator, self.plan).open_sessions():
            id_high, id_low = identities(sessions.rows)
            rows = self._rows(sessions)
            yield asked.chosen(self.table, source.shard, rows, id_high, id_low)

    def _rows(self, sessions: Sessions) -> pa.RecordBatch:
        bounds = [
            pa.array(np.ascontiguousarray(sessions.rows[:, place])).view(self.plan.time)
            for place in (START, END)
        ]
        shown = [*bounds, *sessions.keys.columns, *self.fields.shown(entries_of(sessions))]
        return pa.RecordBatch.from_arrays(shown, schema=self.table.columns)

    def bounds(self, rows: pa.RecordBatch) -> tuple[Ints, Ints]:
        """Return begin and end of the sessions in rows."""
        begins, ends = (
            np.asarray(rows.column(name).view(pa.int64()).to_numpy()) for name in (STARTS, ENDS)
        )
        return begins, ends


def entries_of(sessions: Sessions) -> ExactRows:
    """Return rows of state of sessions as entries: id and fields, without bounds."""
    rows = sessions.rows
    entries = np.concatenate([rows[:, :START], rows[:, SESSION_FIELDS:]], axis=1)
    return ExactRows(sessions.exact.layout, entries)
