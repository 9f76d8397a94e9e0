"""Which aggregates of joins read both sides of the join instead of its pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow.steps import Stateful
from icestream.operators.lifetimes.join import StreamJoin
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.queries import Source
from tests.fixtures.dataflow_plans import CLICKS, RATINGS, PlanStream, dataflow

SECOND = 1_000_000
INSTANT = pa.timestamp("us", "UTC")
COUNT = Aggregate("count", None, "n")
TOTAL = Aggregate("sum", "rating", "total")
Change = Callable[[PlanStream], PlanStream]


def _pairs(where: str | None = None, *, ever: bool = False) -> PlanStream:
    def joined(left: PlanStream, right: PlanStream) -> PlanStream:
        names = [*left.node.payload.names, "clicker", "page"]
        residual = None if where is None else lambda rows: pa.array([True] * rows.num_rows)
        sides = left.node.payload, right.node.payload
        operator = StreamJoin(*sides, names, residual, hidden=["clicker"])
        return left.through(operator, "join", right, grows=True)

    ratings, clicks = PlanStream.of(RATINGS), PlanStream.of(CLICKS, 1)
    streams = [each.forever() if ever else each.window(SECOND) for each in (ratings, clicks)]
    return streams[0].apply(["user"], joined, streams[1])


def _makes_pairs(flow: Dataflow) -> bool:
    steps = (step for steps in flow.components for step in steps)
    return any(isinstance(s, Stateful) and isinstance(s.operator, StreamJoin) for s in steps)


def _aggregated(
    pairs: PlanStream,
    aggregates: Sequence[Aggregate] = (COUNT, TOTAL),
    mode: str = "append",
    keys: Sequence[str] = ("user",),
) -> Dataflow:
    totals = pairs.apply(keys, lambda group: group.agg(*aggregates))
    return dataflow(totals, mode, (RATINGS, CLICKS))


def test_sums_over_either_side_need_no_pairs() -> None:
    both = (COUNT, TOTAL, Aggregate("max", "page", "most"))
    assert not _makes_pairs(_aggregated(_pairs(), both))
    behind = _pairs().where("rating > 1").where("page < 9").select("user AS u", "rating", "page")
    assert not _makes_pairs(_aggregated(behind, both, keys=["u"]))


def test_groups_may_name_the_compared_column_of_either_side() -> None:
    ratings = PlanStream.of(RATINGS).window(SECOND).select("user AS k", "user AS mine", "rating")
    clicks = PlanStream.of(CLICKS, 1).window(SECOND).select("user AS k", "user AS theirs", "page")

    def joined(left: PlanStream, right: PlanStream) -> PlanStream:
        names = [*left.node.payload.names, "twin", "theirs", "page"]
        sides = left.node.payload, right.node.payload
        return left.through(StreamJoin(*sides, names, hidden=["twin"]), "join", right, grows=True)

    for key in ("k", "mine", "theirs"):
        pairs = ratings.apply(["k"], joined, clicks).select(f"{key} AS who", "rating", "page")
        assert not _makes_pairs(_aggregated(pairs, keys=["who"]))


def test_what_reads_both_sides_of_a_pair_makes_pairs() -> None:
    assert _makes_pairs(_aggregated(_pairs(where="rating < page")))
    assert _makes_pairs(_aggregated(_pairs().where("rating < page")))
    product = _pairs().select("user", "rating * page AS rating")
    assert _makes_pairs(_aggregated(product))
    covariance = Aggregate("covar_pop", "rating", "c", ("page",))
    assert _makes_pairs(_aggregated(_pairs(), [covariance]))


def test_aggregates_by_other_columns_make_pairs() -> None:
    assert _makes_pairs(_aggregated(_pairs(), keys=["user", "item"]))
    assert _makes_pairs(_aggregated(_pairs(), keys=["item"]))


def test_functions_of_the_order_or_content_of_pairs_make_pairs() -> None:
    for function in ("first", "collect_list", "median"):
        parameters = (0.5,) if function == "median" else ()
        call = Aggregate(function, "rating", "x", parameters=parameters)
        assert _makes_pairs(_aggregated(_pairs(), [call]))


def test_answers_at_once_need_no_pairs_if_events_never_end() -> None:
    assert _makes_pairs(_aggregated(_pairs(), mode="changes"))
    assert not _makes_pairs(_aggregated(_pairs(ever=True), mode="changes"))
    assert not _makes_pairs(_aggregated(_pairs(ever=True), mode="now"))
    most = [Aggregate("max", "rating", "most")]
    assert _makes_pairs(_aggregated(_pairs(ever=True), most, mode="changes"))


def test_pairs_that_others_read_are_made() -> None:
    pairs = _pairs()
    totals = pairs.apply(["user"], lambda group: group.agg(COUNT, TOTAL))
    outputs = (totals.node, "append"), (pairs.node, "append")
    sources = tuple(Source(name, 0) for name in "ab")
    flow = compiled(outputs, {0: 0, 1: 1}, sources, (RATINGS, CLICKS), INSTANT)
    steps = [step for steps in flow.components for step in steps if isinstance(step, Stateful)]
    (totals_step,) = [step for step in steps if step.text.startswith("aggregate")]
    assert _makes_pairs(flow)
    assert "of pairs" not in totals_step.text
