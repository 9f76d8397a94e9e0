from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from icestream.core.errors import CheckpointError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.events.dataflow import Dataflow, described
from icestream.plan.events.explain import explained_dataflow
from icestream.plan.evolution.rules import check_same_plan
from tests.fixtures import dataflow_plans as plans
from tests.fixtures.dataflow_plans import RATINGS, PlanStream, dataflow

ALL: dict[str, Callable[[], Dataflow]] = {
    "running aggregate": plans.running_aggregate,
    "self-join": plans.self_join,
    "join within": plans.join_within,
    "difference": plans.difference,
    "best": plans.best,
    "nested": plans.nested,
    "recommender": plans.recommender,
    "user-defined": plans.user_defined,
    "union": plans.united,
}


def counted(condition: str = "rating > 2", function: str = "count", key: str = "user") -> Dataflow:
    column = None if function == "count" else "rating"
    made = Aggregate(function, column, "n")
    return dataflow(PlanStream.of(RATINGS).where(condition).apply([key], lambda g: g.agg(made)))


def test_every_step_shows_in_the_description() -> None:
    for make in ALL.values():
        flow = make()
        reported = flow.describe()
        for number, steps in enumerate(flow.components):
            assert reported["components"][number] == [
                f"{place}: {described(step)}" for place, step in enumerate(steps)
            ]
        assert len(reported["edges"]) == len(flow.edges)
    descriptions = {json.dumps(make().describe(), sort_keys=True) for make in ALL.values()}
    assert len(descriptions) == len(ALL)


@pytest.mark.parametrize(
    "other",
    [
        counted("rating > 3"),
        counted(key="item"),
        dataflow(PlanStream.of(RATINGS).apply(["user"], lambda g: g.where("rating > 2").agg(
            Aggregate("count", None, "n")))),
        replace(counted(), late="keep"),
        replace(counted(), key_groups=8),
        replace(counted(), time=pa.timestamp("us")),
    ],
    ids=["a condition", "a key", "a step elsewhere", "late events", "key groups", "time"],
)  # fmt: skip
def test_dataflows_that_compute_something_else_describe_themselves_otherwise(
    other: Dataflow,
) -> None:
    assert other.describe() != counted().describe()


def test_an_output_mode_shows_in_the_description() -> None:
    assert plans.self_join("append").describe() != plans.self_join("changes").describe()
    assert plans.best("append").describe() != plans.best("changes").describe()


def test_a_checkpoint_of_other_columns_is_refused() -> None:
    flow = counted()
    wider = replace(flow, columns=(RATINGS.append(pa.field("more", pa.int64())),))
    with pytest.raises(CheckpointError, match="columns: the checkpoint has"):
        check_same_plan("/somewhere", flow.describe(), wider.describe())
    check_same_plan("/somewhere", flow.describe(), counted().describe())


def test_what_the_log_keeps_shows_in_the_description() -> None:
    flow = counted()
    store = replace(flow.cold.store, durability="evict")
    assert replace(flow, cold=replace(flow.cold, store=store)).describe() != flow.describe()


def test_the_same_dataflow_describes_itself_the_same_every_time() -> None:
    for make in ALL.values():
        assert make().describe() == make().describe()
        json.dumps(make().describe())


@pytest.mark.parametrize("name", ALL)
def test_an_explanation_names_sources_components_and_what_is_kept(name: str) -> None:
    flow = ALL[name]()
    text = explained_dataflow(flow)
    assert all(source.name in text for source in flow.sources)
    assert text.count("component  ") >= len(flow.components)
    for spec in flow.specs:
        assert all(kept.name in text for synopses in spec.groupings for kept in synopses)


def test_places_of_operators_in_a_store_do_not_overlap() -> None:
    for make in ALL.values():
        for spec in make().specs:
            used = [0] * len(spec.groupings)
            for step, place in zip(spec.steps, spec.places, strict=True):
                assert place == used[step.grouping]
                if hasattr(step, "operator"):
                    used[step.grouping] += len(step.operator.synopses)
            assert used == [len(synopses) for synopses in spec.groupings]
