from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from examples.recommender.answers import Recommendations, RecommendedItem, Request, wrong
from examples.recommender.generator import Ratings
from examples.recommender.offline import SimilarityModel
from examples.recommender.query import ANSWER, recommendations
from examples.recommender.workload import (
    DEREGISTER,
    EVENT_SCHEMA,
    RATING,
    REGISTER,
    REQUEST,
    RatingWorkload,
)
from icestream.api.events import Events
from icestream.core.times import INFINITY, Micros
from icestream.core.units import parse_interval
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Source
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings

SECOND = 1_000_000
K = 4
#: stream, time in seconds, user, item, rating, since
Event = tuple[int, int, int, int | None, float | None, int | None]
Run = Callable[..., list[pa.Table]]

pytestmark = pytest.mark.spark


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    """Run the query over events in this process; give the rows after every batch."""
    assert spark.version

    def run(
        events: pa.Table,
        *,
        mode: str = "changes",
        window: str | None = None,
        k: int = K,
        cuts: Iterable[int] = (),
        shards: int = 1,
    ) -> list[pa.Table]:
        plan = dataflow(mode, window, k)
        home = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        settings = Settings(str(home / "checkpoint"), str(home / "local"), 1 << 30, shards)
        query = LocalQuery(plan, settings)
        ends = [*cuts, events.num_rows]
        reported = [
            query.feed([as_batches(events.slice(begin, end - begin), plan)])
            for begin, end in zip([0, *ends], ends, strict=False)
        ]
        reported.append(query.flush())
        query.close()
        return reported

    return run


def dataflow(mode: str, window: str | None, k: int) -> Dataflow:
    events = recommendations(Events(FromSource(EVENT_SCHEMA), {}), k=k, window=window)
    assert events.columns == list(ANSWER)
    time = EVENT_SCHEMA.field("time").type
    return compiled(((events._node, mode),), {0: 0}, (Source("events", 0),), (EVENT_SCHEMA,), time)


def as_batches(events: pa.Table, plan: Dataflow) -> list[pa.RecordBatch]:
    source = pa.array(np.zeros(events.num_rows, dtype=np.int32))
    columns = [events.column("time"), source, *events.columns]
    batches = pa.Table.from_arrays(columns, schema=plan.batch_schema).combine_chunks().to_batches()
    return list(batches)


