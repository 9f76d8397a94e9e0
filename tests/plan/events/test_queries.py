from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.dataflow.steps import (
    Emit,
    Map,
    Merge,
    Receive,
    Regroup,
    Send,
    Stateful,
    Step,
)
from icestream.operators.lifetimes.output_modes import AppendOutput
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.queries import Source
from tests.fixtures import dataflow_plans as plans
from tests.fixtures.dataflow_plans import CLICKS, RATINGS, SECOND, PlanStream, dataflow
from tests.fixtures.plans import INSTANT

COUNT = Aggregate("count", None, "n")


def kinds(steps: tuple[Step, ...]) -> list[str]:
    return [type(step).__name__ for step in steps]


def test_a_node_that_is_used_twice_is_one_step() -> None:
    def twice(group: PlanStream) -> PlanStream:
        kept = group.where("rating > 2")
        left = kept.select("user", "item AS item1")
        return left.join(kept.select("user AS user2", "item AS item2"), hidden=["user2"])

    (steps,) = dataflow(PlanStream.of(RATINGS).apply(["user"], twice)).components
    assert sum("where" in step.text for step in steps if isinstance(step, Map)) == 1
    assert sum(isinstance(step, Receive) for step in steps) == 1


def test_what_is_done_to_an_ungrouped_stream_twice_is_one_step_too() -> None:
    counted = PlanStream.of(RATINGS).apply(["user"], lambda g: g.agg(COUNT)).where("n > 1")
    twice = counted.apply(["n"], lambda a, b: a.join(
        b.select("n AS n2", "user AS user2"), hidden=["n2"]), counted)  # fmt: skip
    first, _ = dataflow(twice).components
    assert sum("where" in step.text for step in first if isinstance(step, Map)) == 1
    assert kinds(first).count("Send") == 2


def test_edges_lead_forward() -> None:
    for make in (plans.recommender, plans.nested, plans.join_within, plans.united):
        flow = make()
        for number, edge in enumerate(flow.edges):
            assert (edge.source is None) != (edge.origin is None)
            assert edge.origin is None or edge.origin < edge.target
            receives = [s for s in flow.components[edge.target] if isinstance(s, Receive)]
            assert sum(step.edge == number for step in receives) == 1
            if edge.origin is not None:
                sends = [s for s in flow.components[edge.origin] if isinstance(s, Send)]
                assert [s.keys for s in sends if s.edge == number] == [edge.keys]
    assert len(plans.recommender().components) == 3


def test_components_are_put_in_order_whatever_the_order_they_were_met_in() -> None:
    # the left side of the last join comes from a source, the right one from another component
    counted = PlanStream.of(RATINGS).apply(["user"], lambda g: g.agg(COUNT))

    def both(left: PlanStream, right: PlanStream) -> PlanStream:
        return left.join(right.select("n AS n2", "user"), hidden=["n2"])

    flow = dataflow(PlanStream.of(RATINGS).select("item AS n").apply(["n"], both, counted))
    assert [(e.source, e.origin, e.target) for e in flow.edges if e.origin is not None] == [
        (None, 0, 1)
    ]


def test_a_scope_inside_another_is_a_grouping_of_the_same_component() -> None:
    (steps,) = plans.nested().components
    regroups = [step for step in steps if isinstance(step, Regroup)]
    assert [step.keys for step in regroups] == [("user", "item"), ("user",)]
    assert [step.grouping for step in steps if isinstance(step, Stateful)] == [1, 2]


def test_inputs_of_different_groupings_meet_in_one() -> None:
    def both(group: PlanStream) -> PlanStream:
        by_item = group.apply(["item"], lambda inner: inner.agg(COUNT))
        others = group.select("user AS user2", "rating")
        return by_item.join(others.select("user2 AS user", "user2", "rating").select(
            "user AS other", "rating"), hidden=["other"])  # fmt: skip

    flow = PlanStream.of(RATINGS).apply(
        ["user"], lambda g: both(g.select("user", "item", "rating"))
    )
    (steps,) = dataflow(flow).components
    (join,) = [s for s in steps if isinstance(s, Stateful) and "join" in s.text]
    assert {steps[number].grouping for number in join.inputs} == {join.grouping}


