"""What sessions keep: partial aggregates of each open session.

Idea: the operator of a shard is restored and hands out its open sessions as they are, with their
bounds and fields. As panes are, they are read only where they are asked for by name: what most
people look for are the aggregates.

Invariant: what is shown of a session is what its events fold to
(`test_oracle_open_sessions_are_what_events_fold_to`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Table
from icestream.inspect.access.adapter_protocol import ReadRequest, StateRows, StateTable
from icestream.inspect.access.scratch_shard import ScratchShard, restored_operator
from icestream.inspect.adapters.fields import FieldColumns
from icestream.inspect.adapters.pre_queue import chosen
from icestream.operators.protocol import PastVersion
from icestream.operators.session.operator import SessionOperator
from icestream.operators.session.rows import Sessions
from icestream.operators.session.spec import END, SESSION_FIELDS, START, SessionSpec
from icestream.plan.nodes.queries import Plan
from icestream.state.identities import identities
from icestream.state.versions.commits import Commit

SESSIONS = "sessions"
#: columns that tell the first event of a session, and when it ends if no other comes
STARTS = "__start"
ENDS = "__end"


class SessionState:
    """The open sessions of a plan that has nothing else."""

    def __init__(self, plan: Plan, spec: SessionSpec, commit: Commit) -> None:
        """Know the fields of the plan of a sole part."""
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

    def restored(self, space: ScratchShard, history: Sequence[PastVersion]) -> SessionOperator:
        """Return the operator of a shard."""
        return restored_operator(SessionOperator, self.plan, space, history)

    def read(
        self,
        shard: int,
        space: ScratchShard,
        history: Sequence[PastVersion],
        commit: Commit,
        asked: ReadRequest,
    ) -> Iterator[StateRows]:
        """Yield the open sessions of a shard."""
        del commit
        for sessions in self.restored(space, history).open_sessions():
            hi, lo = identities(sessions.rows)
            yield chosen(self.table, shard, self._rows(sessions), hi, lo, asked)

    def _rows(self, sessions: Sessions) -> pa.RecordBatch:
        bounds = [
            pa.array(np.ascontiguousarray(sessions.rows[:, place])).view(self.plan.time)
            for place in (START, END)
        ]
        shown = [*bounds, *sessions.keys.columns, *self.fields.shown(entries_of(sessions.rows))]
        return pa.RecordBatch.from_arrays(shown, schema=self.table.columns)

    def bounds(self, rows: pa.RecordBatch) -> tuple[Ints, Ints]:
        """Return begin and end of the sessions of rows."""
        begins, ends = (
            np.asarray(rows.column(name).view(pa.int64()).to_numpy()) for name in (STARTS, ENDS)
        )
        return begins, ends


def entries_of(rows: Table) -> Table:
    """Return rows of sessions as entries: identity and fields, without bounds."""
    return np.concatenate([rows[:, :START], rows[:, SESSION_FIELDS:]], axis=1)


__all__ = ["ENDS", "SESSIONS", "STARTS", "SessionState", "entries_of"]
