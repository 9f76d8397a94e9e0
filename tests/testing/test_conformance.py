from __future__ import annotations

from pathlib import Path

import pytest

from icestream.operators.grid import slice_log
from tests.fixtures.plans import window_plan
from tests.oracles.arrivals import Row
from tests.oracles.grid import ObviousWindows
from tests.suites import window_conformance
from tests.suites.window_conformance import small_sizes


class Suite(window_conformance.QueryConformance):
    plan = window_plan("6 seconds", "2 seconds", slack="1 second")


class Forgetful(ObviousWindows):
    """Emits one row less than it should."""

    def flush(self) -> list[Row]:
        return super().flush()[1:]


class WrongSuite(Suite):
    def oracle(self) -> ObviousWindows:
        return Forgetful(self.plan)


@pytest.mark.parametrize(
    "name",
    [
        "test_oracle_random_streams",
        "test_crash_between_any_two_batches",
        "test_rows_do_not_depend_on_batch_boundaries",
        "test_redelivery_returns_the_same_rows",
    ],
)
def test_the_suite_notices_a_row_too_many(tmp_path: Path, name: str) -> None:
    getattr(Suite(), name)(tmp_path / "right")
    with pytest.raises(AssertionError):
        getattr(WrongSuite(), name)(tmp_path / "wrong")


def test_small_sizes_are_put_back() -> None:
    before = slice_log.SLICE_BYTES
    with small_sizes(slice_bytes=512):
        assert slice_log.SLICE_BYTES == 512
    assert before == slice_log.SLICE_BYTES
