from __future__ import annotations

from dataclasses import replace

from icestream.operators.grid.composed_windows import FROM_PANES, Tiled
from icestream.plan.grid.lower import window_spec
from icestream.plan.windows.grid import Windows
from icestream.testing.sources import SECOND
from tests.fixtures.plans import window_plan


def tumbling(seconds: int) -> Windows:
    return Windows(seconds * SECOND, seconds * SECOND)


def test_families_come_after_those_they_are_made_of() -> None:
    plan = window_plan("1 second")
    (view,) = plan.views
    lengths = (30, 1, 20)
    plan = replace(plan, views=tuple(replace(view, windows=tumbling(n)) for n in lengths))
    spec = replace(
        window_spec(plan),
        tiled=(
            Tiled(tumbling(10), ((None, 10),)),
            Tiled(tumbling(20), ((tumbling(10), 2),)),
            Tiled(tumbling(30), ((tumbling(20), 1), (None, 10), (None, 10), (tumbling(20), 1))),
        ),
    )
    assert spec.windows == (tumbling(30), tumbling(1), tumbling(20), tumbling(10))
    assert [len(views) for views in spec.families] == [1, 1, 1, 0]
    assert spec.handing_on == {2, 3}
    for number, tiling in spec.tilings.items():
        before = spec.order[: spec.order.index(number)]
        assert {each for each in tiling.sources if each != FROM_PANES} <= set(before)
    panes = [tumbling(30), tumbling(1), tumbling(10)]
    assert spec.on_panes == tuple(each.on(spec.grid) for each in panes)


def test_nothing_is_read_where_all_of_a_window_leaves() -> None:
    tumbles, slides = window_plan("4 seconds"), window_plan("4 seconds", "2 seconds")
    ((first, end),) = window_spec(tumbles).leaves(0, 9 * SECOND)
    assert first >= end
    assert window_spec(slides).leaves(0, 9 * SECOND) == [(-2 * SECOND, 6 * SECOND)]
