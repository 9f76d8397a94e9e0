"""Union of update streams: the newest update of every key, never one older than those delivered.

Idea: a union of append streams would have to wait for its slowest input. In update streams only the
newest row of a key matters, so the union delivers what has arrived and drops what turns out older.
Of rows of one key and time that of the most trusted input counts, and of one input the last,
whichever batches bring them; if several arrive together, their values differ and no trust was
declared, the data is in error.

Invariants:
1. The times of a key's delivered rows never decrease, and a row of the time of the one before is
   trusted as much (`test_oracle_union_beside_its_definition`).
2. A batch delivers the newest row of each key; among equal times that of the most trusted input,
   and within one input the one that arrived last (the same test).
3. A batch with a conflict is rejected as a whole (`test_conflicts_without_a_truth_are_refused`).
4. Before windows and joins, which need every update, all rows of a batch that increase in time are
   delivered, one per key and time (`test_oracle_every_row_of_a_union_that_goes_up`).

Cost: a lookup per row, a sort of the batch; 32 bytes for each key that is not forgotten.

References: section 3.2 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError, InputError
from icestream.core.times import MINUS_INFINITY
from icestream.operators.latest.kept_keys import KeptKeys
from icestream.operators.latest.saved_arrays import State
from icestream.operators.latest.update_stream import KeyDirectory, UpdateStream, grown
from icestream.operators.lifetimes.consolidate import identities
from icestream.state.identities import IdRange


class UpdateUnion:
    """Merges update streams with the same schema, key and time."""

    def __init__(
        self, streams: Sequence[UpdateStream], *, truth: Sequence[int] | None = None
    ) -> None:
        """Merge streams.

        Args:
            streams: the inputs; port i is the i-th.
            truth: ports, the most trusted first; the others follow in their order.
                Without it, different values of one key and time are an error.
        """
        if not streams or any(each != streams[0] for each in streams):
            msg = "a union needs inputs with the same columns, key and time: rename or map some"
            raise DefinitionError(msg)
        order = list(truth or ())
        if len(set(order)) < len(order) or not set(order) <= set(range(len(streams))):
            msg = f"truth must list inputs from 0 to {len(streams) - 1}, each once; got {order}"
            raise DefinitionError(msg)
        order += [port for port in range(len(streams)) if port not in order]
        self.result = streams[0]
        self._is_declared = truth is not None
        self._rank = np.argsort(np.array(order, dtype=np.int64))
        self._keys = KeyDirectory()
        self._last: Ints = np.zeros(0, dtype=np.int64)
        #: trust rank of the row that was delivered last for each key
        self._trust: Ints = np.zeros(0, dtype=np.int64)
        #: number of rows not newer than one delivered before
        self.late = 0
        #: number of rows superseded by a newer or more trusted one of their batch
        self.superseded = 0

    def on_rows(self, port: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the newest row of each key, if it is newer than what was delivered."""
        return self.merge({port: rows})

    def state(self) -> State:
        """Return the whole state, for `recall`."""
        counts = np.array([self.late, self.superseded])
        return {
            "known": self._keys.state(),
            "last": self._last,
            "trust": self._trust,
            "counts": counts,
        }

    def taken_over(self, states: Sequence[State], keeps: IdRange) -> State:
        """Return the states of parents, of the keys in a range, as one."""
        keyless = not self.result.keys
        keys = KeptKeys.of([each["known"] for each in states], keeps, keyless=keyless)
        counts = np.sum([each["counts"] for each in states], axis=0)
        found = {name: keys.by_key(states, name) for name in ("known", "last", "trust")}
        return {**found, "counts": counts}

    def forget(self, before: int) -> None:
        """Drop keys without rows since a time, once they are half of all."""
        count = len(self._keys)
        stays = self._last[:count] >= before
        if 2 * np.count_nonzero(stays) <= count:
            known = self._keys.state()[stays].copy()
            self._keys = KeyDirectory()
            self._keys.recall(known)
            self._last, self._trust = self._last[:count][stays], self._trust[:count][stays]

    def recall(self, state: State) -> None:
        """Restore what `state` returned."""
        self._keys.recall(state["known"])
        for name in ("last", "trust"):
            each = state[name]
            if each.dtype != np.int64 or each.ndim != 1 or len(each) < len(self._keys):
                msg = f"a union has the {name} of {len(each)} keys, but {len(self._keys)} keys"
                raise ValueError(msg)
        self._last, self._trust = state["last"], state["trust"]
        self.late, self.superseded = state["counts"].tolist()

    def merge(self, inputs: Mapping[int, pa.RecordBatch], *, every: bool = False) -> pa.RecordBatch:
        """Merge rows that several inputs have at the same moment.

        With `every`, return all rows that increase in time, in time order, and not only the newest
        of each key.
        """
        ports = sorted(inputs)
        rows = pa.concat_batches([inputs[port] for port in ports])
        rank = np.repeat(self._rank[ports], [inputs[port].num_rows for port in ports])
        keys = self._keys.numbers(*self.result.identify(rows))
        times = self.result.times(rows)
        self._last = grown(self._last, len(self._keys), MINUS_INFINITY)
        self._trust = grown(self._trust, len(self._keys), len(self._rank))
        is_young = times > self._last[keys]
        young = np.flatnonzero(
            is_young | ((times == self._last[keys]) & (rank <= self._trust[keys]))
        )
        order = young[np.lexsort((young, -rank[young], times[young], keys[young]))]
        is_end = keys[order][1:] != keys[order][:-1]
        if every:
            is_end |= times[order][1:] != times[order][:-1]
        ends = np.flatnonzero(np.append(is_end, [True])[: len(order)])
        if not self._is_declared:
            self._check_conflicts(rows, keys, times, order, ends)
        chosen = np.sort(order[ends])
        last = order[np.append(keys[order][1:] != keys[order][:-1], [True])[: len(order)]]
        self._last[keys[last]], self._trust[keys[last]] = times[last], rank[last]
        self.late += rows.num_rows - len(young)
        self.superseded += len(young) - len(chosen)
        if every:
            chosen = chosen[np.argsort(times[chosen], kind="stable")]
        return rows.take(pa.array(chosen))

    def _check_conflicts(
        self, rows: pa.RecordBatch, keys: Ints, times: Ints, order: Ints, ends: Ints
    ) -> None:
        """Reject rows of a key that have the time of its newest row and another value."""
        winner = np.repeat(order[ends], np.diff(np.concatenate([[-1], ends])))
        tied = (times[order] == times[winner]) & (order != winner)
        if not tied.any():
            return
        one, other = order[tied], winner[tied]
        id_high, id_low = identities(rows)
        differ = np.flatnonzero((id_high[one] != id_high[other]) | (id_low[one] != id_low[other]))
        if len(differ):
            pair = rows.take(pa.array([one[differ[0]], other[differ[0]]])).to_pylist()
            msg = (
                f"two inputs have different values for one key and time: {pair[0]} and {pair[1]}; "
                "choose the input to trust (truth=...), or fix the data"
            )
            raise InputError(msg)
