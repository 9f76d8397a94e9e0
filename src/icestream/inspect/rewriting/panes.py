"""Rewrites panes of windows, as if the open windows had had other events.

Idea: an empty operator receives the wanted panes as one batch and advances to the watermark of the
query. Rows that it would emit were emitted long ago and are dropped; its state is what the query
would have. It ends with a snapshot, so that nothing before it is read again.

Invariants:
1. A query continues from rewritten panes as if its events had been these
   (`test_oracle_a_query_goes_on_from_rewritten_panes`).
2. Fields that were not edited keep every bit (`test_rows_that_nobody_edited_make_no_version`).

Limits: the panes of a shard are in memory while it is rewritten. Windows in mode `changes` are
refused: panes do not contain their last rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Table
from icestream.core.errors import CheckpointError, InputError
from icestream.inspect.access.edited_rows import EditedRows
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.window_parts import LoggedKeys, PaneState, instants_of, obstacle
from icestream.inspect.adapters.windows import NoInputs
from icestream.inspect.rewriting.changes import Rewriter, ShardRewrite, alone, places_of
from icestream.operators.folding.exact_rows import ExactRows, alike, concatenated
from icestream.operators.folding.fold import identified
from icestream.operators.folding.sorted_runs import sorted_run
from icestream.plan.grid import lower
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.grid import Grid
from icestream.state import snapshot_schedule
from icestream.state.identities import distinct, identities, places_among
from icestream.state.keys import KeyCodec
from icestream.state.snapshot_schedule import SnapshotSchedule
from icestream.state.versions.commits import Commit


def check(plan: Plan, commit: Commit) -> None:
    """Refuse to rewrite windows whose state does not consist of panes."""
    why = obstacle(plan, commit)
    if why is None and any(view.mode == "changes" for view in plan.views):
        why = (
            "in mode 'changes' the state includes the last rows of windows, which panes do not have"
        )
    if why is not None:
        msg = (
            f"these windows cannot be rewritten ({why}): build their state again from history, see "
            "StreamWriter.bootstrap"
        )
        raise CheckpointError(msg)


class PaneRewriter(Rewriter):
    """Writes the panes of windows on a grid."""

    def __init__(self, plan: Plan, commit: Commit, given: EditedRows, *, keep: bool) -> None:
        """Write the given rows; groups without a row keep their panes or lose them."""
        super().__init__(given, keep=keep)
        self._plan = plan
        self._commit = commit
        self._state = PaneState(plan, commit)

    def change(self, source: ScratchShard) -> ShardRewrite | None:
        """Write all panes of a shard if any differ."""
        state, space = self._state, source.space
        before = tuple(space.log.segments)
        there = _Panes.joined(list(state.entries(source)), state)
        id_high, id_low = self._given.groups(source.shard)
        owners, rows = self._given.rows_of(id_high, id_low)
        wanted = self._taken(rows, id_high[owners], id_low[owners], there)
        keys = KeyCodec(state.spec.keys).canonical(rows.select(state.spec.keys.names))
        known_groups = [
            (id_high[owners], id_low[owners], _keyed(pa.Table.from_batches([keys]), state))
        ]
        if self._keep:
            rest = there.of_others(id_high, id_low)
            wanted = _Panes.joined([wanted.arrays, rest.arrays], state)
            known = LoggedKeys(source, state.spec).of(*rest.ids)
            known_groups.append((*rest.ids, _keyed(known, state)))
        groups = there.groups_that_differ(wanted)
        if not groups and not self.whole:
            return None
        SnapshotSchedule(space.arena.header).resume(snapshot_schedule.AT_LATEST, 0)
        operator = lower.lowered(self._plan).operator(space)
        operator.on_batch(_Batch(wanted, _keys(wanted, known_groups)))
        for _ in operator.on_watermark(self._commit.watermark):
            pass
        return ShardRewrite(groups, rows.num_rows, snapshot=True, released=before)

    def _taken(self, rows: pa.RecordBatch, id_high: Ids, id_low: Ids, there: _Panes) -> _Panes:
        """Return rows as entries, with the stored fields where they were not edited."""
        state = self._state
        panes = panes_of(rows, state.spec.grid, state.first(self._commit.watermark))
        entries = state.fields.taken(rows)
        entries.table[:, 0], entries.table[:, 1] = id_high.view(np.int64), id_low.view(np.int64)
        places = places_of(_numbered(panes, entries), _numbered(*there.arrays))
        entries = state.fields.with_unedited(entries, there.entries, places)
        return _Panes.joined([(panes, entries)], state)


def panes_of(rows: pa.RecordBatch, grid: Grid, first: int | None) -> Ints:
    """Return the pane of each row to rewrite; InputError where no needed pane begins."""
    instants = instants_of(rows)
    panes = grid.panes_of(instants)
    wrong = panes * grid.pane + grid.origin != instants
    if first is not None:
        wrong |= panes < first
    if wrong.any():
        row = rows.slice(int(np.flatnonzero(wrong)[0]), 1).to_pylist()[0]
        msg = (
            f"no pane of an open window begins as in the row {row}: panes begin where the "
            "export shows them"
        )
        raise InputError(msg)
    return panes


@dataclass(frozen=True)
class _Panes:
    """Entries by pane and group, each once."""

    panes: Ints
    entries: ExactRows

    @classmethod
    def joined(cls, parts: Sequence[tuple[Ints, ExactRows]], state: PaneState) -> _Panes:
        none = np.empty((0, state.layout.entry_width), dtype=np.int64)
        panes = np.concatenate([np.empty(0, dtype=np.int64), *(each for each, _ in parts)])
        rows = concatenated(ExactRows(state.layout, none), *(each for _, each in parts))
        panes, entries = sorted_run(panes, rows.table, rows.layout)
        return cls(panes, ExactRows(rows.layout, entries))

    @property
    def arrays(self) -> tuple[Ints, ExactRows]:
        return self.panes, self.entries

    @property
    def ids(self) -> tuple[Ids, Ids]:
        """Return the identities of the entries' groups."""
        return identities(self.entries.table)

    def of_others(self, id_high: Ids, id_low: Ids) -> _Panes:
        """Return the entries of groups other than those given."""
        rest = places_among(*self.ids, id_high, id_low) < 0
        return _Panes(self.panes[rest], self.entries[rest])

    def groups_that_differ(self, other: _Panes) -> int:
        """Count the groups with an entry that only one of both has."""
        both = zip((self.panes, other.panes), alike(self.entries, other.entries), strict=True)
        differ = alone(*(np.column_stack([panes, rows.table]) for panes, rows in both))
        return len(distinct(*identities(differ[:, 1:]))[0])


