from __future__ import annotations

from collections import defaultdict
from math import isclose, sqrt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.recommender.offline import SimilarityModel, alive_at
from examples.recommender.ratings import SCHEMA

#: time, user, item, rating
Row = tuple[int, int, int, float]


def table_of(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * 4
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def about(score: float) -> Any:
    return pytest.approx(score)


def alive(rows: list[Row], t: int, window: int | None) -> list[Row]:
    return [row for row in rows if row[0] <= t and (window is None or t < row[0] + window)]


def similarities(rows: list[Row]) -> dict[tuple[int, int], float]:
    """Read the definition literally."""
    sums: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for _, user, i, r_i in rows:
        for _, other, j, r_j in rows:
            if user == other and i != j:
                total = sums[i, j]
                total[0] += r_i * r_j
                total[1] += r_i * r_i
                total[2] += r_j * r_j
    return {pair: dot / sqrt(n1 * n2) for pair, (dot, n1, n2) in sums.items() if n1 * n2}


def scores(rows: list[Row], user: int, *, exclude_rated: bool) -> dict[int, float]:
    mine = [(item, rating) for _, who, item, rating in rows if who == user]
    near = similarities(rows)
    found = {}
    for j in {item for _, _, item, _ in rows}:
        if exclude_rated and j in {item for item, _ in mine}:
            continue
        weighted = [(near[i, j], rating) for i, rating in mine if (i, j) in near]
        total = sum(weight for weight, _ in weighted)
        if total:
            found[j] = sum(weight * rating for weight, rating in weighted) / total
    return found


#: users 1 and 2 rated 10 and 20, user 3 rated 10 only; 30 came later, by user 2
#:
#:            10    20    30
#:   user 1   4.0   2.0
#:   user 2   2.0   4.0   5.0 (at 100)
#:   user 3   3.0
EXAMPLE: list[Row] = [
    (0, 1, 10, 4.0),
    (1, 1, 20, 2.0),
    (2, 2, 10, 2.0),
    (3, 2, 20, 4.0),
    (4, 3, 10, 3.0),
    (100, 2, 30, 5.0),
]


def test_oracle_a_model_by_hand() -> None:
    model = SimilarityModel.at(table_of(EXAMPLE), 100)
    # 10 and 20: dot 4*2 + 2*4 = 16, squares 16 + 4 and 4 + 16
    assert model.similarities(10) == [(20, 16 / 20), (30, 1.0)]
    assert model.similarities(20) == [(10, 16 / 20), (30, 1.0)]
    assert model.similarities(30) == [(10, 1.0), (20, 1.0)]
    # user 1 has 10 and 20: item 30 is as similar to both
    assert model.recommend(1, 5) == [(30, about((1.0 * 4 + 1.0 * 2) / 2))]
    # user 3 has 10 only: whatever is similar is scored 3; the lower item first
    assert model.recommend(3, 5) == [(20, about(3.0)), (30, about(3.0))]
    assert model.recommend(2, 5) == []


def test_only_the_best_k_are_recommended_and_equal_ones_by_item() -> None:
    rows = [(0, 1, item, 2.0) for item in (5, 3, 9, 7)] + [(0, 2, 5, 4.0)]
    model = SimilarityModel.at(table_of(rows), 0)
    assert [item for item, _ in model.recommend(2, 2)] == [3, 7]
    assert model.recommend(2, 0) == []


def test_rated_items_can_be_asked_for() -> None:
    model = SimilarityModel.at(table_of(EXAMPLE), 100)
    assert dict(model.recommend(1, 5, exclude_rated=False)) == pytest.approx(
        {10: 2.0, 20: 4.0, 30: 3.0}
    )


def test_a_rating_is_alive_from_its_time_to_its_end() -> None:
    #   le            le + window
    #   [--------------)
    rows = table_of([(100, 1, 10, 4.0)])
    living = [t for t in range(95, 120) if alive_at(rows, t, 10).num_rows]
    assert living == list(range(100, 110))
    assert alive_at(rows, 10**15).num_rows == 1


def test_oracle_the_window_forgets_ratings() -> None:
    model = SimilarityModel.at(table_of(EXAMPLE), 100, window=99)
    assert model.similarities(10) == [(20, about(1.0)), (30, about(1.0))]
    assert model.similarities(30) == [(10, about(1.0)), (20, about(1.0))]
    assert SimilarityModel.at(table_of(EXAMPLE), 99).similarities(30) == []
    assert SimilarityModel.at(table_of(EXAMPLE), -1).recommend(1, 5) == []


def test_who_and_what_is_unknown_has_no_answer() -> None:
    model = SimilarityModel.at(table_of(EXAMPLE), 100)
    assert model.similarities(11) == []
    assert model.similarities(1_000) == []
    assert model.recommend(77, 3) == []
    assert SimilarityModel.at(table_of([]), 0).recommend(1, 3) == []


def test_ratings_of_nothing_make_no_similarity() -> None:
    model = SimilarityModel.at(table_of([(0, 1, 10, 0.0), (0, 1, 20, 3.0)]), 0)
    assert model.similarities(10) == []


def test_two_ratings_of_an_item_by_a_user_both_count() -> None:
    rows = [(0, 1, 10, 2.0), (0, 1, 10, 4.0), (0, 1, 20, 3.0)]
    model = SimilarityModel.at(table_of(rows), 0)
    # pairs (2, 3) and (4, 3)
    assert model.similarities(10) == [(20, about(18 / sqrt(20 * 18)))]


rows_strategy = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.integers(1, 4),
        st.integers(1, 6),
        st.integers(0, 10).map(lambda half: half / 2),
    ),
    max_size=30,
)


@given(
    rows=rows_strategy,
    t=st.integers(0, 15),
    window=st.none() | st.integers(1, 12),
    exclude_rated=st.booleans(),
    k=st.integers(0, 7),
)
def test_oracle_the_model_is_its_definition(
    rows: list[Row], t: int, window: int | None, exclude_rated: bool, k: int
) -> None:
    model = SimilarityModel.at(table_of(rows), t, window)
    left = alive(rows, t, window)
    near = similarities(left)
    found = {
        (item, other): value for item in range(1, 7) for other, value in model.similarities(item)
    }
    assert found == pytest.approx(near)
    for user in range(1, 5):
        expected = scores(left, user, exclude_rated=exclude_rated)
        items, values = model.scores(user, exclude_rated=exclude_rated)
        assert dict(zip(items.tolist(), values.tolist(), strict=True)) == pytest.approx(expected)
        best = model.recommend(user, k, exclude_rated=exclude_rated)
        assert len(best) == min(k, len(expected))
        assert best == sorted(best, key=lambda pair: (-pair[1], pair[0]))
        for rank, (_, score) in enumerate(best):
            assert isclose(score, sorted(expected.values(), reverse=True)[rank], rel_tol=1e-9)


@given(rows=rows_strategy, at_once=st.integers(1, 9))
def test_oracle_chunks_of_pairs_do_not_show(rows: list[Row], at_once: int) -> None:
    one = SimilarityModel.at(table_of(rows), 20)
    other = SimilarityModel.at(table_of(rows), 20, pairs_at_once=at_once)
    assert one.neighbour.tolist() == other.neighbour.tolist()
    # sums of quarters are exact, in whatever order
    assert np.array_equal(one.similarity, other.similarity)
