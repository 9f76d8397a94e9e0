from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY
from icestream.operators.latest.step import UpdateStep
from icestream.plan.nodes.queries import Source
from icestream.plan.nodes.updates import Latest, Updates
from tests.fixtures.update_streams import QUOTES, Costly, ManualClock, quotes_plan

PLAN = quotes_plan(Costly(ManualClock()))


def other_step(**changes: Any) -> Updates:
    return replace(PLAN, steps=(replace(PLAN.steps[0], **changes),))


@pytest.mark.parametrize(
    "changed",
    [
        replace(PLAN, sources=(Source("others", 0),)),
        replace(PLAN, columns=QUOTES.append(pa.field("volume", pa.int64()))),
        replace(PLAN, time=pa.timestamp("us")),
        replace(PLAN, latest=Latest(())),
        replace(PLAN, latest=None),
        other_step(result=PLAN.steps[0].result.append(pa.field("more", pa.int64()))),
        other_step(function=len),
        replace(PLAN, key_groups=16),
    ],
)
def test_every_part_of_an_update_plan_shows_in_its_description(changed: Updates) -> None:
    assert changed.describe() != PLAN.describe()


def test_schedule_and_time_may_change_between_two_runs() -> None:
    changed = replace(PLAN, latest=Latest(("symbol",), "fifo"), budget=5, interval=7)
    assert changed.describe() == PLAN.describe()


def test_no_event_is_late_for_all() -> None:
    reached = PLAN.watermark(MINUS_INFINITY, (10**15,))
    assert PLAN.late_before(reached) == MINUS_INFINITY


def test_a_schedule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DefinitionError, match="did you mean 'linecutting'"):
        Latest(("symbol",), "line-cutting")


def test_the_rows_are_those_of_the_step() -> None:
    assert isinstance(PLAN.views[0], UpdateStep)
    assert PLAN.results(PLAN.views[0]).names == ["symbol", "price", "ts"]