@dataclass(frozen=True)
class _Batch(NoInputs):
    """Panes in the form of a batch: what leaves is on the log, events are folded."""

    taken: _Panes
    keys: pa.Table

    def entries(self) -> Iterator[ExactRows]:
        """Yield entries, each row starting with its pane."""
        panes, rows = self.taken.arrays
        yield ExactRows(rows.layout, np.column_stack([panes, rows.table]))

    def groups(self) -> Iterator[pa.Table]:
        if self.keys.num_rows:
            yield self.keys


def _keyed(keys: pa.Table, state: PaneState) -> pa.Table:
    """Return keys with their own names and types."""
    return keys.rename_columns(state.spec.keys.names).cast(state.spec.keys)


def _keys(wanted: _Panes, parts: Sequence[tuple[Ids, Ids, pa.Table]]) -> pa.Table:
    """Return id, latest pane and key of each group."""
    id_high, id_low, numbers = distinct(*wanted.ids)
    last = np.full(len(id_high), np.iinfo(np.int64).min)
    np.maximum.at(last, numbers, wanted.panes)
    given = [np.concatenate([each[half] for each in parts]) for half in range(2)]
    keys = pa.concat_tables([each[2] for each in parts])
    first_id_high, first_id_low, rows = distinct(*given)
    row = np.empty(len(first_id_high), dtype=np.int64)
    row[rows] = np.arange(len(rows))
    chosen = row[places_among(id_high, id_low, first_id_high, first_id_low)]
    table = keys.take(pa.array(chosen)) if keys.num_columns else pa.table({})
    return identified(table, np.stack([id_high, id_low], axis=1), last)


def _numbered(panes: Ints, entries: ExactRows) -> Table:
    return np.column_stack([panes, entries.table[:, :2]])
