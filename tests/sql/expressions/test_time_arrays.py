"""Local times of zones beyond the tables that Arrow reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from icestream.sql.expressions.time_arrays import to_instant, to_local
from icestream.sql.expressions.types import NTZ, TIMESTAMP

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
#: local times around changes of clocks: a gap and an hour twice in Berlin, New York and Lord Howe
CHANGES = ("2045-03-26 02:00", "2045-10-29 02:00", "2045-03-12 02:00", "2045-11-05 01:00",
           "2045-10-01 02:00", "2045-04-02 01:30")  # fmt: skip


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Tokyo"]
)
def test_oracle_zones_have_their_rules_after_2037(zone: str) -> None:
    own, dice = ZoneInfo(zone), np.random.default_rng(1)
    near = [datetime.fromisoformat(each) for each in CHANGES]
    naive = [each + timedelta(minutes=int(m)) for each in near for m in range(-90, 100, 5)]
    first = datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    naive += [first + timedelta(minutes=int(m)) for m in dice.integers(0, 60 * 24 * 40_000, 500)]
    local = pa.array([*naive, None], NTZ)
    instants = [each.replace(tzinfo=own).astimezone(UTC) for each in naive]
    found = to_instant(local, zone).cast(pa.int64())
    assert found.to_pylist() == [*((each - EPOCH) // MICROSECOND for each in instants), None]
    shown = [each.astimezone(own).replace(tzinfo=None) for each in instants]
    assert to_local(pa.array([*instants, None], TIMESTAMP), zone).to_pylist() == [*shown, None]
