from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.recommender.generator import Ratings
from examples.recommender.offline import SimilarityModel
from examples.recommender.ratings import SCHEMA
from icestream.core.errors import DefinitionError

SECOND = 1_000_000
HOUR = 3_600 * SECOND
FOR_EVER = 2**62


def column(table: pa.Table, name: str) -> npt.NDArray[Any]:
    kind = pa.float64() if name == "rating" else pa.int64()
    return np.asarray(table.column(name).cast(kind).to_numpy())


def share_of_top(values: npt.NDArray[Any], part: float) -> float:
    counts = np.sort(np.unique(values, return_counts=True)[1])[::-1]
    return float(counts[: int(part * len(counts))].sum() / counts.sum())


def gini(values: npt.NDArray[Any]) -> float:
    """Give 0 where all values come equally often, 1 where there is one only."""
    counts = np.sort(np.unique(values, return_counts=True)[1])
    below = np.cumsum(counts) - counts / 2
    return float(1 - 2 * below.sum() / (len(counts) * counts.sum()))


@pytest.fixture(scope="module")
def ratings() -> pa.Table:
    """A fiftieth of the ratings, by a tenth of the users, of a tenth of the items."""
    return Ratings(users=7_000, items=1_060, ratings=200_000).table()


def test_oracle_the_same_seed_makes_the_same_ratings() -> None:
    sizes = {"users": 300, "items": 200, "ratings": 5_000}
    one = Ratings(**sizes, seed=3).table()
    assert one.equals(Ratings(**sizes, seed=3).table())
    other = Ratings(**sizes, seed=4).table()
    assert not one.column("item").equals(other.column("item"))


@given(users=st.integers(1, 60), items=st.integers(1, 60), fill=st.floats(0, 1))
@settings(max_examples=60)
def test_oracle_no_user_rates_an_item_twice(users: int, items: int, fill: float) -> None:
    count = max(1, int(fill * users * items))
    made = Ratings(users=users, items=items, ratings=count)
    table = made.table()
    assert table.schema == SCHEMA
    assert table.num_rows == count
    pairs = set(zip(column(table, "user").tolist(), column(table, "item").tolist(), strict=True))
    assert len(pairs) == count
    assert all(1 <= user <= users and 1 <= item <= items for user, item in pairs)
    assert made.counts().sum() == count
    assert (np.bincount(column(table, "user") - 1, minlength=users) == made.counts()).all()


def test_oracle_popularity_has_long_tails(ratings: pa.Table) -> None:
    users, items = column(ratings, "user"), column(ratings, "item")
    assert len(np.unique(users)) == 7_000
    assert len(np.unique(items)) > 1_000
    # 0.8 at full size; a set this small has fewer items to choose from
    assert gini(items) == pytest.approx(0.76, abs=0.04)
    assert gini(users) == pytest.approx(0.6, abs=0.04)
    assert share_of_top(users, 0.15) > 0.5
    per_item = np.unique(items, return_counts=True)[1]
    assert per_item.mean() > 3 * np.median(per_item)


def test_ratings_are_ordered_half_stars_inside_the_span(ratings: pa.Table) -> None:
    times, stars = column(ratings, "time"), column(ratings, "rating")
    assert (np.diff(times) >= 0).all()
    assert times[0] >= Ratings().begin
    assert times[-1] < Ratings().begin + Ratings().span
    assert (times % SECOND == 0).all()
    assert set(np.unique(stars)) == {half / 2 for half in range(1, 11)}
    assert 3.3 < stars.mean() < 3.8
    assert 0.8 < stars.std() < 1.2


@pytest.mark.parametrize("span", [1, SECOND, 60 * SECOND])
def test_bounded_a_short_span_holds_all_ratings(span: int) -> None:
    times = column(Ratings(users=5, items=50, ratings=100, span=span).table(), "time")
    assert times[-1] - Ratings().begin < span


def test_oracle_users_rate_in_sessions(ratings: pa.Table) -> None:
    users, times = column(ratings, "user"), column(ratings, "time")
    order = np.lexsort((times, users))
    same = np.diff(users[order]) == 0
    gaps = np.diff(times[order])[same]
    # nearly all ratings follow within minutes, and the others after days
    assert 0.95 < (gaps < HOUR).mean() < 0.99
    assert 5 * 24 * HOUR < np.median(gaps[gaps >= HOUR]) < 40 * 24 * HOUR


def test_oracle_items_of_a_genre_are_more_alike() -> None:
    made = Ratings(users=600, items=200, ratings=20_000)
    model = SimilarityModel.at(made.table(), FOR_EVER)
    genre = made.genre_of(model.items)
    one = np.repeat(np.arange(len(model.items)), np.diff(model.first))
    same = genre[one] == genre[model.neighbour]
    assert model.similarity[same].mean() > model.similarity[~same].mean() + 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"users": 0}, "at least 1 user"),
        ({"users": 2, "items": 3, "ratings": 7}, "at most 6 ratings"),
        ({"span": 0}, "span must be"),
    ],
)
def test_impossible_ratings_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        Ratings(**arguments)
