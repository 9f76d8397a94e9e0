"""Union of update streams: the newest update of every key, never one older than those delivered.

Idea: a union of append streams would have to wait for its slowest input. In update streams only the
newest row of a key matters, so the union delivers what has arrived and drops what turns out older.
Of rows of one key and time that of the most trusted input counts, and of one input the last,
whichever batches bring them. All rows of a batch that increase in time are delivered, one per key
and time: windows and joins need every update.

Invariants:
1. The times of a key's delivered rows never decrease, and a row of the time of the one before is
   trusted as much; among equal times that of the most trusted input is delivered, and within one
   input the one that arrived last (`test_oracle_every_row_of_a_union_that_goes_up`).

Cost: a lookup per row, a sort of the batch; 32 bytes for each key that is not forgotten.

References: section 3.2 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.latest.saved_arrays import State
from icestream.operators.latest.update_stream import KeptKeys, KeyDirectory, UpdateStream, grown
from icestream.state.identities import IdRange


class UpdateUnion:
    """Merges update streams with the same schema, key and time."""

    def __init__(self, streams: Sequence[UpdateStream], truth: Sequence[int]) -> None:
        """Merge streams; `truth` has their numbers, the most trusted first, then the others."""
        if not streams or any(each != streams[0] for each in streams):
            msg = "a union needs inputs with the same columns, key and time: rename or map some"
            raise DefinitionError(msg)
        order = list(truth)
        if len(set(order)) < len(order) or not set(order) <= set(range(len(streams))):
            msg = f"truth must list inputs from 0 to {len(streams) - 1}, each once; got {order}"
            raise DefinitionError(msg)
        order += [port for port in range(len(streams)) if port not in order]
        self.result = streams[0]
        self._rank = np.argsort(np.array(order, dtype=np.int64))
        self._keys = KeyDirectory()
        self._last: Ints = np.zeros(0, dtype=np.int64)
        #: trust rank of the row that was delivered last for each key
        self._trust: Ints = np.zeros(0, dtype=np.int64)
        #: number of rows not newer than one delivered before
        self.late = 0

    def state(self) -> State:
        """Return the whole state, for `recall`."""
        count = len(self._keys)
        return {
            "known": self._keys.state(),
            "last": self._last[:count],
            "trust": self._trust[:count].astype(np.int16),
            "counts": np.array([self.late]),
        }

    def taken_over(self, states: Sequence[State], keeps: IdRange) -> State:
        """Return the states of parents, of the keys in a range, as one."""
        keyless = not self.result.keys
        keys = KeptKeys.of([each["known"] for each in states], keeps, keyless=keyless)
        counts = np.sum([each["counts"] for each in states], axis=0)
        found = {name: keys.by_key(states, name) for name in ("known", "last", "trust")}
        return {**found, "counts": counts}

    def forget(self, before: Micros) -> None:
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
            if each.dtype.kind != "i" or each.ndim != 1 or len(each) < len(self._keys):
                msg = f"a union has the {name} of {len(each)} keys, but {len(self._keys)} keys"
                raise ValueError(msg)
        self._last, self._trust = (state[name].astype(np.int64) for name in ("last", "trust"))
        self.late = int(state["counts"][0])

    def on_batch(self, inputs: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return the rows of all inputs that do not go back in time, in time order.

        Of each key and time there is one row.
        """
        rows = pa.concat_batches(inputs)
        rank = np.repeat(self._rank, [each.num_rows for each in inputs])
        keys = self._keys.numbers(*self.result.identify(rows))
        times = self.result.times(rows)
        self._last = grown(self._last, len(self._keys), MINUS_INFINITY)
        self._trust = grown(self._trust, len(self._keys), len(self._rank))
        is_young = times > self._last[keys]
        young = np.flatnonzero(
            is_young | ((times == self._last[keys]) & (rank <= self._trust[keys]))
        )
        order = young[np.lexsort((young, -rank[young], times[young], keys[young]))]
        is_last = np.append(keys[order][1:] != keys[order][:-1], [True])[: len(order)]
        is_end = is_last | np.append(times[order][1:] != times[order][:-1], [True])[: len(order)]
        last = order[is_last]
        self._last[keys[last]], self._trust[keys[last]] = times[last], rank[last]
        self.late += rows.num_rows - len(young)
        chosen = np.sort(order[is_end])
        return rows.take(pa.array(chosen[np.argsort(times[chosen], kind="stable")]))
