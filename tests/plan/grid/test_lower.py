from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.grid import lower
from icestream.plan.grid.parts import parts_of
from icestream.plan.nodes.queries import Plan, View, WindowKind
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.plan.windows.grid import Cumulative
from icestream.plan.windows.session import Session
from tests.fixtures.plans import window_plan

SECOND = 1_000_000
NAMES = pa.schema([("x0", pa.string()), ("x1", pa.int64())])
COUNT = Aggregate("count", None, "n")


def plan_of(windows: WindowKind | None, *aggregates: Aggregate, store: str = "auto") -> Plan:
    return window_plan(inputs=NAMES, aggregates=aggregates, windows=windows, store=store)


def with_another(plan: Plan, windows: WindowKind) -> Plan:
    """Return the plan with a second view."""
    return replace(plan, views=(*plan.views, View(windows, (COUNT,), ((0,),), (0,))))


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        (plan_of(Session(SECOND), COUNT, store="tuples"), "Use the plan 'auto'"),
        (plan_of(None, Aggregate("median", "x1", "m"), store="tuples"), "Use the plan 'auto'"),
        (plan_of(Session(SECOND), Aggregate("median", "x1", "m")), "not available over sessions"),
        (plan_of(Session(SECOND), Aggregate("min", "x0", "m")), "min of a string"),
        (plan_of(Frame(rows=3), Aggregate("max", "x0", "m")), "max of a string"),
        (plan_of(None, Aggregate("sum", "x0", "m")), "sum needs a number"),
    ],
)
def test_a_plan_that_no_operator_runs_is_refused(plan: Plan, what: str) -> None:
    with pytest.raises(DefinitionError, match=what):
        lower.check(plan)


@pytest.mark.parametrize(
    ("plan", "operator"),
    [
        (plan_of(None, COUNT), "WindowOperator"),
        (plan_of(Cumulative(4 * SECOND, SECOND), COUNT), "WindowOperator"),
        (with_another(plan_of(None, COUNT), Cumulative(4 * SECOND, SECOND)), "WindowOperator"),
        (plan_of(None, COUNT, Aggregate("min", "x0", "m")), "ObjectOperator"),
        (plan_of(None, Aggregate("median", "x1", "m")), "ObjectOperator"),
        (plan_of(Session(SECOND), COUNT), "SessionOperator"),
        (plan_of(Frame(range=SECOND, slide=RowsSlide(2)), COUNT), "FrameOperator"),
    ],
)
def test_each_kind_of_view_has_its_operator(plan: Plan, operator: str) -> None:
    lower.check(plan)
    (part,) = parts_of(plan)
    assert lower._operator(part).__name__ == operator
    assert lower.takes_tuples(plan) == (operator != "WindowOperator")


def test_kinds_of_views_run_side_by_side() -> None:
    plan = with_another(with_another(plan_of(None, COUNT), Session(SECOND)), Frame(rows=3))
    lower.check(plan)
    assert [part.folded for part in parts_of(plan)] == [True, False, False]
    assert lower.lowered(plan).lifetimes == (
        *("0.panes", "0.changes", "0.base", "1.base"),
        *("2.merged", "2.arrivals", "2.settled", "2.base"),
    )


def test_sums_are_taken_back_and_extremes_are_not() -> None:
    assert lower.takes_back(plan_of(None, COUNT, Aggregate("avg", "x1", "a")))
    assert not lower.takes_back(plan_of(None, COUNT, Aggregate("max", "x1", "m")))
    assert not lower.takes_back(plan_of(Session(SECOND), COUNT))