def test_events_are_not_sent_by_one_column_twice() -> None:
    ratings = PlanStream.of(RATINGS).select("user", "user AS again", "rating")
    counted = ratings.apply(["user", "again"], lambda group: group.agg(COUNT))

    def with_number(mine: PlanStream, numbers: PlanStream) -> PlanStream:
        return mine.join(numbers.select("user AS user2", "n"), hidden=["user2"])

    flow = dataflow(PlanStream.of(RATINGS).apply(["user"], with_number, counted))
    assert all(len({*edge.keys}) == len(edge.keys) for edge in flow.edges)


@pytest.mark.parametrize(("mode", "chosen"), [("now", 1), ("changes", 0)])
def test_only_where_the_past_is_forgotten_are_the_best_of_a_batch_sent(
    mode: str, chosen: int
) -> None:
    best = PlanStream.of(RATINGS).forever().apply(["user"], lambda group: group.top(2, "rating"))
    assert len(dataflow(best, mode).tops) == chosen
    windowed = PlanStream.of(RATINGS).window(12 * SECOND)
    counted = windowed.apply(["user"], lambda group: group.agg(COUNT))
    revised = counted.forever().apply(["n"], lambda group: group.top(2, "n"))
    assert not dataflow(revised, mode).tops


def test_maps_before_the_first_group_happen_where_events_come_from() -> None:
    flow = plans.join_within()
    assert flow.edges[0].texts[0] == "where rating IS NOT NULL"
    assert not [s for s in flow.components[0] if isinstance(s, Map) and "where" in s.text]


def test_a_union_of_sources_is_an_edge_for_each() -> None:
    flow = plans.united()
    assert [edge.source for edge in flow.edges] == [0, 1]
    assert kinds(flow.components[0])[:3] == ["Receive", "Receive", "Merge"]


def test_a_union_of_results_is_emitted_by_each_component() -> None:
    count = PlanStream.of(RATINGS).apply(["user"], lambda g: g.agg(COUNT))
    other = (
        PlanStream.of(RATINGS).apply(["item"], lambda g: g.agg(COUNT)).select("item AS user", "n")
    )
    flow = dataflow(count.union(other))
    assert len(flow.components) == 2
    assert all(isinstance(steps[-1], Emit) for steps in flow.components)


@pytest.mark.parametrize(("mode", "settles"), [("append", True), ("changes", False)])
def test_only_rows_that_may_be_revised_are_held_back_in_append_mode(
    mode: str, settles: bool
) -> None:
    def held(flow: Dataflow) -> bool:
        steps = flow.components[-1]
        return any(isinstance(s, Stateful) and isinstance(s.operator, AppendOutput) for s in steps)

    assert held(plans.best(mode)) == settles
    assert not held(plans.self_join(mode))


def test_views_are_emitted_each_in_its_mode() -> None:
    rated = PlanStream.of(RATINGS).apply(["user"], lambda g: g.agg(COUNT))
    outputs = ((rated.node, "changes"), (rated.where("n > 3").node, "append"))
    flow = compiled(outputs, {0: 0}, (Source("s", 0),), (RATINGS,), INSTANT)
    assert [view.mode for view in flow.views] == ["changes", "append"]
    assert [s.view for s in flow.components[0] if isinstance(s, Emit)] == [0, 1]
    assert flow.results(flow.views[0]).names == ["lifetime", "change", "user", "n"]


def test_sources_are_numbered_as_told() -> None:
    rated = PlanStream.of(RATINGS, 7).apply(
        ["user"], lambda a, b: a.difference(b), PlanStream.of(CLICKS, 3)
    )
    two = (Source("clicks", 0), Source("ratings", 0))
    flow = compiled(((rated.node, "changes"),), {3: 0, 7: 1}, two, (CLICKS, RATINGS), INSTANT)
    assert [edge.source for edge in flow.edges] == [1, 0]
    assert flow.batch_schema.names[2:] == ["s0_0", "s0_1", "s1_0", "s1_1", "s1_2"]


def test_the_reach_is_the_longest_that_something_may_take() -> None:
    flow = plans.difference()
    assert flow.reach == 8 * plans.SECOND
    assert flow.settled_by(100) == 101 + flow.reach


def test_merges_have_one_payload() -> None:
    (steps,) = plans.united().components
    (merge,) = [step for step in steps if isinstance(step, Merge)]
    assert all(steps[number].payload.equals(merge.payload) for number in merge.inputs)
    assert isinstance(merge.payload, pa.Schema)
