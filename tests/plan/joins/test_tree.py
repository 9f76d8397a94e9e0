from __future__ import annotations

import pytest

from icestream.core.errors import DefinitionError
from icestream.operators.dataflow.steps import JoinMany, Map, Trace
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.explain import explained_dataflow
from icestream.plan.nodes.spilling import Spilling
from tests.fixtures.dataflow_plans import PlanStream, dataflow
from tests.fixtures.join_plans import SCHEMAS, deferred, sources, tree


def flow_of(rows: PlanStream, count: int) -> Dataflow:
    return dataflow(rows, "append", SCHEMAS[:count])


def joins(flow: Dataflow) -> list[JoinMany]:
    return [s for steps in flow.components for s in steps if isinstance(s, JoinMany)]


def test_joins_by_one_key_are_one_join() -> None:
    a, b, c, _, _ = sources(None)
    inner = deferred(a, b, on=[("a1", "b1")], where="a < b")
    (join,) = joins(flow_of(deferred(inner, c, on=[("b1", "c1")], where="b < c"), 3))
    assert join.spec.ports == 3
    assert join.spec.payload.names == ["a1", "a2", "a", "b1", "b2", "b", "c1", "c2", "c"]
    assert join.spec.where is not None
    assert join.spec.where.columns == {"a", "b", "c"}


def test_keys_in_another_order_are_the_same_key() -> None:
    a, b, c, _, _ = sources(None)
    inner = deferred(a, b, on=[("a1", "b1"), ("a2", "b2")])
    flow = flow_of(deferred(c, inner, on=[("c1", "b2"), ("c2", "a1")]), 3)
    assert [step.spec.ports for step in joins(flow)] == [3]
    assert [edge.keys for edge in flow.edges] == [("c1", "c2"), ("a2", "a1"), ("b2", "b1")]


def test_joins_by_other_keys_stay_a_tree() -> None:
    assert [step.spec.ports for step in joins(tree())] == [3, 2, 2]


def test_results_that_are_used_twice_are_made_once() -> None:
    a, b, c, _, _ = sources(None)
    inner = deferred(a, b, on=[("a1", "b1")])
    both = deferred(inner, c, on=[("b1", "c1")]).select("a", "b").union(inner.select("a", "b"))
    assert [step.spec.ports for step in joins(flow_of(both, 3))] == [2, 2]


def test_joins_are_numbered_leaves_first() -> None:
    flow = tree()
    assert flow.join_components == {0: 0, 1: 1, 2: 2}
    assert flow.depths == (0, 1, 2)


def test_joins_of_equal_depth_do_not_wait_for_each_other() -> None:
    a, b, c, d, _ = sources(None)
    left, right = deferred(a, b, on=[("a1", "b1")]), deferred(c, d, on=[("c1", "d1")])
    assert flow_of(deferred(left, right, on=[("b2", "c2")]), 4).depths == (0, 0, 1)


def test_projections_pass_on_the_keys_of_all_joins_behind_them() -> None:
    flow = tree(narrow=True)
    (last,) = [s for s in flow.components[2] if isinstance(s, Trace)]
    assert not last.stored
    assert [each.join for each in last.lineages] == [2, 1, 0]
    for each in last.lineages:
        assert set(each.columns) <= set(last.payload.names)
    assert flow.views[0].payload.names == ["a", "b", "c", "d", "e"]
    (between,) = [s for s in flow.components[1] if isinstance(s, Trace)]
    assert between.stored


def test_joins_pass_on_the_keys_of_joins_behind_a_filter_that_stays() -> None:
    a, b, c, d, _ = sources(None)
    ab = deferred(a, b, on=[("a1", "b1"), ("a2", "b2")], spilling=Spilling())
    twice = ab.where("a % 5 <> 2")
    abc = deferred(twice, c, on=[("a1", "c1")], spilling=Spilling())
    rows = deferred(abc, d, on=[("b1", "d1"), ("b2", "d2")], spilling=Spilling())
    flow = flow_of(rows.select("a", "b").union(twice.select("a", "b")), 4)
    for trace in [s for steps in flow.components for s in steps if isinstance(s, Trace)]:
        for each in trace.lineages:
            assert set(each.columns) <= set(trace.payload.names)
    assert flow.views[0].payload.names == ["a", "b"]


def test_rows_of_a_union_are_traced_to_the_joins_of_their_part() -> None:
    a, b, c, d, _ = sources(None)
    ab = deferred(a, b, on=[("a1", "b1")]).select("a2 AS k", "a AS x")
    ac = deferred(a, c, on=[("a2", "c2")]).select("c1 AS k", "c AS x")
    united = ab.union(ac, b.select("b2 AS k", "b AS x"))
    flow = flow_of(deferred(united, d, on=[("k", "d1")]).select("x", "d"), 4)
    traces = [s for steps in flow.components for s in steps if isinstance(s, Trace)]
    assert [[each.join for each in s.lineages] for s in traces] == [[0, 1], [0, 1], [2, 0, 1]]
    assert [s.stored for s in traces] == [True, True, False]
    for trace in traces:
        for each in trace.lineages:
            assert set(each.columns) <= set(trace.payload.names)
    assert flow.views[0].payload.names == ["x", "d"]


def test_a_key_that_is_shown_is_not_carried_twice() -> None:
    a, b, _, _, _ = sources(None)
    flow = flow_of(deferred(a, b, on=[("a1", "b1")]).select("a1 AS key", "a + b AS sum"), 2)
    (trace,) = [s for s in flow.components[0] if isinstance(s, Trace)]
    assert trace.payload.names == ["key", "sum"]
    assert trace.lineages[0].columns == ("key",)
    assert not any(isinstance(s, Map) and "hidden" in s.text for s in flow.components[0])


def test_a_join_of_a_joins_results_with_themselves_is_traced_both_ways() -> None:
    a, b, _, _, _ = sources(None)
    inner = deferred(a, b, on=[("a1", "b1")])
    other = inner.select("a2 AS twin", "b AS other")
    flow = flow_of(deferred(inner.select("a2", "a"), other, on=[("a2", "twin")]), 2)
    (trace,) = [s for s in flow.components[1] if isinstance(s, Trace)]
    assert [each.join for each in trace.lineages] == [1, 0, 0]


def test_explain_shows_the_estimate_beside_what_a_running_query_measured() -> None:
    a, b, c, _, _ = sources(None)
    flow = flow_of(deferred(a, b, c, on=[("a1", "b1", "c1")]), 3)
    streams = [{"rows": rows, "keys": 10} for rows in (1_000, 20, 30)]
    report = {"icestream": {"joins": [{"join": 0, "streams": streams}]}}
    reported = explained_dataflow(flow, report)
    assert "expected  160.2 MB stored and 100,000,000 results, for 1,000,000 rows" in reported
    assert "measured  57.4 KB stored and 6,000 results, for 1,000 rows of 10 keys" in reported
    streams[2]["rows"] = 0
    assert "measured" not in explained_dataflow(flow, report)


def test_joins_of_a_plan_spill_by_one_rule() -> None:
    a, b, c, _, _ = sources(None)
    inner = deferred(a, b, on=[("a1", "b1")], spilling=Spilling(strategy="largest"))
    with pytest.raises(DefinitionError, match="share one spilling rule"):
        flow_of(deferred(inner, c, on=[("b2", "c1")]), 3)
