"""Rows of windows while these are open, beside aggregates over copies of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from icestream.plan.events.dataflow import Dataflow
from icestream.testing.sources import Item
from tests.fixtures import dataflow_plans as plans
from tests.oracles.lifetimes import Bag
from tests.suites.dataflow_conformance import DataflowConformance, expected_rows


class _OpenConformance(DataflowConformance):
    """Rows beside those of the same query by copies, retracted ones included."""

    exact = True
    copying: ClassVar[Dataflow]

    def expected(self, items: Sequence[Item]) -> list[Bag]:
        return expected_rows(self.copying, items)


class TestOpenWindows(_OpenConformance):
    flow = plans.open_windows()
    copying = plans.open_windows(copies=True)


class TestOpenWindowsOfTops(_OpenConformance):
    flow = plans.open_windows_of_tops()
    copying = plans.open_windows_of_tops(copies=True)


class TestOpenWindowsOfObjects(_OpenConformance):
    flow = plans.open_windows_of_objects()
    copying = plans.open_windows_of_objects(copies=True)
