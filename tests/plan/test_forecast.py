from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.window_serving import WindowedBy
from icestream.plan.forecast import StreamLoad, forecast
from icestream.plan.grid import cost, lower
from icestream.plan.nodes.queries import Plan, Source, View, WindowKind
from icestream.plan.nodes.updates import Latest, Updates
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Windows
from icestream.plan.windows.session import Session
from icestream.state.queue.windows.spec import UpdateWindows
from tests.fixtures.plans import INSTANT

SECOND = 1_000_000
HOUR = 3600 * SECOND
COUNT = Aggregate("count", None, "n")


def plan(windows: WindowKind, *aggregates: Aggregate) -> Plan:
    return Plan(
        sources=(Source("s", 0),),
        keys=pa.schema([("k", pa.int64())]),
        inputs=pa.schema([("v", pa.int64())]),
        expressions=("v",),
        views=(View(windows, aggregates or (COUNT,), ((0,),), (0,)),),
        time=pa.timestamp("us", "UTC"),
    )


def test_windows_take_what_the_cost_model_says() -> None:
    made = plan(Windows(24 * HOUR, 10 * SECOND))
    [found] = forecast(made, StreamLoad(rate=1000, keys=80_000, pane_keys=8_000, event_bytes=94))
    spec = lower.window_spec(made)
    keys = cost.KeyCounts(((10 * SECOND, 8_000), (24 * HOUR, 80_000)))
    wanted = cost.estimate(
        [Windows(24 * HOUR, 10 * SECOND)],
        cost.WindowStatistics(
            rate=1000,
            tuple_bytes=94,
            keys=keys,
            entry_bytes=8 * spec.layout.entry_width,
            group_bytes=8 * spec.layout.group_width,
        ),
    )
    assert found.disk == wanted.panes.space.log
    assert found.traffic == wanted.panes.traffic
    assert found.memory > wanted.panes.space.memory
    assert found.note.startswith("panes because")


KINDS = [
    Windows(HOUR, HOUR),
    Windows(HOUR, SECOND),
    Session(60 * SECOND),
    Frame(range=HOUR),
    Frame(rows=10),
]


@pytest.mark.parametrize("windows", KINDS, ids=lambda kind: type(kind).__name__)
@given(rate=st.floats(1, 1e6), keys=st.floats(1, 1e6), more=st.floats(1, 100), load=st.booleans())
def test_more_load_never_takes_less(
    windows: WindowKind, rate: float, keys: float, more: float, load: bool
) -> None:
    [before] = forecast(plan(windows), StreamLoad(rate, keys))
    grown = StreamLoad(rate * more, keys) if load else StreamLoad(rate, keys * more)
    [after] = forecast(plan(windows), grown)
    assert after.memory + after.disk >= (before.memory + before.disk) * 0.999
    if before.note.split()[0] == after.note.split()[0]:
        assert after.memory >= before.memory * 0.999
        assert after.traffic.bytes >= before.traffic.bytes * 0.999


def test_frames_over_one_stream_are_forecast_together() -> None:
    load = StreamLoad(100, 50)
    alone = [forecast(plan(Frame(range=reach)), load)[0] for reach in (HOUR, 2 * HOUR)]
    one = plan(Frame(range=HOUR))
    other = replace(one.views[0], windows=Frame(range=2 * HOUR))
    [both] = forecast(replace(one, views=(*one.views, other)), load)
    assert both.operator == "a row per event over 1 hour, 2 hours"
    assert both.disk == alone[1].disk
    assert alone[1].memory < both.memory < alone[0].memory + alone[1].memory


def test_a_load_of_nothing_is_refused() -> None:
    with pytest.raises(DefinitionError, match="keys at least 1; got 0 and 10"):
        StreamLoad(rate=0, keys=10)


def test_windows_that_are_updates_cost_what_their_bounds_say() -> None:
    columns = pa.schema([("key", pa.int64()), ("at", INSTANT), ("price", pa.float64())])
    windows = UpdateWindows(60 * SECOND, 20 * SECOND)
    aggregates = (Aggregate("avg", "price", "mean"),)
    windowed = WindowedBy(columns, ("key",), "at", windows, aggregates, ("key",))
    step = UpdateStep(lambda rows: rows, columns, columns, ("key",))
    source = (Source("s", 0),)
    made = Updates(source, columns, INSTANT, (step,), Latest(("key",)), windowed=windowed)
    [found] = forecast(made, StreamLoad(rate=1000, keys=100))
    assert found.operator == "lazy windows of 1 minute every 20 seconds"
    # ten tuples a second of each key; three windows are open at once, of 60, 40 and 20 seconds
    assert found.per_window == pytest.approx((600, 1200))
    [one] = forecast(replace(made, windowed=None), StreamLoad(rate=1000, keys=100))
    assert one.per_window is None
    assert found.memory > one.memory
