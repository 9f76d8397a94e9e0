from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.recommender.generator import Ratings
from examples.recommender.ratings import SCHEMA
from examples.recommender.workload import (
    DEREGISTER,
    EVENT_COLUMNS,
    EVENT_SCHEMA,
    RATING,
    REGISTER,
    REQUEST,
    RatingWorkload,
)
from icestream.core.errors import DefinitionError


def column(table: pa.Table, name: str) -> npt.NDArray[Any]:
    kind = pa.float64() if name == "rating" else pa.int64()
    return np.asarray(table.column(name).cast(kind).to_numpy())


@pytest.fixture(scope="module")
def ratings() -> pa.Table:
    """A fiftieth of the ratings, by a tenth of the users, of a tenth of the items."""
    return Ratings(users=7_000, items=1_060, ratings=200_000).table()


def test_oracle_the_same_seed_makes_the_same_events() -> None:
    ratings = Ratings(users=300, items=200, ratings=5_000).table()
    events = [RatingWorkload(ratings, 3_000, seed=5, standing=0.1).table() for _ in range(2)]
    assert events[0].equals(events[1])
    assert not events[0].equals(RatingWorkload(ratings, 3_000, seed=6, standing=0.1).table())


def test_there_is_one_schema_of_events() -> None:
    assert list(EVENT_COLUMNS) == EVENT_SCHEMA.names


def test_oracle_the_mix_is_as_asked_for(ratings: pa.Table) -> None:
    ratings = ratings.slice(0, 10_000)
    events = RatingWorkload(ratings, warm_up=7_000).table()
    assert events.schema == EVENT_SCHEMA
    streams = column(events, "stream")
    assert (streams[:7_000] == RATING).all()
    mix = streams[7_000:].reshape(-1, 10)
    assert len(mix) == 3_000
    assert (mix == [REQUEST] * 9 + [RATING]).all()
    assert (np.diff(column(events, "time")) >= 0).all()
    # what is no request are the ratings themselves
    updates = events.filter(pa.array(streams == RATING)).select(SCHEMA.names).cast(SCHEMA)
    assert updates.combine_chunks().equals(ratings.combine_chunks())
    requests = events.filter(pa.array(streams == REQUEST))
    assert requests.column("item").null_count == requests.num_rows
    assert requests.column("rating").null_count == requests.num_rows


def test_oracle_most_requests_come_from_the_hot_set(ratings: pa.Table) -> None:
    workload = RatingWorkload(ratings, warm_up=190_000)
    hot, cold = workload.hot()
    assert len(hot) == 1_050
    assert np.union1d(hot, cold).tolist() == np.unique(column(ratings, "user")).tolist()
    events = workload.table()
    users = column(events, "user")[column(events, "stream") == REQUEST]
    assert len(users) == 90_000
    assert np.isin(users, hot).mean() == pytest.approx(0.85, abs=0.01)
    # inside a set, all are alike
    assert len(np.unique(users[np.isin(users, hot)])) == len(hot)
    counts = np.sort(np.unique(users[np.isin(users, hot)], return_counts=True)[1])[::-1]
    assert counts[: int(0.15 * len(counts))].sum() < 0.25 * counts.sum()


@pytest.mark.parametrize(
    ("mix", "streams"),
    [
        ({"updates": 0, "events": 4}, [1, 1, 1, 1]),
        ({"requests": 0}, [0, 0, 0]),
        ({"updates": 1, "requests": 1}, [1, 0, 1, 0, 1, 0]),
        ({"updates": 3, "requests": 2}, [1, 0, 1, 0, 0]),
        ({"updates": 1, "requests": 3, "events": 5}, [1, 1, 1, 0, 1]),
    ],
)
def test_mixes_spread_ratings_evenly(mix: dict[str, int], streams: list[int]) -> None:
    ratings = Ratings(users=4, items=5, ratings=10).table()
    events = RatingWorkload(ratings, warm_up=7, **mix).table()
    assert column(events, "stream").tolist() == [0] * 7 + streams
    assert (np.diff(column(events, "time")) >= 0).all()


@pytest.mark.parametrize("shares", [(0.0, 0.85), (1.0, 0.85), (0.5, 0.0), (0.5, 1.0)])
def test_hot_sets_of_nobody_and_of_everybody(shares: tuple[float, float]) -> None:
    ratings = Ratings(users=4, items=5, ratings=10).table()
    workload = RatingWorkload(ratings, warm_up=5, hot_users=shares[0], hot_requests=shares[1])
    users = set(column(workload.table(), "user").tolist())
    assert users <= {1, 2, 3, 4}


def test_registrations_of_a_user_alternate(ratings: pa.Table) -> None:
    events = RatingWorkload(
        ratings.slice(0, 4_000), warm_up=2_000, standing=0.3, hot_users=0.01
    ).table()
    streams = column(events, "stream")
    edges = np.flatnonzero(np.isin(streams, [REGISTER, DEREGISTER]))
    assert 0.2 < len(edges) / (streams != RATING).sum() <= 0.32
    users, times = column(events, "user")[edges], column(events, "time")[edges]
    since = column(events, "since")[edges]
    for user in np.unique(users):
        mine = users == user
        turns = streams[edges][mine].tolist()
        assert turns == [REGISTER, DEREGISTER] * (len(turns) // 2) + [REGISTER] * (len(turns) % 2)
        assert (np.diff(times[mine]) > 0).all()
        # who closes one says when it was opened
        ends = streams[edges][mine] == DEREGISTER
        assert since[mine][ends].tolist() == times[mine][:-1][ends[1:]].tolist()
    assert (np.isnan(since) == (streams[edges] == REGISTER)).all()


def test_oracle_files_hold_the_events_in_order(tmp_path: Path) -> None:
    ratings = Ratings(users=40, items=50, ratings=500).table()
    workload = RatingWorkload(ratings, warm_up=350, standing=0.05)
    files = list(workload.write(tmp_path, rows=300))
    assert [file.events for file in files] == [300, 50, 300, 300, 300, 300, 300]
    read = pa.concat_tables([pq.read_table(file.path) for file in files])
    assert read.combine_chunks().equals(workload.table().combine_chunks())
    for file in files:
        assert column(pq.read_table(file.path), "time")[-1] == file.until


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"warm_up": 11}, "warm_up must be"),
        ({"updates": -1}, "must not be negative"),
        ({"updates": 0, "requests": 0}, "nor both 0"),
        ({"updates": 0}, "set the number of events"),
        ({"events": 1_000}, "enough for 50 events"),
        ({"hot_users": 1.5}, "hot_users must be a share"),
    ],
)
def test_impossible_workloads_are_refused(arguments: dict[str, Any], message: str) -> None:
    ratings = Ratings(users=4, items=5, ratings=10).table()
    with pytest.raises(DefinitionError, match=message):
        RatingWorkload(ratings, **{"warm_up": 5, **arguments})


def test_files_of_no_events_are_refused(tmp_path: Path) -> None:
    ratings = Ratings(users=4, items=5, ratings=10).table()
    with pytest.raises(DefinitionError, match="at least 1 event"):
        next(RatingWorkload(ratings, warm_up=5).write(tmp_path, rows=0))