def events_of(*events: Event) -> pa.Table:
    stream, time, user, item, rating, since = zip(*events, strict=True)
    times = [SECOND * each for each in time]
    ends = [None if each is None else SECOND * each for each in since]
    columns = [times, stream, user, item, rating, ends]
    arrays = [pa.array(each, f.type) for each, f in zip(columns, EVENT_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=EVENT_SCHEMA)


def ratings_of(events: pa.Table) -> pa.Table:
    ratings = events.filter(pc.equal(events.column("stream"), RATING))
    return ratings.select(["time", "user", "item", "rating"])


def times_of(events: pa.Table, name: str = "time") -> list[Micros | None]:
    times: list[Micros | None] = events.column(name).cast(pa.int64()).to_pylist()
    return times


def requests_of(events: pa.Table) -> dict[Request, tuple[Micros, Micros]]:
    """Give the lifetime of each request."""
    found: dict[Request, tuple[Micros, Micros]] = {}
    streams, users = (events.column(name).to_pylist() for name in ("stream", "user"))
    for stream, user, time, since in zip(
        streams, users, times_of(events), times_of(events, "since"), strict=True
    ):
        assert time is not None
        if stream == REQUEST:
            found[Request(user, time)] = (time, time + 1)
        if stream == REGISTER:
            found[Request(user, time)] = (time, INFINITY)
        if stream == DEREGISTER:
            assert since is not None
            found[Request(user, since)] = (since, time)
    return found


def check(
    answers: Recommendations, events: pa.Table, instant: Micros, window: str | None, k: int
) -> int:
    """Compare all answers at an instant with the offline model; give how many had items."""
    length = None if window is None else parse_interval(window)
    model = SimilarityModel.at(ratings_of(events), instant, length)
    alive = [request for request, (le, re) in requests_of(events).items() if le <= instant < re]
    found = answers.at(instant)
    assert set(found) <= set(alive)
    for request in alive:
        assert wrong(found.get(request, []), model, request.user, k) is None
    return len(found)


def workload(seed: int, standing: float) -> pa.Table:
    made = Ratings(users=14, items=12, ratings=90, seed=seed, span=3_600 * SECOND)
    return RatingWorkload(made.table(), 30, requests=1, standing=standing, seed=seed).table()


@pytest.mark.sample(2)
@pytest.mark.parametrize("mode", ["append", "changes"])
@pytest.mark.parametrize("window", [None, "20 minutes"])
def test_oracle_requests_are_answered_as_by_the_offline_model(
    run: Run, mode: str, window: str | None
) -> None:
    events = workload(seed=3, standing=0)
    reported = run(events, mode=mode, window=window, cuts=[25, 60, 61, 100], shards=2)
    answers = Recommendations()
    for rows in reported:
        answers.take(rows)
    full = [check(answers, events, t, window, K) for t in set(times_of(events)) if t is not None]
    assert sum(full) > 15
    if mode == "append":
        # a request has one answer, not several
        counts = (
            pa.concat_tables(reported).group_by(["user", "asked"]).aggregate([([], "count_all")])
        )
        assert pc.max(counts.column("count_all")).as_py() == K


@pytest.mark.parametrize("window", [None, "20 minutes"])
def test_oracle_standing_requests_follow_every_rating(run: Run, window: str | None) -> None:
    events = workload(seed=4, standing=0.4)
    cuts = [40, 75, 110]
    reported = run(events, window=window, cuts=cuts)
    answers = Recommendations()
    seen = 0
    # after every batch, what was told adds up to the answers to what has come so far
    for rows, end in zip(reported, [*cuts, events.num_rows], strict=False):
        answers.take(rows)
        known = events.slice(0, end)
        last = times_of(known)[-1]
        assert last is not None
        seen += check(answers, known, last, window, K)
    answers.take(reported[-1])
    for instant in set(times_of(events)):
        assert instant is not None
        seen += check(answers, events, instant, window, K)
    assert seen > 30


def test_standing_answers_are_final_once_they_have_changed(run: Run) -> None:
    events = events_of(
        (RATING, 1, 1, 10, 4.0, None),
        (RATING, 2, 1, 20, 5.0, None),
        (RATING, 3, 2, 10, 3.0, None),
        (REGISTER, 5, 2, None, None, None),
        # user 2 knows item 20 from 8 on
        (RATING, 8, 2, 20, 2.0, None),
        (REQUEST, 9, 9, None, None, None),
    )
    (rows,) = (each for each in run(events, mode="append") if each.num_rows)
    assert rows.drop_columns(["lifetime"]).to_pylist() == [
        {"user": 2, "asked": rows.column("asked")[0].as_py(), "item": 20, "score": 3.0}
    ]
    answers = Recommendations()
    answers.take(rows)
    answer = [RecommendedItem(20, 3.0)]
    for second, expected in ((4, []), (5, answer), (7, answer), (8, [])):
        assert answers.of(Request(2, 5 * SECOND), second * SECOND) == expected


def test_a_request_that_is_closed_gets_no_more_answers(run: Run) -> None:
    events = events_of(
        (RATING, 1, 1, 10, 4.0, None),
        (RATING, 2, 1, 20, 5.0, None),
        (RATING, 3, 2, 10, 3.0, None),
        (REGISTER, 5, 2, None, None, None),
        (DEREGISTER, 7, 2, None, None, 5),
        (RATING, 8, 1, 30, 1.0, None),
        (REGISTER, 9, 2, None, None, None),
    )
    answers = Recommendations()
    for rows in run(events, cuts=[4]):
        answers.take(rows)
    first, second = Request(2, 5 * SECOND), Request(2, 9 * SECOND)
    assert answers.at(6 * SECOND) == {first: [RecommendedItem(20, 3.0)]}
    assert answers.at(7 * SECOND) == {}
    assert answers.at(8 * SECOND) == {}
    assert answers.at(10 * SECOND) == {second: [RecommendedItem(20, 3.0), RecommendedItem(30, 3.0)]}


def test_requests_of_a_user_do_not_mix(run: Run) -> None:
    events = events_of(
        (RATING, 1, 1, 10, 4.0, None),
        (RATING, 1, 1, 20, 5.0, None),
        (RATING, 2, 2, 10, 1.0, None),
        (REQUEST, 3, 2, None, None, None),
        (REQUEST, 3, 2, None, None, None),
        (RATING, 4, 1, 30, 2.0, None),
        (RATING, 4, 2, 30, 5.0, None),
        (REQUEST, 5, 2, None, None, None),
        (REQUEST, 5, 3, None, None, None),
    )
    answers = Recommendations()
    for rows in run(events):
        answers.take(rows)
    assert answers.at(3 * SECOND) == {Request(2, 3 * SECOND): [RecommendedItem(20, 1.0)]}
    # 20 was liked with 10 and with 30, to both of which it is as similar as can be
    assert answers.at(5 * SECOND) == {Request(2, 5 * SECOND): [RecommendedItem(20, 3.0)]}


def test_an_answer_has_as_many_items_as_asked_for(run: Run) -> None:
    ratings = [(RATING, 1, 1, item, 3.0, None) for item in range(9)]
    events = events_of(*ratings, (RATING, 2, 2, 0, 4.0, None), (REQUEST, 3, 2, None, None, None))
    for k in (1, 3, 20):
        (rows,) = (each for each in run(events, mode="append", k=k) if each.num_rows)
        assert rows.num_rows == min(k, 8)


def test_ratings_leave_with_their_window(run: Run) -> None:
    events = events_of(
        (RATING, 0, 1, 10, 4.0, None),
        (RATING, 5, 1, 20, 5.0, None),
        (RATING, 5, 2, 10, 3.0, None),
        (REGISTER, 6, 2, None, None, None),
    )
    answers = Recommendations()
    for rows in run(events, window="10 seconds"):
        answers.take(rows)
    # the pair of user 1 is there until 10 is ten seconds old
    request = Request(2, 6 * SECOND)
    assert answers.of(request, 10 * SECOND - 1) == [RecommendedItem(20, 3.0)]
    assert answers.of(request, 10 * SECOND) == []


@pytest.mark.parametrize("window", [None, "20 minutes"])
def test_oracle_every_prefix_has_the_answers_of_the_offline_model(
    run: Run, window: str | None
) -> None:
    events = workload(seed=5, standing=0.5).slice(0, 62)
    cuts = range(40, events.num_rows)
    answers, seen = Recommendations(), 0
    # a batch for each of the last events
    for rows, end in zip(run(events, window=window, cuts=cuts), [*cuts, 62], strict=False):
        answers.take(rows)
        known = events.slice(0, end)
        last = times_of(known)[-1]
        assert last is not None
        seen += check(answers, known, last, window, K)
    assert seen > 20
