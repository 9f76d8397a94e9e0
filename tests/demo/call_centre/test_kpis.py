from __future__ import annotations

import pytest

from icestream.demo.call_centre.distributions import KEYS, SERVICES
from icestream.demo.call_centre.kpis import (
    DEMO,
    FIELDS,
    GROUPINGS,
    by_calls,
    group_name,
    show_count,
    show_hours,
    show_seconds,
)
from icestream.demo.call_centre.schema import COLUMNS


def test_all_fields_and_keys_are_columns() -> None:
    assert {*FIELDS, *GROUPINGS} <= set(COLUMNS)
    assert all(figure.field in COLUMNS for figure in DEMO if figure.field != "*")


def test_every_service_has_a_name() -> None:
    assert len({service.name for service in SERVICES}) == KEYS["serviceId"].cardinality
    assert group_name("serviceId", 1) == "Billing"
    assert group_name("serviceId", 99) == "serviceId 99"
    assert group_name("agentId", 17) == "agentId 17"


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (show_count(1234567), "1,234,567"),
        (show_seconds(41.26), "41.3 s"),
        (show_seconds(119.96), "120.0 s"),
        (show_seconds(307), "5:07 min"),
        (show_seconds(179.7), "3:00 min"),
        (show_hours(3600 * 1234.4), "1,234 h"),
    ],
)
def test_numbers_are_readable(shown: str, text: str) -> None:
    assert shown == text


def test_groups_are_ordered_by_calls() -> None:
    rows = [
        {"serviceId": 1, "calls": 5},
        {"serviceId": 2, "calls": 9},
        {"serviceId": 3, "calls": 7},
    ]
    assert [row["serviceId"] for row in by_calls(rows, 2)] == [2, 3]
