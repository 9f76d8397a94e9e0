from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.multi_join.spec import partitions_of
from icestream.operators.multi_join.tracing import Lineage, Tracer
from icestream.state.keys import KeyCodec

PARTITIONS = 30
TREE = (Lineage(0, ("a",)), Lineage(1, ("b", "c")), Lineage(2, ("d",)))


def rows(count: int, seed: int = 1) -> pa.RecordBatch:
    dice = np.random.default_rng(seed)
    return pa.record_batch(
        {
            "a": dice.integers(0, 20, count),
            "b": dice.integers(0, 3, count),
            "shown": dice.random(count),
            "c": pa.array([f"c{i}" for i in dice.integers(0, 9, count)], pa.string()),
            "d": dice.integers(0, 50, count),
        }
    )


def home(**key: object) -> int:
    """Return where the exchange would send a row with a key: computed alone."""
    batch = pa.RecordBatch.from_pylist([key])
    id_high, _ = KeyCodec(batch.schema).identify(batch)
    return int(partitions_of(id_high, PARTITIONS)[0])


@given(st.integers(0, 60), st.integers(0, 5))
def test_oracle_every_row_is_counted_in_the_partitions_that_made_it(count: int, seed: int) -> None:
    batch = rows(count, seed)
    found = Tracer(TREE, PARTITIONS, 1.0, seed=0).trace(batch)
    assert sorted(found) == [0, 1, 2]
    for lineage in TREE:
        wanted: Counter[int] = Counter()
        for row in batch.select(list(lineage.columns)).to_pylist():
            wanted[home(**row)] += 1
        counts, sizes = found[lineage.join]
        assert counts.tolist() == [wanted[place] for place in range(PARTITIONS)]
        assert sizes.sum() == pytest.approx(batch.nbytes if count else 0)


def test_a_row_that_came_through_a_join_in_two_ways_counts_for_both() -> None:
    batch = rows(40)
    both = (Lineage(0, ("a",)), Lineage(0, ("d",)))
    counts, _ = Tracer(both, PARTITIONS, 1.0, seed=0).trace(batch)[0]
    apart = [Tracer([each], PARTITIONS, 1.0, seed=0).trace(batch)[0][0] for each in both]
    assert counts.tolist() == (apart[0] + apart[1]).tolist()


def test_a_sample_is_scaled_to_what_it_stands_for() -> None:
    batch = rows(50_000)
    every = Tracer(TREE, PARTITIONS, 1.0, seed=0).trace(batch)
    sampled = Tracer(TREE, PARTITIONS, 0.1, seed=3).trace(batch)
    for join in every:
        for whole, part in zip(every[join], sampled[join], strict=True):
            assert part.sum() == pytest.approx(whole.sum(), rel=0.05)
        large = every[join][0] > 1_000
        assert sampled[join][0][large] == pytest.approx(every[join][0][large], rel=0.4)


def test_tracers_of_one_seed_find_the_same() -> None:
    batches = [rows(500, seed) for seed in (1, 2)]
    found = []
    for seed in (7, 7, 8):
        tracer = Tracer(TREE, PARTITIONS, 0.2, seed)
        found.append([tracer.trace(each)[2][0].tolist() for each in batches])
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_bytes_are_what_the_rows_take_where_they_are_kept() -> None:
    batch = rows(100)
    plain = Tracer(TREE, PARTITIONS, 1.0, seed=0).trace(batch)[0]
    kept = Tracer(TREE, PARTITIONS, 1.0, seed=0, head_bytes=40).trace(batch)[0]
    assert kept[1].tolist() == pytest.approx((plain[1] + 40 * plain[0]).tolist())


def test_part_of_a_batch_counts_only_its_own_bytes() -> None:
    batch = rows(100)
    halves = [Tracer(TREE, PARTITIONS, 1.0, 0).trace(batch.slice(at, 50))[0] for at in (0, 50)]
    whole = Tracer(TREE, PARTITIONS, 1.0, 0).trace(batch)[0]
    assert halves[0][0] + halves[1][0] == pytest.approx(whole[0])
    assert halves[0][1].sum() + halves[1][1].sum() == pytest.approx(whole[1].sum(), rel=0.02)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5])
def test_a_rate_that_is_no_part_is_refused(rate: float) -> None:
    with pytest.raises(DefinitionError, match="above 0 and at most 1"):
        Tracer(TREE, PARTITIONS, rate, 0)


def test_rows_without_a_key_came_through_another_join() -> None:
    rows = pa.record_batch({"k": pa.array([1, None, 2, None]), "l": pa.array([None, 7, None, 8])})
    tracer = Tracer([Lineage(0, ("k",)), Lineage(1, ("l",))], 4, 1.0, 0)
    found = tracer.trace(rows)
    assert [counts.sum() for counts, _ in found.values()] == [2, 2]
