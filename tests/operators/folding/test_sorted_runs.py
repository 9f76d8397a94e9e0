from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.operators.folding.fields import Field, Layout
from icestream.operators.folding.sorted_runs import sorted_run
from tests.oracles.kernels.field_words import combine_sorted_reference

LAYOUT = Layout.of((Field("sum_i64", "x"), Field("sum_f64", "y"))).typical

ids = st.sampled_from((0, 1, 2**62, 2**63, 2**63 + 1, 2**64 - 1)) | st.integers(0, 2**64 - 1)
rank_sets = st.sampled_from(((0, 1, 2), (-5, 7), (3,), (-(2**61), 0, 2**61), (0, 2**39)))


@st.composite
def inputs(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    ranks = draw(rank_sets)
    rows = draw(st.lists(st.tuples(st.sampled_from(ranks), ids, ids), max_size=50))
    table = []
    for n, (_, id_high, id_low) in enumerate(rows):
        identity = np.array([id_high, id_low], np.uint64).view(np.int64).tolist()
        table.append([*identity, 1, n, n << 57, n])
    return [rank for rank, _, _ in rows], table


@given(inputs())
@settings(max_examples=80)
def test_oracle_runs_are_sorted_by_unsigned_identity_and_merged(
    drawn: tuple[list[int], list[list[int]]],
) -> None:
    ranks = np.array(drawn[0], np.int64)
    rows = np.array(drawn[1], np.int64).reshape(-1, LAYOUT.entry_width)
    out_ranks, out = sorted_run(ranks, rows, LAYOUT)
    expected = combine_sorted_reference(ranks, rows, LAYOUT.ops, LAYOUT.places)
    assert list(zip(out_ranks.tolist(), out.tolist(), strict=True)) == expected


def test_a_run_depends_only_on_its_input_order() -> None:
    dice = np.random.default_rng(4)
    rows = np.zeros((500, LAYOUT.entry_width), dtype=np.int64)
    rows[:, 0] = dice.integers(0, 5, 500) << 60
    rows[:, 2] = 1
    rows[:, 4] = dice.normal(size=500).view(np.int64)
    ranks = dice.integers(0, 3, 500)
    first = sorted_run(ranks, rows, LAYOUT)
    again = sorted_run(ranks.copy(), rows.copy(), LAYOUT)
    assert first[0].tobytes() == again[0].tobytes()
    assert first[1].tobytes() == again[1].tobytes()
