"""Obeying window specification marks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.kernels.queue.windows.marks import NOWHERE, obey_marks
from tests.oracles.kernels.queue.windows.marks import obey_marks_reference

RECORDS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(-1, 9)))


@given(records=RECORDS, cut=st.integers(0, 20))
def test_parity_marks_are_obeyed(records: list[tuple[int, int, int]], cut: int) -> None:
    slot_of, end_of = np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64)
    free = np.arange(1, len(records) + 1)
    left = len(free)
    plain: dict[int, tuple[int, list[int]]] = {}
    held: dict[int, list[int]] = {}
    for part in (records[:cut], records[cut:]):
        keys, times, marks = (np.array([r[n] for r in part], dtype=np.int64) for n in range(3))
        slots, opened, emitted = (np.empty(len(part), dtype=np.int64) for _ in range(3))
        left, opens, emits = obey_marks(
            keys, times, marks, slot_of, end_of, free, left, slots, opened, emitted
        )
        assert opens == np.count_nonzero(marks > 0)
        for slot, time in zip(slots.tolist(), times.tolist(), strict=True):
            held.setdefault(slot, []).append(time)
        wanted = obey_marks_reference(keys.tolist(), times.tolist(), marks.tolist(), plain)
        found = [
            (int(keys[i]), int(times[i]), held[int(slots[i])]) for i in emitted[:emits].tolist()
        ]
        assert found == wanted
    assert {key for key in range(4) if slot_of[key] != NOWHERE} == set(plain)
