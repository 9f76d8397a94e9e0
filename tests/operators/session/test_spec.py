from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.session.spec import SessionSpec
from icestream.plan.windows.session import Session


def test_an_aggregate_with_an_object_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"collect_list .*'all'.* use it over window"):
        SessionSpec(
            (Aggregate("collect_list", "x0", "all"),),
            pa.schema([]),
            pa.schema([("x0", pa.int64())]),
            Session(1),
        )


@pytest.mark.parametrize("gap", [0, -1_000_000])
def test_a_gap_that_is_not_positive_is_refused(gap: int) -> None:
    with pytest.raises(DefinitionError, match="gap must be positive"):
        Session(gap)


def test_an_event_is_late_when_the_watermark_reached_its_own_end() -> None:
    session = Session(10)
    assert session.late_before(MINUS_INFINITY) == MINUS_INFINITY
    for time in range(-3, 25):
        assert (time < session.late_before(20)) == (time + 10 <= 20)


def test_a_session_is_settled_by_its_end() -> None:
    assert Session(10).settled_by(5) == 15
    assert Session(10).describe() == {"kind": "session", "gap": "10 microseconds"}
