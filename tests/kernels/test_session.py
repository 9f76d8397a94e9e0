from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import Table
from icestream.kernels import field_words
from icestream.kernels.session import cut_fragments, merge_sessions
from tests.oracles.kernels.session import cut_fragments_reference, merge_sessions_reference

OPS = np.array(
    [
        field_words.ADD_I64,
        field_words.ADD_I128,
        field_words.MIN,
        field_words.MAX,
        field_words.LEAST_3,
    ]
)
SIZES = [field_words.WORDS[op] for op in OPS.tolist()]
PLACES = np.cumsum([4, *SIZES[:-1]]).astype(np.int64)
WIDTH = 4 + sum(SIZES)


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from((0, 5, 2**64 - 1)),
            st.integers(0, 1),
            st.integers(-40, 40),
            st.integers(1, 12),
        )
    ),
)
def test_parity_fragments_of_random_events(events: list[tuple[int, int, int, int]]) -> None:
    id_high = np.array([event[0] for event in events], dtype=np.uint64)
    id_low = np.array([event[1] for event in events], dtype=np.uint64)
    time = np.array([event[2] for event in events], dtype=np.int64)
    ends = time + np.array([event[3] for event in events], dtype=np.int64)
    slots, heads, last = (np.empty(len(events), dtype=np.int64) for _ in range(3))
    count = cut_fragments(
        np.lexsort((time, id_low, id_high)), id_high, id_low, time, ends, slots, heads, last
    )
    expected, spans = cut_fragments_reference(id_high, id_low, time, ends)
    assert slots.tolist() == expected
    first = time[heads[:count]].tolist()
    assert list(zip(first, last[:count].tolist(), strict=True)) == spans


def test_a_pause_of_exactly_the_gap_does_not_part_two_events() -> None:
    # gap 10:   0 ........ 10         |   0 .......... 11
    #           one fragment          |   two
    for pause, expected in ((10, 1), (11, 2)):
        ids = np.zeros(2, dtype=np.uint64)
        work = [np.empty(2, dtype=np.int64) for _ in range(3)]
        time = np.array([0, pause])
        assert cut_fragments(np.arange(2), ids, ids, time, time + 10, *work) == expected


def random_run(dice: np.random.Generator, rows: int) -> Table:
    table = dice.integers(-50, 50, size=(rows, WIDTH))
    table[:, 0] = dice.choice([0, 3, -1], rows)
    table[:, 1] = dice.integers(-1, 2, rows)
    table[:, 3] = table[:, 2] + dice.integers(1, 9, rows)
    ids = table[:, :2].view(np.uint64)
    return table[np.lexsort((table[:, 2], ids[:, 1], ids[:, 0]))]


@pytest.mark.parametrize("seed", range(30))
def test_parity_merging_two_runs(seed: int) -> None:
    dice = np.random.default_rng(seed)
    left, right = (random_run(dice, int(dice.integers(0, 40))) for _ in range(2))
    out = np.empty((len(left) + len(right), WIDTH), dtype=np.int64)
    sources = np.empty(len(out), dtype=np.int64)
    count = merge_sessions(left, right, OPS, PLACES, out, sources)
    rows, expected = merge_sessions_reference(left, right, OPS, PLACES)
    assert out[:count].tolist() == rows
    assert sources[:count].tolist() == expected
    same_group = (out[1:count, :2] == out[: max(count - 1, 0), :2]).all(axis=1)
    assert (out[1:count, 2] > out[: max(count - 1, 0), 3])[same_group].all()
