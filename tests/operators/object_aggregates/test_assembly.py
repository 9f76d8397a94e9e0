"""Windows combined in ranges of ids beside windows combined at once."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.arrays import Ids
from icestream.operators.folding.fold import ID_HIGH_COLUMN
from icestream.operators.object_aggregates.assembly import Assembly
from icestream.operators.object_aggregates.directory import SLICE
from icestream.operators.object_aggregates.states import States
from tests.operators.object_aggregates.test_states import SPEC, tuples

#: the least and the greatest id, neighbours, and two groups with one id_high
ID_HIGH = {"a": 0, "b": 7, "c": 8, "d": 8, "e": 1 << 40, "f": (1 << 64) - 1}

#: a group, and how many events it has: a few of them have most
BATCHES = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from([1, 2, 40])), min_size=1, max_size=12
    ),
    min_size=1,
    max_size=12,
)


@dataclass
class StoredSlices:
    """Slices of one target, as the log would have them."""

    states: States

    def __post_init__(self) -> None:
        self.folder, self.reads = "", 0
        self.payloads: list[bytes] = []
        self.entries: list[tuple[int, ...]] = []
        self.reserved: list[int] = []
        account = SimpleNamespace(resize=self.reserved.append)
        self.shard: Any = SimpleNamespace(log=self, account=account)

    def add(self, rows: pa.RecordBatch, size: int) -> None:
        for part in self.states.parts(rows, size):
            payload = bytes(self.states.write(part))
            ends = self.states.ends(part)
            self.entries.append((0, 0, len(self.payloads), len(payload), *ends))
            self.payloads.append(payload)

    def read_many(self, markers: Ids) -> Any:
        """Yield records."""
        for marker in markers.tolist():
            self.reads += 1
            yield SimpleNamespace(marker=marker, payload=self.payloads[marker])


@settings(max_examples=60)
@given(BATCHES, st.sampled_from([600, 2000, 6000]), st.sampled_from([2000, 5000, 20_000]))
def test_oracle_ranges_hold_every_group_once(
    batches: list[list[tuple[str, int]]], size: int, portion: int
) -> None:
    states = States(SPEC)
    stored, every, value = StoredSlices(states), [], 0
    for batch in batches:
        events = []
        for key, count in batch:
            events += [(0, key, value + n) for n in range(count)]
            value += count
        made = tuples(events)
        id_high = np.array([ID_HIGH[key] for _, key, _ in events], dtype=np.uint64)
        at = made.schema.get_field_index(ID_HIGH_COLUMN)
        made = made.set_column(at, ID_HIGH_COLUMN, pa.array(id_high))
        _, rows = states.lift(made, np.zeros(made.num_rows, dtype=np.int64))
        stored.add(rows, size)
        every.append(rows)
    whole = pa.concat_batches(every)
    _, expected = states.combine(np.full(whole.num_rows, 7), whole)
    assembly = Assembly(stored.shard, states, portion, lambda: 0)
    found = list(assembly.combined([(7, np.array(stored.entries, dtype=SLICE))]))
    assert all((targets == 7).all() and rows.num_rows for targets, rows in found)
    assert pa.concat_batches([rows for _, rows in found]).to_pylist() == expected.to_pylist()


def test_bounded_slices_of_groups_in_turn_are_read_once() -> None:
    states = States(SPEC)
    stored = StoredSlices(states)
    for node in range(3):
        events = [(0, f"{group}", node) for group in range(300) for _ in range(10)]
        _, rows = states.lift(tuples(events), np.zeros(len(events), dtype=np.int64))
        stored.add(rows, 2000)
    assembly = Assembly(stored.shard, states, 30_000, lambda: 0)
    list(assembly.combined([(0, np.array(stored.entries, dtype=SLICE))]))
    assert assembly.ranges > 3
    assert stored.reads == len(stored.payloads)
