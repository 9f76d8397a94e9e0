"""Rewrites states of panes with object aggregates, as if the open windows had had other events.

Idea: the wanted states, each group and pane once, are written as one batch would write them,
together with a snapshot that lists only them.

Invariants:
1. A query continues from rewritten states as if its events had been these
   (`test_oracle_a_query_goes_on_from_rewritten_objects`).
2. Rows that were not edited change nothing (`test_rows_that_nobody_edited_make_no_version`).
3. A state that its function cannot read is refused (`test_rows_that_can_be_no_states_are_refused`).

Limits: the states of a shard are in memory while it is rewritten. Whoever edits lists of values
must keep them in the order that their function requires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Table
from icestream.core.errors import InputError
from icestream.core.times import Micros
from icestream.inspect.access.adapter_protocol import as_text
from icestream.inspect.access.edited_rows import EditedRows
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.inspect.adapters.window_parts import ObjectAggregateState
from icestream.inspect.rewriting.changes import Rewriter, ShardRewrite, places_of
from icestream.inspect.rewriting.panes import panes_of
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.object_aggregates.operator import ObjectOperator
from icestream.operators.object_aggregates.states import States
from icestream.state import key_columns
from icestream.state.identities import distinct, identities, places_among
from icestream.state.keys import KeyCodec


class ObjectRewriter(Rewriter):
    """Writes the panes of windows with object aggregates."""

    def __init__(
        self, state: ObjectAggregateState, watermark: Micros, given: EditedRows, *, keep: bool
    ) -> None:
        """Write the given rows; groups without a row keep their panes or lose them."""
        super().__init__(given, keep=keep)
        self._state = state
        self._watermark = watermark

    def change(self, source: ScratchShard) -> ShardRewrite | None:
        """Write all panes of a shard if any differ."""
        before = tuple(source.space.log.segments)
        states = self._state.states
        operator = source.operator(ObjectOperator, self._state.plan)
        there = _Panes.joined(list(operator.panes()), states)
        id_high, id_low = self._given.groups(source.shard)
        owners, rows = self._given.rows_of(id_high, id_low)
        wanted = self._taken(rows, id_high[owners], id_low[owners], there)
        if self._keep:
            rest = there.of_others(id_high, id_low)
            wanted = _Panes.joined([(each.panes, each.rows) for each in (wanted, rest)], states)
        groups = there.groups_that_differ(wanted)
        if not groups and not self.whole:
            return None
        operator.replace(wanted.panes, wanted.rows)
        return ShardRewrite(groups, rows.num_rows, snapshot=True, released=before)

    def _taken(self, rows: pa.RecordBatch, id_high: Ids, id_low: Ids, there: _Panes) -> _Panes:
        """Return rows as states, with the stored words where they were not edited."""
        state, spec = self._state, self._state.spec
        panes = panes_of(rows, state.grid, state.first(self._watermark))
        entries = state.fields.taken(rows)
        entries.table[:, 0], entries.table[:, 1] = id_high.view(np.int64), id_low.view(np.int64)
        places = places_of(np.column_stack([panes, entries.table[:, :2]]), there.names)
        entries = state.fields.with_unedited(entries, there.entries, places)
        given = [rows.column(name) for name in state.table.keys.names]
        keys = key_columns.batch_of(spec.keys, rows.num_rows, given)
        objects = [rows.column(each.name) for each in state.objects]
        batch = state.states.batch(entries, KeyCodec(spec.keys).canonical(keys).columns, objects)
        try:
            batch.validate(full=True)
            state.states.lower(batch)
            return _Panes.joined([(panes, batch)], state.states)
        except (ValueError, RuntimeError, pa.ArrowException) as error:
            names = ", ".join(each.name for each in state.objects)
            msg = f"the function of a state cannot read it; keep {names} as exported: {error}"
            raise InputError(msg) from error


@dataclass(frozen=True)
class _Panes:
    """States by pane and group, each once."""

    panes: Ints
    rows: pa.RecordBatch
    states: States

    @classmethod
    def joined(cls, parts: Sequence[tuple[Ints, pa.RecordBatch]], states: States) -> _Panes:
        """Concatenate states, combining those of the same group and pane."""
        none = [pa.array([], field.type) for field in states.schema]
        empty = pa.RecordBatch.from_arrays(none, schema=states.schema)
        panes = np.concatenate([np.empty(0, dtype=np.int64), *(each for each, _ in parts)])
        rows = pa.concat_batches([empty, *(each for _, each in parts)])
        return cls(*states.combine(panes, rows), states) if len(panes) else cls(panes, rows, states)

    @property
    def entries(self) -> ExactRows:
        return self.states.entries(self.rows)

    @property
    def names(self) -> Table:
        return np.column_stack([self.panes, self.entries.table[:, :2]])

    def of_others(self, id_high: Ids, id_low: Ids) -> _Panes:
        """Return the states of groups other than those given."""
        rest = np.flatnonzero(places_among(*self.states.identities(self.rows), id_high, id_low) < 0)
        return _Panes(self.panes[rest], self.rows.take(pa.array(rest)), self.states)

    def groups_that_differ(self, other: _Panes) -> int:
        """Count the groups with a state that only one of both has."""
        places = places_of(self.names, other.names)
        known = np.flatnonzero(places >= 0)
        mine = self.rows.take(pa.array(known)).to_pylist()
        theirs = other.rows.take(pa.array(places[known])).to_pylist()
        same = [as_text(a) == as_text(b) for a, b in zip(mine, theirs, strict=True)]
        alike = known[np.array(same, dtype=np.bool_)]
        here, there = np.ones(len(self.panes), np.bool_), np.ones(len(other.panes), np.bool_)
        here[alike], there[places[alike]] = False, False
        differ = np.concatenate(
            [each.entries.table[chosen, :2] for each, chosen in ((self, here), (other, there))]
        )
        return len(distinct(*identities(differ))[0])
