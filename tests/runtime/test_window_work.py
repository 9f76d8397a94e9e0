from __future__ import annotations

from pathlib import Path

from icestream.operators.aggregates import Aggregate
from icestream.plan.lower import AUTO
from icestream.testing.plans import open_query, window_plan
from icestream.testing.sources import Shape, batches_of, generate

COUNT = (Aggregate("count", None, "n"),)


def test_the_choice_of_a_store_is_kept_in_the_commit(tmp_path: Path) -> None:
    plan = window_plan("10 seconds", "2 seconds", store=AUTO, aggregates=COUNT)
    items = batches_of(generate(plan, Shape(events=200, batches=4), 1))
    query = open_query(plan, str(tmp_path))
    kept = []
    for number, batch in enumerate(items):
        if number == 2:
            query = open_query(plan, str(tmp_path))
        query.feed(batch)
        assert query.driver.last is not None
        kept.append({n: query.driver.last.decisions[n] for n in ("store", "composition")})
    assert kept[0]["store"] != AUTO
    assert all(each == kept[0] for each in kept)


def test_a_store_is_not_chosen_before_there_are_events(tmp_path: Path) -> None:
    plan = window_plan("10 seconds", "2 seconds", store=AUTO, aggregates=COUNT)
    query = open_query(plan, str(tmp_path))
    query.feed([])
    assert query.driver.last is not None
    assert query.driver.last.decisions["store"] == AUTO
    query.feed(batches_of(generate(plan, Shape(events=50, batches=1), 1))[0])
    assert query.driver.last.decisions["store"] != AUTO
