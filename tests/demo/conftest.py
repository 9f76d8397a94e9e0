from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def report() -> Callable[..., dict[str, Any]]:
    """Make what a query reports after a batch."""

    def report_of(batch: int, rows: int, **own: Any) -> dict[str, Any]:
        return {
            "batchId": batch,
            "version": batch + 1,
            "numInputRows": rows,
            "inputRowsPerSecond": 900_000.0,
            "processedRowsPerSecond": 1_500_000.0,
            "durationMs": {
                "triggerExecution": 700,
                "ingest": 410,
                "component": 150,
                "commit": 9,
                "sink": 88,
            },
            "icestream": {
                "watermark": "2026-01-01T13:00:00+00:00",
                "lateEvents": 2,
                "stateMemoryBytes": 3 << 20,
                "budgetBytes": 64 << 20,
                "logBytes": 20 << 20,
                "groups": 24,
                "resultRows": 8640,
                **own,
            },
        }

    return report_of
