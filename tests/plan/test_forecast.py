from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates import Aggregate
from icestream.operators.ordered import Frame
from icestream.operators.panes import Windows
from icestream.operators.session import Session
from icestream.plan import cost, lower
from icestream.plan.forecast import Load, forecast
from icestream.plan.nodes import Plan, Source, View, WindowKind

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
    [found] = forecast(made, Load(rate=1000, keys=80_000, pane_keys=8_000, event_bytes=94))
    spec = lower.window_spec(made)
    keys = cost.KeyCounts(((10 * SECOND, 8_000), (24 * HOUR, 80_000)))
    wanted = cost.estimate(
        [Windows(24 * HOUR, 10 * SECOND)],
        cost.Statistics(
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
    [before] = forecast(plan(windows), Load(rate, keys))
    grown = Load(rate * more, keys) if load else Load(rate, keys * more)
    [after] = forecast(plan(windows), grown)
    assert after.memory >= before.memory * 0.999
    assert after.traffic.bytes >= before.traffic.bytes * 0.999


def test_a_load_of_nothing_is_refused() -> None:
    with pytest.raises(DefinitionError, match="events and keys"):
        Load(rate=0, keys=10)
